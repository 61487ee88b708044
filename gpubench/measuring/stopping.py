"""When to stop sampling, and which samples to keep: one policy of plain numbers, apart from whatever is measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpubench import stats
from gpubench.authoring.effort import Effort
from gpubench.model import Tier

_NOISE_COUNT = 64  # from here on an interval's width is known well enough to tell whether it shrinks
_SHRINKING = 0.95  # independent samples give 0.71 for twice their number
_POINT = 0.25  # of a tier's times: a point of a dense curve has neighbours that show what its noise hides
_TAIL_BUDGETS = 4  # a tail of many samples may take so many budgets
_LOOKS = 1.2  # each look at the interval has this many times the samples of the last: few looks, little bias
_TRUST = 0.5  # of a series' batches: where more than that had to be discarded, the case is invalid
_ENOUGH = 10  # samples that show a drift, or a distrust


@dataclass(frozen=True, slots=True)
class StoppingPolicy:
    """Every decision about a series of samples: warm-up, looks, stopping, drift, transients, distrust.

    interval: the 95 % interval of the median is within ± `target` of it; noise: twice the samples
    did not make it narrower; budget: `budget_s` are spent; count: `most` samples are there. The
    first asks for at least `least` samples and `least_s` (so that counters read ten times a second
    meet every case), `budget` for 3 samples. Where the samples still drift then, their first half
    goes and sampling goes on, for `settle_s` in all; after that it stops by drift.
    """

    target: float = 0.005
    least: int = _ENOUGH
    most: int = 2000
    least_s: float = 0.12
    budget_s: float = 0.3
    settle_s: float = 1.2
    warmup_least_s: float = 0.03
    warmup_most_s: float = 0.3
    sample_s: float = 1e-3
    most_calls: int = 256

    def for_effort(self, effort: Effort) -> StoppingPolicy:
        """Return the policy for a stage of that effort: a point shortens all times, a sustained rate is its own budget.

        A tail may take four of the tier's budgets.
        """
        if self.least_s == 0:  # smoke asks whether it runs, not how fast
            return self
        if effort.samples:
            policy = replace(self.for_effort(effort.with_tail(0)), budget_s=_TAIL_BUDGETS * self.budget_s)
            return replace(policy, least=max(policy.least, effort.samples), most=max(policy.most, effort.samples))
        if effort.kind == "tier":
            return self
        if effort.kind == "point":
            return replace(
                self,
                least_s=0.0,
                warmup_least_s=0.0,
                warmup_most_s=_POINT * self.warmup_most_s,
                budget_s=_POINT * self.budget_s,
                settle_s=_POINT * self.settle_s,
            )
        seconds = effort.seconds
        most = math.ceil(self.most * max(1.0, seconds / self.budget_s))
        sample_s = max(self.sample_s, seconds / self.most)
        return replace(self, least_s=seconds, budget_s=max(self.budget_s, seconds), most=most, sample_s=sample_s)

    def is_warm(self, values: Sequence[float], elapsed_s: float) -> bool:
        """Return whether warm-up is over: steady for long enough, or its budget (of time or count) spent."""
        steady = elapsed_s >= self.warmup_least_s and stats.is_steady(values)
        return steady or elapsed_s >= self.warmup_most_s or len(values) >= self.most

    def verdict(self, values: list[float], elapsed_s: float) -> str:
        """Return why to stop: `interval`, `noise`, `count`, `budget`; empty to go on."""
        count = len(values)
        if count >= self.least and elapsed_s >= self.least_s:
            width = stats.median_interval(values).half_width
            if width <= self.target:
                return "interval"
            if count >= _NOISE_COUNT and width >= _SHRINKING * stats.median_interval(values[: count // 2]).half_width:
                return "noise"
        return self.spent(count, elapsed_s)

    def spent(self, count: int, elapsed_s: float) -> str:
        """Return whether `count` or `budget` alone stop it: asked between two looks at the interval."""
        if count >= self.most:
            return "count"
        return "budget" if elapsed_s >= self.budget_s and count >= 3 else ""

    def next_look(self, count: int, look: int, elapsed_s: float) -> int:
        """Return the number of samples at which the interval is looked at next, after the look at `count` samples."""
        return max(count + 1, math.ceil(_LOOKS * count)) if elapsed_s >= self.least_s else look

    def drifts(self, values: list[float]) -> bool:
        """Return whether the device has not settled: a power cap takes tenths of a second to bring clocks down."""
        if len(values) < _ENOUGH or not self.settle_s:
            return False
        half = len(values) // 2
        early, late = stats.median(values[:half]), stats.median(values[half:])
        return not stats.is_steady(values) and abs(early - late) > self.target * late

    def transient(self, values: list[float]) -> int:
        """Return how many first values differ from the rest by more than twice its interval."""
        length = stats.warm_up_length(values)
        if not 0 < length < len(values) // 2:
            return 0
        rest = stats.median_interval(values[length:])
        shift = abs(stats.median(values[:length]) - rest.centre)
        return length if shift > 2 * max(rest.half_width, self.target) * rest.centre else 0

    def keeps_early(self, early: Sequence[float]) -> bool:
        """Return whether samples from before the device settled are enough to be shown."""
        return len(early) >= _ENOUGH

    def distrusts(self, batches: int, lost: Mapping[str, int]) -> bool:
        """Return whether so many batches had to be discarded (by reason) that the others cannot be trusted."""
        gone = sum(lost.values())
        return gone >= _ENOUGH and gone > _TRUST * batches


POLICIES: dict[Tier, StoppingPolicy] = {
    "smoke": StoppingPolicy(least_s=0.0, budget_s=0.02, settle_s=0.0, warmup_least_s=0.0, warmup_most_s=0.01),
    "quick": StoppingPolicy(),
    "full": StoppingPolicy(least_s=0.5, budget_s=2.0, settle_s=5.0, warmup_least_s=0.1, warmup_most_s=1.0),
}
