"""Read a group of counters of one device in a thread; report which values and messages are missing."""

import threading
import time
from collections import Counter as Tally
from collections.abc import Sequence

from gpubench import plugins
from gpubench.base.errors import Unavailable
from gpubench.measuring import boundary
from gpubench.model import Device, Remark, Samples
from gpubench.plugins.collector import CounterSource, ReportsMessages

_HUNG_S = 5.0  # a reading that takes longer is reported
_SILENT_S, _SILENT_ROWS = 1.0, 3  # after this time and number of empty rows the counters are reported as missing
_MOST_MESSAGES = 1000  # the most messages of one group in one run
_MOST_WARNINGS = 100
_FROM_HERE = "missing from here on"


class CounterGroup:
    """Counters of one device with one period, read together by one thread; rows gather until `take`.

    Each failure becomes one remark, however often it occurs."""

    def __init__(
        self,
        collector: str,
        source: CounterSource,
        device: Device,
        names: tuple[str, ...],
        period_s: float,
        events: frozenset[str] = frozenset(),
    ) -> None:
        self.collector = collector
        self.source = source
        self.device = device
        self.names = names
        self.period_s = period_s
        self._events = events  # the names of the counters whose values are bits
        self._lock = threading.Lock()
        self._at: list[float] = []
        self._rows: list[tuple[float | None, ...]] = []
        self._busy_s = self._late_s = 0.0
        self._remarks: list[Remark] = []
        self._warned: set[str] = set()
        self._refused: Tally[str] = Tally()  # values of each counter that could not be kept
        self._message_count = 0  # messages so far
        self._message_source = source if isinstance(source, ReportsMessages) else None
        self._answered = False  # whether any counter of the group ever had a value
        self._empty_rows, self._answered_at = 0, 0.0  # empty rows since a counter had a value, and when it had one
        self._begun: float | None = None  # start of the reading under way, monotonic seconds

    def run(self, stop: threading.Event, started_at: float) -> None:
        """Read once per period until `stop` is set; missed periods are not made up."""
        due = time.monotonic()
        while not stop.is_set():
            self.read(due, started_at)
            due = max(due + self.period_s, time.monotonic())
            stop.wait(due - time.monotonic())

    def read(self, due: float, started_at: float) -> None:
        """Read the counters once, and append a row with the time in the middle of the reading.

        Whatever the source returns or raises, the row holds finite numbers and None only."""
        begin = self._begun = time.monotonic()
        failed = ""
        refused: dict[str, str] = {}
        try:
            row, refused = plugins.call_library(
                self.collector,
                lambda: boundary.row(self.source.read(self.device, self.names), self.names, self._events),
            )
        except Unavailable as error:  # only this group is missing from here on, until it answers again
            row, failed = (None,) * len(self.names), boundary.text(str(error))
        ended = time.monotonic()
        messages, failed_messages = self._read_messages()
        self._begun = None
        with self._lock:
            if failed_messages:
                self._warn(f"its messages are unavailable: {failed_messages}", started_at)
            for name, reason in refused.items():  # the first one of each counter becomes a remark at once
                if not self._refused[name]:
                    self._warn(f"{name} was {reason}: that value is missing", started_at)
                self._refused[name] += 1
            self._at.append((begin + ended) / 2 - started_at)
            self._rows.append(row)
            self._busy_s += ended - begin
            self._late_s = max(self._late_s, begin - due)
            if all(value is None for value in row):
                self._empty_rows += 1
                silent = self._empty_rows >= _SILENT_ROWS and ended - self._answered_at >= _SILENT_S
                if failed or (silent and self._answered):
                    self._warn(f"{_FROM_HERE}: {failed or 'no counter answers any more'}", started_at)
            else:
                self._empty_rows, self._answered_at, self._answered = 0, ended, True
            at = ended - started_at
            self._remarks += [
                Remark(at, "event", self.collector, self.device.id, message) for message in self._within_limit(messages)
            ]

    def _read_messages(self) -> tuple[list[str], str]:
        if (source := self._message_source) is None:
            return [], ""
        try:
            return plugins.call_library(self.collector, lambda: boundary.texts(source.messages(self.device))), ""
        except Unavailable as error:
            return [], boundary.text(str(error))

    def _within_limit(self, messages: Sequence[str]) -> Sequence[str]:
        accepted = [*messages[: max(_MOST_MESSAGES - self._message_count, 0)]]
        if self._message_count <= _MOST_MESSAGES < self._message_count + len(messages):
            accepted.append("further messages are omitted")
        self._message_count += len(messages)
        return accepted

    def finish(self, started_at: float) -> None:
        """Add a remark with the number of refused values for each counter that had more than one."""
        with self._lock:
            for name, count in self._refused.items():
                if count > 1:
                    self._warn(f"{name}: {count} values of the run were refused and are missing", started_at)

    def report_hang(self, started_at: float) -> None:
        """Add a remark if the reading under way has not returned for 5 s, once in a run."""
        begin = self._begun
        if begin is not None and time.monotonic() - begin > _HUNG_S:
            with self._lock:
                self._warn(f"{_FROM_HERE}: a reading has not returned for {_HUNG_S:g} s", started_at)

    def _warn(self, message: str, started_at: float) -> None:
        """Add a remark that counters are missing: each text once, and at most 100 different ones in a run."""
        if message in self._warned or len(self._warned) > _MOST_WARNINGS:
            return
        self._warned.add(message)
        if len(self._warned) > _MOST_WARNINGS:
            message = "further warnings are omitted"
        at = time.monotonic() - started_at
        self._remarks.append(Remark(at, "lost", self.collector, self.device.id, message))

    def take(self) -> list[Samples | Remark]:
        """Return the rows since the last call as at most one chunk of samples, followed by the remarks since then."""
        with self._lock:
            at, rows, remarks, busy_s, late_s = self._at, self._rows, self._remarks, self._busy_s, self._late_s
            self._at, self._rows, self._remarks, self._busy_s, self._late_s = [], [], [], 0.0, 0.0
        if not at:
            return list(remarks)
        columns = zip(self.names, zip(*rows, strict=True), strict=True)
        return [Samples(self.collector, self.device.id, tuple(at), tuple(columns), busy_s, late_s), *remarks]
