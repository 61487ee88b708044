"""Decide when to stop sampling, and which samples to keep, by a policy of plain numbers.

It knows nothing of the measured work."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gpubench import stats
from gpubench.authoring.effort import Effort
from gpubench.model import Tier
from gpubench.stats import trends

_NOISE_COUNT = 64  # from this number of samples on, the width of an interval shows whether it shrinks
_SHRINKING = 0.95  # twice the number of independent samples multiplies the width by 0.71
_POINT = 0.25  # share of a tier's times: the neighbours of a point on a dense curve show what its noise hides
_TAIL_BUDGETS = 4  # the number of time budgets that a tail of many samples may take
_GROWTH = 1.2  # from one evaluation of the interval to the next, the number of samples grows by this factor
_TRUST = 0.5  # share of a series' batches: if more were discarded, the case is invalid
_ENOUGH = 10  # the fewest samples of a series, and the fewest discards that make a case invalid
_SUSPECTED, _SHOWN = 0.2, 0.01  # p below which a trend is suspected (more samples are taken), and is significant
_FURTHER = 1.25  # if a trend is suspected, the next evaluation is at this multiple of the elapsed time
_STARTS = (0.25, 0.5, 0.75)  # shares of the elapsed time at which a settled part may begin
_FEWEST = 5  # the fewest samples of a settled part: fewer show no trend
_HORIZON = 3  # the longest time constant considered, in settling times
_EXCESS = 3  # every series ends at this many times `most` samples, settled or not


@dataclass(frozen=True, slots=True)
class Settling:
    """Whether the device had settled, from sample `first` on; `waiting` means that more samples are needed."""

    state: Literal["settled", "waiting", "unsettled"]
    first: int = 0


@dataclass(frozen=True, slots=True)
class SampleTrace:
    """Samples and the elapsed time of each in seconds, in the order taken; the first `warm` are from the warm-up."""

    values: Sequence[float]
    times: Sequence[float]
    warm: int = 0

    def since(self, start: int) -> SampleTrace:
        """Return the samples from index `start` on."""
        return SampleTrace(self.values[start:], self.times[start:], max(self.warm - start, 0))

    @property
    def seconds(self) -> float:
        """Return the seconds from the first sample to the last; 0 without samples."""
        return self.times[-1] - self.times[0] if self.times else 0.0


@dataclass(frozen=True, slots=True)
class StoppingPolicy:
    """Every decision about a series of samples: warm-up, stopping, drift, transients, invalid series.

    A series stops for one of these reasons."""

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
        """Return the policy for a stage whose author wishes more or fewer samples, as `effort` says.

        An exact number of samples (`least` above `most`) stops with `count`."""
        if effort.kind == "exactly":
            count = effort.samples
            return replace(self, least=count + 1, most=count, budget_s=math.inf, settle_s=0.0, warmup_most_s=0.0)
        if self.least_s == 0:  # the smoke tier tests whether a case runs, and not how fast
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
        """Return whether warm-up is over: its batches are steady after the least time, or its time or count is spent.

        `values` are the medians of the batches in seconds, which the MSER rule judges; `elapsed_s` is the time since
        warm-up began."""
        steady = elapsed_s >= self.warmup_least_s and stats.is_steady(values)
        return steady or elapsed_s >= self.warmup_most_s or len(values) >= self.most

    def warm_part(self, trace: SampleTrace) -> SampleTrace:
        """Return the steady end of the warm-up, which helps to show a trend; all of it below ten values."""
        return trace.since(stats.warm_up_length(trace.values) if len(trace.values) >= _ENOUGH else 0)

    def stop_reason(self, values: list[float], elapsed_s: float) -> str:
        """Return why to stop (`interval`, `noise`, `count` or `budget`), or an empty text to continue.

        `values` are the samples in seconds, and `elapsed_s` is the time since sampling began."""
        count = len(values)
        if count >= self.least and elapsed_s >= self.least_s:
            width = stats.median_interval(values).half_width
            if width <= self.target:
                return "interval"
            if count >= _NOISE_COUNT and width >= _SHRINKING * stats.median_interval(values[: count // 2]).half_width:
                return "noise"
        return self.limit_reached(count, elapsed_s)

    def limit_reached(self, count: int, elapsed_s: float) -> str:
        """Return `count` or `budget` if one of them alone stops a series of `count` samples; empty if neither does."""
        if count >= self.most:
            return "count"
        return "budget" if elapsed_s >= self.budget_s and count >= 3 else ""

    def next_evaluation_s(self, elapsed_s: float) -> float:
        """Return the elapsed seconds at which samples that wait for the device to settle are evaluated next."""
        return _FURTHER * elapsed_s

    def next_evaluation_count(self, count: int, next_count: int, elapsed_s: float) -> int:
        """Return the number of samples at which the interval is evaluated next: 1.2 times `count`, the present number.

        It stays `next_count`, the number set before, until the least time of the series is over."""
        return max(count + 1, math.ceil(_GROWTH * count)) if elapsed_s >= self.least_s else next_count

    def settling(self, trace: SampleTrace, elapsed_s: float) -> Settling:
        """Return whether the device has settled, judged by all samples against elapsed time, and from which sample on.

        While a trend or a step is suspected, the samples are `waiting` for more."""
        if not self.settle_s or trace.seconds <= 0 or not self._is_trend_suspected(trace):
            return Settling("settled")
        is_shown = self._has_step(trace) or self._trend_p(trace) <= _SHOWN
        if is_shown:
            start = self._settled_start(trace)
            if start:
                return Settling("settled", max(start - trace.warm, 0))
        count = len(trace.values) - trace.warm
        if elapsed_s < self.settle_s and count < _EXCESS * self.most:
            return Settling("waiting")
        return Settling("unsettled", count // 2 if count >= _ENOUGH else 0) if is_shown else Settling("settled")

    def _is_trend_suspected(self, trace: SampleTrace) -> bool:
        """Return whether a trend with p ≤ 0.2 or a step could move the median by more than the target."""
        return self._trend_p(trace) <= _SUSPECTED or self._has_step(trace)

    def _trend_p(self, trace: SampleTrace) -> float:
        """Return p of Mann and Kendall's test for a trend with time; 1 if the trend is too small to matter."""
        trend = trends.trend(trace.values, trace.times)
        movement = abs(trend.slope) * max(self.settle_s, trace.seconds)
        return trend.p if movement > self.target * stats.median(trace.values) else 1.0

    def _has_step(self, trace: SampleTrace) -> bool:
        values = trace.values
        quarter = len(values) // 4
        if len(values) < _ENOUGH or stats.is_steady(values):
            return False
        late = stats.median_interval(values[2 * quarter :])
        early = stats.median_interval(values[: 2 * quarter])
        first, second = values[:quarter], values[quarter : 2 * quarter]
        pairs = ((first, late), (second, late), (values[3 * quarter :], early))
        return any(_gap(stats.median_interval(part), whole) > self.target * late.centre for part, whole in pairs)

    def _settled_start(self, trace: SampleTrace) -> int:
        """Return the index in `trace` of the first sample after the device had settled; 0 if there is none."""
        begin, seconds = trace.times[0], trace.seconds
        starts = [begin + share * seconds for share in _STARTS]
        left = trends.transient_left(trace.values, trace.times, starts, _HORIZON * self.settle_s)
        for start, deviation in zip(starts, left, strict=True):
            place = bisect.bisect_right(trace.times, start)
            rest = trace.since(place)
            if deviation <= self.target / 2 and len(rest.values) >= _FEWEST and not self._is_trend_suspected(rest):
                return place
        return 0

    def transient(self, values: list[float]) -> int:
        """Return how many first samples have another median than the rest.

        `values` are in seconds."""
        if self.least > self.most:
            return 0
        length = stats.warm_up_length(values)
        if not 0 < length < len(values) // 2:
            return 0
        rest = stats.median_interval(values[length:])
        shift = abs(stats.median(values[:length]) - rest.centre)
        return length if shift > 2 * max(rest.half_width, self.target) * rest.centre else 0

    def keeps_early(self, early: Sequence[float]) -> bool:
        """Return whether there are enough samples from before the device settled to keep them as a series."""
        return len(early) >= _ENOUGH

    def is_untrustworthy(self, batches: int, discarded_by_reason: Mapping[str, int]) -> bool:
        """Return whether at least 10, and more than half, of the `batches` were discarded.

        `discarded_by_reason` has the number of discarded batches by reason."""
        discarded = sum(discarded_by_reason.values())
        return discarded >= _ENOUGH and discarded > _TRUST * batches


def _gap(first: stats.Interval, second: stats.Interval) -> float:
    """Return how far two intervals lie apart; 0 or less if they overlap."""
    return max(first.low - second.high, second.low - first.high)


POLICIES: dict[Tier, StoppingPolicy] = {
    "smoke": StoppingPolicy(least_s=0.0, budget_s=0.02, settle_s=0.0, warmup_least_s=0.0, warmup_most_s=0.01),
    "quick": StoppingPolicy(),
    "full": StoppingPolicy(least_s=0.5, budget_s=2.0, settle_s=5.0, warmup_least_s=0.1, warmup_most_s=1.0),
}
