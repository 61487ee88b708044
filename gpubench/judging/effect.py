"""How one side differs from another, and how small a difference can be seen: docs/gate.md says why so.

Everything is on logarithms that are turned so that more is worse: +0.02 is 2 % slower, whatever the unit.
Nothing here knows of a policy; a comparison asks the same functions as a gate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpubench import stats
from gpubench.judging.evidence import Side
from gpubench.judging.noise import ERRORS, LEAST_REPLICATES, chance_errors, chance_errors_of

_LEAST_SITTINGS = 3  # a deviation of two sittings has one degree of freedom


class Scatter(NamedTuple):
    """How identical code scatters, on logarithms.

    `error` is the standard error of an effect between identical code, `errors` how many of them chance does not
    exceed, `deviation` the standard deviation between the values, which `counted` names: `5 and 5 processes`.
    """

    error: float
    errors: float = ERRORS
    deviation: float = 0.0
    counted: str = ""

    @property
    def least_threshold(self) -> float:
        """The smallest difference that this scatter leaves decidable."""
        return self.errors * self.error


@dataclass(frozen=True, slots=True)
class Effect:
    """The candidate against the baseline, on logarithms, worse upwards.

    `shift` is the Hodges-Lehmann estimate over the processes' medians, `low` and `high` the 95 % interval
    by Welch, `p` the probability of such a difference between equals. `between` is the standard deviation between the
    processes of both sides, pooled. The others are those of the `Scatter` that asks for the widest threshold.
    """

    shift: float
    low: float
    high: float
    p: float
    error: float
    errors: float = ERRORS
    deviation: float = 0.0
    counted: str = ""
    between: float = 0.0

    @property
    def least_threshold(self) -> float:
        """The smallest difference that noise leaves decidable."""
        return self.errors * self.error

    @property
    def reach(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2


@dataclass(frozen=True, slots=True)
class SidePair:
    """The logarithms of two sides, and what else than their processes says how identical code scatters."""

    before: tuple[float, ...]
    after: tuple[float, ...]
    elsewhere: tuple[Scatter, ...] = ()


def is_weighable(side: Side) -> bool:
    """Whether a side has enough processes, with figures that have a logarithm."""
    return len(side.logs) >= LEAST_REPLICATES


def pair(before: Side, after: Side, noise: Side | None = None) -> SidePair:
    """Return two weighable sides as a pair; `noise` is the same case in a run of identical code."""
    elsewhere = []
    if noise is not None and is_weighable(noise):
        counted = f"{len(noise.logs)} processes of the noise run"
        elsewhere.append(_scatter(noise.logs, len(before.logs), len(after.logs), counted))
    if len(set(before.sittings)) >= _LEAST_SITTINGS and len(centres := before.centres) >= _LEAST_SITTINGS:
        counted = f"{len(centres)} sessions of the baseline"
        elsewhere.append(_scatter(centres, len(centres), len(set(after.sittings)), counted))
    return SidePair(before.logs, after.logs, tuple(elsewhere))


def _scatter(logs: Sequence[float], before: int, after: int, counted: str) -> Scatter:
    """The scatter of these logarithms, for an effect of `before` against `after` of their kind."""
    mean = sum(logs) / len(logs)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in logs) / (len(logs) - 1))
    error = deviation * math.sqrt(1 / before + 1 / after)
    return Scatter(error, chance_errors_of(len(logs) - 1), deviation, counted)


def effects(pairs: Sequence[SidePair]) -> list[Effect]:
    """The effect of each pair, in order; pairs with as many processes are weighed in one go."""
    shapes: dict[tuple[int, int], list[int]] = {}
    for index, each in enumerate(pairs):
        shapes.setdefault((len(each.before), len(each.after)), []).append(index)
    weighed: dict[int, Effect] = {}
    for indices in shapes.values():
        weighed |= zip(indices, _weighed([pairs[index] for index in indices]), strict=True)
    return [weighed[index] for index in range(len(pairs))]


def _weighed(pairs: Sequence[SidePair]) -> list[Effect]:
    before, after = np.array([each.before for each in pairs]), np.array([each.after for each in pairs])
    welch = stats.welch(before, after)
    reach, shifts = welch.reach, stats.hodges_lehmann(before, after)
    rows = np.stack((shifts, welch.difference - reach, welch.difference + reach, welch.p), axis=-1).tolist()
    return [
        Effect(
            shift,
            low,
            high,
            p,
            *max((own, *each.elsewhere), key=lambda scatter: scatter.least_threshold),
            between=own.deviation,
        )
        for each, (shift, low, high, p), own in zip(pairs, rows, _own_scatter(before, after, welch), strict=True)
    ]


def _own_scatter(before: stats.Vector, after: stats.Vector, welch: stats.Welch) -> Iterator[Scatter]:
    """Yield the scatter of each row's processes.

    Of two estimates of the error the one that asks for more counts: the pooled one where a side is quiet by chance,
    Welch's where the side with fewer processes is the noisier one.
    """
    old, new = before.shape[-1], after.shape[-1]
    deviations = stats.pooled_deviation(before, after)
    pooled, own = deviations * math.sqrt(1 / old + 1 / new), welch.error
    pooled_errors, own_errors = chance_errors_of(old + new - 2), chance_errors(welch.freedom)
    is_pooled = pooled * pooled_errors >= own * own_errors
    columns = np.where(is_pooled, pooled, own), np.where(is_pooled, pooled_errors, own_errors), deviations
    counted = f"{old} and {new} processes"
    rows = np.stack(columns, axis=-1).tolist()
    return (Scatter(error, errors, deviation, counted) for error, errors, deviation in rows)


def against(side: Side, expected: float) -> Effect:
    """One weighable side against a figure that is known, in its unit: the interval is Student's, of one sample.

    `shift` is the median, `p` is not asked (NaN): whether it differs from what is expected is not the question.
    """
    logs = np.array(side.logs)
    centre = (-1.0 if side.kinds[0].better == "more" else 1.0) * math.log(expected)
    error = float(logs.std(ddof=1)) / math.sqrt(len(logs))
    reach = error * float(stats.student_quantile(np.array(len(logs) - 1.0)))
    mean = float(logs.mean()) - centre
    shift, between = float(np.median(logs)) - centre, error * math.sqrt(len(logs))
    return Effect(shift, mean - reach, mean + reach, math.nan, error, between=between)


def as_change(shift: float, better: str) -> float:
    """A shift as a fraction of the figure: +2 % slower is +0.02 of a time and -0.0196 of a rate."""
    return math.expm1(-shift if better == "more" else shift)
