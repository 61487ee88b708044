"""When to stop: a rule of plain numbers, apart from whatever is measured."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gpubench import stats
from gpubench.model import Tier

_NOISE_COUNT = 64  # from here on an interval's width is known well enough to tell whether it shrinks
_SHRINKING = 0.95  # independent samples give 0.71 for twice their number
_POINT = 0.25  # of a tier's times: a point of a dense curve has neighbours that show what its noise hides
_TAIL_BUDGETS = 4  # a tail of many samples may take so many budgets


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """When to stop sampling, tested with plain numbers; `verdict` says why, or nothing to go on.

    interval: the 95 % interval of the median is within ± `target` of it; noise: twice the samples
    did not make it narrower; budget: `budget_s` are spent; count: `most` samples are there. The
    first asks for at least `least` samples and `least_s` (so that counters read ten times a second
    meet every case), `budget` for 3 samples. Where the samples still drift then, their first half
    goes and sampling goes on, for `settle_s` in all; after that it stops by drift.
    """

    target: float = 0.005
    least: int = 10
    most: int = 2000
    least_s: float = 0.12
    budget_s: float = 0.3
    settle_s: float = 1.2
    warmup_least_s: float = 0.03
    warmup_most_s: float = 0.3
    sample_s: float = 1e-3
    most_calls: int = 256

    def verdict(self, values: list[float], elapsed_s: float) -> str:
        """Why to stop: `interval`, `noise`, `count`, `budget`; empty to go on."""
        count = len(values)
        if count >= self.least and elapsed_s >= self.least_s:
            width = stats.median_interval(values).half_width
            if width <= self.target:
                return "interval"
            if count >= _NOISE_COUNT and width >= _SHRINKING * stats.median_interval(values[: count // 2]).half_width:
                return "noise"
        return self.spent(count, elapsed_s)

    def spent(self, count: int, elapsed_s: float) -> str:
        """Whether `count` or `budget` alone stop it: asked between two looks at the interval."""
        if count >= self.most:
            return "count"
        return "budget" if elapsed_s >= self.budget_s and count >= 3 else ""

    def lasting(self, least_s: float | None, samples: int = 0) -> StoppingRule:
        """The rule for a stage of that `least_s`: 0 shortens all its times, a long one is its budget too.

        `samples` are what a tail wants at the least; they may take four budgets.
        """
        if self.least_s == 0:  # smoke asks whether it runs, not how fast
            return self
        if samples:
            rule = replace(self.lasting(least_s), budget_s=_TAIL_BUDGETS * self.budget_s)
            return replace(rule, least=max(rule.least, samples), most=max(rule.most, samples))
        if least_s is None:
            return self
        if least_s == 0:
            return replace(
                self,
                least_s=0.0,
                warmup_least_s=0.0,
                warmup_most_s=_POINT * self.warmup_most_s,
                budget_s=_POINT * self.budget_s,
                settle_s=_POINT * self.settle_s,
            )
        most = math.ceil(self.most * max(1.0, least_s / self.budget_s))
        sample_s = max(self.sample_s, least_s / self.most)
        return replace(self, least_s=least_s, budget_s=max(self.budget_s, least_s), most=most, sample_s=sample_s)

    def is_warm(self, values: list[float], elapsed_s: float) -> bool:
        """Whether warm-up is over: steady for long enough, or its budget (of time or count) spent."""
        steady = elapsed_s >= self.warmup_least_s and stats.is_steady(values)
        return steady or elapsed_s >= self.warmup_most_s or len(values) >= self.most


RULES: dict[Tier, StoppingRule] = {
    "smoke": StoppingRule(least_s=0.0, budget_s=0.02, settle_s=0.0, warmup_least_s=0.0, warmup_most_s=0.01),
    "quick": StoppingRule(),
    "full": StoppingRule(least_s=0.5, budget_s=2.0, settle_s=5.0, warmup_least_s=0.1, warmup_most_s=1.0),
}
