"""The sampling process: one a run, one clock (CLOCK_MONOTONIC), a thread for each group of counters.

A dying worker or an aborting vendor library takes nothing else along, and a call that takes long, or never comes
back, delays no other group. `SamplingProcess` is the parent's side, `main` the child's.
"""

from __future__ import annotations

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
from gpubench.base.errors import Lacking, Missing
from gpubench.measuring import boundary
from gpubench.measuring.channel import BadMessage, ToChild, ToParent
from gpubench.measuring.group import Group
from gpubench.measuring.process import Child, to_parent
from gpubench.model import Absent, Counter, Device, Remark, Samples
from gpubench.plugins.collector import Collector, CounterSource, Explained

_CHUNK_S = 1.0  # a chunk is a record that the run file is synchronised for
_START_S = 30.0
_STOP_S = 5.0
_JOIN_S = 1.0  # for a reading that is under way at the end: the longest that is known takes 0.02 s
_RESTARTS = 3  # a library that crashes once in minutes costs seconds of counters; one that always does, is given up
_STOPPED = "stopped"
_SAMPLER = "the sampler"


@dataclass(frozen=True, slots=True)
class Order:
    """What to sample: devices, and the zero of time (monotonic seconds)."""

    devices: tuple[Device, ...]
    started_at: float


@dataclass(frozen=True, slots=True)
class Lack:
    """A counter that a device does not have, and why; `collector` is the plugin that reads it elsewhere."""

    counter: str
    device: str
    reason: str
    collector: str


@dataclass(frozen=True, slots=True)
class Opened:
    """The child's first answer: the counters it reads, those that a device lacks, and what it could not open.

    `optional` are names in `absent` that a machine need not have, `readers` the devices that each collector reads, and
    its counters.
    """

    counters: tuple[Counter, ...]
    absent: tuple[Absent, ...]
    lacks: tuple[Lack, ...] = ()
    optional: frozenset[str] = frozenset()
    readers: tuple[tuple[str, tuple[str, ...], tuple[Counter, ...]], ...] = ()


Message = Opened | Samples | Remark | None


class SamplingProcess:
    """The parent's side. It never blocks a run: a sampler that crashes is told of, and another one goes on.

    `counters` are those of all collectors that opened, `lacks` those of them that a device does not have.
    """

    def __init__(self, devices: Sequence[Device], started_at: float) -> None:
        self._order = Order(tuple(devices), started_at)
        self._restarts = 0
        self._child = _started()
        self._opened = Opened((), ())
        self._remarks: list[Remark] = []
        self.ended = ""
        try:
            self._child.channel.send(self._order)
            if self._child.channel.poll(_START_S):
                opened = self._child.channel.recv()
                if not isinstance(opened, Opened):
                    raise BadMessage("a message that does not come first")
                self._opened = opened
                self._tell_of(opened)
            else:
                self._lose(f"it did not start within {_START_S:g} s")
        except (EOFError, OSError) as error:
            self._lose(_sent(error))

    @property
    def counters(self) -> tuple[Counter, ...]:
        """The counters of all collectors that opened."""
        return self._opened.counters

    @property
    def absent(self) -> tuple[Absent, ...]:
        """The collectors that did not open, and why."""
        return self._opened.absent

    @property
    def lacks(self) -> tuple[Lack, ...]:
        """The counters that a device does not have, and why."""
        return self._opened.lacks

    @property
    def readers(self) -> tuple[tuple[str, tuple[str, ...], tuple[Counter, ...]], ...]:
        """Each collector that opened, the ids of the devices that it reads, and its counters."""
        return self._opened.readers

    @property
    def channel(self) -> ToChild[Message] | None:
        """To wait on beside the workers'; None once it has ended."""
        return None if self.ended else self._child.channel

    def drain(self) -> list[Samples]:
        """The chunks that have arrived."""
        chunks: list[Samples] = []
        try:
            if not self.ended and self._child.channel.is_waiting():
                for message in self._child.channel.arrived():
                    self._sort(message, chunks)
            self._child.drain()
        except (EOFError, OSError) as error:
            self._go_on(_sent(error))
        return chunks

    def remarks(self) -> list[Remark]:
        """What there is to be known of the counters since this was last asked; ask after `drain` and after `stop`."""
        found, self._remarks = self._remarks, []
        return found

    def stop(self) -> list[Samples]:
        """End sampling; the last chunks."""
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
                self._sort(message, chunks)
                self._child.drain()
            else:
                self._lose(f"it did not stop within {_STOP_S:g} s")
        except (EOFError, OSError) as error:
            self._lose(_sent(error))
        self.kill()
        return chunks

    def kill(self) -> None:
        """End it now."""
        if not self.ended:
            self._child.kill()
            self.ended = _STOPPED

    def _sort(self, message: Message, chunks: list[Samples]) -> None:
        if isinstance(message, Remark):
            self._remarks.append(message)
        elif isinstance(message, Samples):
            chunks.append(message)  # an `Opened` is ignored: a restarted sampler repeats which counters are available

    def _tell_of(self, opened: Opened) -> None:
        for absent in opened.absent:
            words = f"missing: {absent.reason}" + (f"; {absent.how}" if absent.how else "")
            optional = absent.what in opened.optional
            self._remarks.append(Remark(self._now(), "absent" if optional else "lost", absent.what, "", words))
        for lack in opened.lacks:
            words = f"no {lack.counter}: {lack.reason}"
            self._remarks.append(Remark(self._now(), "absent", lack.collector, lack.device, words))

    def _now(self) -> float:
        return time.monotonic() - self._order.started_at

    def _lose(self, reason: str = "") -> None:
        self.ended = f"the sampling process ended: {reason or self._child.obituary()}"
        self._remarks.append(Remark(self._now(), "lost", _SAMPLER, "", f"missing from here on: {self.ended}"))
        self._child.kill()

    def _go_on(self, reason: str) -> None:
        """Start another process for one that crashed; what that one had not sent is gone."""
        if self._restarts == _RESTARTS:
            self._lose(reason)
            return
        self._restarts += 1
        reason = reason or self._child.obituary()
        words = f"some samples are missing: the sampling process ended ({reason}) and was restarted"
        self._remarks.append(Remark(self._now(), "lost", _SAMPLER, "", words))
        self._child.kill()
        self._child = _started()
        with contextlib.suppress(OSError):  # it has ended already, which is met when it is next listened to
            self._child.channel.send(self._order)


def _started() -> Child[Message]:
    return Child("gpubench.measuring.sampler", (Opened, Samples, Remark, type(None)))


def _sent(error: EOFError | OSError) -> str:
    """Return what the child sent instead of a message; an empty text where the channel has ended."""
    return f"it sent {error}" if isinstance(error, BadMessage) else ""


@dataclass(frozen=True, slots=True)
class Available:
    """A counter of a device here, or why there is none."""

    counter: Counter
    device: str
    reason: str = ""


def available(devices: Sequence[Device]) -> tuple[list[Available], list[Absent]]:
    """Every counter of these devices, by opening and asking each collector in a sampling process; and what is not here.

    A collector that reads none of the devices is among what is not here.
    """
    process = SamplingProcess(devices, time.monotonic())
    process.stop()
    lacks = {(lack.device, lack.counter): lack.reason for lack in process.lacks}
    found = [
        Available(counter, device.id, lacks.get((device.id, counter.name), ""))
        for device in devices
        for _, read, counters in process.readers
        for counter in counters
        if device.id in read
    ]
    known = {name for name, _, _ in process.readers} | {absent.what for absent in process.absent}
    idle = [Absent(name, "no supported device", "") for name in plugins.names("collectors")]
    lost = [Absent(_SAMPLER, remark.words, "") for remark in process.remarks() if remark.source == _SAMPLER]
    return found, [*lost, *process.absent, *(absent for absent in idle if absent.what not in known)]


def sample(groups: Sequence[Group], channel: ToParent, started_at: float) -> None:
    """Read each group in a thread of its own and send what they gather, until the parent says stop."""
    stop = threading.Event()
    threads = [threading.Thread(target=group.run, args=(stop, started_at), daemon=True) for group in groups]
    for thread in threads:
        thread.start()
    while not channel.poll(_CHUNK_S):
        _send(groups, channel, started_at)
    channel.recv()
    stop.set()
    deadline = time.monotonic() + _JOIN_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    for group in groups:
        group.finish(started_at)
    _send(groups, channel, started_at)
    channel.send(None)
    held = {id(group.source) for group, thread in zip(groups, threads, strict=True) if thread.is_alive()}
    for source in {id(group.source): group.source for group in groups}.values():
        if id(source) not in held:
            with contextlib.suppress(Missing):  # the samples are with the parent: how a source ends changes nothing
                plugins.asked("sampler", source.close)
    if held:
        os._exit(0)  # a thread is inside a driver that does not answer: an ordinary end would wait for it


def _send(groups: Sequence[Group], channel: ToParent, started_at: float) -> None:
    for group in groups:
        group.report_hang(started_at)
        for message in group.take():
            channel.send(message)


def open_groups(order: Order) -> tuple[list[Group], Opened]:
    """Every collector's counters for the devices it accepts, grouped by device and period."""
    groups: list[Group] = []
    counters: list[Counter] = []
    absent: list[Absent] = []
    lacks: list[Lack] = []
    optional: set[str] = set()
    readers: list[tuple[str, tuple[str, ...], tuple[Counter, ...]]] = []
    for name in plugins.names("collectors"):
        try:
            collector: Collector = plugins.load("collectors", name)
            devices = [device for device in order.devices if plugins.asked(name, partial(collector.accepts, device))]
            if not devices:
                continue
            declared = _declared(name, collector, counters)
            source = plugins.asked(name, partial(collector.open, devices))
            names = {counter.name for counter in declared}
            lacking = [lack for device in devices for lack in _lacks(name, source, device) if lack.counter in names]
        except (Missing, plugins.BrokenPlugin) as error:
            optional |= {name} if isinstance(error, Lacking) else set()
            absent.append(_absent(name, error))
            continue
        counters += declared
        readers.append((name, tuple(device.id for device in devices), declared))
        lacks += lacking
        groups += _groups(name, declared, source, devices, lacking)
    return groups, Opened(tuple(counters), tuple(absent), tuple(lacks), frozenset(optional), tuple(readers))


def _declared(name: str, collector: Collector, others: Sequence[Counter]) -> tuple[Counter, ...]:
    """Return a collector's counters; raise Missing where they are malformed or another collector has one of them."""
    declared = plugins.asked(name, lambda: boundary.counters(collector.counters))
    taken = {counter.name for counter in others} & {counter.name for counter in declared}
    if taken:
        raise Missing(f"another collector already declares the counter {min(taken)}", "rename it")
    return declared


def _absent(name: str, error: Missing | plugins.BrokenPlugin) -> Absent:
    what, how = (error.what, error.how) if isinstance(error, Missing) else (str(error), "")
    return Absent(name, boundary.text(what), boundary.text(how))


def _lacks(name: str, source: CounterSource, device: Device) -> list[Lack]:
    if not isinstance(source, Explained):
        return []
    found = plugins.asked(name, lambda: boundary.pairs(source.lacking(device)))
    return [Lack(counter, device.id, reason, name) for counter, reason in found.items()]


def _groups(
    name: str, counters: Sequence[Counter], source: CounterSource, devices: Sequence[Device], lacking: Sequence[Lack]
) -> list[Group]:
    without = {(lack.device, lack.counter) for lack in lacking}
    events = frozenset(counter.name for counter in counters if counter.kind == "event")
    named: dict[tuple[str, float], tuple[Device, list[str]]] = {}
    for device in devices:
        for counter in counters:
            if (device.id, counter.name) not in without:
                named.setdefault((device.id, counter.period_s), (device, []))[1].append(counter.name)
    return [Group(name, source, device, tuple(names), period, events) for (_, period), (device, names) in named.items()]


def main() -> None:
    """The child."""
    faulthandler.enable()
    channel = to_parent(sys.argv[1])
    order: Order = channel.recv()
    groups, opened = open_groups(order)
    channel.send(opened)
    sample(groups, channel, order.started_at)
