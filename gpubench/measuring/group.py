"""Counters of one device that are read together by one thread: what is read, what is missing, what is told of."""

from __future__ import annotations

import threading
import time
from collections import Counter as Tally
from collections.abc import Sequence

from gpubench import plugins
from gpubench.base.errors import Missing
from gpubench.measuring import boundary
from gpubench.model import Device, Remark, Samples
from gpubench.plugins.collector import CounterSource, Telling

_HUNG_S = 5.0  # a reading that takes longer is told of
_SILENT_S, _SILENT_ROWS = 1.0, 3  # so long and so often nothing answers: told of; one empty reading is none
_MOST_MESSAGES = 1000  # of one group in one run
_MOST_WARNINGS = 100
_FROM_HERE = "missing from here on"


class Group:
    """Counters of one device with one period, read together by a thread of their own; rows gather until they are taken.

    `collector` names the plugin, `source` is what it opened. Each failure becomes one remark, however often it occurs.
    """

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
        self._events = events  # the names among them whose values are bits
        self._lock = threading.Lock()
        self._at: list[float] = []
        self._rows: list[tuple[float | None, ...]] = []
        self._busy_s = self._late_s = 0.0
        self._remarks: list[Remark] = []
        self._warned: set[str] = set()
        self._refused: Tally[str] = Tally()  # values of each counter that could not be kept
        self._told = 0  # messages so far
        self._telling = source if isinstance(source, Telling) else None
        self._answered = False  # whether any counter of it ever had a value
        self._empty_rows, self._heard_at = 0, 0.0  # since one of them last had a value
        self._begun: float | None = None  # monotonic, of the reading that is under way

    def run(self, stop: threading.Event, started_at: float) -> None:
        """Read once a period until told to stop; periods that were missed are not made up."""
        due = time.monotonic()
        while not stop.is_set():
            self.read(due, started_at)
            due = max(due + self.period_s, time.monotonic())
            stop.wait(due - time.monotonic())

    def read(self, due: float, started_at: float) -> None:
        """Read once. The row stands at the middle of its reading: a slow call answers of a moment within it.

        Whatever the source returns or raises, the row has finite numbers and None alone.
        """
        begun = self._begun = time.monotonic()
        failed = ""
        refused: dict[str, str] = {}
        try:
            row, refused = plugins.asked(self.collector, self._row)
        except Missing as error:  # this group alone says missing from here on, until it answers again
            row, failed = (None,) * len(self.names), boundary.text(str(error))
        ended = time.monotonic()
        told, untold = self._messages()
        self._begun = None
        with self._lock:
            if untold:
                self._warn(f"its messages are unavailable: {untold}", started_at)
            for name, reason in refused.items():
                self._refuse(name, reason, started_at)
            self._at.append((begun + ended) / 2 - started_at)
            self._rows.append(row)
            self._busy_s += ended - begun
            self._late_s = max(self._late_s, begun - due)
            if all(value is None for value in row):
                self._empty_rows += 1
                silent = self._empty_rows >= _SILENT_ROWS and ended - self._heard_at >= _SILENT_S
                if failed or (silent and self._answered):
                    self._warn(f"{_FROM_HERE}: {failed or 'no counter answers any more'}", started_at)
            else:
                self._empty_rows, self._heard_at, self._answered = 0, ended, True
            at = ended - started_at
            self._remarks += [Remark(at, "event", self.collector, self.device.id, words) for words in self._kept(told)]

    def _row(self) -> tuple[tuple[float | None, ...], dict[str, str]]:
        return boundary.row(self.source.read(self.device, self.names), self.names, self._events)

    def _messages(self) -> tuple[list[str], str]:
        """Return the source's messages, or the reason why asking for them failed."""
        telling = self._telling
        if telling is None:
            return [], ""
        try:
            return plugins.asked(self.collector, lambda: boundary.texts(telling.told(self.device))), ""
        except Missing as error:
            return [], boundary.text(str(error))

    def _kept(self, told: Sequence[str]) -> Sequence[str]:
        """Return the messages up to the limit of the group, so that a talkative source does not fill the disk."""
        kept = [*told[: max(_MOST_MESSAGES - self._told, 0)]]
        if self._told <= _MOST_MESSAGES < self._told + len(told):
            kept.append("further messages are omitted")
        self._told += len(told)
        return kept

    def _refuse(self, name: str, reason: str, started_at: float) -> None:
        """Count a value that cannot be kept; the first of each counter becomes a remark at once."""
        if not self._refused[name]:
            self._warn(f"{name} was {reason}: that value is missing", started_at)
        self._refused[name] += 1

    def finish(self, started_at: float) -> None:
        """Add the number of refused values of each counter of which more than one was refused."""
        with self._lock:
            for name, count in self._refused.items():
                if count > 1:
                    self._warn(f"{name}: {count} values of the run were refused and are missing", started_at)

    def look(self, started_at: float) -> None:
        """Say so where a reading does not come back."""
        begun = self._begun
        if begun is not None and time.monotonic() - begun > _HUNG_S:
            with self._lock:
                self._warn(f"{_FROM_HERE}: a reading has not returned for {_HUNG_S:g} s", started_at)

    def _warn(self, words: str, started_at: float) -> None:
        """Add a remark on counters that were lost, each text once, and no more than _MOST_WARNINGS of them."""
        if words in self._warned or len(self._warned) > _MOST_WARNINGS:
            return
        self._warned.add(words)
        if len(self._warned) > _MOST_WARNINGS:
            words = "further warnings are omitted"
        at = time.monotonic() - started_at
        self._remarks.append(Remark(at, "lost", self.collector, self.device.id, words))

    def take(self) -> list[Samples | Remark]:
        """What was gathered since the last take: at most one chunk, and remarks."""
        with self._lock:
            at, rows, remarks, busy_s, late_s = self._at, self._rows, self._remarks, self._busy_s, self._late_s
            self._at, self._rows, self._remarks, self._busy_s, self._late_s = [], [], [], 0.0, 0.0
        if not at:
            return list(remarks)
        columns = zip(self.names, zip(*rows, strict=True), strict=True)
        return [Samples(self.collector, self.device.id, tuple(at), tuple(columns), busy_s, late_s), *remarks]
