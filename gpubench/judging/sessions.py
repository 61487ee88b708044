"""Learn from the baseline how much sessions of a machine differ, and which processes are out for most cases.

docs/gate.md states the rules. Values are logarithms whose sign makes more worse, as in `judging.effect`."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from gpubench.judging.effect import Effect, Scatter, widened
from gpubench.judging.evidence import Evidence, Side
from gpubench.judging.noise import chance_errors_of

UNKNOWN = math.log1p(0.05)  # what the machine may explain where a single session has shown nothing
_SQUARED_QUARTILE = 0.4549  # the median of chi-square with one degree of freedom
_PRIOR_DEVIATION = 0.005  # two sessions can agree by chance; sessions of an H200 differ by at least about this
_PRIOR_FREEDOM = 4  # the weight of this knowledge beside the sessions that were measured
_MOST_FREEDOM = 12  # the pooled variance has at most this many degrees of freedom, since cases move together
_UNLIKE = (
    7.0  # the 99 % quantile of chi-square with one degree of freedom: a case that varies more has its own variance
)
_OUT = 4.0  # a process is out in a case if it lies this many robust deviations from the median of its side
_CLEARLY = 1.5  # two estimates of one scatter differ by up to about this; the wider of both would be too wide
_ROBUST = 0.37  # the efficiency of a median of squares beside a variance (Rousseeuw & Croux 1993)
_LEAST_FREEDOM = 5  # fewer would hide every change from suites of ten cases (tests/studies/verdict_worlds.py)
LEAST_SHIFTS = 8  # the scatter of fewer cases is too uncertain
_LEAST_CASES = 5  # a process can be out for most cases only if there are this many
_LEAST_PROCESSES = 5  # and only among this many processes, of which at most a fifth is left out
_MAD_TO_SIGMA = 1.4826  # makes the median absolute deviation of a normal sample estimate its standard deviation


def resource(limit: str) -> str:
    """Return the part of a machine that a limit belongs to: `tensor` of `tensor.float16`. Links are kept apart."""
    return limit if limit.startswith("link.") else limit.partition(".")[0]


@dataclass(slots=True)
class _Pool:
    """The squared deviations of the sessions' means of all cases of a resource, their freedom, and the widest range."""

    squares: float = 0.0
    freedom: int = 0
    range: float = 0.0


class SessionSpreads:
    """The differences between the sessions of a baseline, pooled over the cases that the same resource bounds."""

    def __init__(self, sides: Iterable[Side]) -> None:
        """Pool the sessions of the baseline's sides."""
        self._pools: dict[tuple[tuple[str, ...], str], _Pool] = {}
        for side in sides:
            centres = side.centres
            if len(centres) > 1:
                pool = self._pools.setdefault(_pool_key(side), _Pool())
                pool.squares += squared_deviations(centres)
                pool.freedom += len(centres) - 1
                pool.range = max(pool.range, max(centres) - min(centres))

    def bound(self, side: Side) -> float:
        """Return how much the machine may explain: the widest difference of sessions of the resource, else 5 %."""
        pool = self._pools.get(_pool_key(side))
        return max(pool.range, _PRIOR_DEVIATION) if pool else UNKNOWN

    def scatter(self, before: Side, after: Side) -> Scatter | None:
        """Return the scatter between sessions of one case; None if the baseline has one session of it."""
        centres = before.centres
        pool = self._pools.get(_pool_key(before))
        if pool is None or len(centres) < 2:
            return None
        own_freedom = len(centres) - 1
        own = squared_deviations(centres) / own_freedom
        freedom = pool.freedom + _PRIOR_FREEDOM
        pooled = (pool.squares + _PRIOR_FREEDOM * _PRIOR_DEVIATION**2) / freedom
        weight = min(freedom, _MOST_FREEDOM)
        variance = own if own > _UNLIKE * pooled else (weight * pooled + own_freedom * own) / (weight + own_freedom)
        deviation, errors = math.sqrt(variance), chance_errors_of(weight)
        error = deviation * math.sqrt(1 / len(centres) + 1 / len(set(after.sessions)))
        return Scatter(error, errors, deviation, f"{len(centres)} sessions of the baseline", weight)


def between_two_sessions(
    pairs: Sequence[tuple[Side, Side]], effects: Sequence[Effect], bounds: Sequence[float]
) -> list[Effect]:
    """Return the effects against a baseline of other sessions, with the scatter that the cases of a resource show.

    It is the geometric mean of the scatters of the resource and of all cases of the devices, of eight or more each. It
    counts up to `bounds`, where it is wider than a case's own noise and clearly wider than the baseline's sessions."""
    # Most cases are unchanged: the scatter of all shifts about their median, less their noise, is how much the two
    # sessions differ by case.
    groups: dict[tuple[tuple[str, ...], str], list[int]] = {}
    for index, (_, new) in enumerate(pairs):
        for key in {_pool_key(new), (new.devices, "")}:
            groups.setdefault(key, []).append(index)
    scatters = {key: _scatter_of_shifts([effects[index] for index in indices]) for key, indices in groups.items()}
    wider = []
    for (old, new), own, bound in zip(pairs, effects, bounds, strict=True):
        of_all = scatters[new.devices, ""]
        scatter = scatters[_pool_key(new)] or of_all
        if scatter and of_all:
            error = math.sqrt(scatter.error * of_all.error)  # the estimate of few cases alone is often too small
            if len(old.centres) < 2 or error > _CLEARLY * own.error:
                error = min(error, bound / scatter.errors)
                own = widened(own, scatter._replace(error=error, deviation=error / math.sqrt(2)))
        wider.append(own)
    return wider


def _scatter_of_shifts(effects: Sequence[Effect]) -> Scatter | None:
    """Return the scatter of shifts about their median beyond their noise; None of fewer than eight."""
    if len(effects) < LEAST_SHIFTS:
        return None
    shifts = np.array([effect.shift for effect in effects])
    noise = np.array([effect.margin / 2 for effect in effects])  # about one standard error
    squares = (shifts - np.median(shifts)) ** 2 - _SQUARED_QUARTILE * noise**2
    deviation = math.sqrt(max(float(np.median(squares)), 0.0) / _SQUARED_QUARTILE)
    freedom = min(max(round(_ROBUST * (len(effects) - 1)), _LEAST_FREEDOM), _MOST_FREEDOM)
    return Scatter(deviation, chance_errors_of(freedom), 0.0, f"two sessions, by {len(effects)} cases", freedom)


def _pool_key(side: Side) -> tuple[tuple[str, ...], str]:
    return side.devices, resource(side.kinds[0].limit) if side.kinds else ""


def squared_deviations(values: Sequence[float]) -> float:
    """Return the sum of the squared deviations from the mean."""
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values)


def without_outlying_processes(evidence: Evidence, name: str) -> tuple[Evidence, list[str]]:
    """Return the evidence without processes that are out for most of their cases, and a note for each of them.

    `name` is `baseline` or `candidate`, for the notes. At most a fifth of the processes is left out."""
    measured, out = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    alike: dict[tuple[tuple[int, ...], tuple[int, ...]], list[Side]] = {}  # computed together, which is much faster
    for side in evidence.sides.values():
        if len(side.logs) >= _LEAST_PROCESSES and len(side.logs) == len(side.ok):
            alike.setdefault((side.readings, side.ok), []).append(side)
    for (_, ok), sides in alike.items():
        logs = np.array([side.logs for side in sides])
        distances = np.abs(logs - np.median(logs, axis=1, keepdims=True))
        deviations = _MAD_TO_SIGMA * np.median(distances, axis=1, keepdims=True)
        far_cases = (distances > np.maximum(_OUT * deviations, 1e-9)).sum(axis=0).tolist()
        numbers = sides[0].numbers
        for index, count in zip(ok, far_cases, strict=True):
            measured[numbers[index]] += len(sides)
            out[numbers[index]] += count
    bad = sorted(process for process, count in out.items() if count > max(measured[process] / 2, _LEAST_CASES - 1))
    if not bad or 5 * len(bad) > len(measured):
        return evidence, []
    notes = [
        f"{name}: process {number + 1} of {evidence.readings[reading].source or 'the run'} is out for "
        f"{out[reading, number]} of {measured[reading, number]} cases and is left out"
        for reading, number in bad
    ]
    return evidence.without(bad), notes
