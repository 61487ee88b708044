"""Compress before sending between processes: rank 0 encodes into memory that both share, rank 1 copies out and decodes.

On a GPU that memory is opened by its IPC handle, on one GPU or on a peer; on the host it is shared. A block is told of
over a local socket, and another one tells when it was taken: the end of a rank is the end of both. The clock is rank
1's, from its request to its last byte restored; both ranks keep its time.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np

from gpubench.api.suite import Bench, Handle, Observation, SharedBuffer, Task, expect

from .._between import exclusive, hand_over, labels, notes
from ._ends import GpuEncoder, PlainDecoder, PlainEncoder, bytes_of
from ._lanes import Action, Crew, Cut, Lanes, Side, StoppedError, Turnstile, lanes_of, nothing, threads_of
from ._send import Codec, Data, ends_on_host, observed, stages_of
from ._ways import Still

_NOTICE = struct.Struct("<QQQ")  # a block: its index, where it lies in the shared memory, its bytes
_TAKEN = struct.Struct("<Q")
_SECONDS = struct.Struct("<d")
_GRAIN = 256
_DEFAULT_KIND = 4  # cudaMemcpyDefault: the addresses tell; HIP's has the same value
_PATIENCE_S = 20.0  # for the other rank's part of a message: it may be compressing all of it


class Line:
    """A local socket to the other rank; whoever listens is told at once when that ends."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.settimeout(_PATIENCE_S)

    def say(self, form: struct.Struct, *values: float) -> None:
        """Send values; raises OSError where nobody is there."""
        self._socket.sendall(form.pack(*values))

    def hear(self, form: struct.Struct) -> tuple[Any, ...]:
        """The next values; raises StoppedError where nobody is there any more."""
        found = b""
        while len(found) < form.size:
            try:
                more = self._socket.recv(form.size - len(found))
            except TimeoutError as error:
                raise StoppedError(f"the other rank said nothing for {_PATIENCE_S} s") from error
            if not more:
                raise StoppedError("the other rank has ended")
            found += more
        return form.unpack(found)

    def hang_up(self) -> None:
        """End it for both."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # the other side was faster
            return

    def close(self) -> None:
        """Let go of it."""
        self._socket.close()


def lines(bench: Bench, count: int) -> list[Line]:
    """So many sockets between the two ranks, the same ones in the same order at both."""
    pairs = [socket.socketpair() for _ in range(count)] if bench.rank == 0 else []
    given = hand_over(bench, Handle(descriptors=tuple(theirs.fileno() for _, theirs in pairs)) if pairs else None)
    for _, theirs in pairs:
        theirs.close()
    return [Line(ours.detach()) for ours, _ in pairs] or [Line(each) for each in given.descriptors]


class Notices(Still):
    """Rank 0's half of the way: tells of each block in order, and holds its lane until it was taken."""

    def __init__(self, base: int, line: Line, count: int) -> None:
        self._base, self._line, self._count = base, line, count
        self._turns = Turnstile()
        self._taken = [threading.Semaphore(0) for _ in range(count)]
        self._under_way: dict[int, int] = {}  # by lane, the block that lies in its memory
        self.are_reused = True  # whether a lane's blocks lie in memory that its next one needs; raw ones do not
        self.lanes = threading.Semaphore(0)  # those that are free, as far as blocks are taken in order
        self._has_ended = False
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            while True:
                self._taken[self._line.hear(_TAKEN)[0]].release()
                self.lanes.release()
        except (StoppedError, OSError):
            self._has_ended = True
            for taken in self._taken:
                taken.release()
            self.lanes.release(self._count)

    def begin(self) -> None:
        for lane in list(self._under_way):
            self.free(lane)
        self._turns.reset()

    def free(self, lane: int) -> None:
        """Wait until the lane's last block was taken: its memory may be written again."""
        if lane in self._under_way:
            self._taken[self._under_way.pop(lane)].acquire()
        if self._has_ended:
            raise StoppedError("the other rank has ended")

    def deliver(self, lane: int, index: int, packed: Any) -> None:
        if self.are_reused:
            self._under_way[lane] = index  # before anybody can say that it was taken
        with self._turns.turn(index):
            self._line.say(_NOTICE, index, address(packed) - self._base, packed.size)

    def stop(self) -> None:
        self._turns.stop()
        self._line.hang_up()

    def close(self) -> None:
        self._line.hang_up()
        self._line.close()


class Taking(Still):
    """Rank 1's half: copies each block that it is told of out of the shared memory."""

    def __init__(self, bench: Bench, shared: Any, line: Line, lanes: Lanes) -> None:
        self._shared, self._line = shared, line
        self._cuda = bench.xp.cuda if bench.traits.is_gpu else None
        self._copied = [self._cuda.Event() for _ in range(lanes.most)] if self._cuda else []
        self._arrived = [0] * lanes.most  # by lane, the bytes of its block
        self.are_reused = True  # as Notices has it: whether rank 0 waits to hear that a block was taken
        self._turns = Turnstile()
        self._answers = threading.Lock()

    def begin(self) -> None:
        self._turns.reset()

    def meet(self, lane: int, index: int, room: Any) -> None:
        with self._turns.turn(index):
            told, place, size = self._line.hear(_NOTICE)
        inside = told == index and size <= room.size and place + size <= self._shared.size
        expect(inside, f"rank 0 tells of {size} bytes of block {told} at {place}, where block {index} was due")
        self._copy(room[:size], self._shared[place : place + size])
        if self._cuda is not None:
            self._copied[lane].record()
        self._arrived[lane] = size

    def fetch(self, lane: int, index: int, room: Any) -> Any:
        """The block; rank 0 is told once it is copied."""
        if self.are_reused:
            if self._cuda is not None:
                self._copied[lane].synchronize()
            with self._answers:
                self._line.say(_TAKEN, index)
        return room[: self._arrived[lane]]

    def _copy(self, target: Any, source: Any) -> None:
        if self._cuda is None:
            np.copyto(target, source)
            return
        stream = self._cuda.get_current_stream().ptr
        self._cuda.runtime.memcpyAsync(address(target), address(source), source.size, _DEFAULT_KIND, stream)

    def stop(self) -> None:
        self._turns.stop()
        self._line.hang_up()

    def close(self) -> None:
        self._line.close()


class Sending:
    """Rank 0: encodes what rank 1 asks for."""

    def __init__(self, bench: Bench, data: Data, codec: Codec, shared: SharedBuffer, flight: int) -> None:
        self._wire, self._clock = lines(bench, 2)
        self._crew, self._lanes = Crew(1, flight), lanes_of(bench, flight)
        self._count, self.flight = data.cut.count, flight
        first = places(data.cut.total)
        step = places(codec.most_packed)
        rooms = [shared.array[start : start + step] for start in range(first, first + flight * step, step)]
        source = shared.array[: data.cut.total]
        bench.device.copy(source, data.source)
        bench.device.synchronize()
        inside = replace(data, source=source)
        coded = codec.of(inside).encoder(self._lanes, rooms)
        raw = raw_cut(bench, data.cut)
        self._counts = {"coded": data.cut.count, "raw": raw.count}
        self._encoders: dict[str, Any] = {"coded": coded, "raw": PlainEncoder(raw, source)}
        self._way = Notices(address(shared.array), self._wire, self._count)

    def message(self, name: str, flight: int) -> float:
        """Seconds of a message, as rank 1 took them."""
        encoder, way = self._encoders[name], self._way
        packed: dict[int, Any] = {}  # by lane
        self._clock.hear(_TAKEN)
        way.begin()
        way.are_reused = name == "coded"
        way.lanes = threading.Semaphore(flight)

        def begin(lane: int, index: int) -> None:
            way.free(lane)
            encoder.begin(lane, index)

        def take(lane: int, index: int) -> None:
            packed[lane] = encoder.encode(lane, index)

        def write(lane: int, index: int) -> None:
            way.deliver(lane, index, packed[lane])

        free = way.lanes if way.are_reused else None
        side = Side(self._lanes, write, begin, take, threads_of(self._lanes, "a step each"), free)
        self._crew.run(self._counts[name], flight, side, stop=way.stop)
        return self.decompress()

    def compress(self) -> float:
        """Seconds to compress every block; rank 1 hears of them."""
        encoder = self._encoders["coded"]
        side = Side(self._lanes, encoder.encode, encoder.begin, threads=threads_of(self._lanes, "one"))
        seconds = self._crew.run(self._count, self.flight, side)
        self._clock.say(_SECONDS, seconds)
        return seconds

    def decompress(self) -> float:
        """The seconds that rank 1 took."""
        return float(self._clock.hear(_SECONDS)[0])

    def check(self) -> Observation:
        """Every block was compressed; rank 1 knows of the rest."""
        if isinstance(encoder := self._encoders["coded"], GpuEncoder):
            encoder.check()
        return {}

    def close(self) -> None:
        """Hang up, and forget what lies in shared memory: it can be unmapped then."""
        self._crew.close()
        self._way.close()
        self._clock.close()
        self._encoders.clear()


class Receiving:
    """Rank 1: asks, copies, decodes, compares."""

    def __init__(self, bench: Bench, data: Data, codec: Codec, shared: SharedBuffer, flight: int) -> None:
        self._device, self._data, self._shared, self.flight = bench.device, data, shared, flight
        self._wire, self._clock = lines(bench, 2)
        self._crew, self._lanes = Crew(1, flight), lanes_of(bench, flight)
        raw = raw_cut(bench, data.cut)
        self._counts = {"coded": data.cut.count, "raw": raw.count}
        plain = PlainDecoder(bytes_of(bench), raw, data.source, data.target)
        self._decoders: dict[str, Any] = {"coded": codec.decoder(self._lanes), "raw": plain}
        self._way = Taking(bench, shared.array, self._wire, self._lanes)
        self._waits = codec.waits
        self._stored: dict[int, Any] = {}

    def message(self, name: str, flight: int) -> float:
        """Seconds from the request to the last block restored; what was restored is compared."""
        way, decoder = self._way, self._decoders[name]
        way.begin()
        way.are_reused = name == "coded"

        def meet(lane: int, index: int) -> None:
            way.meet(lane, index, decoder.room(lane, index))

        def read(lane: int, index: int) -> None:
            packed = way.fetch(lane, index, decoder.room(lane, index))
            if name == "coded" and index not in self._stored:
                self._stored[index] = packed.copy()
            decoder.decode(lane, index, packed)

        side = Side(self._lanes, read, take=meet, threads=threads_of(self._lanes, "a step each", self._waits))
        seconds = self._checked(decoder, flight, side, self._counts[name], lambda: self._clock.say(_TAKEN, 0))
        self._clock.say(_SECONDS, seconds)
        return seconds

    def decompress(self) -> float:
        """Seconds to restore every block from where it lies ready; rank 0 hears of them."""
        decoder = self._decoders["coded"]

        def decode(lane: int, index: int) -> None:
            decoder.decode(lane, index, self._stored[index])

        side = Side(self._lanes, decode, threads=threads_of(self._lanes, "one", self._waits))
        seconds = self._checked(decoder, self.flight, side, self._counts["coded"])
        self._clock.say(_SECONDS, seconds)
        return seconds

    def compress(self) -> float:
        """The seconds that rank 0 took."""
        return float(self._clock.hear(_SECONDS)[0])

    def _checked(self, decoder: Any, flight: int, side: Side, count: int, ask: Action = nothing) -> float:
        decoder.poison()
        self._device.synchronize()
        start = time.perf_counter()
        ask()
        self._crew.run(count, flight, side, stop=self._way.stop)
        seconds = time.perf_counter() - start
        decoder.check()
        return seconds

    def check(self) -> Observation:
        """What it came to: each message was compared when it was timed."""
        return observed(self._data.cut.total / sum(int(packed.size) for packed in self._stored.values()))

    def close(self) -> None:
        """Hang up and unmap."""
        self._crew.close()
        self._way.close()
        self._clock.close()
        del self._way
        with contextlib.suppress(BufferError):  # what failed may still look at it: the process's end unmaps it
            self._shared.close()


def raw_cut(bench: Bench, cut: Cut) -> Cut:
    """How raw bytes cross fastest: a GPU's in one copy, the host's by all lanes at once."""
    return Cut(cut.total, cut.total, cut.chunk) if bench.traits.is_gpu else cut


def places(nbytes: int) -> int:
    """So many bytes in whole grains: what stands behind begins on a line of its own."""
    return -(-nbytes // _GRAIN) * _GRAIN


def address(array: Any) -> int:
    """Where an array lies, on a GPU or on the host."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


def send(bench: Bench, link: str, data: Data, codec: Codec, flight: int) -> Task:
    """A rank's part of a message to another process: on the same device (`process`) or on a peer."""
    exclusive(bench)
    path = "peer" if link == "peer" else "same"
    total, ends = data.cut.total, ends_of(bench, link, flight)
    found = {**notes(bench, path), "codec": codec.words, "corpus": data.words, "link": _WORDS[link], "ends": ends}
    memory = bench.device.shared_memory("raw" if bench.traits.is_gpu else "memfd")
    size = places(total) + flight * places(codec.most_packed)
    if bench.rank == 0:
        shared = memory.allocate(size)
        hand_over(bench, memory.export(shared)).close()
        end: Sending | Receiving = Sending(bench, data, codec, shared, flight)
        release = shared.close
    else:
        handle = hand_over(bench, None)
        end, release = Receiving(bench, data, codec, memory.open(handle, size), flight), nothing
        handle.close()
    return Task(
        stages_of(end, total), end.check, close=end.close, notes=found, labels=labels(bench, path), release=release
    )


def ends_of(bench: Bench, link: str, flight: int) -> str:
    """Who pays: two devices, one that both processes share, or the host's cores."""
    if link == "peer":
        return "apart"
    return "shared" if bench.traits.is_gpu else ends_on_host(flight)


_WORDS = {
    "process": "memory shared with another process on the same device, copied out by it",
    "peer": "another process on a peer GPU, which copies out of this one's memory",
}
