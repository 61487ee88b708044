"""Run bulk copies over the link between two devices for as long as something else is timed."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpubench.api import suite as gb

from .._between import POISON, expect_pattern, fill_pattern
from .._copies import ARRAYS, READING, WRITING, Call, call_of, require

BULK_BYTES = 2**26  # bytes per copy: 0.17 ms on NVLink, beside which the gap between two copies is small
_MOST_COPIES = 512  # copies in a queue: half of the launch queue's capacity
_TRIALS = 4  # trial copies by which the duration of one copy is measured
_MILLI = 1e-3
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
        return float(self._cuda.get_elapsed_time(self._origin, event)) * _MILLI


@dataclass(slots=True)
class BulkFlow:
    """Bulk copies in one direction: the call that makes one copy, its arrays, and events around the copies.

    `direction` is `read` or `write`, as the device sees it. `source` holds the pattern of `seed`."""

    direction: str
    call: Call
    source: Any
    target: Any
    seed: int
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
        """Return the copies of one direction by `by` between new arrays; the source holds the pattern of `seed`."""
        bench, device = self._bench, self._bench.device
        near = bench.xp.empty(BULK_BYTES, bench.xp.uint8)
        far = device.peer_memory(bench.devices[1], BULK_BYTES)
        source, target = (far, near) if direction == "read" else (near, far)
        fill_pattern(bench, source, seed)
        call = call_of(bench, _WAYS[direction][by], near, far, self._units)
        call()
        device.synchronize()
        seconds = device.time(call, _TRIALS).device[0]
        began, ended = self._stopwatch.event(), self._stopwatch.event()
        return BulkFlow(direction, call, source, target, seed, seconds, began, ended)

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
            expect_pattern(self._bench, arrived, flow.seed, "copied beside the messages")
