"""How small an effect can be and still be seen here: the noise floors of an A/A, identical code in fresh processes.

Pure functions of a run with replicates (`gpubench doctor --noise` measures one).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from gpubench import stats
from gpubench.analysis.summary import Spread, Summary
from gpubench.base import units
from gpubench.model import Run

LEAST_REPLICATES = 3  # a deviation of two values has one degree of freedom: it says next to nothing
LEAST_TO_FAIL = 5  # fewer processes on a side call nothing slower or faster: too few for five per cent at 1 % of noise
ERRORS = 3.0  # a threshold is at least so many standard errors, where the error itself is known
CHANCE = 0.0027  # how often a normal value lies farther than that from its mean, either way
HOPELESS = 1.0  # a threshold above this is no figure: what is twice as slow passes
COARSE = 0.1  # a threshold above this is no gate: real regressions are a few per cent


@dataclass(frozen=True, slots=True)
class Floor:
    """The noise floor of one case on one device set.

    `between` is the coefficient of variation of the processes' medians, `log_deviation` the standard
    deviation of their logarithms (n - 1), `threshold` the smallest change, as a fraction, that a gate
    with `replicates` fresh processes on each side can decide.
    """

    case: str
    devices: tuple[str, ...]
    replicates: int
    between: float
    log_deviation: float
    threshold: float

    @property
    def detectable(self) -> str:
        """The smallest change that can be detected: `0.6 %`, `95 % (too noisy for a gate)`."""
        if self.threshold > HOPELESS:
            return "none: not even a factor of 2"
        return percent(self.threshold) + (" (too noisy for a gate)" if self.threshold > COARSE else "")


def percent(fraction: float) -> str:
    """A fraction as a percentage, with a second digit where it is below 0.1 %, without decimals from 10 %."""
    return units.percent(fraction, 0 if fraction >= COARSE else 1 if fraction >= 0.001 else 2)


def log_deviation(medians: Sequence[float]) -> float:
    """The standard deviation (n - 1) of the logarithms of positive values."""
    return float(np.log(medians).std(ddof=1))


def chance_errors(freedom: stats.Vector) -> stats.Vector:
    """Return how many standard errors identical code exceeds with the probability `CHANCE`, by Student's t.

    An error that is estimated with few degrees of freedom is itself uncertain: of 5 against 5 processes the number
    is 4.3, of 20 against 20 it is 3.2, and of many it is `ERRORS`.
    """
    return stats.student_quantile(freedom, CHANCE)


@cache
def chance_errors_of(freedom: int) -> float:
    """Return `chance_errors` of one number of degrees of freedom, which many cases share."""
    return float(chance_errors(np.array(float(freedom))))


def threshold(deviation: float, replicates: int) -> float:
    """The smallest change that `replicates` processes against as many can decide, as a fraction.

    The effect of a gate is the difference of the mean log medians of its two sides. In an A/A both
    sides have the deviation s of one population, so that the effect has the standard error

        SE = √(s²/n + s²/n) = s · √(2/n)

    with 2(n - 1) degrees of freedom (Student, Biometrika 6, 1908). The threshold is
    `chance_errors` of them, on logs, which is exp(…) - 1 as a change.
    """
    error = deviation * math.sqrt(2 / replicates)
    return math.expm1(error * chance_errors_of(2 * (replicates - 1)))


def floors(run: Run) -> list[Floor]:
    """The floor of each case with enough ok replicates, in the order first measured."""
    return [_floor(spread) for spread in Summary(run).spreads() if is_decided(spread)]


def is_decided(spread: Spread) -> bool:
    """Whether a case has a floor: at least three ok replicates, with positive finite medians."""
    medians = spread.medians
    return len(medians) >= LEAST_REPLICATES and all(0 < value < math.inf for value in medians)


def undecided(run: Run) -> list[str]:
    """In words, each case that has no floor: `ipc/pull[…]: no floor, 2 of 10 replicates are ok: needs 2 devices`."""
    return [_why(spread) for spread in Summary(run).spreads() if not is_decided(spread)]


def _why(spread: Spread) -> str:
    reason = next((f": {row.result.reason}" for row in spread.rows if row.result.reason), "")
    return f"{spread.case.id}: no floor, {len(spread.medians)} of {len(spread.rows)} replicates are ok{reason}"


def _floor(spread: Spread) -> Floor:
    deviation, count = log_deviation(spread.medians), len(spread.medians)
    return Floor(spread.case.id, spread.devices, count, spread.between, deviation, threshold(deviation, count))
