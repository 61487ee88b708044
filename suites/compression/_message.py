"""Encode the blocks of a message, hand them over a link and decode them, with several blocks in flight, and time that.

sender: queue → encode → send ==== link ==== receive → decode :receiver. The clock runs from before the first block is
begun until the last one is restored or, for a message that is only written, delivered. Then the whole message is
compared, bit for bit. A block is cut into chunks, which a codec compresses independently. A packed block is a table of
the offsets and the sizes of its chunks, and the chunks in whole lines behind it; a GPU packs them by a kernel."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal

import numpy as np

from gpubench.api import suite as gb

from . import _codecs
from ._corpora import corpus_of
from ._roundtrip import CHUNK_BYTES

Schedule = Literal["a thread per slot", "one thread", "a thread per part"]
Timed = Literal["sender", "receiver", "both"]  # the sides that the timed section contains
_MEMORIES = 6  # memory as a multiple of the message: source, target, comparison, stored blocks, buffers
_MAX_PARTS = 3  # most parts of one chain
_DEFAULT_KIND = 4  # cudaMemcpyDefault: the addresses determine the direction; HIP's has the same value
_LINE_BYTES = 16  # as LINE in compress.cu
_WORD_BYTES = 8
_ENTRY_BYTES = 2 * _WORD_BYTES  # an entry of the table: the offset and the size of a chunk
_THREADS = 256  # as PLACES in compress.cu


@dataclass(frozen=True, slots=True)
class Message:
    """A message: uint8 arrays on the device for its source and its target, cut into blocks, and these into chunks.

    The last block of the message and the last chunk of a block may be shorter. `codec` compresses it: a HostCodec or a
    DeviceCodec, whose `buffers` overwrite and compare arrays, and which has a `bench`."""

    source: Any
    target: Any
    codec: Any
    block_bytes: int
    chunk_bytes: int
    description: str = ""
    rooms: Sequence[Any] = ()  # buffers for the packed blocks of the slots, or else each coder has its own

    @classmethod
    def drawn(cls, bench: gb.Bench, corpus: str, codec: str, size_bytes: int, block_bytes: int) -> Message:
        """Return a message of `size_bytes` of a corpus, or fewer of a user's file, in memory of the bench's device.

        Raises Skip if the codec is unavailable."""
        source = corpus_of(bench, corpus, size_bytes)
        opened = _codecs.open_codec(bench, codec, source.dtype)
        bench.need(_MEMORIES * source.total + _codecs.RESERVE_BYTES)
        target = bench.xp.empty(source.total, bench.xp.uint8)
        return cls(source.buffer(bench), target, opened, block_bytes, CHUNK_BYTES, source.description)

    @property
    def spans(self) -> list[slice]:
        """The places of the blocks."""
        total, step = self.source.size, self.block_bytes
        return [slice(start, min(start + step, total)) for start in range(0, total, step)]

    @property
    def max_chunks(self) -> int:
        """The chunks of a block that is not shorter."""
        return -(-min(self.block_bytes, int(self.source.size)) // self.chunk_bytes)

    @property
    def max_packed_bytes(self) -> int:
        """The most bytes of a packed block."""
        lines: int = -(-self.codec.max_output_bytes(self.chunk_bytes) // _LINE_BYTES)
        return self.max_chunks * (_ENTRY_BYTES + lines * _LINE_BYTES) + _LINE_BYTES


@dataclass(frozen=True, slots=True)
class InFlight:
    """A block in flight: its index in the message, and the slot in which it is worked on."""

    index: int
    slot: int


class Slots:
    """The `depth` slots of one side: on a GPU each has a stream, on the host each thread works by itself."""

    are_streams = False  # whether the work of a slot continues asynchronously while its thread does something else

    def __init__(self, depth: int, bench: gb.Bench | None = None) -> None:
        """Make the slots, with a stream each on the GPU of `bench`, if it is given."""
        self.depth = depth
        self._streams: list[Any] = []
        if bench:
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
        for stream in [self._streams[slot] for slot in slots] if slots and self._streams else self._streams:
            stream.synchronize()


class Coder:
    """The encoder or the decoder of a message: a block becomes a packed block, which becomes the block again.

    A packed block is a uint8 array on the device, in the room of its slot, and valid until the slot is used again. This
    one has no rooms, and leaves raw blocks in their places in `array`, the source or the target."""

    waits = False  # whether decoding a block waits for the slot's stream: then each slot has a thread
    rooms: Sequence[Any] = ()

    def __init__(self, message: Message, slots: Slots, array: Any) -> None:
        self.message, self.slots, self.blocks = message, slots, [array[span] for span in message.spans]

    def queue(self, block: InFlight) -> None:
        """Queue the work on a block that can be done before `encode`."""

    def encode(self, block: InFlight) -> Any:
        """Return the packed block."""
        return self.blocks[block.index]

    def room(self, block: InFlight) -> Any:
        """Return the array in which a block arrives, as long as the longest packed block."""
        return self.rooms[block.slot] if self.rooms else self.blocks[block.index]

    def decode(self, block: InFlight, packed: Any) -> None:
        """Restore a block in its place, or queue that; raises WrongAnswer, at once or from `check`, if that fails."""

    def reset(self) -> None:
        """Overwrite the statuses and intermediate output of the last message with wrong values."""

    def check(self) -> None:
        """Raise WrongAnswer if a block could not be encoded or restored; the calls may only have queued the work."""


def pack(room: Any, chunks: Sequence[bytes]) -> Any:
    """Write the compressed `chunks` into `room` as a packed block, and return the part of `room` that the block takes.

    `room` is a NumPy array of dtype uint8, long enough for any block."""
    sizes = np.array([len(chunk) for chunk in chunks], np.uint64)
    lines = -(-sizes.astype(np.int64) // _LINE_BYTES) * _LINE_BYTES
    offsets = _ENTRY_BYTES * len(chunks) + np.cumsum(lines) - lines
    table = room[: _ENTRY_BYTES * len(chunks)].view(np.uint64)
    table[: len(chunks)], table[len(chunks) :] = offsets, sizes
    view = memoryview(room)
    for offset, chunk in zip(offsets.tolist(), chunks, strict=True):
        view[offset : offset + len(chunk)] = chunk
    return room[: int(offsets[-1] + lines[-1])]


def read_table(packed: Any, count: int) -> list[tuple[int, int]]:
    """Return the offset and the size in bytes of each of the `count` chunks in a packed block (NumPy, uint8).

    Raises WrongAnswer if a chunk lies outside of the block."""
    is_long = packed.size >= _ENTRY_BYTES * count
    gb.expect(is_long, f"a block of {packed.size} bytes arrived, too short for a table of {count} chunks")
    room = np.uint64(packed.size)
    offsets, sizes = packed[: _ENTRY_BYTES * count].view(np.uint64).reshape(2, count)
    inside = (offsets <= room) & (sizes <= room - np.minimum(offsets, room))
    gb.expect(bool(inside.all()), "the table of a block that arrived points outside of it")
    return list(zip(offsets.tolist(), sizes.tolist(), strict=True))


class HostBlocks(Coder):
    """Compresses the blocks of `array` by a codec of the host, or restores them into it, in the calling thread.

    `upload`, if it is set, takes a restored block further."""

    upload: Callable[[InFlight, Any], object] | None = None

    def __init__(self, message: Message, slots: Slots, array: Any) -> None:
        super().__init__(message, slots, array)
        self.rooms = message.rooms or [np.empty(message.max_packed_bytes, np.uint8) for _ in range(slots.depth)]
        self._compressors = [message.codec.squeeze() for _ in range(slots.depth)]

    def encode(self, block: InFlight) -> Any:
        chunks = _codecs.chunks_of(self.blocks[block.index], self.message.chunk_bytes)
        return pack(self.rooms[block.slot], list(map(self._compressors[block.slot], chunks)))

    def decode(self, block: InFlight, packed: Any) -> None:
        arrived, targets = memoryview(packed), _codecs.chunks_of(self.blocks[block.index], self.message.chunk_bytes)
        for target, (offset, size) in zip(targets, read_table(packed, len(targets)), strict=True):
            target[:] = self.message.codec.decompress_one(arrived[offset : offset + size], len(target))
        if self.upload:
            self.upload(block, self.blocks[block.index])

    def reset(self) -> None:
        for block in self.blocks if self.upload else ():
            np.invert(block, out=block)  # in place of the right bytes of the last message


class GpuBlocks(Coder):
    """Compresses the blocks of `array` by a codec of a GPU, or restores them, each on the stream of its slot.

    Calls and arguments are prepared once for each slot and block, because that takes longer than a fast codec does."""

    def __init__(self, message: Message, slots: Slots, array: Any) -> None:
        codec, bench, xp = message.codec, message.codec.bench, message.codec.bench.xp
        super().__init__(message, slots, array)
        self.rooms = message.rooms or [xp.empty(message.max_packed_bytes, xp.uint8) for _ in range(slots.depth)]
        self.waits, most_bytes = codec.waits, codec.max_output_bytes(message.chunk_bytes)
        scratch_bytes = max(codec.temp_bytes(message.max_chunks, message.chunk_bytes).values())
        self._chunks = [_codecs.DeviceChunks.side_by_side(xp, part, message.chunk_bytes) for part in self.blocks]
        self._scratch = [xp.empty(scratch_bytes, xp.uint8) for _ in range(slots.depth)]
        self._packed_sizes = bench.device.pinned(_WORD_BYTES * slots.depth).view(np.uint64)
        names = ("place", "pack", "unpack")
        self._place, self._pack, self._unpack = (bench.kernel("compress.cu", name) for name in names)
        self._compressed = functools.cache(lambda _: _codecs.DeviceChunks.room(xp, message.max_chunks, most_bytes))
        self._calls: dict[InFlight, Any] = {}
        self._done: list[_codecs.Batch] = []  # the batches of this message

    def queue(self, block: InFlight) -> None:
        """Queue compressing and packing a block on the current stream, which must be its slot's stream."""
        for call in self._calls.get(block) or self._calls.setdefault(block, self._packing(block)):
            call()

    def _packing(self, block: InFlight) -> tuple[Callable[[], object], ...]:
        chunks, room, count = self._chunks[block.index], self.rooms[block.slot], len(self._chunks[block.index].sizes)
        outputs = self._compressed(block.slot)  # before they are packed
        target = _codecs.DeviceChunks(outputs.memory, outputs.stride, outputs.sizes[:count], outputs.pointers[:count])
        message, scratch = self.message, self._scratch[block.slot]
        batch = _codecs.Batch(message.codec, chunks, target, scratch, message.chunk_bytes)
        total = np.uint64(self._packed_sizes[block.slot :].ctypes.data)  # with unified addressing the device's too
        pack_args = (target.memory, np.uint64(target.stride), np.uint32(count), room)
        place = partial(self._place, (1,), (_THREADS,), (target.sizes, np.uint32(count), room, total))
        return batch, place, partial(self._pack, (count,), (_THREADS,), pack_args), partial(self._done.append, batch)

    def encode(self, block: InFlight) -> Any:
        self.slots.wait(block.slot)
        return self.rooms[block.slot][: int(self._packed_sizes[block.slot])]

    def decode(self, block: InFlight, packed: Any) -> None:
        """Queue restoring a block on the current stream; a kernel reads where the chunks of the packed block lie."""
        batch, grid, table = self._calls.get(block) or self._calls.setdefault(block, self._unpacking(block))
        self._unpack(grid, (_THREADS,), (packed, np.uint64(packed.size), *table))
        batch()
        self._done.append(batch)

    def _unpacking(self, block: InFlight) -> tuple[_codecs.Batch, tuple[int], tuple[Any, ...]]:
        chunks, xp = self._chunks[block.index], self.message.codec.bench.xp
        count = len(chunks.sizes)
        sizes, pointers = xp.zeros(count, xp.uint64), xp.zeros(count, xp.uint64)
        arrived = _codecs.DeviceChunks(self.rooms[block.slot], 0, sizes, pointers)
        batch = _codecs.Batch(self.message.codec, arrived, chunks, self._scratch[block.slot])
        return batch, (-(-count // _THREADS),), (np.uint32(count), sizes, pointers)

    def reset(self) -> None:
        self._done.clear()
        for batch, *_ in self._calls.values():
            batch.poison()
        self.message.codec.bench.device.synchronize()  # before the streams of the slots

    def check(self) -> None:
        for batch in self._done:
            batch.check()


# The hand-over.


class StoppedError(RuntimeError):
    """Another thread or process failed, so that waiting is useless; the error of the failed one is reported instead."""


class Ring:
    """Gates in a ring, which threads pass with tokens: who has passed a gate hands the token on to the next one."""

    def __init__(self, gates: int, tokens: int) -> None:
        self._gates = [SimpleQueue[bool]() for _ in range(gates)]
        for _ in range(tokens):
            self._gates[0].put(True)

    def passing(self, gate: int, call: Callable[..., Any], *args: Any) -> Any:
        """Return the result of `call` once a token is at the gate, and hand it on; raises StoppedError after `stop`."""
        if not self._gates[gate % len(self._gates)].get():
            raise StoppedError
        result = call(*args)
        self._gates[(gate + 1) % len(self._gates)].put(True)
        return result

    def stop(self) -> None:
        for gate in self._gates:
            gate.put(False)


@dataclass(eq=False, slots=True)
class Chain:
    """The steps that each block of a coder goes through, and the schedule of the threads that take it there."""

    # `steps` returns a generator, which yields between its `parts`. A thread per slot suits steps that block or wait
    # for their slot (`waits`), one thread suits steps that only queue work, and a thread per part suits links that
    # carry one block at a time: in any schedule, their steps pass a gate for each slot, in the order of the blocks.
    coder: Coder
    steps: Callable[[InFlight, Ring], Iterator[None]]
    parts: int
    schedule: Schedule
    waits: bool = False
    rings: tuple[Ring, ...] = ()

    def jobs(self, depth: int) -> list[Callable[[], None]]:
        """Return one function per thread; together they take all blocks through all steps, with `depth` in flight.

        The functions must run at the same time."""
        turns = Ring(depth, 1) if self.schedule == "a thread per part" else Ring(1, depth)
        self.rings = turns, Ring(self.parts, depth)
        blocks = [InFlight(index, index % depth) for index in range(len(self.coder.blocks))]
        work = [(block.slot, self.steps(block, turns)) for block in blocks]
        ends = [(slot, partial(list[Any], steps)) for slot, steps in work]
        if self.schedule == "a thread per slot" or self.waits or not self.coder.slots.are_streams:
            return [partial(self._do, ends[slot::depth]) for slot in range(depth)]
        if self.schedule == "one thread":  # begins each block, and ends the one that was begun depth - 1 blocks before
            begins = ((slot, partial(next, steps)) for slot, steps in work)
            pairs = itertools.zip_longest(begins, (*[None] * (depth - 1), *ends))
            return [partial(self._do, [call for pair in pairs for call in pair if call])]
        passing = [partial(self.rings[1].passing, part, next) for part in range(self.parts)]
        return [partial(self._do, [(slot, partial(take, steps, None)) for slot, steps in work]) for take in passing]

    def _do(self, calls: Iterable[tuple[int, Callable[[], object]]]) -> None:
        for slot, call in calls:
            self.coder.slots.use(slot)
            call()


def queue_copy(bench: gb.Bench, target: Any, source: Any) -> Any:
    """Copy `source` to the beginning of `target`, or queue that on a GPU's current stream; return that part.

    Both are uint8 arrays on the host or the device. Raises WrongAnswer if `target` is too short."""
    gb.expect(source.size <= target.size, f"a block grew to {source.size} bytes; its buffer holds {target.size}")
    part = target[: source.size]
    if bench.traits.is_gpu:
        ends = _codecs.address(part), _codecs.address(source), source.size
        bench.xp.cuda.runtime.memcpyAsync(*ends, _DEFAULT_KIND, _codecs.current_stream(bench.xp))
    else:
        np.copyto(part, source)
    return part


class Staging:
    """Page-locked buffers for each slot, through which a GPU's blocks pass to and from a link of the host."""

    def __init__(self, bench: gb.Bench, depth: int, nbytes: int) -> None:
        self.sent, self.rooms = ([bench.device.pinned(nbytes) for _ in range(depth)] for _ in range(2))
        self.copy = partial(queue_copy, bench)


class Link:
    """The transport of packed blocks from an encoder to a decoder; a subclass overrides what it needs.

    Steps of different slots run in different threads. This one takes blocks nowhere."""

    schedule: Schedule = "one thread"  # on a GPU
    timed: Timed = "both"  # the sides that the time includes
    staging: Staging | None = None
    is_cached = False  # whether data that were dropped from the system's page cache stay there

    def chains(self, encoder: Coder | None, decoder: Coder | None) -> list[Chain]:
        """Return the chains of both sides, or of the one whose coder is given."""
        chains = [Chain(encoder, partial(self.sending, encoder), 3, self.schedule)] if encoder else []
        if decoder:
            chains.append(Chain(decoder, partial(self.receiving, decoder), 2, self.schedule, decoder.waits))
        return chains

    def sending(self, encoder: Coder, block: InFlight, turns: Ring) -> Iterator[None]:
        encoder.queue(block)
        yield
        packed = encoder.encode(block)
        if self.staging:
            packed = self.staging.copy(self.staging.sent[block.slot], packed)
        yield
        if self.staging:
            encoder.slots.wait(block.slot)
        turns.passing(block.slot, self.send, block, packed)

    def receiving(self, decoder: Coder, block: InFlight, turns: Ring) -> Iterator[None]:
        room = place = decoder.room(block)
        if self.staging:
            decoder.slots.wait(block.slot)  # the copy of the last block to the device may still be running
            place = self.staging.rooms[block.slot][: room.size]
        arrived = turns.passing(block.slot, self.receive, block, place)
        yield
        decoder.decode(block, self.staging.copy(room, arrived) if self.staging else arrived)

    def begin(self) -> None:
        """Prepare for the next message; the time of the message does not include this."""

    def meet(self) -> float:
        """Return the time at which the message begins, for both ranks of a link between processes."""
        return time.perf_counter()

    def send(self, block: InFlight, packed: Any, /) -> None:
        """Send the block."""

    def receive(self, block: InFlight, room: Any, /) -> Any:
        """Wait until the block has arrived, in `room` or elsewhere; return the array that has it."""
        raise NotImplementedError

    def finish(self) -> None:
        """Complete the message after its last block; the time of the message includes this."""

    def stop(self) -> None:
        """Release all threads that wait in this link, because a thread has failed."""

    def close(self) -> None:
        """Release the resources of the link."""


class Stored(Link):
    """Copies of the packed blocks of a message, in the memory of the device."""

    def __init__(self) -> None:
        self.blocks = list[Any]()

    def send(self, _: InFlight, packed: Any) -> None:
        self.blocks.append(packed.copy())

    def receive(self, block: InFlight, _: Any) -> Any:
        return self.blocks[block.index]


class Transfers:
    """The ways in which a case sends its message: compressed and raw over a link, and each side alone.

    `packed` are the compressed blocks, and `raw` the blocks that travel as they are."""

    def __init__(self, message: Message, depth: int, rank: int = -1) -> None:
        """Compress the message once, and prepare both sides, or one side of a rank: rank 0 sends, rank 1 receives."""
        # threads are kept from message to message, so that no time includes their start
        self._threads = ThreadPoolExecutor(max(2 * depth, 2 * _MAX_PARTS, _codecs.cores()), "pipeline")
        self._message, self._depth, self._stored = message, depth, Stored()
        self.links, self.ways = list[Link](), dict[str, tuple[Any, ...]]()
        sending, receiving = Slots(depth, message.codec.bench), Slots(depth, message.codec.bench)
        coder = GpuBlocks if message.codec.bench else HostBlocks
        encoder = coder(message, sending, message.source)
        encoder.reset()
        self._run(self._stored, 1, encoder, None)
        self.packed = self._stored.blocks
        self.sent_bytes = sum(int(block.size) for block in self.packed)
        decoder = coder(message, receiving, message.target) if rank != 0 else None
        # to another rank, raw bytes travel fastest in one copy on a GPU, and on the host by the threads of all slots
        is_whole = sending.are_streams and rank >= 0
        uncut = replace(message, block_bytes=message.source.size) if is_whole else message
        sender, receiver = Coder(uncut, sending, message.source), Coder(uncut, receiving, message.target)
        self.raw = sender.blocks
        self._coded = None if rank == 1 else encoder, decoder
        self._plain = None if rank == 1 else sender, None if rank == 0 else receiver

    def over(self, coded: Link, raw: Link) -> None:
        """Add every way: with packed blocks over the link `coded`, with raw ones over `raw`, and each side alone."""
        depth, (encoder, decoder) = self._depth, self._coded
        self.add("overlapped", coded, encoder, decoder, depth)
        self.ways["staged"] = (coded, encoder, decoder, 1)
        self.add("raw", raw, *self._plain, depth)
        if coded.timed != "receiver":
            self.add("compress", Link(), encoder, None, depth)
        if coded.timed != "sender":
            self.add("decompress", self._stored, None, decoder, depth)

    def add(self, name: str, link: Link, encoder: Coder | None, decoder: Coder | None, depth: int) -> None:
        """Add a way of sending the message, with `depth` blocks in flight; if only receiving is timed, send it now."""
        self.links.append(link)
        self.ways[name] = link, encoder, decoder, depth
        if link.timed == "receiver" and encoder:
            link.begin()
            self._run(link, depth, encoder, None)
            encoder.check()

    def send(self, name: str) -> float:
        """Send the message in one way, check it, and return the seconds of the sides that are timed."""
        message, (link, encoder, decoder, depth) = self._message, self.ways[name]
        coders = [coder for coder in (encoder, decoder) if coder]
        link.begin()
        for coder in coders:
            coder.reset()
        if decoder:
            message.codec.buffers.invert(message.source, message.target)  # every byte is wrong
        ends: Any = {"sender": [(encoder, None), (None, decoder)], "receiver": [(None, decoder)]}.get(link.timed)
        seconds = [self._run(link, depth, *end) for end in ends or [(encoder, decoder)]]
        for coder in coders:
            coder.check()
        if decoder:
            message.codec.buffers.expect_same(message.target, message.source)
        return seconds[0]

    def _run(self, link: Link, depth: int, encoder: Coder | None, decoder: Coder | None) -> float:
        """Take all blocks through one side or both, and return the seconds; raises the error that caused others."""
        chains = link.chains(encoder, decoder)
        work = [job for chain in chains for job in chain.jobs(depth)]
        start = link.meet()
        jobs = [self._threads.submit(job) for job in work]
        done, _ = wait(jobs, return_when=FIRST_EXCEPTION)
        if any(job.exception() for job in done):
            for stop in (link.stop, *(ring.stop for chain in chains for ring in chain.rings)):
                stop()
            errors = [error for job in jobs if (error := job.exception())]
            raise min(errors, key=lambda error: isinstance(error, StoppedError | OSError))
        for chain in chains:
            chain.coder.slots.wait()
        link.finish()
        return time.perf_counter() - start

    def close(self) -> None:
        """End the threads, close the links, and drop all arrays."""
        self._threads.shutdown()
        for link in self.links:
            link.close()
        vars(self).clear()
