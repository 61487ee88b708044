"""How many processes would decide what is undecided, from the noise that was seen. Pure functions of a finding."""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

import numpy as np

from gpubench import stats
from gpubench.judging.judge import Finding
from gpubench.judging.noise import LEAST_TO_FAIL, chance_errors

MOST_PROCESSES = 100  # per side: what needs more is not worth measuring
POWER = 0.8  # how often as many processes as are named would decide, were change and noise exactly as they were seen
_POWER_ERRORS = NormalDist().inv_cdf(POWER)


@cache
def _quantiles(sides: int) -> tuple[stats.Vector, stats.Vector, stats.Vector]:
    """Return numbers of processes per side, and of each Student's 95 % quantile and `chance_errors`."""
    processes = np.arange(LEAST_TO_FAIL, MOST_PROCESSES + 1, dtype=float)
    freedom = sides * (processes - 1)
    return processes, stats.student_quantile(freedom), chance_errors(freedom)


def processes_needed(finding: Finding) -> int:
    """Return the smallest number of processes per side that decides a case with a probability of 80 %.

    The change and the noise between processes are taken to be what was measured. With n processes a side the effect has
    the standard error s·√(2/n), against a floor s·√(1/n). A case is decided where its 95 % interval lies beyond the
    threshold, which noise widens, or within the threshold that the user asked for. 0 where more than 100 are needed.
    """
    found = finding.effect
    if found is None or not found.between:
        return 0
    sides = 2 if finding.before.processes else 1
    processes, quantiles, chances = _quantiles(sides)
    error = found.between * np.sqrt(sides / processes)
    reach = (quantiles + _POWER_ERRORS) * error
    noise = chances * error if sides > 1 else np.zeros_like(error)
    if found.deviation != found.between:  # the noise of other sessions, which more processes do not lower
        noise = np.maximum(noise, found.least_threshold)
    size = abs(found.shift)
    is_change = size - reach > np.maximum(finding.asked, noise)
    enough = processes[is_change | (size + reach <= finding.asked)]
    return int(enough[0]) if len(enough) else 0


def deciding_threshold(finding: Finding) -> float:
    """Return the threshold, a fraction, within which the whole interval lies: with it the case would be the same."""
    if finding.effect is None:
        return math.nan
    return math.expm1(max(abs(finding.effect.low), abs(finding.effect.high)))
