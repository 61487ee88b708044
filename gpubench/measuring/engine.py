"""The timing engine: warm-up, batches, the stopping rule, discards. One engine for every task.

Ranks stay in step because every decision (batch size, go on or stop) is the deciding rank's, told
to the others by `agree`; alone, `agree` returns its argument.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar, cast

from gpubench import stats
from gpubench.authoring import checks
from gpubench.authoring.task import Observed, Profile, Stage, Task, observed, observed_series
from gpubench.base.errors import GateTimedOut, Skip, SuiteError, Untrustworthy
from gpubench.measuring import boundary
from gpubench.measuring.stopping import StoppingPolicy, Trace
from gpubench.model import Series, SeriesMode
from gpubench.plugins.backend import Mode, OpenDevice, Timing
from gpubench.plugins.collector import Watch

T = TypeVar("T")
_MOST_VALUES = 500_000  # of a case: a record of the run file takes 16 MiB, and a number up to 25 bytes
_COLD_BATCH = 8  # flushes are long: a few cold calls already fill a sample


class Agree(Protocol):
    """Tells every active rank the deciding rank's value, and so is a barrier too."""

    def __call__(self, value: T) -> T: ...


def alone(value: T) -> T:
    """Agreement of one rank."""
    return value


@dataclass(frozen=True, slots=True)
class Measured:
    """What the engine hands back of one rank: series, headline first, discards by reason, labels."""

    series: tuple[Series, ...]
    discarded: tuple[tuple[str, int], ...] = ()
    labels: tuple[str, ...] = ()


@dataclass(slots=True)
class _Column:
    """One series while it is being taken: of a stage by its name, in one mode, called in one way."""

    name: str
    stage: Stage
    mode: SeriesMode
    calls: int
    gated: bool
    call: Callable[[], object]
    policy: StoppingPolicy
    look: int = 0  # the number of samples at which the interval is looked at next
    look_s: float = 0.0  # the time before which no look is taken: the device has not settled
    values: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  # when each sample had ended, by the clock of budgets
    warm: Trace = field(default_factory=lambda: Trace((), ()))  # what warm-up ended with, once it was steady
    early: list[float] = field(default_factory=list)
    first_half: int = 0  # of the samples when they first showed that the device had not settled
    batches: int = 0
    lost: dict[str, int] = field(default_factory=dict)  # batches of which nothing was kept, by reason
    host: list[float] = field(default_factory=list)
    clocks: list[float | None] = field(default_factory=list)  # in hertz, after each batch in `host`
    probed: dict[str, list[Observed]] = field(default_factory=dict)
    warmup_s: float = 0.0
    stop: str = ""

    @property
    def label(self) -> str:
        """What the series is called in messages: `compress.hot`."""
        return f"{self.name}.{self.mode}" if self.name else self.mode

    @property
    def clock_hz(self) -> float | None:
        """The median clock after the batches that were kept; None if no watch reads one."""
        hertz = [clock for clock in self.clocks if clock]
        return stats.median(hertz) if hertz else None

    @property
    def trace(self) -> Trace:
        """All samples since warm-up was steady, against elapsed time."""
        return Trace([*self.warm.values, *self.values], [*self.warm.times, *self.times], len(self.warm.values))

    def lose(self, reason: str) -> None:
        """Count a batch of which nothing is kept."""
        self.lost[reason] = self.lost.get(reason, 0) + 1

    def drop(self, length: int) -> None:
        """Forget the first samples; of a hot series also what was read beside each."""
        self.early = self.early or self.values[: min(length, self.first_half or length)]
        self.values, self.times = self.values[length:], self.times[length:]
        if len(self.host) == len(self.values) + length:  # else a batch gave several samples
            self.host, self.clocks = self.host[length:], self.clocks[length:]
            self.probed = {name: read[length:] for name, read in self.probed.items()}


class Engine:
    """Measures tasks on one open device by one policy; `rank` marks its series."""

    def __init__(
        self,
        device: OpenDevice,
        policy: StoppingPolicy,
        agree: Agree = alone,
        rank: int = 0,
        watches: Sequence[Watch] = (),
    ) -> None:
        self._device = device
        self._policy = policy
        self._agree = agree
        self._rank = rank
        self._watches = watches
        self._discarded: dict[str, int] = {}
        self._labels: set[str] = set()

    def measure(self, task: Task) -> Measured:
        """Check, time every stage in every mode, check again. The headline is the first series.

        Raises WrongAnswer from the task's check, Untrustworthy where most samples had to go, Skip where the device
        cannot time a stage in any of its modes.
        """
        found = self.verify(task)
        task.poison()
        for watch in self._watches:
            watch.begin()
        series: list[Series] = []
        for name, stage in task.stages.items():
            columns = list(self._columns(stage))
            if not columns:
                of_stage = f", which the stage {name} needs" if name else ""
                raise Skip(f"this device has no timing mode {' or '.join(stage.modes)}{of_stage}")
            for mode, call in columns:
                column = self._take(name, stage, mode, call)
                series += self._series(column)
                if len(columns) > 1:
                    self._confirm(task, column)
        self._check(task)
        for name, value in found.items():
            values = value.values if isinstance(value, Profile) else (value.value,)
            series.append(observed_series(name, values, value, rank=self._rank))
        self._bounded(sum(len(each.values) for each in series))
        _finite(series)
        return Measured(tuple(series), tuple(sorted(self._discarded.items())), tuple(sorted(self._labels)))

    def verify(self, task: Task) -> dict[str, Observed | Profile]:
        """Spoil the outputs, run every stage once, and check: fresh outputs, no timing."""
        task.poison()
        for stage in task.stages.values():
            self._agree(None)
            stage.call()
        return self._check(task)

    def _check(self, task: Task) -> dict[str, Observed | Profile]:
        """Check what the ranks left: none looks before all have stopped, none goes on before all have looked."""
        self._device.synchronize()
        self._agree(None)
        found = observed("the check", task.check())
        self._agree(None)
        return found

    def _confirm(self, task: Task, column: _Column) -> None:
        """Spoil the outputs and check what this column's own way of calling leaves in them."""
        task.poison()
        for stage in task.stages.values():
            if stage is column.stage:
                self._time(column, max(1, len(stage.rotation)), column.gated)
            else:
                stage.call()
        self._check(task)

    def _columns(self, stage: Stage) -> Iterator[tuple[SeriesMode, Callable[[], object]]]:
        """The series of a stage: how each is timed, and what is called."""
        if stage.clock != "device":
            yield stage.clock, stage.call
            return
        for mode in stage.modes:
            if mode in self._device.traits.modes:
                yield mode, stage.call
        if stage.rotation:
            turns = itertools.cycle(stage.rotation)
            yield "rotated", lambda: next(turns)()

    def _take(self, name: str, stage: Stage, mode: SeriesMode, call: Callable[[], object]) -> _Column:
        policy = self._policy.for_effort(stage.effort)
        column = self._sized(_Column(name, stage, mode, 1, not stage.waits, call, policy, policy.least))
        self._warm_up(column)
        begin = self._device.now()
        while not column.stop:
            self._sample(column)
            stop, dropped = self._agree(self._verdict(column, self._device.now() - begin))
            self._distrust(column)
            if stop == "drift":
                self._labels.add("unsettled")
            self._drop(column, round(dropped * len(column.values)))
            column.stop = stop
        self._drop(column, self._agree(policy.transient(column.values)))
        return column

    def _bounded(self, values: int) -> None:
        """Raise SuiteError where a case yields more values than a record holds."""
        if values > _MOST_VALUES:
            raise SuiteError(f"the case yields {values} values or more, and a record holds {_MOST_VALUES}")

    def _verdict(self, column: _Column, elapsed_s: float) -> tuple[str, float]:
        """Return why to stop, empty to go on, and the share of samples that were taken before the device settled."""
        policy, count = column.policy, len(column.values)
        if elapsed_s < column.look_s:
            return "", 0.0
        if count < column.look:
            stop = policy.spent(count, elapsed_s)
        else:
            column.look = policy.next_look(count, column.look, elapsed_s)
            stop = policy.verdict(column.values, elapsed_s)
        if not stop:
            return "", 0.0
        settling = policy.settling(column.trace, elapsed_s)
        if settling.state != "settled" or settling.first:
            column.first_half = column.first_half or count // 2
        if settling.state == "unsettled":
            return "drift", settling.first / count
        if settling.first:
            stop = policy.verdict(column.values[settling.first :], elapsed_s)
        if settling.state == "waiting" or not stop:
            column.look_s = policy.waits_until(elapsed_s)
            return "", 0.0
        return stop, settling.first / count

    def _drop(self, column: _Column, length: int) -> None:
        """Discard first samples, taken before the device settled; the very first of them are kept as `early`."""
        if length:
            self._discarded["warm-up"] = self._discarded.get("warm-up", 0) + length
            column.drop(length)

    def _sized(self, column: _Column) -> _Column:
        """Choose the calls of a batch so that a sample is long against the clock's grain."""
        if column.stage.clock == "self":
            return column
        most = column.stage.max_calls or (_COLD_BATCH if column.mode == "cold" else column.policy.most_calls)
        once, gated = self._trial(column, 1, column.gated)
        calls = min(most, max(1, math.ceil(column.policy.sample_s / once) if once > 0 else most))
        calls, gated = self._agree((calls, gated))  # all ranks try the same: calls may wait for each other
        if gated:
            _, gated = self._trial(column, calls, gated)
            calls, gated = self._agree((calls if gated else 1, gated))
        column.calls, column.gated = calls, gated
        return column

    def _trial(self, column: _Column, calls: int, gated: bool) -> tuple[float, bool]:
        """Seconds of the fastest call of a batch, and whether its gate held."""
        try:
            return min(self._time(column, calls, gated).device), gated
        except GateTimedOut:
            return math.inf, False

    def _warm_up(self, column: _Column) -> None:
        start = self._device.now()
        values: list[float] = []
        times: list[float] = []
        done = False
        while not done:
            batches = [list(filter(math.isfinite, timing.device)) for timing in self._attempt(column)]
            values += [stats.median(batch) for batch in batches if batch]
            times += [self._device.now() for batch in batches if batch]
            column.warmup_s = self._device.now() - start
            done = self._agree(column.policy.is_warm(values, column.warmup_s))
        column.warm = column.policy.warm_part(Trace(values, times))
        column.batches, column.lost = 0, {}

    def _sample(self, column: _Column) -> None:
        for timing in self._attempt(column):
            disturbed, clock_hz = self._watched()
            good = [value for value in timing.device if math.isfinite(value) and value > 0]
            for reason in disturbed or ["clock"] * (len(timing.device) - len(good)):
                self._discard(reason)
            if disturbed or not good:
                column.lose(disturbed[0] if disturbed else "clock")
            self._bounded(len(column.values) + len(good))
            if good and not disturbed:
                column.values += good
                column.times += [self._device.now()] * len(good)
                column.host.append(timing.host)
                column.clocks.append(clock_hz)
                for name, value in observed("the probe", (column.stage.probe or dict)()).items():
                    if isinstance(value, Profile):
                        raise SuiteError(f"a probe reads numbers, and {name} is a Profile: a check may return one")
                    column.probed.setdefault(name, []).append(value)

    def _watched(self) -> tuple[list[str], float | None]:
        """Return the reasons to discard the last batch and the first clock that a watch read; keep the labels."""
        conditions = [boundary.condition(watch.look()) for watch in self._watches]
        for condition in conditions:
            self._labels.update(condition.labels)
        reasons = [reason for condition in conditions for reason in condition.discard]
        return reasons, next((condition.clock_hz for condition in conditions if condition.clock_hz), None)

    def _attempt(self, column: _Column) -> list[Timing]:
        """One batch; none where its gate opened by itself, which is a discard."""
        column.batches += 1
        if column.stage.rest_s:
            self._device.rest(column.stage.rest_s)
        try:
            return [self._time(column, column.calls, column.gated)]
        except GateTimedOut:
            self._discard("gate")
            column.lose("gate")
            return []

    def _discard(self, reason: str) -> None:
        self._discarded[reason] = self._discarded.get(reason, 0) + 1

    def _distrust(self, column: _Column) -> None:
        if column.policy.distrusts(column.batches, column.lost):
            reasons = ", ".join(f"{count} by {reason}" for reason, count in sorted(column.lost.items()))
            raise Untrustworthy("discarded", f"{column.label}: most samples had to be discarded: {reasons}")

    def _time(self, column: _Column, calls: int, gated: bool) -> Timing:
        stage = column.stage
        if stage.clock == "device":
            mode = cast(Mode, "hot" if column.mode == "rotated" else column.mode)
            return self._device.time(column.call, calls, mode, gated, stage.lead)
        stage.lead()
        if stage.clock == "self":
            return _own_time(stage.call())
        return self._host_time(stage.call, calls)

    def _host_time(self, call: Callable[[], object], calls: int) -> Timing:
        start = self._device.now()
        for _ in range(calls):
            call()
        self._device.synchronize()
        seconds = (self._device.now() - start) / calls
        return Timing((seconds,), seconds)

    def _series(self, column: _Column) -> list[Series]:
        stage, mode = column.stage, column.mode
        timed = Series(
            "",
            "s",
            tuple(column.values),
            stage=column.name,
            mode=mode,
            role="primary",
            work=stage.work,
            quantity=stage.quantity,
            limit=stage.limit,
            item=stage.item,
            rank=self._rank,
            calls=column.calls,
            stop=column.stop,
            warmup_s=column.warmup_s,
            clock_hz=column.clock_hz,
        )
        found = [timed]
        if mode in ("hot", "host", "self"):
            found += [replace(timed, name=name, role="derived", work=work) for name, work in stage.also.items()]
        if mode == "hot":
            beside: dict[str, Any] = {"stage": column.name, "rank": self._rank, "calls": column.calls}
            found.append(Series("", "s", tuple(column.host), mode="host", role="derived", **beside))
            if column.policy.keeps_early(column.early):
                found.append(replace(timed, role="early", values=tuple(column.early), stop="", clock_hz=None))
        for name, values in column.probed.items():
            numbers = tuple(value.value for value in values)
            found.append(observed_series(name, numbers, values[0], stage=column.name, rank=self._rank))
        return found


def _own_time(found: object) -> Timing:
    """The seconds that a self-timed call returned: a number, or a sequence of them."""
    values = tuple(found) if isinstance(found, Sequence) and not isinstance(found, str) else (found,)
    if not values:
        raise SuiteError("a self-timed call returned no seconds")
    seconds = tuple(checks.number("the seconds of a self-timed call", value) for value in values)
    return Timing(seconds, sum(seconds) / len(seconds))


def _finite(series: list[Series]) -> None:
    for each in series:
        if not all(map(math.isfinite, each.values)):
            raise Untrustworthy("not-finite", f"series {each.label} holds NaN or infinity")
