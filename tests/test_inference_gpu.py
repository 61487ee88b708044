"""Decode attention and steps on a real GPU: all are checked against double precision, and checks can fail."""

import dataclasses

import numpy as np
import pytest
from _grid import SUITES
from _modules import room_module, suite_module
from _poison import overwrite

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import WrongAnswer
from gpubench.measuring import inventory
from gpubench.measuring.engine import Engine
from gpubench.measuring.stopping import POLICIES
from gpubench.model import Case

pytestmark = pytest.mark.gpu
SUITE = plugins.load("suites", "inference")
ATTENTION = suite_module("inference", "_attention")
STEPS = suite_module("inference", "_steps")
MODELS = room_module("suites", "_models")
in_turn = room_module("suites", "_checks").in_turn
Shape, DecodeAttention = ATTENTION.AttentionShape, ATTENTION.DecodeAttention
SMALL = Shape(batch=3, context=2000, heads=32, kv_heads=8, dim=128)
SHAPES = [
    SMALL,
    Shape(batch=1, context=1, heads=32, kv_heads=8, dim=128),
    Shape(batch=2, context=777, heads=64, kv_heads=8, dim=128),
    Shape(batch=2, context=777, heads=32, kv_heads=32, dim=128),
    Shape(batch=2, context=777, heads=16, kv_heads=8, dim=64),
    Shape(batch=64, context=8192, heads=32, kv_heads=8, dim=128),
]


def attention(gpu, shape=SMALL, order="ordered"):
    target = Target(inventory.facts(), gpu.device)
    case = Case("inference", "decode_attention", (("batch", shape.batch), ("context", shape.context)))
    return DecodeAttention(Bench(gpu, case, target, SUITE.package, 1), shape, order)


def error(task):
    """Run the attention over every copy once on overwritten results, and return the error of the check."""
    overwrite(task)
    for call in task.calls():
        call()
    return float(task.check()["error"].value)


@pytest.mark.parametrize("shape", SHAPES)
def test_sampled_heads_are_those_of_double_precision(gpu, shape):
    assert error(attention(gpu, shape)) < 2**-11


@pytest.mark.parametrize("order", ["ordered", "shuffled"])
@pytest.mark.parametrize("page", [16, 64, 256])
def test_pages_in_any_order_give_the_same_as_one_run(gpu, page, order):
    assert error(attention(gpu, dataclasses.replace(SMALL, page=page), order)) < 2**-11


def test_a_kernel_that_reads_beyond_a_length_meets_nan_and_a_wrong_key_is_seen(gpu):
    decode = attention(gpu)
    decode._lengths[:] = SMALL.context
    with pytest.raises(WrongAnswer, match="NaN"):
        error(decode)
    decode = attention(gpu)
    for call in decode.calls():
        call()
    decode.caches[0].keys[:] = gpu.xp.roll(decode.caches[0].keys, 128)
    with pytest.raises(WrongAnswer, match="relative error"):
        decode.check()


def test_attention_over_rotated_buffers_stays_below_the_peak_of_the_memory(gpu):
    decode = attention(gpu, Shape(batch=8, context=4096, heads=32, kv_heads=8, dim=128))
    series = Engine(gpu, POLICIES["quick"]).measure(decode.task()).series[0]
    assert series.mode == "rotated"
    assert 1e11 < series.work.moved / np.median(series.values) < 6e12


ADDS_ONE = """
extern "C" __global__ void add_one(const u32* from, u32* to, u32 count) {
    gb_allow_next();
    gb_wait_for_previous();
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        to[i] = from[i * 7919u % count] + 1;
}
"""


@pytest.mark.parametrize("mode", ["hot", "graph"])
def test_a_kernel_that_is_launched_early_reads_the_results_of_the_kernel_before_it(gpu, mode):
    """Each launch reads the results of other blocks of the launch before it, and overwrites its input."""
    kernel = gpu.kernel((SUITES / "prelude.cuh").read_text() + ADDS_ONE, "add_one", {})
    written, read_back = gpu.xp.zeros(2**20, "uint32"), gpu.xp.zeros(2**20, "uint32")

    def call():
        for pair in [(written, read_back), (read_back, written)] * 100:
            kernel.early((512,), (256,), (*pair, np.uint32(2**20)))

    gpu.time(call, 3, mode)
    copied = gpu.to_host(written)
    assert copied[0] % 600 == 0
    assert copied[0] > 0
    assert (copied == copied[0]).all()


SMALL_MODEL = MODELS.model(1024, 2816, 8, 2, 2, 3, 1500, "nowhere")  # heads of 128 elements, three layers


def small_bench(gpu, *params):
    return Bench(gpu, Case("inference", "small", params), Target(inventory.facts(), gpu.device), SUITE.package, 1)


EIGHT = ("float8", "float8_blocks")


@pytest.mark.parametrize(
    ("kind", "batch"),
    [
        *((kind, batch) for kind in ("float16", "int8", "int4") for batch in (1, 3, 16, 64, 128)),
        *((kind, batch) for kind in EIGHT for batch in (16, 64)),
    ],
)
def test_a_step_gives_the_logits_of_double_precision_and_runs_as_a_graph(gpu, kind, batch):
    task = STEPS.step_task(small_bench(gpu, ("batch", batch)), SMALL_MODEL, kind, batch, 700)
    measured = Engine(gpu, POLICIES["smoke"]).measure(task)
    assert measured.series[0].mode == "graph"
    error = next(series for series in measured.series if series.name == "error").values[0]
    assert 0 < error < (0.08 if kind in EIGHT else 5e-3)


def test_attention_has_its_cache_right_after_a_product_with_much_shared_memory(gpu):
    model = MODELS.model(4096, 4096, 32, 8, 2, 2, 1500, "nowhere")
    _, *layers = STEPS.decode_step(small_bench(gpu), model, "int4", 64, 2048).calls
    attend, out = layers[2:14:7], layers[3:14:7]

    def seconds(calls):
        return gpu.time(in_turn(*calls), 5, "graph").device[0]

    assert seconds([*layers[2:4], *layers[9:11]]) < 1.1 * (seconds(attend) + seconds(out))  # 1.2 with a small cache


@pytest.mark.parametrize(("kind", "tokens"), [("float16", 1000), ("int4", 128), ("int4", 1000), ("float8", 128)])
def test_a_prefill_gives_the_logits_and_the_cache_of_double_precision(gpu, kind, tokens):
    task = STEPS.prefill_task(small_bench(gpu, ("tokens", tokens)), SMALL_MODEL, kind, tokens)
    measured = Engine(gpu, POLICIES["smoke"]).measure(task)
    error = next(series for series in measured.series if series.name == "error").values[0]
    assert 0 < error < (0.08 if kind in EIGHT else 5e-3)
