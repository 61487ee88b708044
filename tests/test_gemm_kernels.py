"""The kernels of few tokens and of random operands, run on the host by a grid whose threads take turns."""

from types import SimpleNamespace

import _grid
import _grid_device
import _nvrtc
import numpy as np
import pytest
from _modules import shared_modules

from gpubench import plugins
from gpubench.api import suite as gb

(GEMV,) = shared_modules("_matrix.gemv")
needs_compiler = pytest.mark.skipif(_grid.COMPILER is None, reason="needs g++")
FORMATS = {
    "float64": ("float64", 53),
    "float32": ("float32", 24),
    "float16": ("uint16", 11),
    "bfloat16": ("uint16", 8),
    "float8_e4m3": ("uint8", 4),
    "float8_e5m2": ("uint8", 3),
}
GREATEST = {"float8_e4m3": 448.0, "float8_e5m2": 57344.0}
ROWS, COLS = 37, 1280
WEIGHTS = {"float32": 0, "float16": 1, "bfloat16": 2, "int8": 3, "int4": 4}


def run(name, *args):
    _grid.kernel("matrix_data.cu", name)((3,), (64,), args)


def filled(dtype, count, seed=7, data=0, spread=1.0, first=0):
    """Return an array that the kernel filled; `data` chooses the kind of data, 0 the normal ones."""
    out = np.zeros(count, {"int8": "int8"}.get(dtype) or FORMATS[dtype][0])
    numbers = np.uint64(count), np.uint64(first), np.uint64(seed), np.uint32(data), np.float32(spread)
    run(f"fill_{dtype}", out, *numbers)
    return out


def widen(dtype, array, rows=1, cols=None, strides=None, lines=None):
    """Return an array as doubles, widened by the kernel for its type."""
    cols = cols or array.size
    out = np.zeros((rows, cols))
    sizes = (np.uint64(value) for value in (rows, cols, *(strides or (cols, 1))))
    run(f"widen_{dtype}", array, np.uint64(0) if lines is None else lines, *sizes, np.uint32(0), out)
    return out


def quantised(bits, rows, cols, order=0):
    """Return weights and scales as a kernel takes them, and as doubles; rows fill whole tiles."""
    room, exact, place = -(-rows // 16) * 16 * cols, np.zeros(rows * cols), (np.uint64(cols // 128), np.uint32(order))
    words, scales = np.zeros(room * bits // 32, "uint32"), np.zeros(room // 128, "uint16")
    run(f"quantise_int{bits}", words, scales, np.uint64(rows * cols // 128), *place, np.uint64(5), np.float32(0.5))
    run(f"restore_int{bits}", words, scales, np.uint64(0), np.uint64(exact.size), *place, exact)
    return words, scales, exact


@needs_compiler
def test_the_counted_clock_is_the_cycles_of_an_sm_over_the_nanoseconds():
    (product,) = shared_modules("_matrix.product")
    bench = _grid_device.bench(plugins.load("suites", "gemm"), "nvidia")
    stage = product.with_counted_clock(bench, gb.Stage(lambda: None))
    stage.lead()
    stage.call()
    assert stage.probe()["clock"].value == 2e9  # the grid's cycles last half a nanosecond


@needs_compiler
@pytest.mark.parametrize("dtype", FORMATS)
def test_operands_are_normal_and_rounded_to_the_nearest_of_their_format(dtype):
    storage, digits = FORMATS[dtype]
    values = widen(dtype, filled(dtype, 4096))[0]
    exact = filled("float32", 4096).astype(float)
    assert abs(values.mean()) < 0.05
    assert abs(values.std() - 1) < 0.03
    assert len(np.unique(values)) > (50 if digits < 8 else 700)
    ulp = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(exact), 2.0**-6))) + 1 - digits)
    assert (np.abs(values - exact) <= 0.5001 * ulp + 1e-6).all()
    del storage


@needs_compiler
def test_halves_are_rounded_as_numpy_rounds_them():
    np.testing.assert_array_equal(filled("float16", 4096).view("float16"), filled("float32", 4096).astype("float16"))


@needs_compiler
@pytest.mark.parametrize("dtype", GREATEST)
def test_eight_bit_numbers_round_trip_and_saturate(dtype):
    codes = np.arange(256, dtype=np.uint8)
    values = widen(dtype, codes)[0]
    finite = np.isfinite(values)
    assert np.abs(values[finite]).max() == GREATEST[dtype]
    assert np.count_nonzero(~finite) == {"float8_e4m3": 2, "float8_e5m2": 8}[dtype]
    assert (np.diff(values[:128][finite[:128]]) > 0).all()
    assert np.abs(widen(dtype, filled(dtype, 256, data=2, spread=1e6))).max() == GREATEST[dtype]
    for code in (1, 5, 9, 60, 100):  # subnormal and normal numbers
        assert (filled(dtype, 3, data=2, spread=float(values[code])) == code).all()


@needs_compiler
def test_data_of_the_kinds_ones_zeros_uniform_and_integers_have_those_values():
    assert (filled("float32", 500, data=2) == 1).all()
    assert (filled("bfloat16", 500, data=3) == 0).all()
    uniform = filled("float64", 4096, data=1)
    assert -1 <= uniform.min() < -0.99 < 0.99 < uniform.max() < 1
    integers = filled("int8", 4096)
    assert (integers.min() < -90, integers.max() > 90, round(integers.std())) == (True, True, 32)


@needs_compiler
def test_rows_and_columns_are_widened_to_double_precision_in_place():
    array = filled("float32", 6 * 10)
    matrix = array.reshape(6, 10).astype(float)
    lines = np.array([4, 0], np.int64)
    np.testing.assert_array_equal(widen("float32", array, 2, 10, (10, 1), lines), matrix[[4, 0]])
    np.testing.assert_array_equal(widen("float32", array, 10, 6, (1, 10)), matrix.T)


@needs_compiler
@pytest.mark.parametrize(("dtype", "spoiled"), [("float16", 0xFF), ("bfloat16", 0xFF), ("float64", 0xFF)])
def test_elements_that_are_not_written_are_counted(dtype, spoiled):
    array = filled(dtype, 300)
    array.view("uint8")[-2 * array.itemsize :] = spoiled
    count = np.zeros(1, "uint32")
    run(f"unusable_{dtype}", array, np.uint64(array.size), count)
    assert count[0] == 2


@needs_compiler
@pytest.mark.parametrize(("bits", "most", "low", "high"), [(8, 127, 0.005, 0.008), (4, 7, 0.10, 0.13)])
def test_the_scale_of_a_group_of_weights_is_that_of_its_largest_weight(bits, most, low, high):
    words, scales, exact = quantised(bits, 16, 1280)
    plain = filled("float32", 16 * 1280, seed=5, spread=0.5).astype(float)
    greatest = np.abs(plain).reshape(-1, 128).max(axis=1)
    np.testing.assert_array_equal(scales.view("float16"), (greatest / most).astype("float16"))
    assert (np.abs(exact - plain) <= 0.51 * np.repeat(scales.view("float16").astype(float), 128)).all()
    assert low < np.linalg.norm(exact - plain) / np.linalg.norm(plain) < high
    halves, tail = np.zeros(512, "uint16"), (np.uint64(384), np.uint64(512), np.uint64(10), np.uint32(0))  # four groups
    run(f"restore_int{bits}_half", words, scales, *tail, halves)
    np.testing.assert_array_equal(halves.view("float16"), exact[384:896].astype("float16"))
    for order in (1, 2):
        np.testing.assert_array_equal(quantised(bits, 16, 1280, order)[2], exact)


def operands(kind, tokens, order=0, rows=ROWS):
    """Return weights, scales and activations as the kernels take them, and both as doubles."""
    vectors = {"int8": "float16", "int4": "float16"}.get(kind, kind)
    x = filled(vectors, tokens * COLS, seed=3)
    wide_x = widen(vectors, x, tokens, COLS)
    if kind in ("int8", "int4"):
        words, scales, exact = quantised(int(kind[3:]), rows, COLS, order)
        return words, scales, x, exact.reshape(rows, COLS), wide_x
    w = filled(kind, rows * COLS, seed=4)
    return w, np.zeros(1, "uint16"), x, widen(kind, w, rows, COLS), wide_x


def relative(kind, product, tokens, exact):
    """Return the norm of the error of the product over the norm of the exact one."""
    vectors = {"int8": "float16", "int4": "float16"}.get(kind, kind)
    wide = widen(vectors, product, tokens, ROWS)
    return np.linalg.norm(wide - exact) / np.linalg.norm(exact)


BOUND = {"float32": 2e-6, "float16": 4e-4, "bfloat16": 3e-3, "int8": 4e-4, "int4": 4e-4}


@needs_compiler
@pytest.mark.parametrize(
    ("kind", "team", "share", "ahead"),
    [*((kind, 64, 2, 2) for kind in WEIGHTS), ("float16", 32, 1, 4), ("float16", 256, 4, 1)],
)
def test_a_matrix_vector_product_is_right_for_every_team_size(kind, team, share, ahead):
    w, scales, x, wide_w, wide_x = operands(kind, 1)
    y = np.full(ROWS, -1, x.dtype) if x.dtype.kind == "f" else np.full(ROWS, 0xFFFF, x.dtype)
    kernel = _grid.kernel("gemv.cu", "gemv", WEIGHTS=WEIGHTS[kind], TEAM=team, SHARE=share, AHEAD=ahead)
    blocks = -(-ROWS // (256 // team * share))
    kernel((blocks,), (256,), (w, scales, x, y, np.uint32(ROWS), np.uint32(COLS)))
    assert relative(kind, y, 1, wide_x @ wide_w.T) < BOUND[kind]


ONE, FEW, MANY = (1, 1, 1, 8, 2, 1, 1), (2, 2, 4, 1, 1, 3, 13), (8, 1, 4, 1, 1, 2, 64)
SKINNY = [
    ("float16", *ONE),
    ("float16", *MANY),
    ("bfloat16", *FEW),
    ("int8", *ONE),
    ("int8", *FEW),
    ("int4", *ONE),
    ("int4", *FEW),
]


@needs_compiler
@pytest.mark.parametrize("warp", [32, 64])  # NVIDIA's instructions, 8 tokens wide, and AMD's, 16 wide
@pytest.mark.parametrize(("kind", "tiles", "panels", "down", "across", "ahead", "splits", "tokens"), SKINNY)
def test_products_of_few_tokens_by_matrix_instructions_are_right_for_every_split(
    kind, tiles, panels, down, across, ahead, splits, tokens, warp
):
    tiles = -(-8 * tiles // (warp // 4))
    across = across if tiles == 1 else 1
    paired = int(kind.startswith("int") and (tiles, warp) == (1, 32))
    w, scales, x, wide_w, wide_x = operands(kind, tokens, 1 + paired)
    y = np.full(tokens * ROWS, 0xFFFF, "uint16")
    sizes = {"TILES": tiles, "PANELS": panels, "DOWN": down, "ACROSS": across, "AHEAD": ahead, "WARP": warp}
    kernel = _grid.kernel("skinny.cu", "skinny", WEIGHTS=WEIGHTS[kind], PAIRED=paired, **sizes)
    blocks = -(-ROWS // (16 * panels * down))
    partial, arrived = np.full(splits * tokens * ROWS, np.nan, "float32"), np.zeros(blocks, "uint32")
    numbers = np.uint32(ROWS), np.uint32(COLS), np.uint32(tokens)
    for _ in range(2):  # the first launch must leave the counters as it found them
        kernel((blocks, splits), (warp * down * across,), (w, scales, x, y, *numbers, partial, arrived))
        assert (arrived == 0).all()
    assert relative(kind, y, tokens, wide_x @ wide_w.T) < BOUND[kind]


GATED_ROWS = 48  # rows of y; the weights have twice as many


def gated(products):
    """Return the result of a gated product from all its products, which are divided by √COLS to be about one."""
    gates, ups = np.split(products, 2, axis=1)
    return gates / (1 + np.exp(-gates)) * ups


def gated_operands(kind, tokens, order):
    """Return operands whose products are about one, so that gates are neither open nor shut."""
    w, scales, _, wide_w, wide_x = operands(kind, tokens, order, 2 * GATED_ROWS)
    small = (wide_x / 32).astype("float16")
    return w, scales, small.view("uint16").ravel(), wide_w, small.astype(float)


@needs_compiler
@pytest.mark.parametrize("kind", ["float16", pytest.param("int4", marks=pytest.mark.slow)])
def test_a_gated_product_applies_each_row_as_the_gate_of_one_in_the_second_half(kind):
    w, scales, x, wide_w, wide_x = gated_operands(kind, 1, order=0)
    y = np.full(GATED_ROWS, 0xFFFF, "uint16")
    kernel = _grid.kernel("gemv.cu", "gemv", WEIGHTS=WEIGHTS[kind], TEAM=64, SHARE=4, AHEAD=2, GATED=1)
    kernel((-(-GATED_ROWS // 8),), (256,), (w, scales, x, y, np.uint32(GATED_ROWS), np.uint32(COLS)))
    np.testing.assert_allclose(y.view("float16")[None].astype(float), gated(wide_x @ wide_w.T), rtol=2e-3, atol=2e-3)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("warp", [32, 64])
@pytest.mark.parametrize(("kind", "splits", "tokens"), [("float16", 3, 13), ("int4", 1, 1), ("int4", 3, 1)])
def test_a_gated_product_by_matrix_instructions_is_the_same(kind, splits, tokens, warp):
    tiles = -(-tokens // (warp // 4))
    w, scales, x, wide_w, wide_x = gated_operands(kind, tokens, order=1)
    y = np.full(tokens * GATED_ROWS, 0xFFFF, "uint16")
    sizes = {"TILES": tiles, "PANELS": 4, "DOWN": 2, "ACROSS": 2 if tiles == 1 else 1, "AHEAD": 2, "WARP": warp}
    kernel = _grid.kernel("skinny.cu", "skinny", WEIGHTS=WEIGHTS[kind], GATED=1, **sizes)
    partial, arrived = np.full(2 * splits * tokens * GATED_ROWS, np.nan, "float32"), np.zeros(1, "uint32")
    numbers = np.uint32(GATED_ROWS), np.uint32(COLS), np.uint32(tokens)
    kernel((1, splits), (warp * 2 * sizes["ACROSS"],), (w, scales, x, y, *numbers, partial, arrived))
    values = y.view("float16").reshape(tokens, GATED_ROWS).astype(float)
    np.testing.assert_allclose(values, gated(wide_x @ wide_w.T), rtol=2e-3, atol=2e-3)


GROUPS = [
    ("int4", 13, False, 3),
    ("int4", 64, True, 4),
    ("int8", 20, True, 2),
    ("int8", 64, False, 9),
    ("int4", 100, True, 3),
    ("int4", 5, True, 1),
]


@needs_compiler
@pytest.mark.parametrize(("kind", "tokens", "is_gated", "blocks"), GROUPS)
def test_products_of_few_tokens_by_warpgroup_instructions_are_right_for_any_number_of_blocks(
    kind, tokens, is_gated, blocks, monkeypatch
):
    """Blocks end within panels of rows, whose sums the last of them adds up; X has fewer tokens than the kernel."""
    stored, rows = GEMV.KINDS[kind], GATED_ROWS if is_gated else 200
    w, scales, x, wide_w, wide_x = (gated_operands if is_gated else operands)(kind, tokens, 2, *[rows][is_gated:])
    monkeypatch.setattr(GEMV, "tensor_map", _grid.tensor_map)
    plan = GEMV.group_plan(stored, rows, COLS, tokens, is_gated)
    matrix = SimpleNamespace(kind=stored, rows=rows * (1 + is_gated), cols=COLS, words=w, scales=scales)
    kernel = _grid.kernel("skinny_wgmma.cu", "skinny_wgmma", **plan.defines(stored))
    sums, arrived = np.full(blocks * plan.part_bytes // 4, np.nan, "float32"), np.zeros(9, "uint32")
    y, power = np.full(tokens * rows, 0xFFFF, "uint16"), 16 if kind == "int4" else 20  # of weights of a spread of 1/2
    numbers = (np.uint32(size) for size in (rows, COLS, tokens, power))
    args = *plan.maps(matrix), _grid.tensor_map(x, tokens, COLS, plan.tokens, 64), y, *numbers, sums, arrived
    for _ in range(2):  # the first launch must leave the counters as it found them
        kernel((blocks,), (plan.threads,), args, plan.shared_bytes(stored))
        assert (arrived == 0).all()
    exact = gated(wide_x @ wide_w.T) if is_gated else wide_x @ wide_w.T
    error = np.linalg.norm(y.view("float16").reshape(tokens, rows).astype(float) - exact) / np.linalg.norm(exact)
    assert error < BOUND[kind]


@pytest.mark.skipif(_nvrtc.library() is None, reason="needs NVRTC")
@pytest.mark.slow
@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("tokens", [16, 32, 64, 128])
@pytest.mark.parametrize("rows", [4096, 28672])
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_products_by_warpgroup_instructions_compile_for_hopper_and_fit_an_sm(kind, rows, tokens, is_gated):
    stored = GEMV.KINDS[kind]
    plan = GEMV.group_plan(stored, rows, 8192, tokens, is_gated)
    assert plan.resident * (plan.shared_bytes(stored) + 1536) <= 228 * 1024
    options = [f"-D{name}={value}" for name, value in plan.defines(stored).items()]
    status, log = _nvrtc.compiled(_grid.source("skinny_wgmma.cu"), ["--gpu-architecture=sm_90a", *options])
    assert status == 0, log
    assert "serialized" not in log
