"""The way through the host: one rank copies into page-locked memory that both share, the other out of it.

Chunks overlap: while the second rank takes one, the first brings the next. Host flags say how far each is.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from gpubench.api.suite import POINT, Bench, Observation, SharedBuffer, Stage, Task, Work

from .._between import SPOILED, exclusive, expect_pattern, fill_pattern, hand_over, labels, notes
from .._copies import ARRAYS
from .._link import ONE_WAY, STAGED, WRITES, link

_SLOTS = 4  # chunks under way
_LARGEST_CHUNK = 2**24  # 0.3 ms of a fifth-generation link: what a flag costs is little beside it
_CHUNKS = 8  # at the least, of what is large enough to be cut
_SMALLEST_CHUNK = 2**18
_FLAGS_BYTES = 4096
_PATIENCE_S = 5.0
_ASKED, _READY, _TAKEN = 0, 8, 16  # words of the flags' page, each on a cache line of its own


def chunk_of(size_bytes: int) -> int:
    """The size of a chunk: an eighth, within bounds; all of what is small."""
    return min(size_bytes, _LARGEST_CHUNK, max(_SMALLEST_CHUNK, size_bytes // _CHUNKS))


class StoodStillError(RuntimeError):
    """The other rank did not go on in time."""


class Channel:
    """The shared memory of the two ranks: flags, then slots; page-locked in both."""

    def __init__(self, bench: Bench, size_bytes: int) -> None:
        self.chunk = chunk_of(size_bytes)
        self.count = -(-size_bytes // self.chunk)
        nbytes = _FLAGS_BYTES + _SLOTS * self.chunk
        self._shared: SharedBuffer = self._opened(bench, nbytes)
        self.array: Any = self._shared.array
        self.flags = self.array[:_FLAGS_BYTES].view(np.uint64)
        self._unregister = bench.device.register(self.array)

    def _opened(self, bench: Bench, nbytes: int) -> SharedBuffer:
        memory = bench.device.shared_memory("memfd")
        if bench.rank == 0:
            shared = memory.allocate(nbytes)
            handle = hand_over(bench, memory.export(shared))
        else:
            handle = hand_over(bench, None)
            shared = memory.open(handle, nbytes)
        handle.close()
        return shared

    def slot(self, index: int, nbytes: int) -> Any:
        """The place of chunk `index`, of which `nbytes` are used."""
        start = _FLAGS_BYTES + index % _SLOTS * self.chunk
        return self.array[start : start + nbytes]

    def wait(self, word: int, value: int) -> None:
        """Watch a flag until it has reached the value; StoodStillError when patience ends."""
        end = time.monotonic() + _PATIENCE_S
        flags = self.flags
        while int(flags[word]) < value:
            if time.monotonic() > end:
                raise StoodStillError(f"the other rank stood still for {_PATIENCE_S} s")

    def close(self) -> None:
        """Unlock and unmap."""
        self._unregister()
        del self.array, self.flags
        self._shared.close()


class Sender:
    """Rank 0: brings chunk after chunk into the slots, each when its slot is free."""

    def __init__(self, bench: Bench, channel: Channel, size_bytes: int) -> None:
        self._device = bench.device
        self._channel = channel
        self._size_bytes = size_bytes
        self._sent = 0  # chunks, ever
        self._calls = 0
        self.source = bench.xp.empty(size_bytes, bench.xp.uint8)
        fill_pattern(bench, self.source, bench.seed)

    def call(self) -> float:
        """Seconds from the request to the last chunk brought."""
        channel, chunk = self._channel, self._channel.chunk
        self._calls += 1
        channel.wait(_ASKED, self._calls)
        start = time.perf_counter()
        for place in range(0, self._size_bytes, chunk):
            piece = self.source[place : place + chunk]
            channel.wait(_TAKEN, self._sent + 1 - _SLOTS)
            self._device.copy(channel.slot(self._sent, piece.size), piece)
            self._device.synchronize()
            self._sent += 1
            channel.flags[_READY] = self._sent
        return time.perf_counter() - start


class Receiver:
    """Rank 1: asks, and takes chunk after chunk out of the slots."""

    def __init__(self, bench: Bench, channel: Channel, size_bytes: int) -> None:
        self._bench = bench
        self._device = bench.device
        self._channel = channel
        self._size_bytes = size_bytes
        self._taken = 0
        self._calls = 0
        self.target = bench.xp.empty(size_bytes, bench.xp.uint8)

    def call(self) -> float:
        """Seconds from the request to the last byte."""
        channel, chunk = self._channel, self._channel.chunk
        self._calls += 1
        start = time.perf_counter()
        channel.flags[_ASKED] = self._calls
        for place in range(0, self._size_bytes, chunk):
            piece = self.target[place : place + chunk]
            channel.wait(_READY, self._taken + 1)
            self._device.copy(piece, channel.slot(self._taken, piece.size))
            self._device.synchronize()
            self._taken += 1
            channel.flags[_TAKEN] = self._taken
        return time.perf_counter() - start

    def poison(self) -> None:
        """Overwrite what arrived."""
        self.target.fill(SPOILED)

    def check(self) -> Observation:
        """Every byte is the sender's."""
        expect_pattern(self._bench, self.target, self._bench.seed, "brought through the host")
        return {}


def staged(bench: Bench, path: str, size_bytes: int) -> Task:
    """A message through page-locked host memory that both ranks share, from the request to the last byte."""
    exclusive(bench)
    bench.need(ARRAYS * size_bytes)
    channel = Channel(bench, size_bytes)
    found = {**notes(bench, path), "chunk": f"{channel.chunk} B, {_SLOTS} slots"}
    found |= link(ONE_WAY, STAGED, WRITES, protocol="host flags, a chunk each") if path == "peer" else {}
    work = Work(payload=size_bytes)
    if bench.rank == 0:
        sender = Sender(bench, channel, size_bytes)
        stage = Stage(sender.call, work, "payload", clock="self", effort=POINT)
        return Task.of(stage, check=dict, close=channel.close, notes=found, labels=labels(bench, path))
    receiver = Receiver(bench, channel, size_bytes)
    stage = Stage(receiver.call, work, "payload", clock="self", effort=POINT)
    return Task.of(
        stage,
        check=receiver.check,
        poison=receiver.poison,
        close=channel.close,
        notes=found,
        labels=labels(bench, path),
    )
