"""The gemm suite: points, counting, checks that can fail, refusals with messages; its kernels on a GPU on paper."""

import dataclasses
import re
import threading
import types

import _make as make
import numpy as np
import pytest
from _earlier import expect_found
from _grid import needs_compiler
from _grid_device import DTYPES, PAPER, bench
from _modules import shared_modules, suite_modules
from _poison import expect_unwritten, overwrite

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.base import installation
from gpubench.base.errors import Skip, WrongAnswer
from gpubench.knowledge.floors import built_in_floors
from gpubench.model import Facts

SUITE = plugins.load("suites", "gemm")
FEW, SHAPES, DECODER = suite_modules("gemm", "_few", "_shapes", "_decoder")
MODELS, FORMATS, GEMV, PRODUCT, DATA, VENDOR = shared_modules(
    "_models", *(f"_matrix.{name}" for name in ("formats", "gemv", "product", "data", "vendor"))
)
PRECISIONS, Shape = FORMATS.PRECISIONS, FORMATS.Shape
MIB = 2**20
H200 = dataclasses.replace(make.H200, dtypes=(*DTYPES, "tf32", "float8_e4m3", "float8_e5m2", "int8"))


def ids(device=H200, tier="quick"):
    return [case.id.removeprefix("gemm/") for case in SUITE.cases(Target(Facts((device,)), device, tier))]


def check_once(task):
    """Call everything in a task once on poisoned outputs, and return the checked values."""
    overwrite(task)
    for stage in task.stages.values():
        for call in stage.rotation or (stage.call,):
            call()
    return {name: getattr(value, "value", value) for name, value in task.check().items()}


def test_every_precision_of_a_gpu_is_listed_and_an_unsupported_one_is_skipped_with_a_message():
    assert {line.partition(",")[0] for line in ids() if line.startswith("square")} == {
        f"square[dtype={dtype}" for dtype in (*PRECISIONS, "mxfp8", "nvfp4")
    }
    with pytest.raises(Skip, match=r"Paper GPU \(sm_90\) does not support matrix products in float8_e4m3"):
        SUITE.build(dataclasses.replace(bench(SUITE), case=case_of("square", dtype="float8_e4m3", n=1024)))


def case_of(name, **params):
    cases = [case for case in SUITE.cases(Target(Facts((H200,)), H200, "full")) if case.name == name]
    return next(case for case in cases if params.items() <= dict(case.params).items())


def test_the_host_has_the_precisions_of_numpy_and_amd_those_that_need_no_library_of_nvidia():
    host = plugins.load("backends", "host").devices()[0]
    assert {line.partition("[")[0] for line in ids(host)} == {"square", "gemv", "grouped", "vector_fma"}
    amd = dataclasses.replace(H200, id="rocm:0", arch="gfx942", dtypes=("float64", "float32", "float16"))
    assert {line.partition("[")[0] for line in ids(amd)} == {"square", "read", "gemv", "skinny"}
    assert any("path=tensor" in line for line in ids(amd))
    assert not any("path=tensor" in line for line in ids(dataclasses.replace(amd, arch="gfx1100")))


def test_the_burst_fills_every_multiprocessor_and_the_shapes_of_full_are_not_in_quick():
    assert [line for line in ids() if line.startswith("burst")] == ["burst[dtype=bfloat16,shape=6144x5632x8192]"]
    tiles = (6144 // 256) * (5632 // 128)
    assert tiles % 132 == 0
    full = {line.partition("[")[0] for line in ids(tier="full")}
    only_in_full = {
        "shape",
        "wave",
        "sustained",
        "expert_products",
        "ranked",
        "transposed",
        "data",
        "layer",
        "epilogue",
        "decoder",
    }
    assert full - {line.partition("[")[0] for line in ids()} == only_in_full


def test_the_quick_tier_has_every_case_that_floors_name():
    """Every run must measure the cases of the floors, which exist for several models of GPU."""
    wanted = {floor.case.removeprefix("gemm/") for floor in built_in_floors() if floor.case.startswith("gemm/")}
    assert wanted <= set(ids())


@needs_compiler
@pytest.mark.parametrize(
    ("dtype", "shape", "least", "most"),
    [
        ("float64", (70, 90, 96, "tt"), 1e-17, 1e-15),
        ("float32", (70, 40, 96, "nt"), 1e-9, 1e-6),
        ("float16", (100, 40, 96, "tn"), 1e-5, 1e-3),
        ("float16", (9, 40, 96, "nn"), 1e-5, 1e-3),
    ],
)
def test_a_product_counts_its_operations_and_states_its_errors(dtype, shape, least, most):
    task = PRODUCT.product(bench(SUITE), PRECISIONS[dtype], Shape(*shape))
    m, n, k, _ = shape
    stage = task.stages[""]
    assert stage.work.flops == 2 * m * n * k
    assert stage.work.moved == (m * k + k * n + m * n) * PRECISIONS[dtype].formats[0].itemsize
    observed = check_once(task)
    assert least < observed["error"] < most
    assert 0 < observed["greatest_error"] < most


@needs_compiler
def test_unwritten_and_wrong_elements_fail_the_check():
    operands = DATA.Operands(bench(SUITE), PRECISIONS["float32"], Shape(80, 60, 64))
    operands.c.view("int8").fill(-1)
    with pytest.raises(WrongAnswer, match="4800 elements of C are not written"):
        operands.check()
    operands.c[:] = (operands.a.reshape(80, 64) @ operands.b.reshape(64, 60)).ravel()
    operands.check()
    operands.c *= np.float32(1 + 1e-5)
    with pytest.raises(WrongAnswer, match="the relative error 1e-05 of the compared rows is above"):
        operands.check()


@needs_compiler
@pytest.mark.parametrize("chunk", [2**26, 2 * 64 * 256])
@pytest.mark.parametrize(
    ("dtype", "order"), [("float32", "nn"), ("float32", "nt"), ("float16", "nn"), ("float64", "nn")]
)
def test_one_wrong_element_of_a_product_is_found_in_any_row(monkeypatch, dtype, order, chunk):
    """The same holds for a matrix that is widened in several parts, and for both layouts of B."""
    monkeypatch.setattr(DATA, "_CHUNK", chunk)
    operands = DATA.Operands(bench(SUITE), PRECISIONS[dtype], Shape(600, 300, 64, order))
    storage = PRECISIONS[dtype].formats[2].storage
    a, b = operands.a.reshape(600, 64).astype(float), operands.b.astype(float)
    b = b.reshape(64, 300) if order == "nn" else b.reshape(300, 64).T
    operands.c[:] = (a @ b).astype(storage).ravel()
    operands.check()
    operands.c[451 * 300 + 290] += 8
    for _ in range(3):
        with pytest.raises(WrongAnswer, match=r"wrong|more than rounding explains|relative error"):
            operands.check()


def test_integers_are_compared_exactly_and_floats_relative_to_their_terms():
    exact, plain = PRECISIONS["int8"], PRECISIONS["float32"]
    reference = np.array([[3.0, -7.0]])
    assert {
        name: observation.value for name, observation in DATA.judged(exact, 9, reference, reference, reference).items()
    } == {"error": 0.0, "greatest_error": 0.0}
    with pytest.raises(WrongAnswer, match="1 of 2 compared integers are wrong"):
        DATA.judged(exact, 9, reference + np.array([[0, 1]]), reference, reference)
    observed = DATA.judged(plain, 9, reference + np.array([[0, 1e-7]]), reference, np.array([[1.0, 1e3]]))
    assert observed["greatest_error"].value == pytest.approx(1e-10, rel=1e-6)


@needs_compiler
@pytest.mark.parametrize("data", ["zeros", "constant", "uniform"])
def test_other_data_are_checked_too(data):
    observed = check_once(PRODUCT.product(bench(SUITE), PRECISIONS["float32"], Shape(64, 64, 64), data=data))
    assert observed["error"] < 1e-6


def test_a_product_larger_than_free_memory_is_skipped_with_a_message():
    with pytest.raises(Skip, match=r"needs .* of memory, 1 MiB are free|needs .* of memory, 1.000 MiB are free"):
        PRODUCT.product(bench(SUITE, free=MIB), PRECISIONS["float32"], Shape(4096, 4096, 4096))


GEMVS = [("warp", "float32"), ("warp", "bfloat16"), ("warp", "int8"), ("vendor", "float16")]


@needs_compiler
@pytest.mark.parametrize(("path", "kind"), GEMVS)
def test_a_matrix_times_a_vector_takes_turns_on_copies_and_counts_weights_scales_and_vectors(path, kind):
    task = FEW.few_tokens(bench(SUITE), path, kind, 65, 256, 1)
    stage = task.stages[""]
    size, element_bytes = {
        "float32": (65 * 256 * 4, 4),
        "bfloat16": (65 * 256 * 2, 2),
        "float16": (65 * 256 * 2, 2),
    }.get(kind, (65 * 256 + 65 * 2 * 2, 2))
    assert stage.work.moved == size + element_bytes * (65 + 256)
    assert len(stage.rotation) == -(-4 * PAPER.cache_bytes // size) + 1
    observed = check_once(task)
    assert 0 < observed["error"] < 2e-3
    assert ("quantisation_error" in observed) == (kind == "int8")
    for call in (stage.rotation[-1], stage.rotation[0]):  # each call by itself must pass the check
        overwrite(task)
        call()
        task.check()
    expect_unwritten(task, "65 elements of y are not written")


@needs_compiler
@pytest.mark.parametrize(
    ("path", "kind", "tokens"), [("warp", "int8", 1), ("tensor", "int4", 20), ("vendor", "float16", 1)]
)
def test_an_earlier_answer_of_few_tokens_is_found(path, kind, tokens):
    gpu = bench(SUITE, "nvidia" if path == "tensor" else "amd")
    expect_found(FEW.few_tokens(gpu, path, kind, 65, 256, tokens), gpu.open_device)


@needs_compiler
@pytest.mark.parametrize("data", ["normal", "constant"])
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float8_e5m2", "int8"])
def test_each_input_of_a_product_is_new_in_the_same_memory(dtype, data):
    operands = DATA.Operands(bench(SUITE), PRECISIONS[dtype], Shape(8, 8, 64), data)
    place, seen = operands.a, {operands.a.tobytes()}
    for _ in range(3 if data == "normal" else 1):
        operands.stage(print).inputs()
        seen.add(operands.a.tobytes())
    assert operands.a is place
    assert len(seen) == (4 if data == "normal" else 2)


@needs_compiler
def test_an_earlier_answer_of_a_product_is_found(monkeypatch):
    gpu, made = bench(SUITE), []
    monkeypatch.setattr(PRODUCT, "vendor", lambda _, product: made.append(product) or VENDOR.vendor(gpu, product))
    task = PRODUCT.product(gpu, PRECISIONS["float16"], Shape(16, 40, 32))
    expect_found(task, gpu.open_device, made[0].c)


@pytest.mark.parametrize("name", ["square", "gemv", "grouped"])
def test_an_earlier_answer_on_the_host_is_found(name):
    backend = plugins.load("backends", "host")
    host = backend.devices()[0]
    case = next(case for case in SUITE.cases(Target(Facts((host,)), host, "smoke")) if case.name == name)
    on_host = dataclasses.replace(bench(SUITE), case=case, open_device=backend.open(host))
    expect_found(SUITE.build(on_host), on_host.open_device)


@needs_compiler
def test_a_copy_of_the_weights_that_gives_another_answer_is_found():
    make = DATA.Maker(bench(SUITE))
    rows = np.array([[1, 2, 3], [1, 2, 3], [0xFFFF] * 3, [1, 9, 3]], np.uint16)
    assert make.differing(rows[:3]) == 0
    assert make.differing(rows) == 1
    assert make.differing(rows, first=3) == 2
    assert make.written(rows).tolist() == [0, 1, 3]
    assert make.written(rows[2:3]).tolist() == []


@needs_compiler
@pytest.mark.parametrize(("kind", "tokens"), [("float16", 9), ("int4", 20)])
def test_few_tokens_by_matrix_instructions_are_checked_like_the_others(kind, tokens):
    observed = check_once(FEW.few_tokens(bench(SUITE, "nvidia"), "tensor", kind, 65, 384, tokens))
    assert 0 < observed["error"] < 1e-3


def test_columns_that_groups_of_weights_do_not_divide_are_skipped_with_a_message():
    with pytest.raises(Skip, match="the kernels need a multiple of 128 columns, not 100"):
        GEMV.Weights(DATA.Maker(bench(SUITE)), "float16", 8, 100, 1)


def test_the_variants_of_a_kernel_are_compiled_at_the_same_time_and_each_once(monkeypatch):
    # the barrier breaks if one compilation waits for the other
    compiled, at_once = [], threading.Barrier(2, timeout=30)

    def kernel(self, file, name, **defines):
        at_once.wait()
        compiled.append(defines["PANELS"])

    device = bench(SUITE, "nvidia")
    few, many = (GEMV.Weights(DATA.Maker(device), "float16", rows, 128, 1) for rows in (256, 16 * 1024))
    monkeypatch.setattr(type(device), "kernel", kernel)
    GEMV.compile_tensor_calls(device, [(few, GEMV.PLAIN), (many, GEMV.PLAIN), (few, GEMV.PLAIN)], 16)
    assert sorted(compiled) == [1, 2]


@pytest.mark.parametrize("kind", GEMV.KINDS)
def test_every_plan_fits_a_block_and_its_shared_memory(kind):
    stored = GEMV.KINDS[kind]
    for cols in (128, 2048, 2816, 16384, 65536):
        for warp in (32, 64):
            for launch in (GEMV.PLAIN, GEMV.Launch(is_early=True), GEMV.Launch(is_early=True, is_gated=True)):
                plan = GEMV.warp_plan(stored, cols, warp, launch)
                assert warp <= plan.team <= 256
                assert 256 % plan.team == 0
                assert plan.share % launch.halves == 0
    for tokens in (1, 8, 9, 16, 33, 64) if stored.number else ():
        for rows in (1000, 4096, 57344):
            plan = GEMV.tensor_plan(stored, rows, tokens, 132)
            assert GEMV.tensor_plan(stored, rows, tokens, 132, is_gated=True).panels == 2
            assert 8 * plan.tiles >= tokens
            assert plan.threads <= 1024
            assert plan.tiles == 1 or plan.across == 1
            staged = 16 * plan.ahead * 8 * plan.tiles * 20 * (plan.tiles > 1)
            assert max(staged, 4 * 8 * plan.tiles * plan.rows * plan.across) <= 48 * 1024 - 64


@pytest.mark.parametrize(("name", "billions"), [("chatglm-6b", 6.17), ("llama-3-8b", 7.50), ("llama-3-70b", 69.50)])
def test_a_model_has_as_many_weights_as_its_card_says_without_the_embedding(name, billions):
    assert MODELS.MODELS[name].size / 1e9 == pytest.approx(billions, abs=0.02)


def small_model():
    """Return a language model with small layers."""
    layers = (
        MODELS.Layer("qkv", 192, 128),
        MODELS.Layer("out", 128, 128),
        MODELS.Layer("up", 256, 128),
        MODELS.Layer("down", 128, 256),
    )
    return MODELS.Model(layers, 2, MODELS.Layer("head", 150, 128), 1, 1, 128, "nowhere")


@needs_compiler
@pytest.mark.parametrize(("kind", "vendor"), [("float16", "amd"), ("int8", "nvidia"), ("int4", "nvidia")])
def test_decoding_runs_every_matrix_of_the_model_in_order(monkeypatch, kind, vendor):
    monkeypatch.setitem(MODELS.MODELS, "small", small_model())
    task = DECODER.decoder(bench(SUITE, vendor), "small", "decode", kind)
    stage = task.stages[""]
    assert (stage.quantity, stage.item, stage.work.items) == ("items", "token", 1)
    assert stage.work.flops == 2 * small_model().size
    bits = {"float16": 16, "int8": 8 + 16 / 128, "int4": 4 + 16 / 128}[kind]
    assert stage.work.moved == small_model().size * bits / 8 + 2 * sum(m.rows + m.cols for m in small_model().matrices)
    assert 0 < check_once(task)["error"] < 5e-3
    expect_unwritten(task, "not written")
    expect_found(task, bench(SUITE).open_device)


@needs_compiler
@pytest.mark.parametrize("kind", ["float16", "int4"])
def test_a_prefill_hands_rows_on_and_restores_quantised_weights(monkeypatch, kind):
    def by_numpy(bench, product):
        shape = product.shape
        assert (product.precision, shape.order) == (PRECISIONS["float16"], "nt")

        def call():
            a = product.a.view("float16")[: shape.m * shape.pitch].reshape(shape.m, shape.pitch)[:, : shape.k]
            b = product.b.view("float16")[: shape.n * shape.k].reshape(shape.n, shape.k)
            product.c.view("float16")[:] = (a.astype("float32") @ b.T.astype("float32")).astype("float16").ravel()

        return VENDOR.ProductCall(call, {"library": "NumPy"})

    monkeypatch.setitem(MODELS.MODELS, "small", small_model())
    monkeypatch.setattr(DECODER, "vendor", by_numpy)
    monkeypatch.setattr(DECODER, "PROMPT", 24)
    task = DECODER.decoder(bench(SUITE, "nvidia"), "small", "prefill", kind)
    layers = small_model().size - small_model().head.size
    assert task.stages[""].work.flops == 2 * 24 * layers + 2 * small_model().head.size
    assert 0 < check_once(task)["error"] < 5e-3
    expect_found(task, bench(SUITE).open_device)


def refusing_library(status, message):
    """Return a cuBLASLt whose first call raises its error with this status and text."""

    class RefusalError(Exception):
        def __init__(self):
            super().__init__(message)
            self.status = status

    def refuse(*_):
        raise RefusalError

    return types.SimpleNamespace(
        cuBLASLtError=RefusalError,
        matmul_desc_create=refuse,
        get_status_name=lambda _: "CUBLAS_STATUS_NOT_SUPPORTED",
        get_status_string=lambda _: message,
    )


def ask_for_product(monkeypatch, library):
    """Ask this library for an FP8 product, which returns its call or raises."""
    stream = types.SimpleNamespace(ptr=0)
    gpu = bench(SUITE, "nvidia")
    monkeypatch.setattr(VENDOR, "_binding", lambda: library)
    arrays = types.SimpleNamespace(cuda=types.SimpleNamespace(get_current_stream=lambda: stream), empty=np.empty)
    gpu.open_device.host.xp = arrays
    shape = Shape(17, 17, 17, "nt")
    return VENDOR.vendor(gpu, FORMATS.MatrixProduct(PRECISIONS["float8_e4m3"], shape, None, None, None))


def test_a_refusal_of_the_library_or_its_absence_is_a_skip_with_its_reason(monkeypatch):
    with pytest.raises(Skip, match=r"M×N×K 17×17×17, B transposed: CUBLAS_STATUS_NOT_SUPPORTED, no such product"):
        ask_for_product(monkeypatch, refusing_library(15, "no such product"))
    with pytest.raises(Exception, match="no memory") as caught:
        ask_for_product(monkeypatch, refusing_library(3, "no memory"))
    assert not isinstance(caught.value, Skip)
    with pytest.raises(Skip, match=re.escape(installation.for_gpu())):
        ask_for_product(monkeypatch, None)


def test_the_fused_activations_are_what_the_library_computes():
    rows = np.array([[-3.0, 0.0, 1.0]])
    assert SHAPES.ACTIVATIONS["relu"](rows).tolist() == [[0.0, 0.0, 1.0]]
    np.testing.assert_allclose(SHAPES.ACTIVATIONS["gelu"](rows), [[-0.00363739, 0.0, 0.84119199]], atol=1e-7)
