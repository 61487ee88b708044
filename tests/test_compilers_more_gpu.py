"""Further operators of the suite `compilers` on a real GPU: each provider without a library of its own is right."""

import dataclasses

import pytest
from _modules import room_module, suite_modules
from _poison import overwrite

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import WrongAnswer
from gpubench.measuring import inventory
from gpubench.model import Case

pytestmark = pytest.mark.gpu
SUITE = plugins.load("suites", "compilers")
PROVIDERS, IMAGES, PRODUCTS, LAYER = suite_modules("compilers", "_providers", "_images", "_products", "_layer")
MODELS = room_module("suites", "_models")
SMALL = MODELS.model(1024, 2048, 8, 2, 2, 2, 150, "nowhere")


@pytest.fixture(scope="module")
def bench():
    """The first GPU, open in this process."""
    device = inventory.facts().devices[0]
    opened = plugins.load("backends", device.backend).open(device)
    return Bench(opened, Case("compilers", "case", ()), Target(inventory.facts(), device), SUITE.package, 1)


def error(bench, made, by):
    """The error of a provider, after the inputs changed once; a result of before is wrong then."""
    built = PROVIDERS.build(bench, made, by)
    for _ in range(2):
        built.poison()
        built.call()
        bench.device.synchronize()
        found = made.compare(built.rows())["error"].value
        made.change()
        with pytest.raises(WrongAnswer):
            made.compare(built.rows())
    return float(found)


@pytest.mark.parametrize("by", ["cupy", "nvrtc"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("what", ["transpose", "pool", "batch-norm", "bias"])
def test_operators_on_images(bench, what, layout, by):
    for shape in ((3, 72, 24), (5, 512, 8)):
        assert error(bench, IMAGES.ImageProblem(bench, what, layout, shape, "float16"), by) < 2e-3


@pytest.mark.parametrize("by", ["cupy", "torch"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("name", IMAGES.SHAPES)
def test_a_convolution_and_relu(bench, name, layout, by):
    pytest.importorskip(by)
    assert error(bench, IMAGES.ConvolutionProblem(bench, name, layout, 4, "float16"), by) < 2e-3


@pytest.mark.parametrize("by", ["cupy", "cupy-fused", "nvrtc"])
@pytest.mark.parametrize("form", ["written", "folded"])
def test_a_batch_norm_with_and_without_folding(bench, form, by):
    for cols in (96, 4096, 6144):
        assert error(bench, IMAGES.FoldingProblem(bench, form, 333, cols, "float16"), by) < 2e-3


@pytest.mark.parametrize("by", ["cupy", "cupy-fused", "vendor"])
def test_a_product_with_bias_and_gelu(bench, by):
    assert error(bench, PRODUCTS.ProductProblem(bench, 520, 768, 1024, "float16"), by) < 2e-3


@pytest.mark.parametrize("by", ["cupy", "vendor"])
def test_a_decoder_layer(bench, by):
    assert error(bench, LAYER.LayerProblem(bench, SMALL, 200), by) < 4e-3


@pytest.mark.parametrize("by", ["cupy", "vendor", "nvrtc"])
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_quantised_weights(bench, monkeypatch, weights, by):
    monkeypatch.setattr(PRODUCTS, "_ROWS", 1024)
    monkeypatch.setattr(PRODUCTS, "_COLS", 512)
    task = PRODUCTS.dequant_gemm(bench, weights, 16, by)
    overwrite(task)
    for call in task.stages[""].rotation:
        call()
    assert task.check()["error"].value < 1e-3


def test_a_kernel_tells_its_resources(bench):
    target = dataclasses.replace(bench.target, tier="full")
    made = IMAGES.ImageProblem(bench, "transpose", "nchw", (2, 64, 16), "float16")
    found = PROVIDERS.build(dataclasses.replace(bench, target=target), made, "nvrtc").static()
    assert 16 <= found["registers"].value <= 255
    assert found["shared"].value == 64 * 33 * 4
    assert found["resident"].value >= 256
