"""Take the blocks of a message from a sender to a receiver, with several blocks in flight, and time that.

sender: queue → encode → send ==== link ==== receive → decode :receiver. Each side is a chain of steps. The clock runs
from before the first block is begun until the last one is restored or, for a message that is only written, delivered.
Then the whole message is compared, bit for bit."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from gpubench.api import suite as gb

from ._codecs_device import DeviceBytes, address
from ._codecs_host import expect_same, lengths

Action = Callable[[], object]
Schedule = Literal["a thread per slot", "one thread", "a thread per step"]
Timed = Literal["sender", "receiver", "both"]  # the sides that the timed section contains
_MAX_STEPS = 3  # most steps in one chain
_DEFAULT_KIND = 4  # cudaMemcpyDefault: the addresses determine the direction; HIP's has the same value


@dataclass(frozen=True, slots=True)
class InFlight:
    """A block in flight: its index in the message, and the slot in which it is worked on."""

    index: int
    slot: int


Step = Callable[[InFlight], object]


class StoppedError(RuntimeError):
    """Another thread or process failed, so that waiting is useless; the error of the failed one is reported instead."""


class Slots:
    """The `depth` slots of one chain: on a GPU each has a stream, on the host each thread works by itself."""

    are_streams = False  # whether the work of a slot continues asynchronously while its thread does something else

    def __init__(self, depth: int, bench: gb.Bench | None = None) -> None:
        self.depth = depth
        self._streams: list[Any] = []
        if bench and bench.traits.is_gpu:
            cuda, self.are_streams = bench.xp.cuda, True
            self._device = cuda.Device(cuda.runtime.getDevice())
            self._streams = [cuda.Stream(non_blocking=True) for _ in range(depth)]

    def use(self, slot: int) -> None:
        """Make the calling thread queue its work in `slot`."""
        if self._streams:
            self._device.use()
            self._streams[slot].use()

    def wait(self, *slots: int) -> None:
        """Wait until all work that was queued in `slots`, without arguments in any slot, is done."""
        for slot in slots or range(len(self._streams)):
            if self._streams:
                self._streams[slot].synchronize()


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
        gates = [threading.Semaphore(depth if step == 0 else 0) for step in range(len(self.steps))]
        failed = threading.Event()
        return [partial(self._run_step, step, count, depth, gates, failed) for step in range(len(self.steps))]

    def _run_slot(self, slot: int, count: int, depth: int) -> None:
        """Take the blocks `slot`, `slot` + `depth`, … below `count` through all steps, one after the other."""
        for index in range(slot, count, depth):
            self._do(self.steps, index, depth)

    def _run_in_one_thread(self, count: int, depth: int) -> None:
        """Take `count` blocks through all steps in the calling thread, with at most `depth` of them in flight."""
        for index in range(count + depth - 1):
            if index < count:
                self._do(self.steps[:1], index, depth)
            if index - depth + 1 >= 0:
                self._do(self.steps[1:], index - depth + 1, depth)

    def _run_step(
        self, step: int, count: int, depth: int, gates: Sequence[threading.Semaphore], failed: threading.Event
    ) -> None:
        """Take each block through one step after it has passed the step before; the first step waits for a slot."""
        after = gates[(step + 1) % len(gates)]
        try:
            for index in range(count):
                gates[step].acquire()
                if failed.is_set():
                    return
                self._do(self.steps[step : step + 1], index, depth)
                after.release()
        except BaseException:
            failed.set()
            for gate in gates:  # no thread may wait for a block that never comes
                gate.release(count)
            raise

    def _do(self, steps: Sequence[Step], index: int, depth: int) -> None:
        block = InFlight(index, index % depth)
        self.slots.use(block.slot)
        for step in steps:
            step(block)


class InOrder:
    """Lets the threads of a pipeline handle blocks one at a time, in the order of their indices."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.reset()

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
        self._threads = ThreadPoolExecutor(chains * max(depth, _MAX_STEPS), thread_name_prefix="pipeline")
        self.close = self._threads.shutdown

    def run(
        self, count: int, depth: int, *chains: StepChain, finish: Action = lambda: None, stop: Action = lambda: None
    ) -> float:
        """Take `count` blocks through all chains at the same time, then call `finish`; return the seconds of all this.

        `depth` is the number of blocks in flight in each chain. Raises the error that caused the others."""
        start = time.perf_counter()
        jobs = [self._threads.submit(job) for chain in chains for job in chain.jobs(count, depth)]
        wait(jobs, return_when=FIRST_EXCEPTION)
        if any(job.done() and job.exception() for job in jobs):
            stop()
            wait(jobs)
            errors = [error for job in jobs if (error := job.exception())]
            raise min(errors, key=lambda error: isinstance(error, StoppedError | OSError))
        for chain in chains:
            chain.slots.wait()
        finish()
        return time.perf_counter() - start


@dataclass(frozen=True, slots=True)
class Cut:
    """The division of a message of `total` bytes into blocks of `block` bytes, and of a block into chunks of `chunk`.

    The last block of the message and the last chunk of a block may be shorter."""

    total: int
    block: int
    chunk: int

    @property
    def count(self) -> int:
        return len(lengths(self.total, self.block))

    @property
    def max_chunks(self) -> int:
        return -(-min(self.block, self.total) // self.chunk)

    def span(self, index: int) -> slice:
        return slice(index * self.block, min((index + 1) * self.block, self.total))

    def chunks(self, index: int) -> list[int]:
        """Return the length in bytes of each chunk of block `index`."""
        span = self.span(index)
        return lengths(span.stop - span.start, self.chunk)


@dataclass(frozen=True, slots=True)
class Message:
    """A message: uint8 arrays on the device for its source and its target, and its division into blocks.

    `bytes` overwrites and compares arrays of a GPU; it is None on the host."""

    source: Any
    target: Any
    cut: Cut
    bytes: DeviceBytes | None = None
    dtype: str = "uint8"
    description: str = ""

    def poison(self) -> None:
        """Overwrite every byte of the target with its wrong value, and wait until that is done."""
        if self.bytes:
            self.bytes.invert(self.source, self.target)
            self.bytes.wait()
        else:
            np.invert(self.source, out=self.target)

    def expect_arrived(self) -> None:
        """Raise WrongAnswer unless the target equals the source, bit for bit."""
        (self.bytes.expect_same if self.bytes else expect_same)(self.target, self.source)


class Coder:
    """The encoder or the decoder of a message: a block becomes a packed block, which becomes the block again.

    A packed block is a uint8 array on the device, valid until the slot is used again."""

    waits = False  # whether decoding a block waits for the slot's stream: then each slot has a thread

    def __init__(self, cut: Cut, slots: Slots) -> None:
        self.cut, self.slots = cut, slots

    def queue(self, block: InFlight) -> None:
        """Queue the work on a block that can be done before `encode`."""

    def encode(self, block: InFlight) -> Any:
        """Return the packed block."""
        raise NotImplementedError

    def room(self, block: InFlight) -> Any:
        """Return the array in which a block arrives, as long as the longest packed block."""
        raise NotImplementedError

    def decode(self, block: InFlight, packed: Any) -> None:
        """Restore a block in its place, or queue that; raises WrongAnswer, at once or from `check`, if that fails."""
        raise NotImplementedError

    def reset(self) -> None:
        """Overwrite the statuses and intermediate output of the last message with wrong values."""

    def check(self) -> None:
        """Raise WrongAnswer if a block could not be encoded or restored; the calls may only have queued the work."""


class Link:
    """The transport of packed blocks from an encoder to a decoder; a subclass overrides the steps that it needs.

    Steps of different slots run in different threads."""

    schedule: Schedule = "a thread per slot"  # how the sending and receiving steps are scheduled on a GPU
    is_joined = False  # whether one thread both sends and receives a block, in one chain of steps instead of two

    def begin(self) -> None:
        """Prepare for the next message; the time of the message does not include this."""

    def reserve(self, slot: int) -> None:
        """Wait until the buffer that a slot sends from may be written again."""

    def send(self, block: InFlight, packed: Any) -> None:
        """Send the block."""

    def receive(self, block: InFlight, room: Any) -> Any:
        """Wait until the block has arrived, in `room` or elsewhere; return `room` or the part that the block takes."""
        del block
        return room

    def deliver(self, block: InFlight, arrived: Any) -> Any:
        """Return the part of `room` with the block; `arrived` is the result of `receive`."""
        del block
        return arrived

    def finish(self) -> None:
        """Complete the message after its last block; the time of the message includes this."""

    def stop(self) -> None:
        """Release all threads that wait in this link, because a thread has failed."""

    def close(self) -> None:
        """Release the resources of the link."""


class InOrderLink(Link):
    """A link that carries one block at a time each way, in the order of their indices (`_sent`, `_received`)."""

    schedule: Schedule = "a thread per step"

    def __init__(self) -> None:
        self._sent, self._received = InOrder(), InOrder()

    def begin(self) -> None:
        self._sent.reset()
        self._received.reset()

    def stop(self) -> None:
        self._sent.stop()
        self._received.stop()


def queue_copy(bench: gb.Bench, target: Any, source: Any) -> Any:
    """Copy `source` to the beginning of `target`, or queue that on a GPU's current stream; return that part.

    Both are uint8 arrays on the host or the device."""
    part = target[: source.size]
    if bench.traits.is_gpu:
        cuda = bench.xp.cuda
        stream = cuda.get_current_stream().ptr
        cuda.runtime.memcpyAsync(address(part), address(source), source.size, _DEFAULT_KIND, stream)
    else:
        np.copyto(part, source)
    return part


class Transfer:
    """A message of compressed or of raw blocks over a link, or this process's half of it.

    A missing `encoder` or `decoder` is in another process. The time includes the sides `timed`. `meet` returns the time
    at which the ranks start, and `share` the seconds that the given rank passes; `blocks` are for `decompress`."""

    def __init__(
        self,
        message: Message,
        link: Link,
        encoder: Coder | None,
        decoder: Coder | None,
        timed: Timed = "both",
        *,
        blocks: Sequence[Any] = (),
        staging: "Staging | None" = None,
        meet: Callable[[], float] = time.perf_counter,
        share: Callable[[float, int], float] = lambda seconds, _: seconds,
    ) -> None:
        """Start the threads; if only receiving is timed, send the message now."""
        self._message, self._link, self.encoder, self._decoder = message, link, encoder, decoder
        self._timed, self._blocks, self._staging, self._meet, self._share = timed, blocks, staging, meet, share
        (coder,) = [coder for coder in (encoder, decoder) if coder][:1]
        self._count, self.depth = coder.cut.count, coder.slots.depth
        self._pipeline = Pipeline(2, self.depth)
        self._packed: dict[int, Any] = {}  # by slot, the block that is encoded and not yet sent
        self._arrived: dict[int, Any] = {}  # by slot, the block that has arrived and is not yet decoded
        if timed == "receiver" and encoder:
            link.begin()
            self._run(self.depth, self._sending(encoder))

    def _sending(self, encoder: Coder) -> StepChain:
        def queue(block: InFlight) -> None:
            self._link.reserve(block.slot)
            encoder.queue(block)

        def encode(block: InFlight) -> None:
            packed = encoder.encode(block)
            self._packed[block.slot] = self._staging.out(block, packed) if self._staging else packed

        def send(block: InFlight) -> None:
            if self._staging:
                encoder.slots.wait(block.slot)
            self._link.send(block, self._packed.pop(block.slot))

        return StepChain(encoder.slots, (queue, encode, send), self._link.schedule)

    def _receiving(self, decoder: Coder) -> StepChain:
        def receive(block: InFlight) -> None:
            room = decoder.room(block)
            if self._staging:
                decoder.slots.wait(block.slot)  # the copy of the last block to the device may still be running
                room = self._staging.rooms[block.slot][: room.size]
            self._arrived[block.slot] = self._link.receive(block, room)

        def decode(block: InFlight) -> None:
            packed = self._link.deliver(block, self._arrived.pop(block.slot))
            decoder.decode(block, self._staging.back(decoder.room(block), packed) if self._staging else packed)

        return StepChain(
            decoder.slots, (receive, decode), "a thread per slot" if decoder.waits else self._link.schedule
        )

    def send(self, depth: int) -> float:
        """Send a message with `depth` blocks in flight, and return the seconds of the sides that are timed.

        Every rank must call it."""
        self._link.begin()
        sending = self._sending(self.encoder) if self.encoder else None
        receiving = self._receiving(self._decoder) if self._decoder else None
        if sending and receiving and self._timed != "both":
            sent = self._run(depth, sending) if self._timed == "sender" else 0.0
            received = self._checked(partial(self._run, depth, receiving))
            seconds = sent if self._timed == "sender" else received
        else:
            run = partial(self._run, depth, *(chain for chain in (sending, receiving) if chain))
            seconds = self._share(self._checked(run) if receiving else run(), 1)
        if self.encoder:
            self.encoder.check()
        return seconds

    def _run(self, depth: int, *chains: StepChain) -> float:
        """Run one or both halves of the pipeline at the same time, and return the seconds."""
        if self._link.is_joined:
            chains = (StepChain(chains[0].slots, tuple(step for chain in chains for step in chain.steps)),)
        start = self._meet()
        self._pipeline.run(self._count, depth, *chains, finish=self._link.finish, stop=self._link.stop)
        return time.perf_counter() - start

    def _checked(self, receive: Callable[[], float]) -> float:
        """Overwrite the target, call `receive`, compare the whole message, and return the result of `receive`."""
        assert self._decoder
        self._decoder.reset()
        self._message.poison()
        seconds = receive()
        self._decoder.check()
        self._message.expect_arrived()
        return seconds

    def compress(self) -> float:
        """Compress every block without sending it, and return the sender's seconds; every rank must call it."""
        if not self.encoder:
            return self._share(0.0, 0)
        chain = StepChain(self.encoder.slots, (self.encoder.queue, self.encoder.encode), "one thread")
        seconds = self._pipeline.run(self._count, self.depth, chain)
        self.encoder.check()
        return self._share(seconds, 0)

    def decompress(self) -> float:
        """Restore every block, all of which lie ready, and return the receiver's seconds; every rank must call it."""
        decoder = self._decoder
        if not decoder:
            return self._share(0.0, 1)
        step: Step = lambda block: decoder.decode(block, self._blocks[block.index])  # noqa: E731
        chain = StepChain(decoder.slots, (step,), "a thread per slot" if decoder.waits else "one thread")
        return self._share(self._checked(lambda: self._pipeline.run(self._count, self.depth, chain)), 1)

    def close(self) -> None:
        """End the threads, close the link, and drop the arrays of the coders."""
        self._pipeline.close()
        self._link.close()
        self._link, self.encoder, self._decoder, self._blocks = Link(), None, None, ()
        self._packed.clear()
        self._arrived.clear()


class Staging:
    """Page-locked buffers of the host through which the blocks of a GPU pass to and from a link of the host."""

    def __init__(self, bench: gb.Bench, depth: int, nbytes: int) -> None:
        """Allocate `nbytes` of page-locked memory for each slot of both sides."""
        self._sent, self.rooms = ([bench.device.pinned(nbytes) for _ in range(depth)] for _ in range(2))
        self.back = partial(queue_copy, bench)

    def out(self, block: InFlight, packed: Any) -> Any:
        """Queue the copy of a packed block to the host, and return the buffer's part."""
        return self.back(self._sent[block.slot], packed)


def packed_blocks(encoder: Coder) -> list[Any]:
    """Encode every block of a message, one at a time, and return a copy of each packed block: uint8, on the device."""
    blocks: list[Any] = []
    pipeline = Pipeline(1, 1)
    steps: tuple[Step, ...] = (encoder.queue, lambda block: blocks.append(encoder.encode(block).copy()))
    pipeline.run(encoder.cut.count, 1, StepChain(encoder.slots, steps))
    pipeline.close()
    return blocks


def calls_of(coded: Transfer, raw: Transfer) -> dict[str, Callable[[], float]]:
    """Return the calls that a case of a message times, each of which returns its seconds."""
    return {
        "overlapped": lambda: coded.send(coded.depth),
        "staged": lambda: coded.send(1),
        "raw": lambda: raw.send(raw.depth),
        "compress": coded.compress,
        "decompress": coded.decompress,
    }


def stages_of(calls: Mapping[str, Callable[[], float]], total: int, timed: Timed = "both") -> dict[str, gb.Stage]:
    """Return the stages of a message of `total` bytes, whose rates count uncompressed bytes.

    The half that is not `timed` has no stage: `compress` for the receiver, `decompress` for the sender."""
    unpaid = {"sender": "decompress", "receiver": "compress", "both": ""}[timed]
    work = gb.Work(payload=total)
    return {
        name: gb.Stage(call, work, "payload", clock="self", effort=gb.POINT, checked=name != "compress")
        for name, call in calls.items()
        if name != unpaid
    }


def ratio_of(total: int, sent_bytes: float) -> gb.Observation:
    """Return the observation `ratio`: `total` uncompressed bytes over `sent_bytes`, which include the tables of blocks.

    Raises WrongAnswer if no bytes were sent."""
    gb.expect(sent_bytes > 0, "no bytes were sent")
    return {"ratio": gb.Observed(total / sent_bytes, "", "more")}
