"""One step of a whole model: its kernels on a grid on the host, against double precision."""

import sys

import _grid
import _nvrtc
import numpy as np
import pytest
from _grid_device import bench

from gpubench import plugins
from gpubench.base.errors import Skip, WrongAnswer

SUITE = plugins.load("suites", "inference")
CHAIN = sys.modules[f"{SUITE.package}._chain"]
MODELS = sys.modules[f"{SUITE.package.rpartition('.')[0]}._models"]
needs_compiler = pytest.mark.skipif(_grid.COMPILER is None, reason="needs g++")
SMALL = MODELS.model(128, 128, 2, 1, 2, 2, 150, "nowhere")  # two heads of 64 elements over one KV head, two layers


def chain(kind="float16", batch=1, context=40, vendor="nvidia", model=SMALL, **memory):
    return CHAIN.DecodeChain(bench(SUITE, vendor, **memory), model, kind, batch, context)


def once(found):
    found.poison()
    for call in found.calls:
        call()
    return found.check()["error"].value


@needs_compiler
@pytest.mark.parametrize(
    ("kind", "batch"),
    [
        ("float16", 1),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (("float16", 3), ("int8", 2), ("int4", 1), ("int4", 3))
        ),
    ],
)
def test_a_step_gives_the_logits_of_double_precision(kind, batch):
    found = chain(kind, batch)
    assert 0 < once(found) < 5e-3
    for row in range(batch):
        exact = found.expected(row)
        logits = found._room["head"].view(np.float16).reshape(batch, -1)[row].astype(float)
        assert np.linalg.norm(logits - exact) < 5e-3 * np.linalg.norm(exact)


@needs_compiler
def test_the_check_of_a_step_sees_a_wrong_cache_a_wrong_token_and_logits_that_are_not_written():
    found = chain()
    once(found)
    kept = found.caches[1][1].copy()
    found.caches[1][1][:640] = 0
    with pytest.raises(WrongAnswer, match="relative error"):
        found.check()
    found.caches[1][1][:] = kept
    found.tokens[0] += 1
    with pytest.raises(WrongAnswer, match="most likely"):
        found.check()
    found.poison()
    with pytest.raises(WrongAnswer, match="not written"):
        found.check()


@needs_compiler
def test_a_model_that_exceeds_the_memory_is_skipped_in_words():
    with pytest.raises(Skip, match=r"needs .* of memory, .* are free"):
        chain(free=2**30)


def test_a_network_without_a_gate_is_skipped_in_words():
    with pytest.raises(Skip, match="gated"):
        chain(model=MODELS.MODELS["chatglm-6b"])


@pytest.mark.skipif(_nvrtc.library() is None, reason="needs NVRTC")
@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_the_kernels_compile_for_nvidia(arch):
    status, log = _nvrtc.compiled(_grid.source("inference/chain.cu"), [f"--gpu-architecture={arch}"])
    assert status == 0, log
