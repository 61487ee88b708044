"""Compute how often to save a snapshot, from the times of a step, a snapshot and a restart, and the rate of failures.

Sources: Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (1974), 530–531; Daly, "A
higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22 (2006), 303–312, equations 20 and
37."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SnapshotCosts:
    """Seconds of a step, of saving a snapshot, and of restarting from one."""

    step_s: float
    save_s: float
    restart_s: float = 0.0

    def slowdown(self, steps: int, mtbf_s: float) -> float:
        """Return the expected run time with a snapshot after every `steps` steps, over the time of the steps alone.

        `mtbf_s` is the mean time M between failures in seconds, which are exponentially distributed."""
        work_s = steps * self.step_s
        segments = math.expm1(min((work_s + self.save_s) / mtbf_s, _MOST_EXPONENT))
        return mtbf_s * math.exp(min(self.restart_s / mtbf_s, _MOST_EXPONENT)) * segments / work_s

    def best_steps(self, mtbf_s: float) -> int:
        """Return the number of steps between two snapshots, at least 1, with which the expected run time is shortest.

        It is Daly's formula, rounded down or up, whichever `slowdown` prefers."""
        steps = max(1, math.floor(daly_s(self.save_s, mtbf_s) / self.step_s))
        return min((steps, steps + 1), key=lambda count: self.slowdown(count, mtbf_s))


_MOST_EXPONENT = 700.0  # the exponential of a larger exponent would exceed the largest float


def young_s(save_s: float, mtbf_s: float) -> float:
    """Return the optimal seconds of work between snapshots by Young's first-order formula, √(2 · save_s · mtbf_s)."""
    return math.sqrt(2 * save_s * mtbf_s)


def daly_s(save_s: float, mtbf_s: float) -> float:
    """Return the optimal seconds of work between snapshots by Daly's higher-order formula (equation 37).

    `save_s` is the time δ to save one, and `mtbf_s` the mean time M between failures."""
    if save_s >= 2 * mtbf_s:
        return mtbf_s
    share = save_s / (2 * mtbf_s)
    return young_s(save_s, mtbf_s) * (1 + math.sqrt(share) / 3 + share / 9) - save_s
