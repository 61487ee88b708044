"""Time tasks: warm-up, batches, stopping rule, discards. Every task is timed by this one engine.

The deciding rank makes every decision (the size of a batch, whether to continue), and `agree` passes it to the other
ranks, so that they stay in step. With a single rank, `agree` returns its argument."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np

from gpubench import stats
from gpubench.authoring import checks
from gpubench.authoring.task import Observed, Profile, Stage, Task, nothing, observed, observed_series
from gpubench.base import units
from gpubench.base.errors import GateTimedOut, Skip, SuiteError, Untrustworthy
from gpubench.measuring import boundary
from gpubench.measuring.answers import UNCHECKED, Agree, AnswerChecks, agree_alone, overwrite
from gpubench.measuring.ceilings import check_rates
from gpubench.measuring.series_checks import SeriesChecks
from gpubench.measuring.stopping import SampleTrace, StoppingPolicy
from gpubench.measuring.time_limits import TimeLimits
from gpubench.model import Series, SeriesMode, limits
from gpubench.plugins.backend import Mode, OpenDevice, Timing
from gpubench.plugins.collector import Watch


@dataclass(slots=True)
class TimedSeries:
    """One series while it is taken: a stage, timed in one mode by one call.

    Times are in seconds; `values` and `times` have one entry per sample, `host` and `clocks` one per kept batch."""

    name: str
    stage: Stage
    mode: SeriesMode
    calls: int
    gated: bool
    call: Callable[[], object]
    policy: StoppingPolicy
    next_evaluation_count: int = 0  # the number of samples at which the interval is evaluated next
    next_evaluation_s: float = 0.0  # the elapsed time of the next evaluation, after one at which it had not settled
    values: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  # when each sample ended, by the clock of the time budgets
    warm: SampleTrace = field(default_factory=lambda: SampleTrace((), ()))  # the steady end of the warm-up
    early: list[float] = field(default_factory=list)
    first_half: int = 0  # half the number of samples when they first showed that the device had not settled
    batches: int = 0
    discarded: dict[str, int] = field(default_factory=dict)  # number of discarded batches by reason
    host: list[float] = field(default_factory=list)
    clocks: list[float | None] = field(default_factory=list)  # in hertz, after each batch in `host`
    probed: dict[str, list[Observed]] = field(default_factory=dict)
    warmup_s: float = 0.0
    batch_s: float = 0.0  # elapsed seconds of a batch with its rest, on average over the warm-up
    uncounted_s: float = math.inf  # the least time by which a batch was longer by the host's clock
    stop: str = ""
    checks: int = 0  # calls of this series whose answers were checked

    @property
    def label(self) -> str:
        """Return the name of the series in messages: `compress.hot`."""
        return f"{self.name}.{self.mode}" if self.name else self.mode

    @property
    def clock_hz(self) -> float | None:
        """Return the median clock in hertz after the kept batches; None if no watch reads one."""
        hertz = [clock for clock in self.clocks if clock]
        return stats.median(hertz) if hertz else None

    @property
    def trace(self) -> SampleTrace:
        """Return all samples since warm-up was steady, with their elapsed times."""
        return SampleTrace([*self.warm.values, *self.values], [*self.warm.times, *self.times], len(self.warm.values))

    def count_discard(self, reason: str) -> None:
        """Count a discarded batch."""
        self.discarded[reason] = self.discarded.get(reason, 0) + 1

    def drop(self, length: int) -> None:
        """Drop the first `length` samples, with the host times, clocks and probed values if each batch gave one sample.

        If `early` is empty, the earliest of the dropped samples are kept there: `first_half` of them, or all if this
        is 0."""
        self.early = self.early or self.values[: min(length, self.first_half or length)]
        self.values, self.times = self.values[length:], self.times[length:]
        if len(self.host) == len(self.values) + length:  # otherwise a batch gave several samples
            self.host, self.clocks = self.host[length:], self.clocks[length:]
            self.probed = {name: read[length:] for name, read in self.probed.items()}

    def as_series(self, rank: int) -> list[Series]:
        """Return the series for the run file, marked with `rank`: the timed one, then the series that follow from it.

        These are series of the same samples for other work, the host's times and the early samples of a hot series,
        and the values that the stage's probe read with each sample."""
        stage, mode = self.stage, self.mode
        timed = Series(
            "",
            "s",
            tuple(self.values),
            stage=self.name,
            mode=mode,
            role="primary",
            work=stage.work,
            quantity=stage.quantity,
            limit=stage.limit,
            item=stage.item,
            rank=rank,
            calls=self.calls,
            stop=self.stop,
            warmup_s=self.warmup_s,
            clock_hz=self.clock_hz,
            checks=self.checks,
        )
        series = [timed]
        if mode in ("hot", "host", "self"):
            series += [replace(timed, name=name, role="derived", work=work) for name, work in stage.also.items()]
        if mode == "hot":
            origin: dict[str, Any] = {"stage": self.name, "rank": rank, "calls": self.calls}
            series.append(Series("", "s", tuple(self.host), mode="host", role="derived", **origin))
            if self.policy.keeps_early(self.early):
                series.append(replace(timed, role="early", values=tuple(self.early), stop="", clock_hz=None))
        for name, values in self.probed.items():
            numbers = tuple(value.value for value in values)
            series.append(observed_series(name, numbers, values[0], stage=self.name, rank=rank))
        return series


PARANOID = "paranoid"  # the label of figures whose every batch was checked, behind caches that hold the outputs
_MOST_VALUES = 500_000  # the most values of a case: a record takes up to 16 MiB, and a number up to 25 bytes
_CHECK_SHARE = 0.02  # share of a series' time budget that further checks before the timing may take
_ATTEMPTS = 3  # other work may delay the device once
_SMALL_GROWTHS, _LARGE_GROWTHS = 5, 12  # tries before two right ones that show that passes are left out
_MANY_ATTEMPTS = 5  # other programs may delay the processor several times
_SHORT = 0.5  # share of a call's time in a batch below which a single call does not wait for its work
_FLUSH_SHARE = 0.25  # share of the time of a batch's flushes that must pass
_MOST_MEMORY_RATE = 4e13  # B/s, beyond every memory: a flush that is faster does not fill the cache
_BEYOND, _BEYOND_S = 0.3, 1e-3  # share of a batch, and seconds, for which the device may work on after its end
_UNCOUNTED_S = 3e-4  # seconds of a batch that a wait for the device, and the clocks, may take
_GROWTH = 1.8  # the least growth of the time with twice the passes; less if neighbouring samples differ
_LEAST_GROWTH, _MOST_GROWTH = 1.5, 3.0  # however much they differ; a call that leaves out work grows by more
_LEAST_QUARTER, _LEAST_BATCH_S = 2, 5e-5  # calls and seconds beside which the cost of a batch itself is small
_MOST_OF_QUARTER = 0.75  # the share of a batch's time that shows that a quarter of its calls do the work of all
_SINGLE_CALLS, _SINGLE_S = 32, 0.01  # the most calls and seconds in which idle calls are looked for one by one
_NEIGHBOURS = 9  # samples whose spread lowers it
_LAUNCH_S = 1.4e-6  # an empty kernel behind the gate of an H200 (gpubench.knowledge.launches)
_COLD_BATCH = 8  # flushes are long: a few cold calls already fill a sample


@dataclass(frozen=True, slots=True)
class RankMeasurement:
    """The engine's result for one rank: series (the headline first), numbers of discards by reason, and labels."""

    series: tuple[Series, ...]
    discarded: tuple[tuple[str, int], ...] = ()
    labels: tuple[str, ...] = ()


class Engine:
    """Measures tasks on one open device by one stopping policy."""

    def __init__(
        self,
        device: OpenDevice,
        policy: StoppingPolicy,
        agree: Agree = agree_alone,
        rank: int = 0,
        watches: Sequence[Watch] = (),
        rng: np.random.Generator | None = None,
        limits: TimeLimits | None = None,
        is_paranoid: bool = False,
    ) -> None:
        """Set up an engine; every rank that times something needs one, and must call its methods."""
        self._device = device
        self._policy = policy
        self._agree = agree
        self._rank = rank
        self._watches = watches
        self._rng = rng or np.random.default_rng(0)  # seeded by run and case: where answers are checked
        self._limits = limits or TimeLimits()
        self._discarded: dict[str, int] = {}
        self._is_paranoid = is_paranoid  # take each sample on overwritten outputs, and check it
        self._labels: set[str] = {PARANOID} if is_paranoid else set()

    def measure(self, task: Task) -> RankMeasurement:
        """Check the answers, time every stage in every mode, and check again; the first series is the headline.

        Raises WrongAnswer, Untrustworthy (disturbed, calls skip work), SuiteError (too many values), Skip (no mode)."""
        answers = self._answers_of(task)
        observations = answers.verify()
        if self._agree is agree_alone and answers.is_dead():  # ranks may exchange values in their checks
            self._labels.add(UNCHECKED)
        overwrite(task, self._device)
        for watch in self._watches:
            watch.begin()
        series: list[Series] = []
        for name, stage in task.stages.items():
            modes = list(self._modes_of(stage))
            if not modes:
                of_stage = f", which the stage {name} needs" if name else ""
                raise Skip(f"this device has no timing mode {' or '.join(stage.modes)}{of_stage}")
            for mode, call in modes:
                timed = self._take_series(answers, name, stage, mode, call)
                series += timed.as_series(self._rank)
        if answers.is_stale:
            answers.check()
        for name, value in observations.items():
            values = value.values if isinstance(value, Profile) else (value.value,)
            series.append(observed_series(name, values, value, rank=self._rank))
        self._check_count(sum(len(one_series.values) for one_series in series))
        _check_finite(series)
        check_rates(self._device.device, self._device.traits.is_gpu, series)
        return RankMeasurement(tuple(series), tuple(sorted(self._discarded.items())), tuple(sorted(self._labels)))

    def verify(self, task: Task) -> dict[str, Observed | Profile]:
        """Run every stage once on overwritten outputs, and return what the check observed. Raises WrongAnswer."""
        return self._answers_of(task).verify()

    def _answers_of(self, task: Task) -> AnswerChecks:
        """Return the checks of a task's answers; beside the first they may take 2 % of a series' time budget."""
        allowed_s = _CHECK_SHARE * self._policy.budget_s
        return AnswerChecks(task, self._device, self._agree, self._rng, allowed_s, self._limits)

    def _time_batch(self, timed: TimedSeries, calls: int, call: Callable[[], object] | None = None) -> float:
        """Return the median seconds per call of a batch of `calls` calls that is no sample; NaN if it was disturbed."""
        if call is not None:
            timed = replace(timed, call=call)
        try:
            seconds = stats.median(self._time(timed, calls, timed.gated).device)
        except GateTimedOut:
            return math.nan
        return math.nan if self._read_watches()[0] else seconds

    def _time_singly(self, timed: TimedSeries) -> Sequence[float]:
        """Return the seconds of each call of some in a row; none if a graph holds the calls, or the gate opened."""
        is_each = timed.mode != "graph" and "each" in self._device.traits.modes
        if timed.stage.clock != "device" or not is_each or not timed.values:
            return ()
        calls = timed.calls
        if self._agree is agree_alone and not timed.stage.max_calls:
            calls = max(calls, int(_SINGLE_S / min(timed.values)))
        try:
            return self._time(replace(timed, mode="each"), min(calls, _SINGLE_CALLS), timed.gated).device
        except GateTimedOut:
            return ()

    def _modes_of(self, stage: Stage) -> Iterator[tuple[SeriesMode, Callable[[], object]]]:
        """Yield each mode in which the stage is timed on this device, which may be none, with the function to call."""
        if stage.clock != "device":
            yield stage.clock, stage.call
            return
        for mode in stage.modes:
            if mode in self._device.traits.modes:
                yield mode, stage.call
        if stage.rotation:
            turns = itertools.cycle(stage.rotation)
            yield "rotated", lambda: next(turns)()

    def _take_series(
        self, answers: AnswerChecks, name: str, stage: Stage, mode: SeriesMode, call: Callable[[], object]
    ) -> TimedSeries:
        """Choose a batch, warm up, sample a stage in one mode until a stopping rule applies, and return the series."""
        policy = self._policy.for_effort(stage.effort)
        timed = TimedSeries(name, stage, mode, 1, not stage.waits, call, policy, policy.least)
        self._limits.warming_up(timed.label, stage.rest_s)
        self._choose_batch(timed)
        if policy.warmup_most_s:
            self._warm_up(timed)
        self._limits.sampling(timed.label, timed.batch_s)
        checking = self._checks_of(answers, timed)
        is_each = not stage.checked and (
            self._is_paranoid or (policy.least > policy.most and len(answers.task.stages) < 2)
        )
        begin = self._device.now()
        while not timed.stop:
            if is_each:
                answers.around(stage, partial(self._take_sample, timed))
                checking.made += 1
            else:
                self._take_sample(timed)
            self._limits.report_progress()
            answers.is_stale = True
            elapsed_s = self._device.now() - begin
            stop, dropped = self._agree(self._decide_stop(timed, elapsed_s))
            self._check_discards(timed)
            if stop == "drift":
                self._labels.add("unsettled")
            self._drop_first(timed, round(dropped * len(timed.values)))
            timed.stop = stop
            if not stop and self._agree(not is_each and checking.is_due(elapsed_s)):
                begin += checking.make(elapsed_s)
                self._limits.sampling(timed.label, timed.batch_s)
        self._check_clock(timed)
        self._check_flushes(timed)
        self._check_waited(timed)
        self._check_calls(timed)
        self._check_passes(timed)
        if not is_each:
            checking.finish()
        timed.checks = len(timed.values) if stage.checked else checking.made
        self._drop_first(timed, self._agree(policy.transient(timed.values)))
        return timed

    def _check_clock(self, timed: TimedSeries) -> None:
        """Raise Untrustworthy if batches take longer than the device says."""
        stage, batch_s = timed.stage, timed.calls * min(timed.values, default=math.inf)
        is_counted = stage.clock == "device" and timed.mode in ("hot", "rotated") and stage.lead is nothing
        if self._agree(is_counted and timed.uncounted_s > max(_BEYOND * batch_s, _UNCOUNTED_S)):
            raise Untrustworthy(
                "device-clock",
                f"{timed.label}: a batch of {units.quantity(batch_s, 's')} takes at least "
                f"{units.quantity(timed.uncounted_s, 's')} more by the host's clock: the device's clock runs slow, or "
                "another program takes turns on the device",
            )

    def _check_flushes(self, timed: TimedSeries) -> None:
        """Raise Untrustworthy if cold batches do not have the time for their flushes, or a flush for the cache."""
        if timed.mode != "cold" or not math.isfinite(timed.uncounted_s) or not timed.gated:
            return  # without a gate the flushes run while calls are queued
        flush_s = min(self._time_batch(replace(timed, mode="hot"), 2, self._device.flush) for _ in range(_ATTEMPTS))
        least_s = self._device.device.cache_bytes / _MOST_MEMORY_RATE
        if self._agree(flush_s < least_s or max(timed.uncounted_s, 0.0) < _FLUSH_SHARE * timed.calls * flush_s):
            raise Untrustworthy("no-flush", f"{timed.label}: the batches are too short for a flush before each call")

    def _check_waited(self, timed: TimedSeries) -> None:
        """Raise Untrustworthy if the device works on far beyond the end of a timed call, or three times of a batch."""
        if timed.stage.clock != "device" or timed.stage.waits:
            return
        if self._returns_early(timed):
            raise Untrustworthy("not-waited-for", f"{timed.label}: a single call ends long before its work")
        batch_s = timed.calls * sum(timed.values[-1:])
        for attempt in range(_ATTEMPTS):
            if attempt or self._device.traits.is_gpu:  # since the last sample the device may have ended its work
                try:
                    batch_s = timed.calls * stats.median(self._time(timed, timed.calls, timed.gated).device)
                except GateTimedOut:
                    batch_s = math.inf
            beyond_s = self._device.elsewhere()
            if self._agree(not beyond_s > max(_BEYOND * batch_s, _BEYOND_S)):
                return
        raise Untrustworthy(
            "not-waited-for",
            f"{timed.label}: the device works {units.quantity(beyond_s, 's')} longer than the timed batch of "
            f"{units.quantity(batch_s, 's')}: the call queues work that the timed stream does not wait for",
        )

    def _returns_early(self, timed: TimedSeries) -> bool:
        """Return whether a single call is much shorter than in a batch, where the next call waits for its work."""
        is_alone = self._agree is agree_alone and self._device.traits.is_gpu
        if timed.calls == 1 or timed.mode not in ("hot", "rotated") or not (is_alone and timed.gated and timed.values):
            return False
        least_s = _SHORT * min(timed.values)
        return all(self._time_batch(timed, 1) < least_s for _ in range(_MANY_ATTEMPTS))

    def _check_calls(self, timed: TimedSeries) -> None:
        """Raise Untrustworthy if a quarter of a batch takes three quarters of its time, five times in a row."""
        quarter, batch_s = timed.calls // 4, timed.calls * max(timed.values[-_NEIGHBOURS:], default=0.0)
        is_short = quarter < _LEAST_QUARTER or batch_s < _LEAST_BATCH_S
        if is_short or timed.stage.clock != "device" or self._agree is not agree_alone:  # a rank may be late by far
            return
        for _ in range(_MANY_ATTEMPTS):
            if not quarter * self._time_batch(timed, quarter) > _MOST_OF_QUARTER * batch_s:
                return
        raise Untrustworthy(
            "dropped-calls", f"{timed.label}: {quarter} calls take nearly as long as {timed.calls}: calls are left out"
        )

    def _check_passes(self, timed: TimedSeries) -> None:
        """Raise Untrustworthy if the call with twice its passes does not take about twice as long, in many tries."""
        if timed.stage.doubled is None or timed.mode == "cold":  # a cold call also waits for its data, but once
            return
        if self._device.traits.is_dry_run:  # a processor needs most of its time for other things than passes
            timed.stage.doubled()
            return
        near = timed.values[-_NEIGHBOURS:] or [math.nan]
        launch_s = _LAUNCH_S if self._device.traits.is_gpu else 0.0
        right, small, large = list[float](), list[float](), list[float]()
        while len(right) < 2 and len(small) < _SMALL_GROWTHS and len(large) < _LARGE_GROWTHS:
            single_s = self._time_batch(timed, timed.calls)
            near += [single_s] if math.isfinite(single_s) else []
            spread_limit = 2 * min(near) / stats.median(near)  # other work only lengthens samples
            limit = self._agree(min(_GROWTH, max(_LEAST_GROWTH, spread_limit)))
            once_s = min(near)  # slow moments make no growth seem small
            twice_s = self._time_batch(timed, timed.calls, timed.stage.doubled)
            growth = self._agree((twice_s - launch_s) / (once_s - launch_s))
            is_large = self._agree(twice_s > _MOST_GROWTH * np.fmax(single_s, stats.median(near)))
            (large if is_large else right if growth >= limit else small).append(growth)
        if len(right) < 2:
            growth = min(large) if len(large) == _LARGE_GROWTHS else max(small)
            message = f"a call with twice the passes takes {growth:.2f} times as long, "
            message += f"from {limit:.2f} to {_MOST_GROWTH:g} is expected"
            raise Untrustworthy("dropped-passes", f"{timed.label}: {message}: passes are left out")

    def _checks_of(self, answers: AnswerChecks, timed: TimedSeries) -> SeriesChecks:
        """Return the checks of one series; in the smoke tier a single one is enough."""
        times = partial(self._time_batch, timed), partial(self._time_singly, timed)
        is_brief = self._policy.least_s == 0
        return SeriesChecks(answers, timed, self._device, self._agree, self._rng, *times, is_brief)

    def _check_count(self, values: int) -> None:
        """Raise SuiteError if a case yields more values than a record holds."""
        if values > _MOST_VALUES:
            raise SuiteError(f"the case yields at least {values} values; a record holds at most {_MOST_VALUES}")

    def _decide_stop(self, timed: TimedSeries, elapsed_s: float) -> tuple[str, float]:
        """Return the reason to stop as in `Series.stop`, and the share of samples to drop."""
        policy, count = timed.policy, len(timed.values)
        if elapsed_s < timed.next_evaluation_s:
            return "", 0.0
        if count < timed.next_evaluation_count:
            stop = policy.limit_reached(count, elapsed_s)
        else:
            timed.next_evaluation_count = policy.next_evaluation_count(count, timed.next_evaluation_count, elapsed_s)
            stop = policy.stop_reason(timed.values, elapsed_s)
        if not stop:
            return "", 0.0
        settling = policy.settling(timed.trace, elapsed_s)
        if settling.state != "settled" or settling.first:
            timed.first_half = timed.first_half or count // 2
        if settling.state == "unsettled":
            return "drift", settling.first / count
        if settling.first:
            stop = policy.stop_reason(timed.values[settling.first :], elapsed_s)
        if settling.state == "waiting" or not stop:
            timed.next_evaluation_s = policy.next_evaluation_s(elapsed_s)
            return "", 0.0
        return stop, settling.first / count

    def _drop_first(self, timed: TimedSeries, length: int) -> None:
        """Discard the first `length` samples, taken before the device settled; `early` keeps the earliest of them."""
        if length:
            self._discarded["warm-up"] = self._discarded.get("warm-up", 0) + length
            timed.drop(length)

    def _choose_batch(self, timed: TimedSeries) -> TimedSeries:
        """Choose the calls in a batch of about 1 ms, and whether it is gated, for all ranks alike; return `timed`."""
        if timed.stage.clock == "self":
            return timed
        most = timed.stage.max_calls or (_COLD_BATCH if timed.mode == "cold" else timed.policy.most_calls)
        once, gated = self._try_batch(timed, 1, timed.gated)
        calls = min(most, max(1, math.ceil(timed.policy.sample_s / once) if once > 0 else most))
        calls, gated = self._agree((calls, gated))  # all ranks try the same: calls may wait for each other
        if gated:
            _, gated = self._try_batch(timed, calls, gated)
            calls, gated = self._agree((calls if gated else 1, gated))
        timed.calls, timed.gated = calls, gated
        return timed

    def _try_batch(self, timed: TimedSeries, calls: int, gated: bool) -> tuple[float, bool]:
        """Time a batch; return the seconds of its fastest call (infinity if its gate opened) and whether it held."""
        try:
            return min(self._time(timed, calls, gated).device), gated
        except GateTimedOut:
            return math.inf, False

    def _warm_up(self, timed: TimedSeries) -> None:
        """Time batches until their medians are steady or the warm-up's time is over; keep the steady end in `timed`."""
        if self._device.traits.is_gpu:
            self._device.flush()  # or loads of low priority find room, or none, depending on what ran before
        start = self._device.now()
        values: list[float] = []
        times: list[float] = []
        is_warm = False
        while not is_warm:
            batches = [list(filter(math.isfinite, timing.device)) for timing in self._time_sample_batch(timed)]
            values += [stats.median(batch) for batch in batches if batch]
            times += [self._device.now() for batch in batches if batch]
            self._limits.report_progress()
            timed.warmup_s = self._device.now() - start
            is_warm = self._agree(timed.policy.is_warm(values, timed.warmup_s))
        timed.warm = timed.policy.warm_part(SampleTrace(values, times))
        timed.batch_s = timed.warmup_s / timed.batches
        timed.batches, timed.discarded = 0, {}

    def _take_sample(self, timed: TimedSeries) -> None:
        """Time one batch and keep its samples."""
        for timing in self._time_sample_batch(timed):
            disturbed, clock_hz = self._read_watches()
            good = [value for value in timing.device if limits.LEAST_SECONDS <= value <= limits.MOST_SECONDS]
            for reason in disturbed or ["clock"] * (len(timing.device) - len(good)):
                self._discard(reason)
            if disturbed or not good:
                timed.count_discard(disturbed[0] if disturbed else "clock")
            self._check_count(len(timed.values) + len(good))
            if good and not disturbed:
                timed.values += good
                timed.times += [self._device.now()] * len(good)
                timed.host.append(timing.host)
                timed.clocks.append(clock_hz)
                for name, value in observed("the probe", (timed.stage.probe or dict)()).items():
                    if isinstance(value, Profile):
                        raise SuiteError(f"a probe returns numbers, but {name} is a Profile; return it from the check")
                    timed.probed.setdefault(name, []).append(value)

    def _read_watches(self) -> tuple[list[str], float | None]:
        """Return the reasons to discard the last batch, and the first clock (Hz) of a watch; keep the labels."""
        conditions = [boundary.condition(watch.look()) for watch in self._watches]
        for condition in conditions:
            self._labels.update(condition.labels)
        reasons = [reason for condition in conditions for reason in condition.discard]
        return reasons, next((condition.clock_hz for condition in conditions if condition.clock_hz), None)

    def _time_sample_batch(self, timed: TimedSeries) -> list[Timing]:
        """Return the timing of one batch in a list, which is empty, with a discard, if the gate opened by itself."""
        timed.batches += 1
        if timed.stage.rest_s:
            self._device.rest(timed.stage.rest_s)
        start = self._device.now()
        try:
            timing = self._time(timed, timed.calls, timed.gated)
        except GateTimedOut:
            self._discard("gate")
            timed.count_discard("gate")
            return []
        elapsed_s, queued_s = self._device.now() - start, timing.host if self._device.traits.is_gpu else 0.0
        counted_s = sum(timing.device) * (1 if timed.mode in ("each", "cold") else timed.calls)
        uncounted_s = elapsed_s - counted_s - timed.calls * queued_s
        timed.uncounted_s = min(timed.uncounted_s, uncounted_s)
        return [timing]

    def _discard(self, reason: str) -> None:
        self._discarded[reason] = self._discarded.get(reason, 0) + 1

    def _check_discards(self, timed: TimedSeries) -> None:
        if timed.policy.is_untrustworthy(timed.batches, timed.discarded):
            reasons = ", ".join(f"{count} by {reason}" for reason, count in sorted(timed.discarded.items()))
            raise Untrustworthy("discarded", f"{timed.label}: most samples had to be discarded: {reasons}")

    def _time(self, timed: TimedSeries, calls: int, gated: bool) -> Timing:
        """Return the timing of a batch of `calls` calls by the stage's clock: of the device, the host, or the call."""
        stage = timed.stage
        if stage.clock == "device":
            mode = cast(Mode, "hot" if timed.mode == "rotated" else timed.mode)
            return self._device.time(timed.call, calls, mode, gated, stage.lead)
        stage.lead()
        if stage.clock == "self":
            return _parse_self_timing(timed.call())
        return self._host_time(timed.call, calls)

    def _host_time(self, call: Callable[[], object], calls: int) -> Timing:
        """Return the timing of a batch by the host's clock: the mean seconds per call, with the wait for the device."""
        start = self._device.now()
        for _ in range(calls):
            call()
        self._device.synchronize()
        seconds = (self._device.now() - start) / calls
        return Timing((seconds,), seconds)


def _parse_self_timing(returned: object) -> Timing:
    """Return the timing of a self-timed call from the number of seconds, or the sequence of them, that it returned."""
    values = tuple(returned) if isinstance(returned, Sequence) and not isinstance(returned, str) else (returned,)
    if not values:
        raise SuiteError("a self-timed call returned no seconds")
    seconds = tuple(checks.number("the seconds of a self-timed call", value) for value in values)
    return Timing(seconds, sum(seconds) / len(seconds))


def _check_finite(series: list[Series]) -> None:
    for one_series in series:
        if not all(map(limits.is_number, one_series.values)):
            raise Untrustworthy("not-finite", f"series {one_series.label} holds NaN or infinity")
