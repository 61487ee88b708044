"""Grouped products and FP8 products with scales on a real GPU: right answers, wrong ones found, shares of the dense."""

import dataclasses

import pytest
from _modules import shared_modules, suite_module
from _poison import called, expect_unwritten, overwrite

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import WrongAnswer
from gpubench.measuring import inventory
from gpubench.measuring.engine import Engine
from gpubench.measuring.stopping import POLICIES
from gpubench.model import Case

pytestmark = pytest.mark.gpu

SUITE = plugins.load("suites", "gemm")


@pytest.fixture(scope="module")
def gpu():
    device = inventory.facts().devices[0]
    if device.arch != "sm_90":
        pytest.skip("written for an NVIDIA GPU of sm_90")
    return plugins.load("backends", device.backend).open(device)


def task_of(gpu, name, **params):
    bench = Bench(gpu, Case("gemm", name, tuple(params.items())), Target(inventory.facts(), gpu.device), SUITE.package)
    return SUITE.build(bench)


@pytest.mark.parametrize("skew", [0, 1.5])
def test_every_way_of_grouped_products_is_checked(gpu, skew):
    task = task_of(gpu, "grouped", experts=8, tokens=300, skew=skew)
    for stage in task.stages.values():
        expect_unwritten(task)
        stage.call()
        assert 0 < task.check()["error"].value < 0.02
    assert list(task.stages) == ["grouped", "loop", "parallel"]
    assert "gemmGroupedBatchedEx" in task.notes["library"]


def test_experts_that_have_no_tokens_are_left_out(gpu):
    task = task_of(gpu, "grouped", experts=64, tokens=16, skew=1.5)
    assert "of 64 experts have tokens" in task.notes["tokens of an expert"]
    for stage in task.stages.values():
        overwrite(task)
        stage.call()
        task.check()


@pytest.mark.parametrize("tokens", [100, 5000])
def test_our_kernel_writes_the_products_of_all_experts(gpu, tokens):
    task = task_of(gpu, "expert_products", model="qwen3-30b-a3b", tokens=tokens, skew=1, by="triton")
    assert "Gluon" in task.notes["library"]
    assert 0 < called(task)["error"].value < 0.02


def test_the_share_of_the_dense_product_is_measured_beside_it(gpu):
    measured = Engine(gpu, POLICIES["smoke"]).measure(task_of(gpu, "grouped", experts=8, tokens=8192, skew=0))
    shares = {series.label: series.values for series in measured.series if series.label.endswith("of dense")}
    assert set(shares) == {"grouped.of dense", "parallel.of dense"}
    assert all(0.05 < value < 1.3 for values in shares.values() for value in values)


@pytest.mark.parametrize("name", ["block128", "vector128", "row"])
def test_scales_are_applied_where_they_belong(gpu, name):
    task = task_of(gpu, "scaled", format=name, n=1024)
    assert 0 < called(task)["error"].value < 0.02


def test_a_scale_that_changes_is_found(gpu):
    scaled = suite_module("gemm", "_scaled")
    formats, vendor = shared_modules("_matrix.formats", "_matrix.vendor")
    case = Case("gemm", "scaled", (("format", "block128"), ("n", 1024)))
    bench = Bench(gpu, case, Target(inventory.facts(), gpu.device), SUITE.package)
    precision = formats.PRECISIONS["float8_e4m3"]
    operands = scaled.ScaledOperands(bench, precision, formats.Shape(1024, 1024, 1024, "nt"), "block128")
    operands.scales.b[3] *= 1.25
    call = vendor.heuristics(bench, dataclasses.replace(operands.product), 1)[0].call
    operands.c.view("int8").fill(-1)
    call()
    with pytest.raises(WrongAnswer):
        operands.check()
