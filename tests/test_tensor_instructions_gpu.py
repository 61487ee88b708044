"""Single instructions and the HGEMV ladder on a real GPU: right answers, and rates that the architecture allows."""

import dataclasses
from typing import Any

import pytest
from _poison import overwrite

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import Skip
from gpubench.measuring import inventory
from gpubench.model import Case

pytestmark = pytest.mark.gpu
SUITE = plugins.load("suites", "tensor")
# operations per clock of an SM of sm_90
OPERATIONS = {"float64": 128, "float32": 256, "float16x2": 512, "bfloat16x2": 512}
COLUMNS = {64: 0.4, 256: 0.9}  # columns of wgmma, and the minimum share of the rate in the table


@pytest.fixture(scope="module")
def bench():
    facts = inventory.facts()
    gpu = plugins.load("backends", facts.devices[0].backend).open(facts.devices[0])
    return Bench(gpu, Case("tensor", "fma"), Target(facts, gpu.device, "full"), SUITE.package, 1)


def observed(bench, name, **params):
    """Build a case, run and check it twice, and return what its cycles tell."""
    task = SUITE.build(dataclasses.replace(bench, case=Case("tensor", name, tuple(params.items()))))
    stage = task.stages[""]
    for _ in range(2):
        overwrite(task)
        stage.call()
        task.check()
    assert stage.probe is not None
    return {name: value.value for name, value in stage.probe().items()}  # type: ignore[union-attr]


def hopper(device):
    if device.arch != "sm_90":
        pytest.skip(f"the figures are those of sm_90, not of {device.arch}")


@pytest.mark.parametrize("dtype", OPERATIONS)
def test_multiply_adds_reach_the_rate_of_the_architecture_within_two_per_cent(bench, dtype):
    hopper(bench.device.device)
    figures = observed(bench, "fma", dtype=dtype, independent=32)
    assert figures["per_clock"] == pytest.approx(OPERATIONS[dtype], rel=0.02)


@pytest.mark.parametrize("columns", COLUMNS)
def test_wgmma_comes_near_the_rate_of_the_architecture(bench, columns):
    hopper(bench.device.device)
    axes = {"dtype": "float16", "sums": "float32", "columns": columns, "a": "shared"}
    figures = observed(bench, "wgmma", **axes, wait="late")
    assert COLUMNS[columns] * 4096 <= figures["per_clock"] <= 1.01 * 4096


def test_each_instruction_gives_right_answers_with_one_chain_and_with_many(bench):
    ends = {"independent": (1, 16, 32), "columns": (8, 64, 256)}
    cases = [case for case in SUITE.cases(bench.target) if case.name in ("fma", "integer", "special", "mma", "wgmma")]
    cases = [case for case in cases if all(value in ends.get(axis, (value,)) for axis, value in case.params)]
    skipped = set()
    for case in cases:
        try:
            assert observed(bench, case.name, **dict(case.params))["cycles"] > 0, case.id
        except Skip:
            skipped.add((case.name, dict(case.params).get("dtype")))
    assert skipped <= {("mma", "float8_e4m3")}


def test_a_dependent_chain_is_slower_than_independent_ones(bench):
    hopper(bench.device.device)
    cycles = [observed(bench, "fma", dtype="float32", independent=chains)["cycles"] for chains in (1, 2, 4)]
    assert cycles[0] == pytest.approx(4, abs=0.2)
    assert cycles[0] > 1.8 * cycles[1] > 3 * cycles[2]


@pytest.mark.parametrize("shape", ["4096x4096", "4097x1152"])
@pytest.mark.parametrize("rung", ["naive", "warp", "vectorised", "rows", "split"])
def test_a_rung_of_the_hgemv_ladder_gives_the_product_in_every_copy(bench, rung, shape):
    axes = (("rung", rung), ("shape", shape))
    task = SUITE.build(dataclasses.replace(bench, case=Case("tensor", "hgemv", axes)))
    for _ in range(2):
        overwrite(task)
        for call in task.stages[""].rotation:
            call()
        figures: Any = task.check()
        assert 0 < figures["error"].value < 2**-10
