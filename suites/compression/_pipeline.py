"""The pipeline that takes the blocks of a message from a sender to a receiver.

    sender:    queue  ->  encode  ->  send     ==== link ====     receive  ->  decode    :receiver

The sender's steps are one chain, the receiver's another. Up to `depth` blocks are in flight in each. A block works in
slot `index % depth`: in the slot's buffers, and on a GPU in its stream. Who waits for whom:

- A block enters its slot when the block before it in that slot has gone through every step of the chain.
- A link that carries one block at a time lets blocks pass in their order (`InOrder`).
- The receiver waits in `receive` until its block has arrived. A sender whose buffer the receiver reads from waits in
  `queue` until that block was taken (`Link.reserve`).
- With one block in flight each block leaves before the next one begins: the staged way.

Threads take the blocks through a chain, in one of three schedules. Codecs, copies, files and sockets all
let other threads run while they work.
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

Action = Callable[[], object]
Schedule = Literal["a thread per slot", "one thread", "a thread per step"]
_MAX_STEPS = 3  # most steps in one chain


@dataclass(frozen=True, slots=True)
class InFlight:
    """A block in flight: its index in the message, and the slot in which it is worked on."""

    index: int
    slot: int


Step = Callable[[InFlight], object]


class StoppedError(RuntimeError):
    """Another thread or process failed, so that waiting is useless; the failed one's own error is reported."""


class Slots:
    """The slots of one chain; on the host a slot is only the number of a thread."""

    are_streams = False  # whether the work of a slot continues asynchronously while its thread does something else

    def __init__(self, depth: int) -> None:
        self.depth = depth

    def use(self, slot: int) -> None:
        """Make the calling thread queue its work in that slot."""

    def wait(self, slot: int) -> None:
        """Wait until everything that was queued in that slot is done."""

    def wait_all(self) -> None:
        """Wait until everything that was queued in any slot is done."""


class GpuSlots(Slots):
    """Slots of a GPU: a stream each."""

    are_streams = True

    def __init__(self, bench: Bench, depth: int) -> None:
        super().__init__(depth)
        cuda = bench.xp.cuda
        self._device = cuda.Device(cuda.runtime.getDevice())
        self._streams = [cuda.Stream(non_blocking=True) for _ in range(depth)]

    def use(self, slot: int) -> None:
        self._device.use()
        self._streams[slot].use()

    def wait(self, slot: int) -> None:
        self._streams[slot].synchronize()

    def wait_all(self) -> None:
        for stream in self._streams:
            stream.synchronize()


def slots_of(bench: Bench, depth: int) -> Slots:
    """Return the slots of the bench's device."""
    return GpuSlots(bench, depth) if bench.traits.is_gpu else Slots(depth)


@dataclass(frozen=True, slots=True)
class StepChain:
    """Steps that each block goes through in order, and the schedule of the threads that take it there.

    a thread per slot
        Each thread takes every depth-th block through all steps. The host's slots always work so, and a GPU's where
        steps block: codecs that wait for their stream, files that are written side by side.
    one thread
        It begins a block as soon as a slot is free, and finishes the oldest. It serves steps that only queue work, or
        wait for their own slot alone: several threads that only queue work cost each other more than they gain.
    a thread per step
        Each thread takes all blocks through its step, in their order, and hands them to the next: for links that
        carry one block at a time.
    """

    slots: Slots
    steps: tuple[Step, ...]
    schedule: Schedule = "a thread per slot"

    def jobs(self, count: int, depth: int) -> list[Action]:
        """Return one call per thread; together they take `count` blocks through the steps, `depth` in flight."""
        if not self.slots.are_streams or self.schedule == "a thread per slot":
            return [partial(self._run_slot, slot, count, depth) for slot in range(depth)]
        if self.schedule == "one thread":
            return [partial(self._run_all_slots, count, depth)]
        return self._step_jobs(count, depth)

    def _run_slot(self, slot: int, count: int, depth: int) -> None:
        """Take every depth-th block through all steps, in one slot."""
        self.slots.use(slot)
        for index in range(slot, count, depth):
            for step in self.steps:
                step(InFlight(index, slot))

    def _run_all_slots(self, count: int, depth: int) -> None:
        """Take all blocks through all steps in one thread: start a block if a slot is free, else finish the oldest."""
        for index in range(count + depth - 1):
            if index < count:
                self._do(self.steps[0], index, depth)
            oldest = index - depth + 1
            if oldest >= 0:
                for step in self.steps[1:]:
                    self._do(step, oldest, depth)

    def _step_jobs(self, count: int, depth: int) -> list[Action]:
        """Return one job per step, each for a thread; queues between them pass on the indices of blocks."""
        free_slots = threading.Semaphore(depth)

        def enter() -> Iterator[int]:
            for index in range(count):
                free_slots.acquire()
                yield index

        def leave(index: int | None) -> None:
            # after a failure, free all slots so that no thread waits for one
            free_slots.release(count if index is None else 1)

        jobs: list[Action] = []
        blocks = enter()
        for step in self.steps[:-1]:
            handed_on: SimpleQueue[int | None] = SimpleQueue()
            jobs.append(partial(self._run_step, step, depth, blocks, handed_on.put))
            blocks = iter(handed_on.get, None)
        return [*jobs, partial(self._run_step, self.steps[-1], depth, blocks, leave)]

    def _run_step(self, step: Step, depth: int, blocks: Iterator[int], hand_on: Callable[[int | None], object]) -> None:
        """Take all blocks through one step, in order; hand on None after the last block."""
        try:
            for index in blocks:
                self._do(step, index, depth)
                hand_on(index)
        finally:
            hand_on(None)

    def _do(self, step: Step, index: int, depth: int) -> None:
        block = InFlight(index, index % depth)
        self.slots.use(block.slot)
        step(block)


class InOrder:
    """Lets blocks pass one at a time in their order, as a wire does."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._next = 0
        self._is_stopped = False

    def reset(self) -> None:
        """Begin with block 0 again."""
        self._next, self._is_stopped = 0, False

    def stop(self) -> None:
        """Release every waiting thread with StoppedError."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    @contextmanager
    def turn(self, index: int) -> Iterator[None]:
        """Hold the wire for block `index`; raises StoppedError after `stop`."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopped or self._next == index)
            if self._is_stopped:
                raise StoppedError
        yield
        with self._changed:
            self._next += 1
            self._changed.notify_all()


class Pipeline:
    """The threads of a case's pipeline, kept from message to message, so that no time includes their start."""

    def __init__(self, chains: int, depth: int) -> None:
        self._threads = ThreadPoolExecutor(chains * max(depth, _MAX_STEPS), thread_name_prefix="pipeline")

    def run(
        self, count: int, depth: int, *chains: StepChain, finish: Action = lambda: None, stop: Action = lambda: None
    ) -> float:
        """Return the seconds of all chains for `count` blocks, with the link's `finish` included.

        If a thread fails, `stop` releases the threads that wait for it, and its error is raised.
        """
        start = time.perf_counter()
        jobs = [self._threads.submit(job) for chain in chains for job in chain.jobs(count, depth)]
        wait(jobs, return_when=FIRST_EXCEPTION)
        if any(job.done() and job.exception() for job in jobs):
            stop()
            wait(jobs)
            raise _first_error(jobs)
        for chain in chains:
            chain.slots.wait_all()
        finish()
        return time.perf_counter() - start

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()


def _first_error(jobs: list[Future[Any]]) -> BaseException:
    """Return the error that came first, before those that only followed from it."""
    errors = [error for job in jobs if (error := job.exception())]
    return min(errors, key=lambda error: isinstance(error, StoppedError | OSError))
