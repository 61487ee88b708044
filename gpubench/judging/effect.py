"""Compute the effect of a change on one case, and the smallest effect that noise leaves visible.

docs/gate.md has the reasons. All values are logarithms whose sign makes more worse: +0.02 is 2 % slower, whatever the
unit. Nothing here depends on a policy, because a comparison and a gate call the same functions."""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from gpubench import stats
from gpubench.judging.evidence import Side
from gpubench.judging.noise import ERRORS, LEAST_REPLICATES, chance_errors, chance_errors_of

_LEAST_PAIRED = 5  # processes per side whose differences in pairs have degrees of freedom enough
_DRIFT_CHANCE = 0.01  # the two-sided probability of such a correlation of two sides without a drift
_LEAST_DRIFTING = 8  # the median correlation of fewer cases is too uncertain
_DRIFTING = 0.5


class Scatter(NamedTuple):
    """How much identical code scatters, on logarithms.

    `error` is the standard error of a difference, with `freedom` degrees of freedom. `deviation` is the standard
    deviation between the values, and `counted` says what they are: `5 and 5 processes`."""

    error: float
    errors: float = ERRORS
    deviation: float = 0.0
    counted: str = ""
    freedom: float = math.inf

    @property
    def least_threshold(self) -> float:
        """The smallest difference that can be decided despite this scatter."""
        return self.errors * self.error


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of the candidate against the baseline, on logarithms, where more is worse.

    `shift` is the Hodges-Lehmann estimate over the medians of the processes. `low` and `high` are its 95 % interval by
    Welch, and `p` is the probability of such a difference if both sides were equal. `between` is the pooled standard
    deviation between the processes of both sides. The other fields come from the `Scatter` with the widest threshold.
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
        """The smallest difference that can be decided despite the noise."""
        return self.errors * self.error

    @property
    def margin(self) -> float:
        """Half the width of the 95 % interval."""
        return (self.high - self.low) / 2


@dataclass(frozen=True, slots=True)
class SidePair:
    """The logarithms of two sides, and further estimates of how much identical code scatters.

    `other_scatters` are the estimates that do not come from the processes of the two sides, but from a noise run and
    from several sessions of the baseline."""

    before: tuple[float, ...]
    after: tuple[float, ...]
    other_scatters: tuple[Scatter, ...] = ()


def is_judgeable(side: Side) -> bool:
    """Return whether a side has at least three ok processes and all its figures have a logarithm."""
    return len(side.logs) >= LEAST_REPLICATES


def pair(before: Side, after: Side, noise: Side | None = None, sessions: Scatter | None = None) -> SidePair:
    """Return the logarithms of two judgeable sides, with the scatters that other measurements show for the same case.

    `noise` is the case in a run of identical code, or None; a noise run that is not judgeable does not count.
    `sessions` is the scatter between the baseline's sessions, or None if it has one session."""
    scatters = [] if sessions is None else [sessions]
    if noise is not None and is_judgeable(noise):
        logs = np.array(noise.logs)
        error = float(logs.std(ddof=1)) * math.sqrt(1 / len(before.logs) + 1 / len(after.logs))
        counted = f"{len(logs)} processes of the noise run"
        freedom = len(logs) - 1
        scatters.append(Scatter(error, chance_errors_of(freedom), float(logs.std(ddof=1)), counted, freedom))
    return SidePair(before.logs, after.logs, tuple(scatters))


def widened(effect: Effect, scatter: Scatter | None) -> Effect:
    """Return the effect with a scatter that other measurements show, and its p, if that scatter is wider."""
    if scatter is None or scatter.least_threshold <= effect.least_threshold:
        return effect
    chance = float(stats.student_tail(np.array(abs(effect.shift) / scatter.error), np.array(scatter.freedom)))
    error, errors, deviation, counted, _ = scatter
    p = max(effect.p, chance)
    return replace(effect, p=p, error=error, errors=errors, deviation=deviation, counted=counted)


def effects(pairs: Sequence[SidePair]) -> list[Effect]:
    """Return the effect of each pair, in the order of `pairs`.

    Pairs with the same numbers of processes are computed together, which is much faster."""
    shapes: dict[tuple[int, int], list[int]] = {}
    for index, side_pair in enumerate(pairs):
        shapes.setdefault((len(side_pair.before), len(side_pair.after)), []).append(index)
    by_index: dict[int, Effect] = {}
    for indices in shapes.values():
        by_index |= zip(indices, _effects_of_equal_counts([pairs[index] for index in indices]), strict=True)
    return [by_index[index] for index in range(len(pairs))]


def with_drift_taken_out(pairs: Sequence[SidePair], are_neighbours: Sequence[bool]) -> list[SidePair]:
    """Return pairs of sides that were measured in turn, as zeros and differences of neighbours where both sides drift.

    Differences of neighbours cancel a drift of the machine, but have half the degrees of freedom. So they are taken
    only where the logarithms of both sides correlate: in a case beyond chance, or in most cases."""
    counts: dict[int, list[int]] = {}
    for index, (side_pair, has_neighbours) in enumerate(zip(pairs, are_neighbours, strict=True)):
        if has_neighbours and len(side_pair.before) == len(side_pair.after) >= _LEAST_PAIRED:
            counts.setdefault(len(side_pair.before), []).append(index)
    free = list(pairs)
    for count, indices in counts.items():
        before, after = (np.array([getattr(pairs[index], name) for index in indices]) for name in ("before", "after"))
        first, second = (side - side.mean(axis=1, keepdims=True) for side in (before, after))
        scale = np.sqrt((first**2).sum(axis=1) * (second**2).sum(axis=1))
        correlation = (first * second).sum(axis=1) / np.maximum(scale, 1e-300)
        score = correlation * np.sqrt((count - 2) / np.maximum(1 - correlation**2, 1e-12))
        drifts = score > float(stats.student_quantile(np.array(count - 2.0), _DRIFT_CHANCE))
        if len(indices) >= _LEAST_DRIFTING and float(np.median(correlation)) > _DRIFTING:
            drifts |= correlation > 0
        for row in np.flatnonzero(drifts).tolist():
            index = indices[row]
            differences = tuple((after[row] - before[row]).tolist())
            free[index] = replace(pairs[index], before=(0.0,) * count, after=differences)
    return free


def _effects_of_equal_counts(pairs: Sequence[SidePair]) -> list[Effect]:
    """Return the effects of pairs that all have the same number of processes on each side, in order."""
    before, after = (np.array([getattr(side_pair, name) for side_pair in pairs]) for name in ("before", "after"))
    welch, pooled = stats.trimmed_welch(before, after)
    margin, shifts = welch.margin, stats.hodges_lehmann(before, after)
    rows = np.stack((shifts, welch.difference - margin, welch.difference + margin, welch.p), axis=-1).tolist()
    of_processes = _scatters_of_processes(before.shape[-1], after.shape[-1], welch, pooled)
    own = [
        Effect(
            shift, low, high, p, scatter.error, scatter.errors, scatter.deviation, scatter.counted, scatter.deviation
        )
        for (shift, low, high, p), scatter in zip(rows, of_processes, strict=True)
    ]
    return [
        functools.reduce(widened, side_pair.other_scatters, effect)
        for side_pair, effect in zip(pairs, own, strict=True)
    ]


def _scatters_of_processes(old: int, new: int, welch: stats.Welch, pooled: stats.Vector) -> Iterator[Scatter]:
    """Yield for each pair of sides the scatter between the processes of both sides: Student's or Welch's, if wider."""
    freedom = old + new - 2 * (stats.trimmed_count(old) + stats.trimmed_count(new)) - 2
    pooled_errors, unequal_errors = chance_errors_of(freedom), chance_errors(welch.freedom)
    is_pooled = pooled * pooled_errors >= welch.error * unequal_errors
    deviations = pooled / math.sqrt(1 / old + 1 / new)
    columns = np.where(is_pooled, pooled, welch.error), np.where(is_pooled, pooled_errors, unequal_errors), deviations
    counted = f"{old} and {new} processes"
    rows = np.stack(columns, axis=-1).tolist()
    return (Scatter(error, errors, deviation, counted) for error, errors, deviation in rows)


def against(side: Side, expected: float) -> Effect:
    """Return the effect of a judgeable side compared with an expected figure, with Student's 95 % interval.

    `expected` is positive and in the unit of the side. `shift` is the median of the processes' logarithms less the
    logarithm of `expected`. `p` is NaN, because the question is not whether the side differs from the expected
    figure."""
    logs = np.array(side.logs)
    centre = (-1.0 if side.kinds[0].better == "more" else 1.0) * math.log(expected)
    error = float(logs.std(ddof=1)) / math.sqrt(len(logs))
    margin = error * float(stats.student_quantile(np.array(len(logs) - 1.0)))
    mean = float(logs.mean()) - centre
    shift, between = float(np.median(logs)) - centre, error * math.sqrt(len(logs))
    return Effect(shift, mean - margin, mean + margin, math.nan, error, between=between)


def as_change(shift: float, better: str) -> float:
    """Return a shift (a logarithm, more is worse) as a fraction of the figure: +0.02 for a time that is 2 % longer.

    `better` says whether `more` or `less` of the figure is better; of a rate, the same shift is -0.0196."""
    return math.expm1(-shift if better == "more" else shift)
