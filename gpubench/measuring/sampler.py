"""Sample counters in one process per run, with one clock (CLOCK_MONOTONIC) and a thread for each group of counters.

A dying worker or an aborting vendor library does not affect the run, and a call that takes long or never returns does
not delay another group. `SamplingProcess` is the parent's side and `main` the child's."""

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from gpubench import plugins
from gpubench.base.errors import OptionalUnavailable, Unavailable
from gpubench.measuring import boundary
from gpubench.measuring.channel import BadMessage, Child, ToChild, ToParent, to_parent
from gpubench.measuring.group import CounterGroup
from gpubench.model import SAMPLER, Counter, Device, Remark, Samples, UnavailablePart
from gpubench.plugins.collector import Collector, CounterSource, ReportsUnsupported

_CHUNK_S = 1.0  # the run file is synchronised to disk for each chunk
_START_S = 30.0
_STOP_S = 5.0
_JOIN_S = 1.0  # seconds for a reading under way at the end; the longest one measured took 0.02 s
_RESTARTS = 3  # a library that crashes now and then costs seconds of counters; one that keeps crashing is given up
_STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class SamplingOrder:
    """What to sample: devices, and the zero of time (monotonic seconds)."""

    devices: tuple[Device, ...]
    started_at: float


@dataclass(frozen=True, slots=True)
class UnsupportedCounter:
    """A counter that a device does not support, and why; `collector` is the plugin that reads it on other devices."""

    counter: str
    device: str
    reason: str
    collector: str


@dataclass(frozen=True, slots=True)
class SamplerStart:
    """The child's first answer: the counters that it reads, unsupported counters, and unavailable collectors.

    `optional` are names in `unavailable` that a machine need not have."""

    counters: tuple[Counter, ...]
    unavailable: tuple[UnavailablePart, ...]
    unsupported: tuple[UnsupportedCounter, ...] = ()
    optional: frozenset[str] = frozenset()
    readers: tuple[tuple[str, tuple[str, ...], tuple[Counter, ...]], ...] = ()


Message = SamplerStart | Samples | Remark | None


class SamplingProcess:
    """The parent's side of the sampling process.

    It never blocks a run: a sampler that crashes is reported and replaced."""

    def __init__(self, devices: Sequence[Device], started_at: float) -> None:
        """Start the sampling process for `devices`, and wait up to 30 s until its collectors have opened."""
        self._order = SamplingOrder(tuple(devices), started_at)
        self._restarts = 0
        self._child = _start_child()
        self._opened = SamplerStart((), ())
        self._remarks: list[Remark] = []
        self.ended = ""
        try:
            self._child.channel.send(self._order)
            if self._child.channel.poll(_START_S):
                opened = self._child.channel.recv()
                if not isinstance(opened, SamplerStart):
                    raise BadMessage("a message that does not come first")
                self._opened = opened
                self._remark_unavailable(opened)
            else:
                self._end_for(f"it did not start within {_START_S:g} s")
        except (EOFError, OSError) as error:
            self._end_for(_bad_message_text(error))

    @property
    def counters(self) -> tuple[Counter, ...]:
        """Return the counters of all collectors that opened."""
        return self._opened.counters

    @property
    def unavailable(self) -> tuple[UnavailablePart, ...]:
        """Return the collectors that did not open, and why."""
        return self._opened.unavailable

    @property
    def unsupported(self) -> tuple[UnsupportedCounter, ...]:
        """Return the counters that a device does not support, and why."""
        return self._opened.unsupported

    @property
    def readers(self) -> tuple[tuple[str, tuple[str, ...], tuple[Counter, ...]], ...]:
        """Return each collector that opened, the ids of the devices that it reads, and its counters."""
        return self._opened.readers

    @property
    def channel(self) -> ToChild[Message] | None:
        """Return the channel to wait on together with the workers' channels; None once sampling has ended."""
        return None if self.ended else self._child.channel

    def drain(self) -> list[Samples]:
        """Return the chunks of samples that have arrived, without waiting.

        A sampler that has crashed is restarted, at most 3 times in a run."""
        chunks: list[Samples] = []
        try:
            if not self.ended and self._child.channel.is_waiting():
                for message in self._child.channel.arrived():
                    self._store_message(message, chunks)
            self._child.drain()
        except (EOFError, OSError) as error:
            self._restart(_bad_message_text(error))
        return chunks

    def remarks(self) -> list[Remark]:
        """Return the remarks since the last call (missing counters, events); call it after `drain` and after `stop`."""
        remarks, self._remarks = self._remarks, []
        return remarks

    def stop(self) -> list[Samples]:
        """End sampling, within about 5 s, and return the last chunks; empty if sampling has ended already."""
        if self.ended:
            return []
        chunks: list[Samples] = []
        deadline = time.monotonic() + _STOP_S
        try:
            self._child.channel.send("stop")
            while (left_s := deadline - time.monotonic()) > 0 and self._child.channel.poll(left_s):
                message = self._child.channel.recv()
                if message is None:
                    break
                self._store_message(message, chunks)
                self._child.drain()
            else:
                self._end_for(f"it did not stop within {_STOP_S:g} s")
        except (EOFError, OSError) as error:
            self._end_for(_bad_message_text(error))
        self.kill()
        return chunks

    def kill(self) -> None:
        """End the sampling process now."""
        if not self.ended:
            self._child.kill()
            self.ended = _STOPPED

    def _store_message(self, message: Message, chunks: list[Samples]) -> None:
        if isinstance(message, Remark):
            self._remarks.append(message)
        elif isinstance(message, Samples):
            chunks.append(message)  # ignore the `SamplerStart` that a restarted sampler sends again

    def _remark_unavailable(self, opened: SamplerStart) -> None:
        """Add a remark with the reason for each unavailable collector and each unsupported counter in `opened`."""
        for entry in opened.unavailable:
            message = f"missing: {entry.reason}" + (f"; {entry.how}" if entry.how else "")
            optional = entry.what in opened.optional
            self._remarks.append(Remark(self._now(), "absent" if optional else "lost", entry.what, "", message))
        for counter in opened.unsupported:
            message = f"no {counter.counter}: {counter.reason}"
            self._remarks.append(Remark(self._now(), "absent", counter.collector, counter.device, message))

    def _now(self) -> float:
        return time.monotonic() - self._order.started_at

    def _end_for(self, reason: str = "") -> None:
        self.ended = f"the sampling process ended: {reason or self._child.describe_end()}"
        self._remarks.append(Remark(self._now(), "lost", SAMPLER, "", f"missing from here on: {self.ended}"))
        self._child.kill()

    def _restart(self, reason: str) -> None:
        """Replace a process that crashed by another, at most 3 times in a run."""
        if self._restarts == _RESTARTS:
            self._end_for(reason)
            return
        self._restarts += 1
        reason = reason or self._child.describe_end()
        message = f"some samples are missing: the sampling process ended ({reason}) and was restarted"
        self._remarks.append(Remark(self._now(), "lost", SAMPLER, "", message))
        self._child.kill()
        self._child = _start_child()
        with contextlib.suppress(OSError):  # it has ended already, which the next `drain` finds out
            self._child.channel.send(self._order)


def _start_child() -> Child[Message]:
    return Child("gpubench.measuring.sampler", (SamplerStart, Samples, Remark, type(None)))


def _bad_message_text(error: EOFError | OSError) -> str:
    return f"it sent {error}" if isinstance(error, BadMessage) else ""


@dataclass(frozen=True, slots=True)
class DeviceCounter:
    """A counter of a device; `reason` says why it is unavailable there, and is empty if it is available."""

    counter: Counter
    device: str
    reason: str = ""


def list_counters(devices: Sequence[Device]) -> tuple[list[DeviceCounter], list[UnavailablePart]]:
    """Return every counter of these devices, and the collectors that are not available, both with reasons.

    A counter that a device does not support is listed with the reason."""
    process = SamplingProcess(devices, time.monotonic())
    process.stop()
    reasons = {(entry.device, entry.counter): entry.reason for entry in process.unsupported}
    counters_here = [
        DeviceCounter(counter, device.id, reasons.get((device.id, counter.name), ""))
        for device in devices
        for _, read, declared in process.readers
        for counter in declared
        if device.id in read
    ]
    reported = {name for name, _, _ in process.readers} | {entry.what for entry in process.unavailable}
    idle = [UnavailablePart(name, "no supported device", "") for name in plugins.names("collectors")]
    unavailable_sampler = [
        UnavailablePart(SAMPLER, remark.words, "") for remark in process.remarks() if remark.source == SAMPLER
    ]
    return counters_here, [
        *unavailable_sampler,
        *process.unavailable,
        *(entry for entry in idle if entry.what not in reported),
    ]


def sample(groups: Sequence[CounterGroup], channel: ToParent, started_at: float) -> None:
    """Read each group in a separate thread, and send the rows every second until the parent says stop.

    Then send the last rows and None. `started_at` is the zero of the samples' times in monotonic seconds."""
    stop = threading.Event()
    threads = [threading.Thread(target=group.run, args=(stop, started_at), daemon=True) for group in groups]
    for thread in threads:
        thread.start()
    while not channel.poll(_CHUNK_S):
        _send_rows(groups, channel, started_at)
    channel.recv()
    stop.set()
    deadline = time.monotonic() + _JOIN_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    for group in groups:
        group.finish(started_at)
    _send_rows(groups, channel, started_at)
    channel.send(None)
    blocked = {id(group.source) for group, thread in zip(groups, threads, strict=True) if thread.is_alive()}
    for source in {id(group.source): group.source for group in groups}.values():
        if id(source) not in blocked:
            with contextlib.suppress(Unavailable):  # the parent has the samples, so a failure to close does not matter
                plugins.call_library("sampler", source.close)
    if blocked:
        os._exit(0)  # a thread is inside a driver that does not answer: an ordinary end would wait for it


def _send_rows(groups: Sequence[CounterGroup], channel: ToParent, started_at: float) -> None:
    for group in groups:
        group.report_hang(started_at)
        for message in group.take():
            channel.send(message)


def open_groups(order: SamplingOrder) -> tuple[list[CounterGroup], SamplerStart]:
    """Return the groups of counters to read, one per collector, device and period, and the first message to the parent.

    Collectors that fail to open are part of that message."""
    groups: list[CounterGroup] = []
    counters: list[Counter] = []
    unavailable: list[UnavailablePart] = []
    all_unsupported: list[UnsupportedCounter] = []
    optional: set[str] = set()
    readers: list[tuple[str, tuple[str, ...], tuple[Counter, ...]]] = []
    for name in plugins.names("collectors"):
        try:
            collector: Collector = plugins.load("collectors", name)
            devices = [
                device for device in order.devices if plugins.call_library(name, partial(collector.accepts, device))
            ]
            if not devices:
                continue
            declared = _declared_counters(name, collector, counters)
            source = plugins.call_library(name, partial(collector.open, devices))
            names = {counter.name for counter in declared}
            unsupported = [
                entry
                for device in devices
                for entry in _unsupported_counters(name, source, device)
                if entry.counter in names
            ]
        except (Unavailable, plugins.BrokenPlugin) as error:
            optional |= {name} if isinstance(error, OptionalUnavailable) else set()
            unavailable.append(_unavailable_part(name, error))
            continue
        counters += declared
        readers.append((name, tuple(device.id for device in devices), declared))
        all_unsupported += unsupported
        groups += _group_counters(name, declared, source, devices, unsupported)
    return groups, SamplerStart(
        tuple(counters), tuple(unavailable), tuple(all_unsupported), frozenset(optional), tuple(readers)
    )


def _declared_counters(name: str, collector: Collector, others: Sequence[Counter]) -> tuple[Counter, ...]:
    declared = plugins.call_library(name, lambda: boundary.counters(collector.counters))
    taken = {counter.name for counter in others} & {counter.name for counter in declared}
    if taken:
        raise Unavailable(f"another collector already declares the counter {min(taken)}", "rename it")
    return declared


def _unavailable_part(name: str, error: Unavailable | plugins.BrokenPlugin) -> UnavailablePart:
    problem, remedy = (error.problem, error.remedy) if isinstance(error, Unavailable) else (str(error), "")
    return UnavailablePart(name, boundary.text(problem), boundary.text(remedy))


def _unsupported_counters(name: str, source: CounterSource, device: Device) -> list[UnsupportedCounter]:
    if not isinstance(source, ReportsUnsupported):
        return []
    reasons = plugins.call_library(name, lambda: boundary.pairs(source.unsupported(device)))
    return [UnsupportedCounter(counter, device.id, reason, name) for counter, reason in reasons.items()]


def _group_counters(
    name: str,
    counters: Sequence[Counter],
    source: CounterSource,
    devices: Sequence[Device],
    unsupported: Sequence[UnsupportedCounter],
) -> list[CounterGroup]:
    """Return the counters of the collector `name` grouped by device and period, without unsupported ones."""
    skipped = {(entry.device, entry.counter) for entry in unsupported}
    events = frozenset(counter.name for counter in counters if counter.kind == "event")
    counter_names: dict[tuple[str, float], tuple[Device, list[str]]] = {}
    for device in devices:
        for counter in counters:
            if (device.id, counter.name) not in skipped:
                counter_names.setdefault((device.id, counter.period_s), (device, []))[1].append(counter.name)
    return [
        CounterGroup(name, source, device, tuple(names), period, events)
        for (_, period), (device, names) in counter_names.items()
    ]


def main() -> None:
    """Sample the counters of the ordered devices until the parent says stop: the program of the child process."""
    faulthandler.enable()
    channel = to_parent(sys.argv[1])
    order: SamplingOrder = channel.recv()
    groups, opened = open_groups(order)
    channel.send(opened)
    sample(groups, channel, order.started_at)
