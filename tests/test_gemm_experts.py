"""Grouped products of a mixture of experts and FP8 products with scales: loads, layouts, arguments, failing checks."""

import ctypes
import dataclasses
import re
import sys
import types

import numpy as np
import pytest
from _earlier import expect_found
from _grid import needs_compiler
from _grid_device import bench, products_by_numpy
from _modules import shared_modules, suite_modules
from _numpy_triton import ElementPointer, NumpyTriton
from _poison import called

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.task import Task
from gpubench.base import installation
from gpubench.base.errors import Skip, SuiteError, WrongAnswer
from gpubench.model import Case, Device, Facts

SUITE = plugins.load("suites", "gemm")
EXPERTS, GROUPED, SCALED = suite_modules("gemm", "_experts", "_grouped", "_scaled")
FORMATS, VENDOR = shared_modules("_matrix.formats", "_matrix.vendor")
H200 = Device("cuda:0", "cupy", "NVIDIA H200", "sm_90", memory_bytes=140 * 2**30, dtypes=("bfloat16", "float8_e4m3"))
HALF, EIGHT = FORMATS.PRECISIONS["float16"], FORMATS.PRECISIONS["float8_e4m3"]


def loads_of(*loads):
    return GROUPED.ExpertLoads(np.array(loads))


def test_the_loads_follow_zipfs_law_and_a_seed_chooses_the_popular_experts():
    loads = GROUPED.zipf_loads(10**6, 16, 1)
    np.testing.assert_allclose(loads[0] / loads, np.arange(1, 17), rtol=1e-3)
    loads = GROUPED.ExpertLoads.drawn(bench(SUITE), 8192, 64, 1)
    assert sorted(loads.loads, reverse=True) == GROUPED.zipf_loads(8192, 64, 1).tolist()
    assert loads.loads.tolist() != sorted(loads.loads, reverse=True)
    assert loads.loads.tolist() == GROUPED.ExpertLoads.drawn(bench(SUITE), 8192, 64, 1).loads.tolist()


def test_experts_without_tokens_have_no_product_and_their_weights_are_not_counted():
    layout = loads_of(3, 0, 5)
    assert layout.parts == [(0, 0, 3), (2, 3, 5)]
    work = layout.work(n=16, k=32, itemsize=2)
    assert work.flops == 2 * 8 * 16 * 32
    assert work.moved == 2 * (2 * 16 * 32 + 8 * 16 + 8 * 32)
    assert layout.notes["tokens of an expert"] == "0 to 5; 2 of 3 experts have tokens"


@pytest.mark.parametrize(("tokens", "experts"), [(0, 8), (8, 0)])
def test_zero_tokens_and_zero_experts_are_refused_with_a_message(tokens, experts):
    with pytest.raises(SuiteError, match=f"{tokens} tokens for {experts} experts: needs one or more of each"):
        GROUPED.ExpertLoads.drawn(bench(SUITE), tokens, experts, 1)


def host_task(skew=1):
    """Return the task of the grouped product on the host with this skew."""
    host = plugins.load("backends", "host").devices()[0]
    cases = SUITE.cases(Target(Facts((host,)), host, "full"))
    case = next(case for case in cases if case.name == "grouped" and case.param("skew") == skew)
    opened = plugins.load("backends", "host").open(host)
    return SUITE.build(dataclasses.replace(bench(SUITE), case=case, open_device=opened))


def test_the_host_multiplies_each_experts_tokens_and_checks_every_element():
    task = host_task()
    stage = task.stages["loop"]
    called(task, "not written")
    assert stage.work.flops == 2 * 1024 * 256 * 256
    assert stage.probe()["of dense"].value > 0


def test_an_expert_with_another_experts_weights_is_found_on_the_host():
    task = host_task()
    call = task.stages["loop"].call
    held = {name: cell.cell_contents for name, cell in zip(call.__code__.co_freevars, call.__closure__, strict=True)}
    call()
    rows, _ = held["parts"][2]
    held["y"][rows] = held["x"][rows] @ held["weights"][held["parts"][3][1]].T
    with pytest.raises(WrongAnswer):
        task.check()


def on_paper(monkeypatch, *loads):
    monkeypatch.setattr(GROUPED, "vendor", products_by_numpy)
    return GROUPED.GroupedProducts(bench(SUITE), HALF, loads_of(*loads), 48, 64)


@needs_compiler
def test_the_products_of_all_experts_pass_their_check_and_a_wrong_one_does_not(monkeypatch):
    products = on_paper(monkeypatch, 5, 0, 17, 1, 9)
    products.y.view("int8").fill(-1)
    with pytest.raises(WrongAnswer, match="not written"):
        products.check()
    products.by_loop()()
    assert 0 < products.check()["error"].value < 1e-3
    y = products.y.view("float16").reshape(-1, 48)
    y[22] = y[3]  # the only token of the fourth expert gets the result of another token
    with pytest.raises(WrongAnswer):
        products.check()


@needs_compiler
def test_an_earlier_answer_is_found_though_several_stages_share_the_tokens(monkeypatch):
    products = on_paper(monkeypatch, 5, 0, 17, 1, 9)
    stages = {name: products.stage(products.by_loop(), 1, is_compared=False) for name in ("one", "other")}
    task = Task(stages, products.check)
    expect_found(task, products._bench.open_device, products.y)


@needs_compiler
@pytest.mark.parametrize("name", ["block128", "row", "mxfp8", "nvfp4"])
def test_an_earlier_answer_of_a_product_with_scales_is_found(name):
    operands = scaled_operands(name)

    def call():
        operands.c[:] = computed(operands, name)

    task = Task.of(operands.stage(call), check=operands.check)
    expect_found(task, bench(SUITE).open_device, operands.c)


@needs_compiler
def test_the_products_on_several_streams_are_each_made_once_and_on_the_stream_that_runs_them(monkeypatch):
    products = on_paper(monkeypatch, 5, 0, 17, 1, 9, 2, 3, 4, 6, 7, 8)
    device, lanes = products._bench.open_device.host, []

    def together(*calls):
        for lane, call in enumerate(calls):
            lanes.append(lane)
            call()

    monkeypatch.setattr(device, "together", together)
    made = []
    monkeypatch.setattr(
        GROUPED, "vendor", lambda *arguments: made.append((lanes[-1], arguments)) or products_by_numpy(*arguments)
    )
    call = products.by_streams()
    rows = [arguments[1].shape.m for _, arguments in made]
    assert sorted(rows) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 17]
    assert [lane for lane, _ in made] == [0, 0, 1, 1, 2, 3, 4, 5, 6, 7]
    assert rows[:4] == [17, 2, 9, 1]
    workspaces = [arguments[2].ctypes.data for _, arguments in made]
    assert len(set(workspaces)) == 8, "products that run at the same time share no workspace"
    products.y.view("int8").fill(-1)
    call()
    assert 0 < products.check()["error"].value < 1e-3


@needs_compiler
def test_a_loop_that_leaves_an_expert_out_is_found(monkeypatch):
    products = on_paper(monkeypatch, 5, 3)
    calls = products.by_loop().__closure__[0].cell_contents
    products.y.view("int8").fill(-1)
    calls[0]()
    with pytest.raises(WrongAnswer, match=f"{3 * 48} elements of Y are not written"):
        products.check()


def test_batches_of_a_loop_fit_the_launch_queue(monkeypatch):
    products = object.__new__(GROUPED.GroupedProducts)
    products.__dict__ |= {"_layout": loads_of(1), "n": 1, "k": 1, "precision": HALF, "_bench": bench(SUITE)}
    products._dense = products._redraw = None
    products.y = np.zeros(1)
    assert [products.stage(print, launches).max_calls for launches in (1, 8, 64, 128, 1000)] == [64, 64, 8, 4, 1]
    assert products.stage(print, 1).probe is not None
    assert products.stage(print, 64, is_compared=False).probe is None


class AddressedArray:
    """An array that has `data.ptr` as CuPy's arrays have."""

    def __init__(self, array):
        self.array = array
        self.data = types.SimpleNamespace(ptr=array.ctypes.data)


class FakeCublas:
    """cublasGemmGroupedBatchedEx by NumPy, from its addresses and numbers alone."""

    class cuBLASError(Exception):  # noqa: N801 - the binding's name
        status = 15

    def __init__(self, refuses=False):
        self.refuses = refuses
        self.stream = None

    def set_stream(self, handle, stream):
        self.stream = handle, stream

    def get_version(self, handle):
        return 130000 + handle

    def gemm_grouped_batched_ex(
        self,
        handle,
        transa,
        transb,
        m,
        n,
        k,
        alpha,
        a,
        atype,
        lda,
        b,
        btype,
        ldb,
        beta,
        c,
        ctype,
        ldc,
        count,
        size,
        compute,
    ):
        """Multiply each group as cuBLAS does: column-major operands at the addresses that it gets."""
        if self.refuses:
            raise self.cuBLASError
        assert (handle, atype, btype, ctype, compute) == (7, 2, 2, 2, 68)
        sizes = [np.ctypeslib.as_array((ctypes.c_int * count).from_address(at)) for at in (transa, transb, m, n, k)]
        pitches = [np.ctypeslib.as_array((ctypes.c_int * count).from_address(at)) for at in (lda, ldb, ldc, size)]
        matrices = [np.ctypeslib.as_array((ctypes.c_uint64 * count).from_address(at)) for at in (a, b, c)]
        scalars = [np.ctypeslib.as_array((ctypes.c_float * count).from_address(at)) for at in (alpha, beta)]
        for i in range(count):
            first, second, rows, columns, inner = (int(array[i]) for array in sizes)
            assert (first, second, int(pitches[3][i]), float(scalars[0][i]), float(scalars[1][i])) == (1, 0, 1, 1, 0)
            at_a, at_b, at_c = (int(array[i]) for array in matrices)
            left = column_major(at_a, inner, rows, int(pitches[0][i])).T  # transposed: stored as inner × rows
            right = column_major(at_b, inner, columns, int(pitches[1][i]))
            column_major(at_c, rows, columns, int(pitches[2][i]))[:] = left.astype(float) @ right


def column_major(address, rows, columns, pitch):
    halves = np.ctypeslib.as_array((ctypes.c_uint16 * (pitch * columns)).from_address(address)).view("float16")
    return halves.reshape(columns, pitch).T[:rows]


def grouped_call(monkeypatch, library, loads, n=24, k=16):
    """Return a grouped call of one product per load through a fake library, and its operands."""
    monkeypatch.setattr(GROUPED, "_cublas", lambda _: (library, 7))
    rng = np.random.default_rng(1)
    products, pairs = [], []
    for load in loads:
        x, w, y = (rng.standard_normal(shape).astype("float16") for shape in ((load, k), (n, k), (load, n)))
        shape = FORMATS.Shape(load, n, k, "nt")
        products.append(
            types.SimpleNamespace(shape=shape, a=AddressedArray(x), b=AddressedArray(w), c=AddressedArray(y))
        )
        pairs.append((x, w, y))
    paper = types.SimpleNamespace(
        xp=types.SimpleNamespace(asarray=AddressedArray),
        device=types.SimpleNamespace(stream=99),
        target=types.SimpleNamespace(device=H200),
    )
    return GROUPED.GroupedCall(paper, HALF, products), pairs


def test_the_library_is_called_with_addresses_and_sizes_that_give_each_experts_product(monkeypatch):
    library = FakeCublas()
    call, pairs = grouped_call(monkeypatch, library, (3, 1, 8))
    for _, _, y in pairs:
        y.fill(np.nan)
    call()
    assert library.stream == (7, 99)
    assert call.notes == {"library": "cuBLAS 130007 gemmGroupedBatchedEx"}
    for x, w, y in pairs:
        np.testing.assert_allclose(y, (x.astype(float) @ w.T.astype(float)).astype("float16"))


def test_grouped_products_that_the_library_refuses_are_a_skip_and_failures_are_not(monkeypatch):
    with pytest.raises(Skip, match="does not support grouped products in float16"):
        grouped_call(monkeypatch, FakeCublas(refuses=True), (3,))
    monkeypatch.setattr(FakeCublas.cuBLASError, "status", 13)
    with pytest.raises(FakeCublas.cuBLASError):
        grouped_call(monkeypatch, FakeCublas(refuses=True), (3,))


def test_without_the_binding_the_skip_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvmath.bindings", None)
    GROUPED._cublas.cache_clear()
    with pytest.raises(Skip, match=re.escape(installation.for_gpu())):
        GROUPED._cublas("cuda:0")


def stored_scale(format_of, stored, rows, k, i, j):
    """Return the scales of elements (i, j) from the stored array, by the formulas of cuBLASLt's documentation."""
    parts = -(-k // 128)
    if format_of.mode in ("VEC32_UE8M0", "VEC16_UE4M3"):  # tiles of 128 rows and four scales, 32 rows of 16 bytes each
        part, tiles = j // format_of.along, -(-k // format_of.along // 4)
        offset = (i // 128 * tiles + part // 4) * 512 + i % 32 * 16 + i % 128 // 32 * 4 + part % 4
        code = stored[offset].astype(int)
        return 2.0 ** (code - 127) if format_of.along == 32 else (1 + code % 8 / 8) * 2.0 ** (code // 8 - 7)
    if format_of.mode == "VEC128_32F":  # row-major down the rows: shape rows × L
        return stored[j // 128 * rows + i]
    if format_of.mode == "BLK128x128_32F":  # along K first, rows of blocks begin at a multiple of 4
        return stored[i // 128 * (-(-parts // 4) * 4) + j // 128]
    return stored[i + 0 * j]


def scaled_operands(name, m=16, n=132, k=384):
    shape = FORMATS.Shape(m, n, k, "nt")
    if name == "nvfp4":
        return SCALED.FourBitOperands(bench(SUITE), shape)
    return SCALED.ScaledOperands(bench(SUITE), EIGHT, shape, name)


def computed(operands, name):
    """Compute C in bfloat16 from the 8-bit values and the stored scales."""
    m, n, k = operands.shape.m, operands.shape.n, operands.shape.k
    wide = []
    for array, rows, scales, of in (
        (operands.a, m, operands.scales.a, SCALED.FORMATS_OF[name][0]),
        (operands.b, n, operands.scales.b, SCALED.FORMATS_OF[name][1]),
    ):
        values = operands._make.widened(array, operands.precision.formats[0], rows, k, (k, 1))
        i, j = np.arange(rows)[:, None], np.arange(k)[None, :]
        wide.append(values * stored_scale(of, scales, rows, k, i, j).astype(float))
    bits = (wide[0] @ wide[1].T).astype("float32").view("uint32")
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("uint16").ravel()


@needs_compiler
@pytest.mark.parametrize("name", ["block128", "vector128", "row", "mxfp8", "nvfp4"])
def test_the_stored_scales_are_those_of_the_reference_and_another_scale_is_found(name):
    operands = scaled_operands(name)
    operands.c[:] = computed(operands, name)
    assert operands.check()["error"].value < 0.01
    if name in SCALED.MICRO:
        operands.scales.b[:64] += 1  # the next larger scale
    else:
        operands.scales.b[1] *= 1.25
    operands.c[:] = computed(operands, name)
    with pytest.raises(WrongAnswer):
        operands.check()


def test_there_is_one_scale_for_each_part_in_the_layout_of_the_library():
    vectors, blocks, rows = SCALED.VECTORS, SCALED.BLOCKS, SCALED.ROWS
    assert [layout.shape(256, 384) for layout in (vectors, blocks, rows)] == [(256, 3), (2, 3), (256, 1)]
    scales = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert vectors.stored(scales).tolist() == [0, 3, 1, 4, 2, 5]
    assert blocks.stored(scales).tolist() == [0, 1, 2, 0, 3, 4, 5, 0]


def test_the_scales_of_our_b_are_passed_as_those_of_the_librarys_a():
    modes = types.SimpleNamespace(VEC128_32F=4, BLK128x128_32F=5)
    names = ("A_SCALE_MODE", "A_SCALE_POINTER", "B_SCALE_MODE", "B_SCALE_POINTER")
    attributes = types.SimpleNamespace(**{name: name for name in names})
    problem = object.__new__(VENDOR._Problem)
    problem._lt = types.SimpleNamespace(MatmulDescAttribute=attributes, MatmulMatrixScale=modes)
    a, b = AddressedArray(np.zeros(1)), AddressedArray(np.zeros(1))
    assert problem._scale_attributes(FORMATS.Scales(a, b, ("VEC128_32F", "BLK128x128_32F"))) == {
        "A_SCALE_MODE": 5,
        "A_SCALE_POINTER": b.data.ptr,
        "B_SCALE_MODE": 4,
        "B_SCALE_POINTER": a.data.ptr,
    }


def test_quick_has_skewed_loads_and_one_format_of_scales():
    def ids(tier):
        cases = SUITE.cases(Target(Facts((H200,)), H200, tier))
        return [case.id.removeprefix("gemm/") for case in cases if case.name in ("grouped", "scaled")]

    assert ids("quick") == ["grouped[experts=64,tokens=8192,skew=1]", "scaled[format=block128,n=4096]"]
    assert len(ids("full")) == 3 * 4 * 4 + 3 * 3


@needs_compiler
def test_the_host_s_product_of_packed_bytes_finds_a_wrong_half_byte_that_the_codes_do_not_show():
    operands = scaled_operands("nvfp4")
    operands.c[:] = computed(operands, "nvfp4")
    assert operands.check()["error"].value < 0.01
    codes = operands.a[:8]
    signs = np.where(codes & 128, 8, 0) | codes & 7
    assert operands.packed_a[:4].tolist() == (signs[::2] | signs[1::2] << 4).tolist()
    operands.packed_a[:] = operands.packed_a << 4 | operands.packed_a >> 4
    with pytest.raises(WrongAnswer, match="host's product of the packed bytes"):
        operands.check()


@pytest.mark.parametrize(("format_of", "codes"), [("MX", [126, 127, 128]), ("NV", list(range(0x30, 0x41)))])
def test_every_scale_of_eight_bits_is_stored_as_its_code(format_of, codes):
    micro = getattr(SCALED, format_of)
    scales = micro.value(np.array([codes]))
    assert micro.stored(scales)[micro.places(1, len(codes))].tolist() == [codes]
    assert 0.5 <= scales.min() < scales.max() <= 2


@pytest.mark.parametrize(("arch", "name"), [("sm_90", "nvfp4"), ("sm_89", "mxfp8")])
def test_scales_of_a_few_elements_are_skipped_before_blackwell(arch, name):
    target = bench(SUITE)
    target.open_device.traits = dataclasses.replace(target.open_device.traits, arch=arch)
    with pytest.raises(Skip, match=f"{name} needs the block scales of sm_100 or newer, not {arch}"):
        SUITE.build(dataclasses.replace(target, case=Case("gemm", "square", (("dtype", name), ("n", 8192)))))


def test_our_grouped_kernel_writes_each_experts_rows_and_no_others(monkeypatch):
    """Loads end within a tile, an expert has no token, and one with few takes turns with the popular ones."""
    layout, rng = loads_of(9, 0, 5, 3), np.random.default_rng(1)
    tiles, (n, k) = EXPERTS.tiles_of(layout, 4, 2), (8, 12)
    firsts = [[0, 0, 9], [0, 4, 9], [0, 8, 9], [3, 14, 17], [2, 9, 14], [2, 13, 14]]
    assert tiles[tiles[:, 3] == 0, :3].tolist() == firsts
    assert tiles[:, 0].tolist() == [0] * 5 + [3, 0] + [2] * 4 + [3]
    x, weights = rng.standard_normal((17, k), np.float32), rng.standard_normal((4, n, k), np.float32)
    out = np.full((17, n), np.nan, np.float32)
    triton = NumpyTriton((len(tiles),))
    monkeypatch.setattr(EXPERTS, "tl", triton)
    cells = [ElementPointer(array.ravel()) for array in (x, weights, out, tiles)]
    for place in np.ndindex(triton.grid):
        triton.place = place
        EXPERTS.multiply_tiles(*cells, n, k, 4, 4, 4)
    for expert, start, load in layout.parts:
        rows = slice(start, start + load)
        np.testing.assert_allclose(out[rows], x[rows] @ weights[expert].T, rtol=1e-5, atol=1e-6)
