"""Further operators of the suite `compilers`: products with an epilogue, layouts, folded constants, whole layers."""

import dataclasses
import sys

import numpy as np
import pytest
from _grid import needs_compiler
from _grid_device import bench, products_by_numpy
from _modules import room_module, suite_module, suite_modules
from _poison import expect_unwritten
from scipy import stats

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import Skip, Unavailable, WrongAnswer
from gpubench.measuring.engine import Engine
from gpubench.measuring.stopping import POLICIES
from gpubench.model import Facts

SUITE = plugins.load("suites", "compilers")
PRODUCTS, PROVIDERS = suite_modules("compilers", "_products", "_providers")


def product(dtype="float32", m=48, n=64, k=96):
    return PRODUCTS.ProductProblem(bench(SUITE), m, n, k, dtype)


@pytest.mark.parametrize("by", ["numpy", "numba"])
def test_a_product_with_bias_and_gelu_is_that_of_double_precision(by):
    made = product()
    built = PROVIDERS.build(bench(SUITE), made, by)
    built.call()
    assert 0 < made.compare(built.rows())["error"].value < 1e-6
    a, weights, bias = (array.astype(float) for array in made.inputs.values())
    (exact,) = made.expected()
    y = a @ weights + bias
    assert np.linalg.norm(exact - y * stats.norm.cdf(y)) < 2e-3 * np.linalg.norm(exact)


def test_a_product_is_checked_with_its_bias_and_its_work_is_its_operations_and_each_matrix_once():
    made = product()
    a, weights, bias = made.inputs.values()
    gelu = made.operator.expression
    for wrong in (gelu(np, a, weights, 0 * bias), a @ weights + bias, np.maximum(a @ weights + bias, 0)):
        with pytest.raises(WrongAnswer, match="relative error"):
            made.compare((made.rows_of(wrong),))
    work = product("float16").work
    assert (work.flops, work.moved) == (2 * 48 * 64 * 96, 2 * (48 * 96 + 96 * 64 + 64 + 48 * 64))
    assert (product("float16").limit, product().limit) == ("tensor.float16", "float32")


def test_the_vendor_has_a_product_alone():
    operators = suite_module("compilers", "_operators")
    with pytest.raises(Skip, match="vendor has no softmax"):
        PROVIDERS.build(bench(SUITE), operators.Problem(bench(SUITE), "softmax", 8, 64, "float16"), "vendor")
    with pytest.raises(Skip, match="does not support this kind of float16 product"):
        PROVIDERS.build(bench(SUITE), product("float16"), "vendor")  # of AMD, where CuPy has no epilogue


IMAGES = suite_module("compilers", "_images")
SHAPE = (5, 16, 24)  # images, channels, side


def images(what, layout, dtype="float16", shape=SHAPE):
    return IMAGES.ImageProblem(bench(SUITE), what, layout, shape, dtype)


def plain(what, layout, x, *vectors):
    """The operator place by place, on images that are turned to NHWC before it and back after it."""
    x = x.transpose(0, 2, 3, 1) if layout == "nchw" else x
    if what == "transpose":
        return x if layout == "nchw" else x.transpose(0, 3, 1, 2)
    if what == "pool":
        corners = [x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)]
        y = np.maximum.reduce(corners)
    elif what == "bias":
        y = np.stack([x[..., k] + vectors[0][k] for k in range(x.shape[3])], axis=3)
    else:
        mean, variance, weight, bias = vectors
        y = (x - mean) * (weight * (variance + 1e-5) ** -0.5) + bias
    return y.transpose(0, 3, 1, 2) if layout == "nchw" else y


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("what", ["transpose", "pool", "batch-norm", "bias"])
def test_an_operator_on_images_is_that_of_its_places(what, layout):
    made = images(what, layout, "float32")
    inputs = [array.astype(float) for array in made.inputs.values()]
    (found,) = made.operator.outputs_of(np, *inputs)
    np.testing.assert_allclose(found, plain(what, layout, *inputs), atol=1e-12)
    assert found.shape == made.output_shape
    assert made.moved == 4 * (sum(array.size for array in inputs) + found.size)
    for by in ("numpy", "numba"):
        assert computed(made, by)[1] < 1e-6


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("name", IMAGES.SHAPES)
def test_a_convolution_is_the_sum_over_the_places_of_its_filter(name, layout):
    made = IMAGES.ConvolutionProblem(bench(SUITE), name, layout, 2, "float32")
    x, filters = (array.astype(float) for array in made.inputs.values())
    (found,) = made.operator.outputs_of(np, x, filters)
    assert found.shape == made.output_shape
    if layout == "nhwc":
        x, filters, found = (array.transpose(0, 3, 1, 2) for array in (x, filters, found))
    shape = made.shape
    edge = (shape.padding,) * 2
    padded = np.pad(x, ((0, 0), (0, 0), edge, edge))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (shape.filter,) * 2, axis=(2, 3))
    exact = np.tensordot(windows[:, :, :: shape.stride, :: shape.stride], filters, ((1, 4, 5), (1, 2, 3)))
    np.testing.assert_allclose(found, np.maximum(exact.transpose(0, 3, 1, 2), 0), atol=1e-10)
    assert np.std(exact) == pytest.approx(1, rel=0.1)
    assert made.work.flops == 2 * exact.size * filters[0].size


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_a_convolution_by_numpy_is_right_and_one_without_relu_is_found(layout):
    made = IMAGES.ConvolutionProblem(bench(SUITE), "strided", layout, 3, "float32")
    built, error = computed(made, "numpy")
    assert error < 1e-6
    with pytest.raises(WrongAnswer, match="relative error"):
        made.compare(tuple(rows - 0.1 * (rows == 0) for rows in built.rows()))


def computed(made, by):
    """What a provider computes, all of it, after a check that it overwrote what was there."""
    built = PROVIDERS.build(bench(SUITE), made, by)
    built.poison()
    built.call()
    return built, made.compare(built.rows())["error"].value


@needs_compiler
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("what", ["transpose", "pool", "batch-norm", "bias"])
def test_our_kernel_for_images_gives_the_operator_and_writes_all_of_it(what, layout):
    made = images(what, layout)
    made.checked = np.arange(5)
    _, error = computed(made, "nvrtc")
    assert (error == 0) if what in ("transpose", "pool") else (0 < error < 5e-4)
    for made in (images("bias", layout, "float32"), images("bias", layout, shape=(1, 12, 8))):
        with pytest.raises(Skip, match=r"layout\.cu takes halves and multiples of 8"):
            PROVIDERS.build(bench(SUITE), made, "nvrtc")
    if what == "transpose":
        made = images("transpose", layout, shape=(2, 72, 8))  # sides that do not fill their tiles
        made.checked = np.arange(2)
        assert computed(made, "nvrtc")[1] == 0


def folding(form, dtype, cols=96):
    return IMAGES.FoldingProblem(bench(SUITE), form, 48, cols, dtype)


@pytest.mark.parametrize("form", ["written", "folded"])
@pytest.mark.parametrize("by", ["numpy", "numba", pytest.param("nvrtc", marks=needs_compiler)])
def test_a_batch_norm_written_and_folded_is_that_of_double_precision(form, by):
    made = folding(form, "float16" if by == "nvrtc" else "float32")
    assert 0 < computed(made, by)[1] < (5e-4 if by == "nvrtc" else 1e-6)


@pytest.fixture
def small_weights(monkeypatch):
    monkeypatch.setattr(PRODUCTS, "_ROWS", 65)
    monkeypatch.setattr(PRODUCTS, "_COLS", 384)


@needs_compiler
@pytest.mark.usefixtures("small_weights")
@pytest.mark.parametrize("weights", [pytest.param("int8", marks=pytest.mark.slow), "int4"])
@pytest.mark.parametrize(("by", "vendor"), [("cupy", "nvidia"), ("vendor", "amd"), ("nvrtc", "nvidia")])
def test_quantised_weights_are_multiplied_by_every_provider(weights, by, vendor):
    paper = bench(SUITE, vendor)
    task = PRODUCTS.dequant_gemm(paper, weights, 16, by)
    expect_unwritten(task, "not written")
    task.stages[""].rotation[0]()
    found = task.check()
    assert 0 < found["error"].value < 1e-3
    assert found["quantisation_error"].value > found["error"].value
    assert task.notes["eager"] == "cupy"
    many = PRODUCTS.dequant_gemm(bench(SUITE), weights, 2048, "cupy")
    assert (many.stages[""].quantity, many.stages[""].limit) == ("flops", "tensor.float16")
    assert not PRODUCTS._has_kernel(None, {"by": "nvrtc", "tokens": 2048})


LAYER = suite_module("compilers", "_layer")
MODELS, EXACT = room_module("suites", "_models"), suite_module("inference", "_exact")
SMALL = MODELS.model(128, 128, 2, 1, 2, 2, 150, "nowhere")  # two heads of 64 elements over one KV head


def decoder_layer(tokens=20):
    return LAYER.LayerProblem(bench(SUITE, "nvidia"), SMALL, tokens)


def by_hand(made):
    """The layer token by token and head by head, by the functions that check the suite inference."""
    x, qkv, out, up, down, first, second, *_ = (array.astype(float) for array in made.inputs.values())
    model, turn = SMALL, np.stack([made.inputs[name].astype(float) for name in ("cosine", "sine")], axis=2)
    projected = EXACT.normed(x, first) @ qkv.T
    heads = projected.reshape(len(x), model.heads + 2 * model.kv_heads, model.dim)
    attended = np.zeros((len(x), model.heads, model.dim))
    for token in range(len(x)):
        for head in range(model.heads):
            own = model.heads + head * model.kv_heads // model.heads
            query = EXACT.rotated(heads[token, head], turn[token])
            keys = np.array([EXACT.rotated(heads[at, own], turn[at]) for at in range(token + 1)])
            powers = np.exp(keys @ query / np.sqrt(model.dim))
            attended[token, head] = powers / powers.sum() @ heads[: token + 1, own + model.kv_heads]
    y = x + attended.reshape(len(x), -1) @ out.T
    return y + EXACT.gated(EXACT.normed(y, second) @ up.T) @ down.T


@needs_compiler
def test_a_decoder_layer_is_that_of_the_suite_inference_in_double_precision():
    made = decoder_layer()
    assert 0 < computed(made, "numpy")[1] < 4e-3, "in halves, operation by operation"
    assert made.work.flops == 2 * 20 * sum(layer.size for layer in SMALL.layers) + 4 * 2 * 64 * 20 * 21 / 2
    (exact,) = made.expected()
    np.testing.assert_allclose(exact, by_hand(made)[made.checked], rtol=1e-9)
    made.change()
    np.testing.assert_allclose(made.expected()[0], by_hand(made)[made.checked], rtol=1e-9)


@needs_compiler
@pytest.mark.slow
def test_a_decoder_layer_by_the_vendors_products_and_our_kernels_is_that_layer(monkeypatch):
    for module in (room_module("suites", "_matrix.vendor"), suite_module("inference", "_prefill_attention")):
        monkeypatch.setattr(module, "vendor", products_by_numpy)
    made = decoder_layer()
    built, error = computed(made, "vendor")
    assert 0 < error < 2e-3
    built.call()
    assert made.compare(built.rows())["error"].value == error  # a call begins with the tokens as they were
    made.change()
    with pytest.raises(WrongAnswer, match="relative error"):
        made.compare(built.rows())
    assert computed(made, "vendor")[1] < 2e-3


@needs_compiler
def test_attention_tells_its_launches_and_the_provider_that_it_is_compared_with(monkeypatch):
    monkeypatch.setattr(suite_module("inference", "_prefill_attention"), "vendor", products_by_numpy)
    paper = bench(SUITE, "nvidia")
    paper.open_device.launches_of = lambda call: 4
    task = LAYER.attention(paper, 20, 2, 1, 64, "unfused")
    task.stages[""].call()
    assert task.check()["launches"].value == 4
    assert task.notes["eager"] == "unfused"
    by = {name: LAYER._attention_runtime({"by": name}) for name in ("unfused", "torch", "cudnn")}
    assert by == {"unfused": "", "torch": "torch", "cudnn": "torch"}, "torch's share its process"


def test_tuning_needs_its_tuner_and_compares_each_effort_with_the_same_tuner_without(monkeypatch):
    host = plugins.load("backends", "host")
    facts = Facts(tuple(host.devices()))
    target = Target(facts, facts.devices[0], "full")
    cases = [case for case in SUITE.cases(target) if case.name == "tuning"]
    assert [dict(case.params)["by"] for case in cases[:3]] == ["tvm", "tvm-16", "tvm-64"]
    assert len(cases) == 9
    opened = host.open(facts.devices[0])
    monkeypatch.setitem(sys.modules, "tvm", None)
    with pytest.raises(Unavailable, match=r"TVM is not installed; .*\[tvm\]"):
        SUITE.build(Bench(opened, cases[1], target, SUITE.package, 1))
    tuning = suite_module("compilers", "_tuning")

    def built(bench, problem, trials):
        provider = suite_module("compilers", "_providers").build(bench, problem, "numpy")
        return dataclasses.replace(provider, notes={"trials": str(trials)})

    monkeypatch.setattr(tuning._by_tvm, "build", built)
    task = SUITE.build(Bench(opened, cases[2], target, SUITE.package, 1))
    assert list(task.stages) == ["", "call", "tuning"]
    (seconds,) = task.stages["tuning"].call()
    assert 0 < seconds < 60
    assert (task.notes["eager"], task.notes["trials"]) == ("tvm", "64")
    Engine(opened, POLICIES["smoke"]).measure(task)
