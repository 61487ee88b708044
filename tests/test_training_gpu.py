"""Training steps by torch on a real GPU: checked, near the device's rate, and parts that sum to the step."""

import numpy as np
import pytest
from _modules import suite_module

from gpubench import plugins
from gpubench.analysis.quantities import limited_median
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import Skip
from gpubench.knowledge import hardware
from gpubench.measuring import inventory
from gpubench.measuring.engine import Engine
from gpubench.measuring.stopping import POLICIES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"),
]
SUITE = plugins.load("suites", "training")
PARTS = suite_module("training", "_decoder").PARTS


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("layer", {"precision": "bfloat16", "recompute": "off", "by": "torch"}),
        ("layer", {"precision": "bfloat16", "recompute": "on", "by": "torch"}),
        ("layer", {"precision": "float8", "by": "torch"}),
        ("products", {"by": "vendor"}),
        ("products", {"by": "torch"}),
        ("optimizer", {}),
        pytest.param("stack", {"layers": 8, "recompute": "off"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_step_is_right_and_its_parts_sum_to_it(name, params):
    pytest.importorskip("torch")
    facts = inventory.facts()
    gpu = plugins.load("backends", facts.devices[0].backend).open(facts.devices[0])
    target = Target(facts, gpu.device, "full")
    case = next(c for c in SUITE.cases(target) if c.name == name and params.items() <= dict(c.params).items())
    try:
        task = SUITE.build(Bench(gpu, case, target, SUITE.package, 1))
    except Skip as skipped:
        pytest.skip(str(skipped))
    measured = Engine(gpu, POLICIES["smoke"]).measure(task)
    assert "unchecked" not in measured.labels
    values = {series.label: np.array(series.values) for series in measured.series}
    if set(PARTS) <= values.keys():
        parts = sum(values[part] for part in PARTS)
        assert np.median(parts / values["hot"]) == pytest.approx(1, abs=0.02)
    peak = hardware.peak(gpu.device, measured.series[0].limit)
    if peak is not None and params.get("precision") == "bfloat16" and params["recompute"] == "off":
        assert limited_median(measured.series[0]) > 0.4 * peak.value
