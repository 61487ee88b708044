"""Attention of a prompt and ChatGLM-6B's layers on a real GPU, against double precision."""

import pytest
from _modules import room_module, suite_modules

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.measuring import inventory
from gpubench.measuring.engine import Engine
from gpubench.measuring.stopping import POLICIES
from gpubench.model import Case

pytestmark = pytest.mark.gpu
SUITE = plugins.load("suites", "inference")
ATTENTION, STEPS = suite_modules("inference", "_prefill_attention", "_steps")
MODELS = room_module("suites", "_models")
PLAIN = MODELS.model(1024, 4096, 8, 8, 1, 3, 1500, "nowhere", norm="layer")  # as ChatGLM-6B, three layers
MIXED = MODELS.mixture(1024, 512, 8, 16, 4, 3, 1500, "nowhere")


def bench(gpu, *params):
    gpu.xp.get_default_memory_pool().free_all_blocks()
    return Bench(gpu, Case("inference", "small", params), Target(inventory.facts(), gpu.device), SUITE.package, 1)


@pytest.mark.parametrize("kv_heads", [8, 32])
@pytest.mark.parametrize("tokens", [128, 1000])
@pytest.mark.parametrize("by", ["unfused", "triton", "torch", "cudnn"])
def test_every_library_gives_the_attention_of_double_precision(gpu, by, tokens, kv_heads):
    """1000 tokens end within a block of our kernel."""
    if by != "unfused":
        pytest.importorskip("torch" if by == "cudnn" else by)
    shape = ATTENTION.PromptShape(tokens, 32, kv_heads, 128)
    measured = Engine(gpu, POLICIES["smoke"]).measure(ATTENTION.PrefillAttention(bench(gpu), shape, by).task())
    assert 0 < next(series for series in measured.series if series.name == "error").values[0] < 2**-9


@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize("kind", ["float16", "int8", "int4"])
def test_a_step_with_layer_norms_and_gelu_is_that_of_double_precision(gpu, kind, batch):
    task = STEPS.step_task(bench(gpu, ("batch", batch)), PLAIN, kind, batch, 700)
    measured = {series.name: series for series in Engine(gpu, POLICIES["smoke"]).measure(task).series}
    assert 0 < measured["error"].values[0] < 5e-3
    assert measured["peak_memory"].values[0] > PLAIN.size * {"float16": 2, "int8": 1, "int4": 0.5}[kind]


@pytest.mark.parametrize("batch", [1, 16, 64])
def test_a_step_of_a_mixture_of_experts_is_that_of_double_precision(gpu, batch):
    task = STEPS.step_task(bench(gpu, ("batch", batch)), MIXED, "float16", batch, 300)
    measured = {series.name: series for series in Engine(gpu, POLICIES["smoke"]).measure(task).series}
    assert 0 < measured["error"].values[0] < 5e-3


@pytest.mark.parametrize("kind", ["float16", "int4"])
def test_a_prefill_with_layer_norms_and_gelu_is_that_of_double_precision(gpu, kind):
    task = STEPS.prefill_task(bench(gpu, ("tokens", 500)), PLAIN, kind, 500)
    measured = {series.name: series for series in Engine(gpu, POLICIES["smoke"]).measure(task).series}
    assert 0 < measured["error"].values[0] < 5e-3
