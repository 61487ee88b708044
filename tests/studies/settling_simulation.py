"""Measure how far a figure lies from the settled one after a fast or slow start, and how often noise is labelled.

The whole engine on the clockwork device, whose time is arithmetic. A call takes its settled time, times
1 + A·exp(−t/τ) after t seconds of work, times noise::

    bash ci/study.sh settling_simulation [CASES]      default 40 of each kind of steady noise

A transient counts as handled where the median lies within ± 0.5 % of the settled time or the case has the label
`unsettled`.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpubench import plugins, stats
from gpubench.authoring.task import Stage, Task
from gpubench.measuring.engine import Engine
from gpubench.measuring.stopping import POLICIES
from gpubench.model import Work

AMPLITUDES = (-0.1, -0.05, -0.02, 0.02, 0.05, 0.1)
TIME_CONSTANTS_S = (0.05, 0.2, 1.0, 3.0)
CALL_SECONDS = (1e-4, 1e-3, 1e-2, 1e-1)
NOISES = (0.0, 0.003, 0.01)
TIERS = ("quick", "full")
TARGET = 0.005


@dataclass(frozen=True, slots=True)
class SimulatedCall:
    """A call of `seconds` once settled, with the amplitude and time constant of its start and AR(1) noise."""

    seconds: float
    amplitude: float = 0.0
    tau_s: float = 1.0
    noise: float = 0.0
    rho: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class SettlingOutcome:
    """The bias of a median as a fraction of the settled time, whether the case is labelled, and its seconds."""

    bias: float
    is_labelled: bool
    seconds: float
    samples: int

    @property
    def is_handled(self) -> bool:
        """Return whether the figure is right to 0.5 % or says that the device had not settled."""
        return self.is_labelled or abs(self.bias) <= TARGET


def outcome(call: SimulatedCall, tier: str, max_calls: int = 0) -> SettlingOutcome:
    """Measure one simulated call by the engine."""
    backend = plugins.load("backends", "clockwork")
    device = backend.open(backend.devices()[0])
    noise = _noise(call)

    def run() -> None:
        start = math.exp(-device.now() / call.tau_s)
        device.spend(call.seconds * (1 + call.amplitude * start) * (1 + next(noise)))

    stage = Stage(run, Work(items=1), "item", max_calls=max_calls)
    done = Engine(device, POLICIES[tier]).measure(Task.of(stage, check=dict))
    values = done.series[0].values
    bias = stats.median(values) / call.seconds - 1
    return SettlingOutcome(bias, "unsettled" in done.labels, device.now(), len(values))


def _noise(call: SimulatedCall) -> Iterator[float]:
    """Yield a stationary AR(1) process with the standard deviation `noise`."""
    rng = np.random.default_rng(call.seed)
    fresh = (1 - call.rho**2) ** 0.5
    last = 0.0
    for index in itertools.count():
        if index % 4096 == 0:
            block = rng.standard_normal(4096).tolist()
        last = block[0] if index == 0 else call.rho * last + fresh * block[index % 4096]
        yield call.noise * last


def transients(tier: str, noise: float) -> dict[SimulatedCall, SettlingOutcome]:
    """Measure every transient of the grid once."""
    grid = itertools.product(CALL_SECONDS, AMPLITUDES, TIME_CONSTANTS_S)
    calls = [SimulatedCall(*point, noise=noise, seed=seed) for seed, point in enumerate(grid)]
    return {call: outcome(call, tier) for call in calls}


def steady(tier: str, noise: float, rho: float, cases: int, seconds: float = 1e-3) -> list[SettlingOutcome]:
    """Measure steady calls, each with noise of its own."""
    return [outcome(SimulatedCall(seconds, noise=noise, rho=rho, seed=seed), tier) for seed in range(cases)]


def _print_transients() -> None:
    """Print how many transients ended settled or labelled, and the largest bias without a label."""
    print("transients: cases handled, largest bias without a label, by time constant")  # noqa: T201
    for tier, noise in itertools.product(TIERS, NOISES):
        outcomes = transients(tier, noise)
        for seconds in CALL_SECONDS:
            cells = []
            for tau_s in TIME_CONSTANTS_S:
                matching = [o for call, o in outcomes.items() if (call.seconds, call.tau_s) == (seconds, tau_s)]
                worst = max((abs(o.bias) for o in matching if not o.is_labelled), default=0.0)
                cells.append(f"{tau_s:g} s: {sum(o.is_handled for o in matching)}/{len(matching)} {worst:5.2%}")
            print(f"{tier:5} noise {noise:4.1%} call {seconds * 1e3:5.1f} ms  {'   '.join(cells)}", flush=True)  # noqa: T201


def _print_steady(cases: int) -> None:
    """Print the share of steady cases that got a label, and how long a case took."""
    print("steady noise: share of cases labelled, mean seconds of a case")  # noqa: T201
    for tier, noise, rho in itertools.product(TIERS, (0.0, 0.003, 0.01, 0.03), (0.0, 0.5, 0.9)):
        if noise or not rho:
            outcomes = steady(tier, noise, rho, cases)
            labelled = sum(o.is_labelled for o in outcomes) / cases
            mean_s = sum(o.seconds for o in outcomes) / cases
            figures = f"{labelled:5.1%} labelled, {mean_s:.3f} s"
            print(f"{tier:5} noise {noise:4.1%} rho {rho:g}: {figures}", flush=True)  # noqa: T201


if __name__ == "__main__":
    _print_transients()
    _print_steady(int(sys.argv[1]) if sys.argv[1:] else 40)
