"""Measure how often the 95 % interval covers the true median when the stopping rule chooses the number of samples.

The whole engine on the clockwork device, AR(1) noise about a known median::

    bash ci/study.sh coverage_of_intervals [CASES]
"""

from __future__ import annotations

import json
import sys

from gpubench import plugins, stats
from gpubench.authoring.task import Stage, Task
from gpubench.measuring.engine import Engine
from gpubench.measuring.stopping import StoppingPolicy
from gpubench.model import Work

SECONDS = 0.01
RULE = StoppingPolicy(budget_s=4.0, most=400, least_s=0.0, warmup_least_s=0.0, warmup_most_s=0.1)


def covered(rho: float, noise: float, cases: int) -> float:
    """Return the share of cases whose interval holds the true median."""
    backend = plugins.load("backends", "clockwork")
    (clockwork,) = backend.devices()
    held = 0
    for seed in range(cases):
        device = backend.open(clockwork)
        kernel = device.kernel(json.dumps({"seconds": SECONDS, "noise": noise, "rho": rho, "seed": seed}), "launch", {})
        stage = Stage(lambda launch=kernel: launch((1,), (1,), ()), Work(items=1), "item")
        series = Engine(device, RULE).measure(Task.of(stage, check=dict)).series[0]
        interval = stats.median_interval(series.values)
        held += interval.low <= SECONDS <= interval.high
    return held / cases


if __name__ == "__main__":
    number = int(sys.argv[1]) if sys.argv[1:] else 1000
    for rho in (0.0, 0.3, 0.5, 0.7):
        for noise in (0.003, 0.01, 0.03):
            print(f"rho {rho}, noise {noise:.1%}: {covered(rho, noise, number):.1%} of {number}", flush=True)  # noqa: T201
