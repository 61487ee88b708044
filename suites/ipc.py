"""Between two processes: opening a shared allocation, its first touch, copies through it; sockets."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpubench.api import Bench, Observation, SharedBuffer, Skip, Stage, Suite, Target, Task, View, Work, expect, points

suite = Suite(
    "memory shared between two processes (CUDA or HIP IPC handles; on the host shared memory and sockets)",
    views=[
        View(
            "curve",
            "Copy through a handle over size",
            ("pull", "socket"),
            "size_bytes",
            by=("path",),
            log_x=True,
            log_y=True,
        ),
        View("bars", "Opening a handle", ("open",)),
        View("bars", "The first copy through a fresh mapping", ("first_touch",)),
    ],
)

_WORD = 8  # bytes: patterns are made of 64-bit words
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: multiples of it look random (Knuth, TAOCP 3, §6.4)


def _paths(target: Target) -> tuple[str, ...]:
    """Both ranks on the same device, or the second on a peer of the first's."""
    return ("same",) if target.is_host else ("same", "peer")


def _devices(params: Mapping[str, str | int | float]) -> int:
    return 2 if params["path"] == "peer" else 1


def _sizes(target: Target) -> Any:
    largest = 28 if target.is_host else 30
    quick = (2**12, 2**16, 2**20, 2**24, 2**largest)
    return points(smoke=(2**20,), quick=quick, full=tuple(2**exponent for exponent in range(3, largest + 1)))


def _pattern(xp: Any, nbytes: int, seed: int) -> Any:
    """Bytes that differ at every 8-byte position and with the seed, shape (nbytes,), uint8."""
    words = xp.arange(nbytes // _WORD, dtype=xp.uint64) * xp.uint64(_GOLDEN)
    return (words + xp.uint64(seed)).view(xp.uint8)


class _Owner:
    """Rank 0: shares a filled allocation and holds it while rank 1 works."""

    def __init__(self, bench: Bench, nbytes: int) -> None:
        self.buffer = bench.device.share(nbytes)
        self.buffer.array[:] = _pattern(bench.xp, nbytes, bench.seed)
        bench.device.synchronize()
        bench.exchange(self.buffer.handle)

    def task(self) -> Task:
        """Nothing to do but be there."""
        return Task.idle(self.buffer.close)


class _Reader:
    """Rank 1: opens the allocation and copies out of it."""

    def __init__(self, bench: Bench, nbytes: int) -> None:
        if bench.device.free_bytes() < 3 * nbytes:
            raise Skip(f"{3 * nbytes} B of memory are needed beside the shared allocation")
        self.device = bench.device
        self.xp = bench.xp
        self.nbytes = nbytes
        self.seed = bench.seed
        self.local = bench.xp.empty(nbytes, bench.xp.uint8)
        self.handle: bytes = bench.exchange(None)[0]
        self.shared: SharedBuffer | None = None

    def open(self) -> SharedBuffer:
        """Map the allocation."""
        return self.device.open_shared(self.handle, self.nbytes)

    def opening(self) -> float:
        """Seconds to map the allocation; unmapping is outside."""
        start = time.perf_counter()
        shared = self.open()
        seconds = time.perf_counter() - start
        shared.close()
        return seconds

    def first_copy(self) -> float:
        """Seconds of the first copy through a fresh mapping, by the host's clock."""
        shared = self.open()
        start = time.perf_counter()
        self.device.copy(self.local, shared.array)
        self.device.synchronize()
        seconds = time.perf_counter() - start
        shared.close()
        return seconds

    def copy(self) -> None:
        """Copy through the mapping that is kept."""
        if self.shared is None:
            self.shared = self.open()
        self.device.copy(self.local, self.shared.array)

    def poison(self) -> None:
        """Overwrite what was copied."""
        self.local.fill(0xA5)

    def check(self) -> Observation:
        """Every byte that arrived is the one that the other process wrote."""
        expected = _pattern(self.xp, self.nbytes, self.seed)
        expect(
            bool((self.local == expected).all()),
            f"{self.nbytes} B read through the handle differ from what was written",
        )
        return {}

    def check_mapping(self) -> Observation:
        """What a fresh mapping shows is what the other process wrote."""
        self.poison()
        self.first_copy()
        return self.check()

    def close(self) -> None:
        """Unmap what is still mapped."""
        if self.shared is not None:
            self.shared.close()


def _note(bench: Bench, path: str) -> dict[str, str]:
    if path == "peer":
        return {"devices": " ← ".join(peer.id for peer in reversed(bench.peers))}
    return {"devices": "both processes on one device, taking turns: only one of them works"}


@suite.case(ranks=2, devices=_devices, path=_paths, size_bytes=points(smoke=(2**21,), quick=(2**21, 2**28)))
def open_(bench: Bench, path: str, size_bytes: int) -> Task:
    """Seconds to map an allocation of another process by its handle, unmapping outside."""
    if bench.rank == 0:
        return _Owner(bench, size_bytes).task()
    reader = _Reader(bench, size_bytes)
    stage = Stage(reader.opening, Work(items=1), "item", clock="self")
    return Task.of(stage, check=reader.check_mapping, notes=_note(bench, path))


@suite.case(ranks=2, devices=_devices, path=_paths, size_bytes=points(smoke=(2**21,), quick=(2**26,)))
def first_touch(bench: Bench, path: str, size_bytes: int) -> Task:
    """The first copy through a fresh mapping, by the host's clock: bytes copied once (payload)."""
    if bench.rank == 0:
        return _Owner(bench, size_bytes).task()
    reader = _Reader(bench, size_bytes)
    stage = Stage(reader.first_copy, Work(payload=size_bytes), "payload", clock="self")
    return Task.of(stage, check=reader.check, poison=reader.poison, notes=_note(bench, path))


@suite.case(ranks=2, devices=_devices, path=_paths, size_bytes=_sizes, headline={})
def pull(bench: Bench, path: str, size_bytes: int) -> Task:
    """Copies out of the other process's allocation through a kept mapping: payload."""
    if bench.rank == 0:
        return _Owner(bench, size_bytes).task()
    reader = _Reader(bench, size_bytes)
    limit = "link.peer" if path == "peer" else ""
    stage = Stage(reader.copy, Work(payload=size_bytes), "payload", limit, modes=("hot",))
    return Task.of(stage, check=reader.check, poison=reader.poison, close=reader.close, notes=_note(bench, path))


class _Server(threading.Thread):
    """Rank 0: answers every byte that arrives with the whole message, until the peer hangs up.

    Its address is an abstract one (unix(7)): it ends with the process, and leaves no file.
    """

    def __init__(self, message: bytes) -> None:
        super().__init__(daemon=True)
        self.address = f"\0gpubench-{os.getpid()}-{id(self)}"
        self._message = message
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.address)
        self._listener.listen(1)
        self.start()

    def run(self) -> None:
        """Serve one peer."""
        with self._listener:
            connection, _ = self._listener.accept()
        with connection:
            while connection.recv(1):
                connection.sendall(self._message)


@suite.case(ranks=2, when=lambda target: target.is_host, size_bytes=_sizes)
def socket_(bench: Bench, size_bytes: int) -> Task:
    """A message over a local socket, request to last byte: payload."""
    message = _pattern(np, size_bytes, bench.seed)
    if bench.rank == 0:
        bench.exchange(_Server(message.tobytes()).address)
        return Task.idle()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(bench.exchange(None)[0])
    received = np.empty(size_bytes, np.uint8)

    def fetch() -> None:
        connection.sendall(b"x")
        missing = received.data
        while missing:
            missing = missing[connection.recv_into(missing) or len(missing) :]

    def check() -> Observation:
        expect(bool((received == message).all()), f"{size_bytes} B received differ from what was sent")
        return {}

    stage = Stage(fetch, Work(payload=size_bytes), "payload")
    return Task.of(stage, check=check, poison=lambda: received.fill(0xA5), close=connection.close)
