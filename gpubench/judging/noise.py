"""Compute the noise floors of an A/A test: the smallest changes that can be seen on this machine, by identical code.

They are pure functions of a run with replicates in fresh processes; `gpubench doctor --noise` measures one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from gpubench import stats
from gpubench.analysis.figure import Spread
from gpubench.analysis.summary import Summary
from gpubench.base import units
from gpubench.model import Run

LEAST_REPLICATES = 3  # the deviation of two values has one degree of freedom, which is too uncertain
LEAST_TO_FAIL = 5  # fewer processes on a side call nothing slower or faster: too few for five per cent at 1 % of noise
ERRORS = 3.0  # a threshold is at least this number of standard errors if the error itself is known exactly
CHANCE = 0.0027  # the probability that a normal value lies farther than that from its mean, either way
HOPELESS = 0.5  # a threshold above this is useless, because a case that is half slower again would pass
COARSE = 0.1  # a threshold above this is too coarse for a gate, because real regressions are a few per cent


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """The noise floor of one case on one device set.

    `between` is the coefficient of variation of the processes' medians, and `log_deviation` the standard deviation
    of their logarithms (n - 1)."""

    case: str
    devices: tuple[str, ...]
    replicates: int
    between: float
    log_deviation: float
    threshold: float

    @property
    def detectable(self) -> str:
        """The smallest detectable change as text: `0.6 %`, `95 % (too noisy for a gate)`."""
        if self.threshold > HOPELESS:
            return "none below 50 %: this machine is too noisy to judge"
        return percent(self.threshold) + (" (too noisy for a gate)" if self.threshold > COARSE else "")


def percent(fraction: float) -> str:
    """Return a non-negative fraction as a percentage: two decimals below 0.1 %, none from 10 %, otherwise one.

    Beyond 50 % a noise or a threshold has no size worth a digit: `over 50 %`."""
    if fraction > HOPELESS:
        return f"over {HOPELESS:.0%}".replace("%", " %")
    return units.percent(fraction, 0 if fraction >= COARSE else 1 if fraction >= 0.001 else 2)


def log_deviation(medians: Sequence[float]) -> float:
    """Return the standard deviation (n - 1) of the logarithms of positive values."""
    return float(np.log(medians).std(ddof=1))


def chance_errors(freedom: stats.Vector) -> stats.Vector:
    """Return the number of standard errors that identical code exceeds with the probability `CHANCE`, by Student's t.

    `freedom` has the degrees of freedom, and the result has its shape."""
    return stats.student_quantile(freedom, CHANCE)


@cache
def chance_errors_of(freedom: int) -> float:
    """Return `chance_errors` for one number of degrees of freedom; many cases share it, so it is cached."""
    return float(chance_errors(np.array(float(freedom))))


def threshold(deviation: float, replicates: int) -> float:
    """Return the smallest change, as a fraction, that `replicates` processes per side can decide.

    `deviation` is the standard deviation of the logarithms of the processes' medians. The effect of a gate is the
    difference of the mean log medians of its two sides. In an A/A both sides have the deviation s of one population, so
    that the effect has the standard error

        SE = √(s²/n + s²/n) = s · √(2/n)

    with 2(n - 1) degrees of freedom (Student, Biometrika 6, 1908). The threshold is `chance_errors` times SE on
    logarithms, which is exp(…) - 1 as a change."""
    error = deviation * math.sqrt(2 / replicates)
    return math.expm1(error * chance_errors_of(2 * (replicates - 1)))


def floors(run: Run) -> list[NoiseFloor]:
    """Return the noise floor of each case with three ok replicates or more, in the order of their first measurement."""
    return [_floor(spread) for spread in Summary(run).spreads() if is_decided(spread)]


def is_decided(spread: Spread) -> bool:
    """Return whether a case has a floor: at least three ok replicates, with positive finite medians."""
    medians = spread.medians
    return len(medians) >= LEAST_REPLICATES and all(0 < value < math.inf for value in medians)


def undecided(run: Run) -> list[str]:
    """Return a sentence for each case that has no noise floor.

    Example: `ipc/pull[…]: no floor, 2 of 10 replicates are ok: needs 2 devices`."""
    return [_missing_floor_text(spread) for spread in Summary(run).spreads() if not is_decided(spread)]


def _missing_floor_text(spread: Spread) -> str:
    """Return the sentence for a case without a floor: how many of its replicates are ok, and the first reason."""
    reason = next((f": {row.result.reason}" for row in spread.rows if row.result.reason), "")
    return f"{spread.case.id}: no floor, {len(spread.medians)} of {len(spread.rows)} replicates are ok{reason}"


def _floor(spread: Spread) -> NoiseFloor:
    """Return the noise floor of a case from its replicates."""
    deviation, count = log_deviation(spread.medians), len(spread.medians)
    return NoiseFloor(spread.case.id, spread.devices, count, spread.between, deviation, threshold(deviation, count))
