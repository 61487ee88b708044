"""The HGEMM ladder on a real GPU: every rung gives the right product, and a wrong one is seen."""

import dataclasses

import pytest
from _modules import shared_modules, suite_modules

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import Skip, WrongAnswer
from gpubench.measuring import inventory
from gpubench.measuring.engine import Engine
from gpubench.measuring.stopping import POLICIES
from gpubench.model import Case

pytestmark = pytest.mark.gpu
SUITE = plugins.load("suites", "tensor")
HGEMM, RUNGS = suite_modules("tensor", "_hgemm", "_hgemm")
DATA, FORMATS = shared_modules("_matrix.data", "_matrix.formats")
VARIANTS = {
    **{name: rung for name, rung in RUNGS.RUNGS.items() if name != "mfma"},
    "bulk, 256 rows": RUNGS.bulk_rung((256, 128), (4, 2), stages=4),
    "wgmma, one block": RUNGS.wgmma_rung(256, 4, 1),
    "wgmma, 128 columns": RUNGS.wgmma_rung(128, 6, 2, band=4),
}


@pytest.fixture(scope="module")
def bench():
    facts = inventory.facts()
    gpu = plugins.load("backends", facts.devices[0].backend).open(facts.devices[0])
    return Bench(gpu, Case("tensor", "hgemm", (("n", 512),)), Target(facts, gpu.device), SUITE.package, 1)


def operands(bench, m, n, k):
    data_bench = dataclasses.replace(bench, package=DATA.__package__)
    return DATA.Operands(data_bench, FORMATS.PRECISIONS["float16"], FORMATS.Shape(m, n, k, "nt"))


@pytest.mark.parametrize("sides", [(256, 256, 64), (1280, 768, 320), (2304, 4096, 4096)], ids=str)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_rungs_product_is_that_of_double_precision_also_a_second_time(bench, name, sides):
    product = operands(bench, *sides)
    try:
        call, _ = VARIANTS[name].build(bench, product.product)
    except Skip as reason:  # instructions of another architecture
        pytest.skip(str(reason))
    for _ in range(2):
        product.c.view("int8").fill(-1)
        call()
        assert 0 < product.check()["error"].value < 2**-11


def test_a_wrong_element_of_b_fails_the_check(bench):
    product = operands(bench, 512, 512, 512)
    call, _ = RUNGS.RUNGS["wgmma"].build(bench, product.product)
    product.c.view("int8").fill(-1)
    call()
    product.b[:512] = bench.xp.roll(product.b[:512], 1)
    with pytest.raises(WrongAnswer):
        product.check()


def test_the_notes_of_a_kernel_show_no_spills(bench):
    product = operands(bench, 512, 512, 512)
    for name in ("tile", "mma", "swizzled", "async", "bulk", "wgmma"):
        _, notes = RUNGS.RUNGS[name].build(bench, product.product)
        assert "0 bytes of local memory" in notes["resources"], name


def test_a_rung_is_timed_in_turn_with_the_vendors_product(bench):
    measured = Engine(bench.device, POLICIES["quick"]).measure(HGEMM.hgemm(bench, "wgmma", 4096))
    share = next(series for series in measured.series if series.name == "of_best")
    assert all(20 < value < 200 for value in share.values)
