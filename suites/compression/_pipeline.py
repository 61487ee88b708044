"""Take the blocks of a message from a sender to a receiver, with several blocks in flight.

sender: queue -> encode -> send ==== link ==== receive -> decode :receiver The sender's steps are one chain, the
receiver's another. Up to `depth` blocks are in flight in each."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal

from gpubench.api import suite as gb

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
    """Another thread or process failed, so that waiting is useless; the error of the failed one is reported instead."""


class Slots:
    """The slots of one chain; on the host a slot has no state, because each thread works by itself."""

    are_streams = False  # whether the work of a slot continues asynchronously while its thread does something else

    def __init__(self, depth: int) -> None:
        self.depth = depth

    def use(self, slot: int) -> None:
        """Make the calling thread queue its work in `slot`."""

    def wait(self, slot: int) -> None:
        """Wait until all work that was queued in `slot` is done."""

    def wait_all(self) -> None:
        """Wait until all work that was queued in any slot is done."""


class GpuSlots(Slots):
    """The slots of one chain on a GPU: each has a stream."""

    are_streams = True

    def __init__(self, bench: gb.Bench, depth: int) -> None:
        """Make `depth` streams on the current device of the process."""
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


def slots_of(bench: gb.Bench, depth: int) -> Slots:
    """Return `depth` slots for the bench's device."""
    return GpuSlots(bench, depth) if bench.traits.is_gpu else Slots(depth)


@dataclass(frozen=True, slots=True)
class StepChain:
    """Steps that each block goes through in order, and the schedule of the threads that take it there.

    A thread per slot suits steps that block, one thread suits steps that only queue work, and a thread per step suits
    links that carry one block at a time."""

    slots: Slots
    steps: tuple[Step, ...]
    schedule: Schedule = "a thread per slot"

    def jobs(self, count: int, depth: int) -> list[Action]:
        """Return one function per thread; together they take `count` blocks through all steps, with `depth` in flight.

        The functions must run at the same time."""
        if not self.slots.are_streams or self.schedule == "a thread per slot":
            return [partial(self._run_slot, slot, count, depth) for slot in range(depth)]
        if self.schedule == "one thread":
            return [partial(self._run_in_one_thread, count, depth)]
        return self._step_jobs(count, depth)

    def _run_slot(self, slot: int, count: int, depth: int) -> None:
        """Take the blocks `slot`, `slot` + `depth`, … below `count` through all steps, one after the other."""
        self.slots.use(slot)
        for index in range(slot, count, depth):
            for step in self.steps:
                step(InFlight(index, slot))

    def _run_in_one_thread(self, count: int, depth: int) -> None:
        """Take `count` blocks through all steps in the calling thread, with at most `depth` of them in flight."""
        for index in range(count + depth - 1):
            if index < count:
                self._do(self.steps[0], index, depth)
            oldest = index - depth + 1
            if oldest >= 0:
                for step in self.steps[1:]:
                    self._do(step, oldest, depth)

    def _step_jobs(self, count: int, depth: int) -> list[Action]:
        """Return one function per step, each for its own thread."""
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
        """Take each block in `blocks`, indices in order, through one step, and call `hand_on` with its index."""
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
    """Lets the threads of a pipeline handle blocks one at a time, in the order of their indices."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._next = 0
        self._is_stopped = False

    def reset(self) -> None:
        """Begin with block 0 again; no thread may be waiting."""
        self._next, self._is_stopped = 0, False

    def stop(self) -> None:
        """Make every thread that waits in `turn` raise StoppedError."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    @contextmanager
    def turn(self, index: int) -> Iterator[None]:
        """Wait until all blocks before `index` have passed, and hold up the others until the context is left.

        If it is left with an error, no later block passes. Raises StoppedError after `stop`."""
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
        """Make threads for `chains` chains with at most `depth` blocks in flight."""
        self._threads = ThreadPoolExecutor(chains * max(depth, _MAX_STEPS), thread_name_prefix="pipeline")

    def run(
        self, count: int, depth: int, *chains: StepChain, finish: Action = lambda: None, stop: Action = lambda: None
    ) -> float:
        """Take `count` blocks through all chains at the same time, then call `finish`; return the seconds of all this.

        `depth` is the number of blocks in flight in each chain."""
        start = time.perf_counter()
        jobs = [self._threads.submit(job) for chain in chains for job in chain.jobs(count, depth)]
        wait(jobs, return_when=FIRST_EXCEPTION)
        if any(job.done() and job.exception() for job in jobs):
            stop()
            wait(jobs)
            raise _original_error(jobs)
        for chain in chains:
            chain.slots.wait_all()
        finish()
        return time.perf_counter() - start

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()


def _original_error(jobs: list[Future[Any]]) -> BaseException:
    """Return the error of a failed job, preferably one that is neither StoppedError nor OSError."""
    errors = [error for job in jobs if (error := job.exception())]
    return min(errors, key=lambda error: isinstance(error, StoppedError | OSError))
