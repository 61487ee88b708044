"""One step of a whole model: its kernels on a grid on the host, against double precision."""

import _grid
import numpy as np
import pytest
from _earlier import expect_found
from _grid_device import bench, products_by_numpy
from _modules import room_module, suite_modules
from _poison import overwrite

from gpubench import plugins
from gpubench.base.errors import Skip, WrongAnswer

SUITE = plugins.load("suites", "inference")
CHAIN, ATTENTION, WEIGHTS, STEPS = suite_modules("inference", "_chain", "_prefill_attention", "_weights", "_steps")
MODELS = room_module("suites", "_models")
needs_compiler = pytest.mark.skipif(_grid.COMPILER is None, reason="needs g++")
SMALL = MODELS.model(128, 128, 2, 1, 2, 2, 150, "nowhere")  # two heads of 64 elements over one KV head, two layers
PLAIN = MODELS.model(
    128, 256, 2, 2, 1, 2, 150, "nowhere", norm="layer"
)  # as ChatGLM-6B: layer norm, no gate, no groups
MIXED = MODELS.mixture(128, 128, 2, 8, 3, 2, 150, "nowhere")  # eight experts, of which each token uses three


def chain(kind="float16", batch=1, context=40, vendor="nvidia", model=SMALL, chunk=0, **memory):
    paper = bench(SUITE, vendor, **memory)
    weights = WEIGHTS.ModelWeights(paper, model, kind, 0, batch)
    return CHAIN.DecodeChain(paper, weights, CHAIN.CacheMemory.drawn(weights, batch, context), batch, chunk)


def error_once(task):
    overwrite(task)
    for call in task.calls:
        call()
    return task.check()["error"].value


@needs_compiler
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("kind", "batch"),
    [
        ("float16", 1),
        *(
            pytest.param(*parameters, marks=pytest.mark.slow)
            for parameters in (("float16", 3), ("float16", 9), ("int8", 2), ("int4", 1), ("int4", 3))
        ),
    ],
)
def test_a_step_gives_the_logits_of_double_precision(kind, batch):
    decode = chain(kind, batch)
    assert 0 < error_once(decode) < 5e-3
    alone = CHAIN.DecodeChain(decode.chain.bench, decode.chain.weights, decode.memory, 1)
    assert decode.differing(alone) == 0
    for row in range(batch):
        exact = decode.expected(row)
        logits = decode.logits.view(np.float16).reshape(batch, -1)[row].astype(float)
        assert np.linalg.norm(logits - exact) < 5e-3 * np.linalg.norm(exact)


@needs_compiler
@pytest.mark.slow
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("batch", [1, 9])
def test_the_experts_of_a_mixture_are_those_of_double_precision_and_their_bytes_alone_count(batch):
    """Nine tokens: an expert has up to nine of them, which it takes three at once and then one by one."""
    decode = chain(batch=batch, model=MIXED)
    read_bytes = decode.weight_bytes()
    assert 0 < error_once(decode) < 5e-3
    routes = decode._experts.routes()
    assert routes.shape == (2, batch, 3)
    touched = sum(len(np.unique(layer)) for layer in routes)
    assert read_bytes == decode.chain.weights.nbytes - (16 - touched) * 3 * 128 * 128 * 2
    decode._experts.chosen[1, ::3] = decode._experts.chosen[1, 1::3]
    with pytest.raises(WrongAnswer, match="not distinct"):
        decode.expected(0)


@needs_compiler
@pytest.mark.slow
@pytest.mark.usefixtures("library")
def test_a_step_with_a_chunk_of_a_prompt_checks_the_last_token_of_both():
    decode = chain(batch=2, chunk=20)
    assert 0 < error_once(decode) < 5e-3
    decode._prompt.layers[1][0][19 * 64 :] = 0
    with pytest.raises(WrongAnswer, match="key or value of layer 1"):
        decode.check()


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "batch"), [("float16", 3), ("int4", 1)])
def test_layer_norm_and_gelu_are_those_of_double_precision(prefill, kind, batch):
    assert 0 < error_once(chain(kind, batch, model=PLAIN)) < 5e-3
    assert 0 < error_once(prefill(kind, model=PLAIN)) < 5e-3


@needs_compiler
@pytest.mark.slow
def test_the_check_of_a_step_finds_a_wrong_cache_a_wrong_token_and_unwritten_logits():
    """The second check compares with logits in double precision: another cache gives other logits."""
    decode = chain()
    assert error_once(decode) == error_once(decode)
    kept = decode.chain.caches[1][1].copy()
    decode.chain.caches[1][1][:640] = 0
    with pytest.raises(WrongAnswer, match="relative error"):
        error_once(decode)
    decode.chain.caches[1][1][:] = kept
    error_once(decode)
    decode.tokens[0] += 1
    with pytest.raises(WrongAnswer, match="largest logit"):
        decode.check()
    overwrite(decode)
    with pytest.raises(WrongAnswer, match="not written"):
        decode.check()


@pytest.fixture
def library(monkeypatch):
    """Replace the products of the vendor's library by those of NumPy."""
    monkeypatch.setattr(WEIGHTS, "tensor_map", _grid.tensor_map)
    for module in (room_module("suites", "_matrix.vendor"), ATTENTION):
        monkeypatch.setattr(module, "vendor", products_by_numpy)


@pytest.fixture
def prefill(library):
    def build(kind="float16", tokens=20, model=SMALL):
        paper = bench(SUITE, "nvidia")
        return CHAIN.PrefillChain(paper, WEIGHTS.ModelWeights(paper, model, kind, 0), tokens)

    return build


@needs_compiler
@pytest.mark.parametrize("kind", [pytest.param("float16", marks=pytest.mark.slow), "int4"])
def test_a_prefill_gives_the_logits_and_the_cache_of_double_precision(prefill, kind):
    assert 0 < error_once(prefill(kind)) < 5e-3


@needs_compiler
@pytest.mark.slow
def test_a_step_after_a_prefill_gives_the_logits_of_a_longer_prefill(prefill):
    """The keys and values that a prefill leaves are those that a step needs."""
    longer, step = prefill(tokens=20), chain(context=20)
    error_once(longer)
    step.chain.weights, step.chain.input[0] = longer.chain.weights, longer.chain.input[-1]
    step.chain.caches = [tuple(array.copy() for array in cache) for cache in longer.chain.caches]
    exact = step.expected(0)
    result = longer.logits.view(np.float16).astype(float)
    assert np.linalg.norm(result - exact) < 5e-3 * np.linalg.norm(exact)


@needs_compiler
@pytest.mark.slow
def test_the_check_of_a_prefill_finds_a_wrong_cache_and_unwritten_logits(prefill):
    task = prefill()
    assert error_once(task) == error_once(task)
    keys = task.chain.caches[1][0].copy()
    task.chain.caches[1][0][19 * 64 :] = 0
    with pytest.raises(WrongAnswer, match="key or value of layer 1"):
        task.check()
    task.chain.caches[1][0][:] = keys
    overwrite(task)
    with pytest.raises(WrongAnswer, match="not written"):
        task.check()


@needs_compiler
def test_a_model_that_exceeds_the_memory_is_skipped_with_a_message():
    with pytest.raises(Skip, match=r"needs .* of memory, .* are free"):
        chain(free=2**30)


@needs_compiler
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("what", "size"), [("step", (1, 24)), ("prefill", (8,))])
def test_an_earlier_answer_is_found_and_both_answers_are_known_after_the_first_check(monkeypatch, what, size):
    """The exact chain of a large model takes long: of two tokens it is computed in the first check alone."""
    paper, exact = bench(SUITE, "nvidia"), []
    logits = CHAIN.ExactChain.logits
    monkeypatch.setattr(CHAIN.ExactChain, "logits", lambda *args: exact.append(1) or logits(*args))
    task = getattr(STEPS, f"{what}_task")(paper, SMALL, "float16", *size)
    task.stages[""].call()
    task.check()
    assert len(exact) == 2
    expect_found(task, paper.open_device)
    assert len(exact) == 2
