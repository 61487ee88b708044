"""Blocks of a message in lanes: each lane takes every n-th block through all its steps, so that blocks overlap.

With one lane a block has left before the next one is begun: the staged way. On the host a lane is a thread, on a GPU a
stream, which threads serve as `Side` says. Codecs, copies, files and sockets all let other threads run meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal

from gpubench.api.suite import Bench

from ._codecs_common import lengths

LINE_BYTES = 16  # as LINE in compress.cu
_STEPS = 3  # of a side: begin, take, step
_ENTRY_BYTES = 16  # of the table that a block begins with: offset and size of a chunk


Action = Callable[[], None]


def nothing() -> None:
    """What is done where nothing has to be."""


class StoppedError(RuntimeError):
    """Another lane failed: this one has nothing to wait for. The other's error is the one that counts."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a message of `total` bytes is cut: into blocks, the unit that travels, and these into codec chunks."""

    total: int
    block: int
    chunk: int

    @property
    def count(self) -> int:
        """The number of blocks; none of an empty message."""
        return len(lengths(self.total, self.block))

    def span(self, index: int) -> slice:
        """Where a block lies; the last one may be shorter."""
        start = index * self.block
        return slice(start, min(start + self.block, self.total))

    def chunks(self, index: int) -> list[int]:
        """The bytes of each chunk of a block."""
        place = self.span(index)
        return lengths(place.stop - place.start, self.chunk)

    @property
    def most_chunks(self) -> int:
        """The chunks of a whole block."""
        return -(-min(self.block, self.total) // self.chunk)

    def most_packed(self, most_compressed: int) -> int:
        """Room for a whole block as it travels, where a chunk becomes at most so many bytes."""
        return self.most_chunks * (_ENTRY_BYTES + -(-most_compressed // LINE_BYTES) * LINE_BYTES) + LINE_BYTES


class Turnstile:
    """Lets blocks pass one by one, in order: what a wire is."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._next = 0
        self._is_broken = False

    def reset(self) -> None:
        """Begin with the first block again."""
        self._next, self._is_broken = 0, False

    def stop(self) -> None:
        """Send away whoever waits."""
        with self._changed:
            self._is_broken = True
            self._changed.notify_all()

    @contextmanager
    def turn(self, index: int) -> Iterator[None]:
        """The time of that block on the wire; raises StoppedError where no block will pass any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_broken or self._next == index)
            if self._is_broken:
                raise StoppedError
        yield
        with self._changed:
            self._next += 1
            self._changed.notify_all()


class Lanes:
    """Lanes of the host: threads alone."""

    are_queues = False  # whether what a lane does goes on while its thread does something else

    def __init__(self, most: int) -> None:
        self.most = most

    def use(self, lane: int) -> None:
        """Make this thread that lane's."""

    def wait(self, lane: int) -> None:
        """Until all that the lane queued is done."""

    def wait_all(self) -> None:
        """The same of every lane."""


class GpuLanes(Lanes):
    """Lanes of a GPU: a stream each."""

    are_queues = True

    def __init__(self, bench: Bench, most: int) -> None:
        super().__init__(most)
        cuda = bench.xp.cuda
        self._device = cuda.Device(cuda.runtime.getDevice())
        self._streams = [cuda.Stream(non_blocking=True) for _ in range(most)]

    def use(self, lane: int) -> None:
        self._device.use()
        self._streams[lane].use()

    def wait(self, lane: int) -> None:
        self._streams[lane].synchronize()

    def wait_all(self) -> None:
        for stream in self._streams:
            stream.synchronize()


def lanes_of(bench: Bench, most: int) -> Lanes:
    """The lanes of the bench's device."""
    return GpuLanes(bench, most) if bench.traits.is_gpu else Lanes(most)


Step = Callable[[int, int], object]  # lane, block


def no_step(lane: int, index: int) -> None:
    """What a block does not need."""
    del lane, index


Threads = Literal["a lane each", "one", "a step each"]


@dataclass(frozen=True, slots=True)
class Side:
    """What lanes do with each block: `begin` and `take`, which queue what goes on while other lanes work, then `step`.

    Where all three only queue, or wait for their own lane's queue alone, `one` thread serves all lanes: threads that
    only queue work cost each other more than they win. Where blocks pass one by one, `a step each` has a thread of its
    own, and hands each block on to the next. Otherwise each lane has one.

    Blocks that are handed on begin when their lane's last one has done its step, or, where `free` is given, when
    somebody has released that.
    """

    lanes: Lanes
    step: Step
    begin: Step = no_step
    take: Step = no_step
    threads: Threads = "a lane each"
    free: threading.Semaphore | None = None  # as many as there are lanes in flight

    def parts(self, count: int, flight: int) -> list[Action]:
        """What the side's threads do."""
        if self.threads == "one":
            return [partial(self._drive, count, flight)]
        if self.threads == "a step each":
            return self._stations(count, flight)
        return [partial(self._run, lane, count, flight) for lane in range(flight)]

    def _run(self, lane: int, count: int, flight: int) -> None:
        """One lane's blocks, in a thread of its own."""
        self.lanes.use(lane)
        for index in range(lane, count, flight):
            self.begin(lane, index)
            self.take(lane, index)
            self.step(lane, index)

    def _drive(self, count: int, flight: int) -> None:
        """All lanes' blocks: one is begun as soon as its lane is free, `flight` of them being under way."""
        for index in range(count + flight - 1):
            if index < count:
                self._do(self.begin, index, flight)
            due = index - flight + 1
            if due >= 0:
                self._do(self.take, due, flight)
                self._do(self.step, due, flight)

    def _stations(self, count: int, flight: int) -> list[Action]:
        free = self.free or threading.Semaphore(flight)

        def begun() -> Iterator[int]:
            for index in range(count):
                free.acquire()
                yield index

        def done(index: int | None) -> None:
            if index is None:  # where a step has failed nobody waits for its lane
                free.release(count)
            elif self.free is None:
                free.release()

        *before, last = (step for step in (self.begin, self.take, self.step) if step is not no_step)
        parts: list[Action] = []
        blocks = begun()
        for step in before:
            belt: SimpleQueue[int | None] = SimpleQueue()
            parts.append(partial(self._station, step, flight, blocks, belt.put))
            blocks = iter(belt.get, None)
        return [*parts, partial(self._station, last, flight, blocks, done)]

    def _station(self, step: Step, flight: int, blocks: Iterator[int], hand_on: Callable[[int | None], object]) -> None:
        """One step of all lanes' blocks, in order; None is handed on after the last one."""
        try:
            for index in blocks:
                self._do(step, index, flight)
                hand_on(index)
        finally:
            hand_on(None)

    def _do(self, step: Step, index: int, flight: int) -> None:
        if step is not no_step:
            self.lanes.use(index % flight)
            step(index % flight, index)


def threads_of(lanes: Lanes, threads: Threads, step_waits: bool = False) -> Threads:
    """What works for these lanes: each has a thread of its own where it is no queue, or where its steps wait."""
    return threads if lanes.are_queues and not step_waits else "a lane each"


class Crew:
    """The threads of a case with so many sides; kept, so that starting them is not in anybody's time."""

    def __init__(self, sides: int, flight: int) -> None:
        self._pool = ThreadPoolExecutor(sides * max(flight, _STEPS), thread_name_prefix="lane")

    def run(
        self,
        count: int,
        flight: int,
        *sides: Side,
        finish: Action = nothing,
        stop: Action = nothing,
    ) -> float:
        """Seconds that all sides take for `count` blocks, `flight` lanes each, and to finish.

        Where a lane fails, `stop` frees those that wait for it; then its error is raised.
        """
        start = time.perf_counter()
        lanes = [self._pool.submit(part) for side in sides for part in side.parts(count, flight)]
        wait(lanes, return_when=FIRST_EXCEPTION)
        if any(lane.done() and lane.exception() for lane in lanes):
            stop()
            wait(lanes)
            raise _first_error(lanes)
        for side in sides:
            side.lanes.wait_all()
        finish()
        return time.perf_counter() - start

    def close(self) -> None:
        """Let the threads go."""
        self._pool.shutdown()


def _first_error(lanes: list[Future[Any]]) -> BaseException:
    """What went wrong, before what only went wrong because of it."""
    errors = [error for lane in lanes if (error := lane.exception())]
    return min(errors, key=lambda error: isinstance(error, StoppedError | OSError))
