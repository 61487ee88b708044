"""Estimate how many processes would decide an undecided case from the noise that was measured."""

import math
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from gpubench import stats
from gpubench.judging.judge import Finding
from gpubench.judging.noise import chance_errors

MOST_PROCESSES = 100  # per side; a case that needs more is not worth the time
POWER = 0.8  # the probability that the recommended number of processes decides a case
_COUNTS = (*range(5, 11), *range(12, 21, 2), *range(24, 41, 4), *range(45, 71, 5), 80, 90, MOST_PROCESSES)
_PLACES = (np.arange(21) + 0.5) / 21  # quantiles of the distribution of the true change
_LOGISTIC = 1.702  # 1 / (1 + exp(-1.702 z)) is the normal distribution's function within 0.01 (Bowling et al. 2009)


class _Counts(NamedTuple):
    """Numbers of processes per side, with Student's 95 % quantile and `chance_errors` for each; all of shape (1, n)."""

    processes: stats.Vector
    quantiles: stats.Vector
    chances: stats.Vector


@cache
def _counts(sides: int) -> _Counts:
    """Return the numbers of processes to try with their quantiles and chance errors."""
    processes = np.array([_COUNTS], dtype=float)
    freedom = sides * (processes - 1)
    return _Counts(processes, stats.student_quantile(freedom), chance_errors(freedom))


@cache
def _places(freedom: int) -> stats.Vector:
    """Return 21 evenly spread quantiles of Student's distribution, in standard errors, of shape (21, 1)."""
    tails = 2 * np.minimum(_PLACES, 1 - _PLACES)
    sizes = [float(stats.student_quantile(np.array(float(freedom)), tail)) for tail in tails]
    return np.copysign(sizes, _PLACES - 0.5)[:, np.newaxis]


def processes_needed(finding: Finding) -> int:
    """Return the estimated number of processes per side that decide a case with a probability of 80 %.

    It is 0 if 100 are not enough, and if the finding has no effect or the processes do not differ at all."""
    effect = finding.effect
    if effect is None or not effect.between:
        return 0
    # More processes do not lower the noise between sessions, so it keeps its own bound.
    other_sessions = effect.least_threshold if effect.deviation not in (0.0, effect.between) else 0.0
    return _fewest_processes(
        effect.shift,
        effect.between,
        finding.user_threshold,
        other_sessions,
        finding.before.processes,
        finding.after.processes,
    )


@lru_cache(maxsize=4096)
def _fewest_processes(
    shift: float, between: float, user_threshold: float, other_sessions: float, before: int, after: int
) -> int:
    """Return the smallest number of processes per side that decides a case with a probability of 80 %; 0 above 100."""
    sides, measured = (2, 1 / before + 1 / after) if before else (1, 1 / after)
    processes, quantiles, chances = _counts(sides)
    error = between * np.sqrt(sides / processes)
    margin = quantiles * error
    threshold = np.maximum(np.maximum(user_threshold, other_sessions), chances * error if sides == 2 else 0.0)
    change = shift + between * math.sqrt(measured) * _places(max(before + after - sides, 1))
    beyond = _normal((np.abs(change) - threshold - margin) / error)
    within = (
        _normal((user_threshold - margin - change) / error) + _normal((user_threshold - margin + change) / error) - 1
    )
    power = (beyond + np.maximum(within, 0.0)).mean(axis=0)
    enough = processes[0][power >= POWER]
    return int(enough[0]) if len(enough) else 0


def _normal(z: stats.Vector) -> stats.Vector:
    """Return the normal distribution function by a logistic approximation; its error of 0.01 is small enough here."""
    return 1 / (1 + np.exp(-_LOGISTIC * np.clip(z, -400, 400)))


def deciding_threshold(finding: Finding) -> float:
    """Return the smallest threshold, as a fraction, that makes the verdict `same`; NaN if there is no effect."""
    if finding.effect is None:
        return math.nan
    return math.expm1(max(abs(finding.effect.low), abs(finding.effect.high)))
