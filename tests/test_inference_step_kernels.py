"""The small kernels of a step, one by one, on a grid on the host: norm, gate, most likely token, joined parts."""

import _grid
import numpy as np
import pytest
from _grid_device import bench
from _modules import suite_module
from _poison import overwrite

from gpubench import plugins

SUITE = plugins.load("suites", "inference")
ATTENTION = suite_module("inference", "_attention")
pytestmark = pytest.mark.skipif(_grid.COMPILER is None, reason="needs g++")
AHEAD = np.zeros((5, 16), "uint8"), np.uint32(5), np.uint32(16), np.uint32(16)
HALVES = np.uint64(0), np.uint64(0), np.float32(0)  # no results in eight bits


def kernel(name, held=1):
    return _grid.kernel("inference/chain.cu", name, HELD=held)


def halves(rng, *shape):
    return rng.normal(size=shape).astype(np.float16)


@pytest.mark.parametrize("blocks", [1, 3, 7])
def test_the_most_likely_token_is_the_first_of_the_largest_logits_in_any_block(blocks):
    logits = halves(np.random.default_rng(1), 4, 1500)
    logits[0, [1400, 300, 1499]] = 9
    logits[1] = -np.abs(logits[1]) - 1  # no logit is positive
    logits[2] = -1
    logits[2, [77, 900]] = -0.0, 0.0  # two equal logits
    tokens, parts, arrived = np.zeros(4, "uint32"), np.zeros(4 * blocks, "uint64"), np.zeros(4, "uint32")
    for _ in range(2):  # the first launch must leave the counters as it found them
        kernel("most_likely")((blocks, 4), (256,), (logits, tokens, np.uint32(1500), parts, arrived))
        np.testing.assert_array_equal(tokens, logits.argmax(axis=1))
        tokens[:] = 0
    assert (arrived == 0).all()


@pytest.mark.parametrize(
    ("hidden", "threads", "held"), [(128, 32, 1), (132, 64, 1), pytest.param(400, 64, 2, marks=pytest.mark.slow)]
)
def test_a_norm_adds_the_update_to_the_residual_stream_and_divides_by_the_root_mean_square(hidden, threads, held):
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(2, hidden)).astype("float32"), halves(rng, 2, hidden)
    factors, out = rng.uniform(0.9, 1.1, hidden).astype("float32"), np.zeros((2, hidden), np.float16)
    shifts = np.full(hidden, np.nan, "float32")  # only layer norms have shifts
    sums = x + y.astype("float32")
    for adds in (1, 0):
        cells = (x, y, factors, shifts, out, np.uint32(hidden), np.uint32(adds), np.uint32(2))
        kernel("add_norm", held)((3,), (threads,), (*cells, *AHEAD, *HALVES))  # the third block prefetches
        np.testing.assert_array_equal(x, sums)
        exact = sums / np.sqrt((sums.astype(float) ** 2).mean(axis=1, keepdims=True) + 1e-5) * factors
        np.testing.assert_allclose(out.astype(float), exact, rtol=2**-10, atol=1e-6)


@pytest.mark.parametrize("scale", [0.0, 2.0**-5])
def test_activations_in_eight_bits_are_the_nearest_times_one_scale_or_one_for_128(scale):
    x = halves(np.random.default_rng(4), 3, 512)
    x[1, :128] = 0
    codes, scales = np.zeros((3, 512), "uint8"), np.full((4, 3), np.nan, "float32")
    kernel("to_eight")((2,), (256,), (x, codes, scales, np.uint32(3), np.uint32(4), np.float32(scale)))
    wide = np.zeros((3, 512))
    sizes = np.uint64(3), np.uint64(512), np.uint64(512), np.uint64(1), np.uint32(0)
    _grid.kernel("matrix_data.cu", "widen_float8_e4m3")((1,), (64,), (codes, np.uint64(0), *sizes, wide))
    if scale == 0:
        largest = np.abs(x).reshape(3, 4, 128).max(2).astype(float)
        np.testing.assert_allclose(scales.T, np.maximum(largest / 448, 1e-12), rtol=1e-3)
    each = np.repeat(scales.T if scale == 0 else np.full((3, 4), scale), 128, axis=1)
    np.testing.assert_allclose(wide * each, x.astype(float), rtol=2**-4, atol=float(each.max()) * 2**-9)


def test_a_gated_activation_is_silu_of_the_gate_times_the_value():
    both = halves(np.random.default_rng(3), 3, 2, 264)
    out = np.zeros((3, 264), np.float16)
    kernel("gate")((1,), (256,), (both, out, np.uint32(3 * 33), np.uint32(33), *AHEAD, *HALVES))
    gates, ups = both[:, 0].astype(float), both[:, 1].astype(float)
    np.testing.assert_allclose(out.astype(float), gates / (1 + np.exp(-gates)) * ups, rtol=2**-9, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "threads"), [(1, 128), (33, 128), (250, 128), (9, 256), (33, 512)])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 1, 128), (8, 1, 128), (2, 2, 64)])
def test_the_parts_of_a_sequence_join_to_the_same_result_for_any_number_of_parts(
    monkeypatch, tokens, threads, heads, kv_heads, dim
):
    """A part is the work of one block: there may be one, or many more than a warp has lanes."""
    shape = ATTENTION.AttentionShape(1, 8 * tokens, heads, kv_heads, dim)
    chunk = shape.stride(threads)
    plan = ATTENTION.AttentionPlan(threads, chunk, (-(-shape.context // chunk),))
    monkeypatch.setattr(ATTENTION.AttentionShape, "plan", lambda *_: plan)
    decode = ATTENTION.DecodeAttention(bench(SUITE), shape)
    overwrite(decode)
    for call in decode.calls():
        call()
    assert decode.check()["error"].value < 2**-11
