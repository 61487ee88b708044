"""Measure the latency of 8-byte messages while bulk copies use the same link."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from gpubench.api import suite as gb

from .._between import POISON, Params, expect_pattern, fill_pattern
from .._checks import in_turn
from .._copies import ARRAYS, READING, WRITING, Call, call_of, require
from ._latency import PeerRing, PeerWord
from ._peers import BY, device_axis, device_names, peer_axis, two_devices

BULK_BYTES = 2**26  # bytes per copy: 0.17 ms on NVLink, beside which the gap between two copies is small
_MOST_COPIES = 512  # copies in a queue: half of the launch queue's capacity
_TRIALS = 4  # trial copies by which the duration of one copy is measured
_TRAFFIC_MILLI = 1e-3
_WAYS = {"read": READING, "write": WRITING}


class Stopwatch:
    """A clock of CuPy events, which were recorded on any streams of one device: seconds since `start`."""

    def __init__(self, bench: gb.Bench) -> None:
        self._cuda = bench.xp.cuda
        self._origin = self.event()

    def event(self) -> Any:
        """Return an event; `record` queues it on the current stream."""
        return self._cuda.Event()

    def start(self) -> None:
        """Queue the moment from which `at` counts; every other event has to come after it."""
        self._origin.record()

    def at(self, event: Any) -> float:
        """Return the seconds from the start to the event; the device has finished."""
        return float(self._cuda.get_elapsed_time(self._origin, event)) * _TRAFFIC_MILLI


@dataclass(slots=True)
class BulkFlow:
    """Bulk copies in one direction: the call that makes one copy, its arrays, and events around the copies.

    `direction` is `read` or `write`, as the device sees it. `source` holds the words `sent`."""

    direction: str
    call: Call
    source: Any
    target: Any
    sent: gb.Words
    seconds: float  # duration of one copy without other traffic
    began: Any
    ended: Any
    copies: int = 0

    def queueing(self, copies: int) -> Callable[[], None]:
        """Return a call that queues `copies` copies between the two events."""

        def queue() -> None:
            """Queue the copies between the two events."""
            self.copies = copies
            self.began.record()
            for _ in range(copies):
                self.call()
            self.ended.record()

        return queue

    def copies_for(self, seconds: float) -> int:
        """Return the number of copies that last at least `seconds`, but at most 512."""
        return min(math.ceil(seconds / self.seconds) + 1, _MOST_COPIES)


class BulkTraffic:
    """Bulk copies between the device and its peer by the copy engine, by a kernel or by TMA.

    `by` is the means: `engine`, `kernel` or `bulk`."""

    def __init__(self, bench: gb.Bench, by: str, direction: str) -> None:
        directions = ("read", "write") if direction == "both" else (direction,)
        for flow in directions:
            require(bench, _WAYS[flow][by])
        bench.need((1 + ARRAYS * len(directions)) * BULK_BYTES)
        self._bench = bench
        self._stopwatch = Stopwatch(bench)
        self._units = 0 if by == "engine" else max(1, (bench.target.device.units - 1) // 2)
        self._flows = [self._flow(flow, by, bench.seed + 2 + index) for index, flow in enumerate(directions)]
        self._poison = bench.xp.full(BULK_BYTES, POISON, bench.xp.uint8)

    def _flow(self, direction: str, by: str, seed: int) -> BulkFlow:
        """Return the copies of one direction by `by` between new arrays; the source holds the words of `seed`."""
        bench, device = self._bench, self._bench.device
        near = bench.xp.empty(BULK_BYTES, bench.xp.uint8)
        far = device.peer_memory(bench.devices[1], BULK_BYTES)
        source, target = (far, near) if direction == "read" else (near, far)
        sent = fill_pattern(bench, source, seed)
        call = call_of(bench, _WAYS[direction][by], near, far, self._units)
        call()
        device.synchronize()
        seconds = device.time(call, _TRIALS).device[0]
        began, ended = self._stopwatch.event(), self._stopwatch.event()
        return BulkFlow(direction, call, source, target, sent, seconds, began, ended)

    @property
    def note(self) -> str:
        """The note that names the bytes of a copy and the engine that copies."""
        who = f"by {self._units} compute units for each direction" if self._units else "by copy engines"
        return f"{BULK_BYTES >> 20} MiB per copy, {who}, one copy after another"

    def lasting(self, seconds: float) -> list[Callable[[], None]]:
        """Return a call for each direction that queues copies which together last at least `seconds`."""
        return [flow.queueing(flow.copies_for(seconds)) for flow in self._flows]

    def once(self) -> list[Callable[[], None]]:
        """Return a call for each direction that queues one copy."""
        return [flow.queueing(1) for flow in self._flows]

    def lasted(self, stopwatch: Stopwatch, begin: Any, end: Any) -> bool:
        """Return whether the copies that were queued last ran in every direction from event `begin` to event `end`.

        `stopwatch` was started before these events; the device has finished."""
        since, until = stopwatch.at(begin), stopwatch.at(end)
        return all(stopwatch.at(flow.began) <= since and stopwatch.at(flow.ended) >= until for flow in self._flows)

    def rates(self, stopwatch: Stopwatch) -> dict[str, gb.Observed]:
        """Return the mean rates of the copies that were queued last in bytes per second: `bulk_read`, `bulk_write`.

        A direction without copies is left out. `stopwatch` was started before these copies."""
        rates = {}
        for flow in self._flows:
            seconds = stopwatch.at(flow.ended) - stopwatch.at(flow.began)
            rates[f"bulk_{flow.direction}"] = gb.Observed(flow.copies * BULK_BYTES / seconds, "B/s", "more")
        return rates

    def redraw(self) -> None:
        """Copy other words in all directions; a second call returns to the first ones."""
        for flow in self._flows:
            flow.sent.redraw(flow.source)

    def poison(self) -> None:
        """Overwrite the targets of all directions."""
        for flow in self._flows:
            self._bench.device.copy(flow.target, self._poison)

    def check(self) -> None:
        """Raise WrongAnswer if a byte of the targets is wrong; bytes in the peer's memory are copied back first."""
        for flow in self._flows:
            arrived = flow.target
            if flow.direction == "write":
                arrived = self._bench.xp.empty_like(flow.source)
                self._bench.device.copy(arrived, flow.target)
            expect_pattern(self._bench, arrived, flow.sent.seed, "copied beside the messages")


_LOADS = 1024  # loads per sample: a millisecond on an H200
_ROUNDS = 1025  # rounds per sample; the first one waits for the other device and is not timed
_PATIENCE_S = 0.25  # a kernel waits this long for a signal of the other kernel, which is less than a gate holds
_USUAL_HZ = 2e9  # assumed for GPUs whose clock is unknown
_LINE_BYTES = 128
_STATE_BYTES, _TICKS_BYTES = 24, 4 * (_ROUNDS - 1)  # the layout that timed_signals in remote.cu writes
_NANO, _MILLI = 1e-9, 1e-3
_BY_CLOCK = "by the clock of the compute unit, whose rate comes from the device's timer over the whole kernel"


class ControlMessage(Protocol):
    """Messages of 8 bytes that are sent one after another, so that each waits for the one before it."""

    @property
    def items(self) -> int:
        """The number of messages in one measured time."""

    @property
    def notes(self) -> Mapping[str, str]:
        """The notes that name the message and the clock that times it."""

    def send(self) -> None:
        """Queue the messages of one sample on the device's own stream; the caller waits for the device."""

    def seconds(self) -> list[float]:
        """Return the times of the last sample in seconds, each of `items` messages; the device has finished."""

    def poison(self) -> None:
        """Overwrite the outputs."""

    def check(self) -> gb.Observation:
        """Raise WrongAnswer if a message did not arrive."""


class PeerLoads:
    """Dependent loads of random lines of the peer's memory: a request there and 8 bytes back."""

    items = 1
    notes: Mapping[str, str] = {
        "message": "a load of 8 bytes from the peer's memory, request and answer",
        "ring": f"{PeerRing.note} unless the bulk copies displace it",
        "timed": _BY_CLOCK,
    }

    def __init__(self, bench: gb.Bench) -> None:
        self._device = bench.device
        self._ring = PeerRing(bench)
        self._ticks = bench.xp.zeros(_LOADS, bench.xp.uint32)
        self._kernel = bench.kernel("remote.cu", "timed_loads")
        self.check = self._ring.check

    def send(self) -> None:
        """Queue one walk of 1024 loads."""
        self._kernel((1,), (1,), (np.uint32(_LOADS), self._ticks, self._ring.state))
        self._ring.walked += _LOADS

    def seconds(self) -> list[float]:
        """Return the seconds of each load of the last walk."""
        _, cycles, nanoseconds = map(int, self._device.to_host(self._ring.state))
        return _seconds_of(self._device.to_host(self._ticks), cycles, nanoseconds)

    def poison(self) -> None:
        """Overwrite the times. The walk's position is not overwritten, because it is the checked answer."""
        self._ticks.fill(0)


class PeerCopies:
    """Copies of 8 bytes out of the peer's memory by the runtime, each by itself."""

    items = 1
    notes: Mapping[str, str] = {
        "message": "a copy of 8 bytes out of the peer's memory by the runtime, alone",
        "timed": "by the events before and after it, behind the gate",
    }

    def __init__(self, bench: gb.Bench) -> None:
        self._device, self._cuda = bench.device, bench.xp.cuda
        self._word = PeerWord(bench)
        self._begun, self._ended = (bench.xp.cuda.Event() for _ in range(2))
        self.poison, self.check, self.redraw = self._word.poison, self._word.check, self._word.redraw

    def send(self) -> None:
        """Queue one copy behind the gate, so that the copy does not wait for its launch, and wait for the device."""
        self._device.time(self.queue, 1, "hot")

    def queue(self) -> None:
        """Queue the copy between its two events; the caller holds the gate."""
        self._begun.record()
        self._word.copy()
        self._ended.record()

    def seconds(self) -> list[float]:
        """Return the seconds of the last copy, as the only element."""
        return [float(self._cuda.get_elapsed_time(self._begun, self._ended)) * _MILLI]


class PeerSignals:
    """A ping-pong of two kernels: each writes a word into the other device's memory and watches its own."""

    items = 2  # two items per round: a word there and a word back
    notes: Mapping[str, str] = {
        "message": "a word that a kernel writes into the peer's memory, where another kernel watches for it",
        "counted": "half of a round trip",
        "timed": _BY_CLOCK,
    }

    def __init__(self, bench: gb.Bench) -> None:
        xp = bench.xp
        self._device, self._peer = bench.device, bench.devices[1]
        nbytes = 2 * _LINE_BYTES + _TICKS_BYTES
        self._near = xp.zeros(nbytes, xp.uint8)
        self._far = bench.device.peer_memory(self._peer, nbytes)
        bench.device.copy(self._far, self._near)
        self._kernel = bench.kernel("remote.cu", "timed_signals")
        clock_hz = float(dict(bench.target.device.details).get("clock.sm_hz", _USUAL_HZ))
        self._limit = np.uint64(_PATIENCE_S * clock_hz)
        self._count = 0
        # Loads the kernel on both devices, because a kernel cannot be loaded while the other device waits.
        self._exchange(0)
        bench.device.synchronize()

    def send(self) -> None:
        """Queue one ping-pong of 1025 rounds on both devices."""
        self._exchange(_ROUNDS)

    def _exchange(self, rounds: int) -> None:
        near_side = self._side(self._near, self._far, rounds, serves=True)
        far_side = self._side(self._far, self._near, rounds, serves=False)
        self._device.together(near_side, far_side, peer=self._peer)
        self._count += rounds

    def _side(self, local: Any, remote: Any, rounds: int, *, serves: bool) -> Callable[[], None]:
        """Return the launch of one device's kernel of a ping-pong of `rounds` rounds."""
        state, ticks = local[_LINE_BYTES : _LINE_BYTES + _STATE_BYTES], local[2 * _LINE_BYTES :]
        numbers = (np.uint32(serves), np.uint32(self._count), np.uint32(rounds), self._limit)
        return lambda: self._kernel((1,), (1,), (local, remote, *numbers, ticks, state))

    def seconds(self) -> list[float]:
        """Return the seconds of each round trip of the last ping-pong but the first.

        Raises WrongAnswer if a wait was given up."""
        block = self._device.to_host(self._near)
        gave_up, cycles, nanoseconds = map(int, block[_LINE_BYTES : _LINE_BYTES + _STATE_BYTES].view(np.uint64))
        gb.expect(gave_up == 0, f"round {gave_up} timed out: no signal from the peer within {_PATIENCE_S} s")
        return _seconds_of(block[2 * _LINE_BYTES :].view(np.uint32), cycles, nanoseconds)

    def poison(self) -> None:
        """Overwrite the times. The flags are not overwritten, because they count the rounds for the check."""
        self._near[2 * _LINE_BYTES :].fill(0)

    def check(self) -> gb.Observation:
        """Raise WrongAnswer unless both flags count every round; return no observations."""
        far = self._device.xp.empty_like(self._near)
        self._device.copy(far, self._far)
        flags = [int(self._device.to_host(block)[:4].view(np.uint32)[0]) for block in (self._near, far)]
        gb.expect(flags == [self._count] * 2, f"the flags are {flags} after {self._count} rounds")
        return {}


def _seconds_of(ticks: Any, cycles: int, nanoseconds: int) -> list[float]:
    return [float(tick) for tick in ticks * (nanoseconds * _NANO / cycles)]


MESSAGES: dict[str, Callable[[gb.Bench], ControlMessage]] = {
    "load": PeerLoads,
    "copy": PeerCopies,
    "signal": PeerSignals,
}


_TAIL = 1000  # the number of samples that a 99th percentile needs
_COVER = 3.0  # initial duration of the bulk copies, as a multiple of the time of the messages alone
_MOST_COVER = 2.0**12

_NOTHING, _NONE = "nothing", "none"
_BESIDE = gb.points((_NOTHING, "engine", "bulk"), smoke=BY, full=(_NOTHING, *BY))
_TRAFFIC = gb.points((_NONE, "read"), smoke=("read",), full=(_NONE, "read", "write", "both"))

topic = gb.Topic(
    views=[
        gb.View("bars", "8-byte message latency under bulk copies", ("control",), by=("message",)),
        gb.View("bars", "8-byte message slowdown under bulk copies", ("control",), by=("message",), series="slowdown"),
    ]
)


def _is_point(target: gb.Target, params: Params) -> bool:
    if (params["beside"], params["traffic"]) == ("engine", "both"):
        return False
    if target.tier == "quick" and params["beside"] == "bulk":
        return False  # each takes a second
    return (params["beside"] == _NOTHING) == (params["traffic"] == _NONE)


@topic.case(
    devices=two_devices,
    when=gb.on_gpu,
    where=_is_point,
    device=device_axis,
    peer=peer_axis,
    message=tuple(MESSAGES),
    beside=_BESIDE,
    traffic=_TRAFFIC,
)
def control(bench: gb.Bench, device: str, peer: str, message: str, beside: str, traffic: str) -> gb.Task:
    """Seconds of an 8-byte message while bulk copies use the same link.

    `message` is a `load` or a `copy` from the peer's memory, or a `signal` between two kernels (half of a round trip).
    `beside` is the means of the bulk copies, and `traffic` says whether the device reads its peer's memory in them,
    writes it, or does both at once. With `nothing` and `none` the link is idle. The series `slowdown` is the time of
    the message over its time on an idle link."""
    del device, peer
    if beside == _NOTHING:
        return _alone(bench, MESSAGES[message](bench))
    bulk = BulkTraffic(bench, beside, traffic)
    if (message, beside) == ("copy", "engine"):
        return CopyBehindBulk(bench, PeerCopies(bench), bulk).task()
    return MessagesBesideBulk(bench, MESSAGES[message](bench), bulk).task()


def _alone(bench: gb.Bench, messages: ControlMessage) -> gb.Task:
    """Return the task of `messages` on an idle link."""

    def seconds() -> list[float]:
        messages.send()
        bench.device.synchronize()
        return messages.seconds()

    notes = {"devices": device_names(bench), **messages.notes}
    return gb.Task.of(_stage(messages, seconds), check=messages.check, poison=messages.poison, notes=notes)


def _stage(
    messages: ControlMessage,
    seconds: Callable[[], float | Sequence[float]],
    probe: Callable[[], gb.Observation] | None = None,
) -> gb.Stage:
    """Return the stage of messages that time themselves, with enough samples for a 99th percentile."""
    work, effort = gb.Work(items=messages.items), gb.POINT.with_tail(_TAIL)
    inputs = getattr(messages, "redraw", None)  # the other messages have no answer that occurs twice
    return gb.Stage(seconds, work, "item", clock="self", probe=probe, effort=effort, inputs=inputs)


class MessagesBesideBulk:
    """Messages that are timed alone and then, in the same call, while bulk copies run from before to after them.

    `task` returns the task of the case."""

    def __init__(self, bench: gb.Bench, messages: ControlMessage, bulk: BulkTraffic) -> None:
        self._device, self._messages, self._bulk = bench.device, messages, bulk
        self._stopwatch = Stopwatch(bench)
        self._free, self._begun, self._ended = (self._stopwatch.event() for _ in range(3))
        self._cover = _COVER
        self._slowdown = math.nan
        self._notes = {"devices": device_names(bench), **messages.notes, "bulk": bulk.note}

    def task(self) -> gb.Task:
        """Return the task; its series `slowdown` is the median time beside the copies over the median alone."""
        stage = _stage(self._messages, self.seconds, self._observed)
        stage = replace(stage, inputs=in_turn(*filter(None, (stage.inputs, self._bulk.redraw))))
        return gb.Task.of(stage, check=self._check, poison=self._poison, notes=self._notes)

    def seconds(self) -> float | list[float]:
        """Send the messages alone and beside the copies, and return the seconds of each message beside the copies.

        Returns NaN if the copies ended before the messages; in the next call the copies then last twice as long."""
        self._stopwatch.start()
        self._messages.send()
        self._free.record()
        self._device.synchronize()
        alone = self._messages.seconds()
        is_beside = self._run_beside()
        beside = self._messages.seconds()
        if not is_beside:
            self._cover = min(2 * self._cover, _MOST_COVER)
            return math.nan
        self._slowdown = float(np.median(beside) / np.median(alone))
        return beside

    def _run_beside(self) -> bool:
        """Send the messages while bulk copies run."""
        self._device.together(self._send, *self._bulk.lasting(self._cover * self._stopwatch.at(self._free)))
        self._device.synchronize()
        return self._bulk.lasted(self._stopwatch, self._begun, self._ended)

    def _send(self) -> None:
        self._begun.record()
        self._messages.send()
        self._ended.record()

    def _observed(self) -> gb.Observation:
        return {"slowdown": gb.Observed(self._slowdown), **self._bulk.rates(self._stopwatch)}

    def _check(self) -> gb.Observation:
        self._bulk.check()
        return self._messages.check()

    def _poison(self) -> None:
        self._bulk.poison()
        self._messages.poison()


class CopyBehindBulk(MessagesBesideBulk):
    """A message that the runtime copies behind one bulk copy of the runtime.

    The gate opens for both at once: the measured time contains the bulk copy and the message."""

    def __init__(self, bench: gb.Bench, messages: PeerCopies, bulk: BulkTraffic) -> None:
        super().__init__(bench, messages, bulk)
        self._queue = messages.queue
        self._notes["order"] = "queued behind one bulk copy; the copy engine keeps the order"

    def _run_beside(self) -> bool:
        self._device.time(lambda: self._device.together(self._queue, *self._bulk.once()), 1, "hot")
        self._device.synchronize()
        return True
