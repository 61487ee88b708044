"""The sampling process: one a run, one clock (CLOCK_MONOTONIC).

A dying worker or an aborting vendor library takes nothing else along. `SamplingProcess` is the
parent's side, `main` the child's.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from gpubench import plugins
from gpubench.errors import Missing
from gpubench.model import Absent, Counter, Device, Samples
from gpubench.process import Child, to_parent
from gpubench.protocols import Collector, CounterSource

_CHUNK_S = 0.5
_START_S = 30.0
_STOP_S = 5.0
_STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Order:
    """What to sample: devices, and the zero of time (monotonic seconds)."""

    devices: tuple[Device, ...]
    started_at: float


@dataclass(frozen=True, slots=True)
class Opened:
    """The child's first answer: which counters it reads, and what it could not open."""

    counters: tuple[Counter, ...]
    absent: tuple[Absent, ...]


@dataclass(slots=True)
class Group:
    """Counters of one device with one period, read together; columns gather until sent."""

    collector: str
    source: CounterSource
    device: Device
    names: tuple[str, ...]
    period_s: float
    due: float = 0.0
    at: list[float] = field(default_factory=list)
    rows: list[tuple[float | None, ...]] = field(default_factory=list)

    def read(self, now: float, at: float) -> None:
        """Read once, and be due a period later; periods that were missed are not made up."""
        try:
            values = plugins.asked(self.collector, lambda: self.source.read(self.device, self.names))
        except Missing:  # this group alone stops being read: its rows say missing from here on
            values = {}
        self.at.append(at)
        self.rows.append(tuple(values.get(name) for name in self.names))
        self.due = max(self.due + self.period_s, now)

    def take(self) -> Samples | None:
        """What was gathered since the last take, as a chunk."""
        if not self.at:
            return None
        columns = zip(self.names, zip(*self.rows, strict=True), strict=True)
        chunk = Samples(self.collector, self.device.id, tuple(self.at), tuple(columns))
        self.at, self.rows = [], []
        return chunk


class SamplingProcess:
    """The parent's side. It never blocks a run: a sampler that ends is noted, not mourned."""

    def __init__(self, devices: Sequence[Device], started_at: float) -> None:
        self._child = Child("gpubench.sampler")
        self._child.connection.send(Order(tuple(devices), started_at))
        self.counters: tuple[Counter, ...] = ()
        self.absent: tuple[Absent, ...] = ()
        self.ended = ""
        try:
            if self._child.connection.poll(_START_S):
                opened: Opened = self._child.connection.recv()
                self.counters, self.absent = opened.counters, opened.absent
            else:
                self._lose(f"it did not start within {_START_S:g} s")
        except (EOFError, OSError):
            self._lose()

    @property
    def connection(self) -> Connection[Any, Any] | None:
        """To wait on beside the workers'; None once it has ended."""
        return None if self.ended else self._child.connection

    def drain(self) -> list[Samples]:
        """The chunks that have arrived."""
        chunks: list[Samples] = []
        try:
            while not self.ended and self._child.connection.poll():
                chunks.append(self._child.connection.recv())
            self._child.drain()
        except (EOFError, OSError):
            self._lose()
        return chunks

    def stop(self) -> list[Samples]:
        """End sampling; the last chunks."""
        if self.ended:
            return []
        chunks: list[Samples] = []
        deadline = time.monotonic() + _STOP_S
        try:
            self._child.connection.send("stop")
            while self._child.connection.poll(max(0.0, deadline - time.monotonic())):
                chunk = self._child.connection.recv()
                if chunk is None:
                    break
                chunks.append(chunk)
                self._child.drain()
            else:
                self._lose(f"it did not stop within {_STOP_S:g} s")
        except (EOFError, OSError):
            self._lose()
        self.kill()
        return chunks

    def kill(self) -> None:
        """End it now."""
        if not self.ended:
            self._child.kill()
            self.ended = _STOPPED

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the reader of the run should know: which counters are missing, and why."""
        absent = tuple(f"counters of {each.what} are missing: {each.reason}" for each in self.absent)
        lost = self.ended and self.ended != _STOPPED
        return (*absent, f"counters are missing from some point on: {self.ended}") if lost else absent

    def _lose(self, reason: str = "") -> None:
        self.ended = f"the sampling process ended: {reason or self._child.obituary()}"
        self._child.kill()


def sample(groups: Sequence[Group], connection: Connection[Any, Any], started_at: float) -> None:
    """Read each group when it is due and send chunks, until the parent says stop."""
    start = time.monotonic()
    for group in groups:
        group.due = start
    send_at = start + _CHUNK_S
    while True:
        now = time.monotonic()
        for group in groups:
            if group.due <= now:
                group.read(now, time.monotonic() - started_at)
        if now >= send_at:
            _send(groups, connection)
            send_at = now + _CHUNK_S
        wait = min([send_at, *(group.due for group in groups)]) - time.monotonic()
        if connection.poll(max(wait, 0.0)):
            connection.recv()
            break
    _send(groups, connection)
    connection.send(None)
    for source in {id(group.source): group.source for group in groups}.values():
        source.close()


def _send(groups: Sequence[Group], connection: Connection[Any, Any]) -> None:
    for group in groups:
        chunk = group.take()
        if chunk:
            connection.send(chunk)


def open_groups(order: Order) -> tuple[list[Group], Opened]:
    """Every collector's counters for the devices it accepts, grouped by device and period."""
    groups: list[Group] = []
    counters: list[Counter] = []
    absent: list[Absent] = []
    for name in plugins.names("collectors"):
        try:
            collector: Collector = plugins.load("collectors", name)
            devices = [device for device in order.devices if plugins.asked(name, partial(collector.accepts, device))]
            if not devices:
                continue
            source = plugins.asked(name, partial(collector.open, devices))
        except (Missing, plugins.BrokenPlugin) as error:
            absent.append(Absent(name, str(error), ""))
            continue
        counters += collector.counters
        groups += _groups(name, collector, source, devices)
    return groups, Opened(tuple(counters), tuple(absent))


def _groups(name: str, collector: Collector, source: CounterSource, devices: Sequence[Device]) -> list[Group]:
    periods = sorted({counter.period_s for counter in collector.counters})
    return [
        Group(name, source, device, tuple(c.name for c in collector.counters if c.period_s == period), period)
        for device in devices
        for period in periods
    ]


def main() -> None:
    """The child."""
    connection = to_parent(sys.argv[1])
    order: Order = connection.recv()
    groups, opened = open_groups(order)
    connection.send(opened)
    sample(groups, connection, order.started_at)
