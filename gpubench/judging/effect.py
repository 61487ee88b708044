"""How one side differs from another, and how small a difference can be seen: docs/gate.md says why so.

Everything is on logarithms that are turned so that more is worse: +0.02 is 2 % slower, whatever the unit.
Nothing here knows of a policy; a comparison asks the same functions as a gate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpubench import stats
from gpubench.judging.evidence import Side
from gpubench.judging.noise import LEAST_REPLICATES

_LEAST_SITTINGS = 3  # a deviation of two sittings has one degree of freedom
ERRORS = 3.0  # a threshold is at least so many standard errors of an A/A


@dataclass(frozen=True, slots=True)
class Effect:
    """The candidate against the baseline, on logarithms, worse upwards.

    `shift` is the Hodges-Lehmann estimate over the processes' medians, `low` and `high` the 95 % interval
    by Welch, `p` the probability of such a difference between equals, `error` the standard error that
    identical code shows here with as many processes and sittings.
    """

    shift: float
    low: float
    high: float
    p: float
    error: float

    @property
    def least_threshold(self) -> float:
        """The smallest difference that noise leaves decidable."""
        return ERRORS * self.error

    @property
    def reach(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sides ready to be weighed: logarithms, and the standard error of an A/A at their counts."""

    before: tuple[float, ...]
    after: tuple[float, ...]
    error: float


def is_weighable(side: Side) -> bool:
    """Whether a side has enough processes, with figures that have a logarithm."""
    return len(side.logs) >= LEAST_REPLICATES


def pair(before: Side, after: Side, noise: Side | None = None) -> Pair:
    """Two weighable sides as a pair; `noise` stands for the baseline's own spread where it is weighable."""
    source = noise if noise is not None and is_weighable(noise) else before
    error = standard_error(source.logs, len(before.logs), len(after.logs))
    sittings = standard_error(source.centres, len(before.centres), len(after.centres), _LEAST_SITTINGS)
    return Pair(before.logs, after.logs, max(error, sittings))


def standard_error(logs: Sequence[float], before: int, after: int, least: int = 2) -> float:
    """The standard error of an effect between identical code, of `before` against `after` processes.

    s·√(1/n + 1/m), with s the deviation of identical code's `logs`. Of sittings the same holds: what they
    differ by does not average out over the processes of one. 0 of fewer than `least` values.
    """
    if len(logs) < least:
        return 0.0
    mean = sum(logs) / len(logs)
    variance = sum((value - mean) ** 2 for value in logs) / (len(logs) - 1)
    return math.sqrt(variance * (1 / before + 1 / after))


def effects(pairs: Sequence[Pair]) -> list[Effect]:
    """The effect of each pair, in order; pairs with as many processes are weighed in one go."""
    shapes: dict[tuple[int, int], list[int]] = {}
    for index, each in enumerate(pairs):
        shapes.setdefault((len(each.before), len(each.after)), []).append(index)
    found: dict[int, Effect] = {}
    for indices in shapes.values():
        found |= zip(indices, _weighed([pairs[index] for index in indices]), strict=True)
    return [found[index] for index in range(len(pairs))]


def _weighed(pairs: Sequence[Pair]) -> list[Effect]:
    before, after = np.array([each.before for each in pairs]), np.array([each.after for each in pairs])
    shift, welch = stats.hodges_lehmann(before, after), stats.welch(before, after)
    reach = welch.reach
    columns = shift, welch.difference - reach, welch.difference + reach, welch.p
    rows = np.stack(columns, axis=-1).tolist()
    return [Effect(centre, low, high, p, each.error) for each, (centre, low, high, p) in zip(pairs, rows, strict=True)]


def against(side: Side, expected: float) -> Effect:
    """One weighable side against a figure that is known, in its unit: the interval is Student's, of one sample.

    `shift` is the median, `p` is not asked (NaN): whether it differs from what is expected is not the question.
    """
    logs = np.array(side.logs)
    centre = (-1.0 if side.kinds[0].better == "more" else 1.0) * math.log(expected)
    error = float(logs.std(ddof=1)) / math.sqrt(len(logs))
    reach = error * float(stats.student_quantile(np.array(len(logs) - 1.0)))
    mean = float(logs.mean()) - centre
    return Effect(float(np.median(logs)) - centre, mean - reach, mean + reach, math.nan, error)


def as_change(shift: float, better: str) -> float:
    """A shift as a fraction of the figure: +2 % slower is +0.02 of a time and -0.0196 of a rate."""
    return math.expm1(-shift if better == "more" else shift)
