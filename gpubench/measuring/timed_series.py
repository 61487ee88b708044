"""Hold one series while it is taken: its samples, the values read with each sample, and how it is called."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from gpubench import stats
from gpubench.authoring.task import Observed, Stage, observed_series
from gpubench.measuring.stopping import SampleTrace, StoppingPolicy
from gpubench.model import Series, SeriesMode


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
    stop: str = ""
    check_at: float = 0.0  # a random share (0 to 1) of the first samples, after which a batch is checked
    is_checked: bool = False

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

    def is_check_due(self, elapsed_s: float) -> bool:
        """Return whether sampling has reached the random place at which a batch is checked, and none was checked yet.

        `elapsed_s` is the time since sampling began."""
        count = len(self.values)
        is_reached = (
            count >= max(1.0, self.check_at * self.policy.least) and elapsed_s >= self.check_at * self.policy.least_s
        )
        return is_reached and not self.is_checked

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
