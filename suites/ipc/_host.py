"""Between processes on the host: messages by socket, pipe and the kernel's copy; signals and barriers by flags."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gpubench.api.suite import POINT, Bench, Handle, Missing, Observation, Observed, Skip, Stage, Task, Work, expect

from .._between import SPOILED, hand_over, pattern
from .._stream import NEEDS_NUMBA
from ._signals import tail_stage

_LINE_BYTES = 128  # two cache lines: a prefetcher fetches pairs
_PAGE_BYTES = 4096
_LOOKS = 2**28  # of a flag: some tenths of a second, then the other side is given up
_FLAG_ROUNDS = 1024
_STREAM_ROUNDS = 512
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_PR_SET_PTRACER = 0x59616D61  # linux/prctl.h: whom Yama lets reach this process
_ANY = ctypes.c_ulong(-1)


class Server(threading.Thread):
    """Rank 0: answers every byte that arrives with the whole message, until the peer hangs up.

    Its address is an abstract one (unix(7)): it ends with the process, and leaves no file.
    """

    def __init__(self, message: bytes, answer: int = -1) -> None:
        super().__init__(daemon=True)
        self.address = f"\0gpubench-{os.getpid()}-{id(self)}"
        self._message = message
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.address)
        self._listener.listen(1)
        self.start()

    def run(self) -> None:
        """Serve one peer: on the connection, or into the pipe that `answer` names."""
        with self._listener:
            connection, _ = self._listener.accept()
        with connection:
            while connection.recv(1):
                if self._answer < 0:
                    connection.sendall(self._message)
                else:
                    _write_all(self._answer, self._message)


def _write_all(descriptor: int, message: bytes) -> None:
    missing = memoryview(message)
    while missing:
        missing = missing[os.write(descriptor, missing) :]


def message(bench: Bench, by: str, size_bytes: int) -> Task:
    """A message from one process to another, from the request to its last byte: payload."""
    sent = pattern(size_bytes, bench.seed)
    if bench.rank == 0:
        return _serve(bench, by, sent.tobytes())
    answer = hand_over(bench, None) if by == "pipe" else Handle()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(bench.exchange(None)[0])
    received = np.empty(size_bytes, np.uint8)

    def take(into: memoryview) -> int:
        return os.readv(answer.descriptors[0], [into]) if answer.descriptors else connection.recv_into(into)

    def fetch() -> None:
        connection.sendall(b"x")
        missing = received.data
        while missing:
            missing = missing[take(missing) or len(missing) :]

    def check() -> Observation:
        expect(bool((received == sent).all()), f"{size_bytes} B received differ from what was sent")
        return {}

    def close() -> None:
        connection.close()
        answer.close()

    stage = Stage(fetch, Work(payload=size_bytes), "payload", effort=POINT)
    return Task.of(stage, check=check, poison=lambda: received.fill(SPOILED), close=close)


def _serve(bench: Bench, by: str, sent: bytes) -> Task:
    if by == "socket":
        bench.exchange(Server(sent).address)
        return Task.idle()
    reading, writing = os.pipe()
    hand_over(bench, Handle(descriptors=(reading,))).close()
    bench.exchange(Server(sent, writing).address)
    return Task.idle(lambda: os.close(writing))


class _Piece(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))  # struct iovec, readv(2)


def direct(bench: Bench, size_bytes: int) -> Task:
    """The kernel copies out of the other process's memory as it is, no sharing (process_vm_readv(2)): payload."""
    if bench.rank == 0:
        sent = pattern(size_bytes, bench.seed)
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PTRACER, _ANY, 0, 0, 0)
        bench.exchange((os.getpid(), int(sent.ctypes.data)))
        keep = [sent]

        def let_go() -> None:
            libc.prctl(_PR_SET_PTRACER, 0, 0, 0, 0)
            keep.clear()

        return Task.idle(let_go)
    pid, address = bench.exchange(None)[0]
    received = np.empty(size_bytes, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.process_vm_readv.restype = ctypes.c_ssize_t

    def copy() -> None:
        done = 0
        while done < size_bytes:  # a call copies 2 GiB at the most
            here = _Piece(received.ctypes.data + done, size_bytes - done)
            there = _Piece(address + done, size_bytes - done)
            count = libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
            if count <= 0:
                raise OSError(ctypes.get_errno(), "process_vm_readv")
            done += count

    def check() -> Observation:
        right = bool((received == pattern(size_bytes, bench.seed)).all())
        expect(right, f"{size_bytes} B read out of the other process differ")
        return {}

    try:
        copy()
    except OSError as error:
        raise denied(error.errno or 0, _YAMA.read_text().strip() if _YAMA.exists() else "") from error
    stage = Stage(copy, Work(payload=size_bytes), "payload", effort=POINT)
    return Task.of(stage, check=check, poison=lambda: received.fill(SPOILED))


def denied(number: int, ptrace_scope: str) -> Missing:
    """Why the kernel does not let a process read another's memory, and the setting that mends it."""
    name = errno.errorcode.get(number, str(number))
    if number == errno.ENOSYS:
        return Missing("process_vm_readv is not there (ENOSYS)", "use a kernel with CONFIG_CROSS_MEMORY_ATTACH")
    if ptrace_scope not in ("", "0", "1"):
        what = f"reading another process's memory is refused ({name}): kernel.yama.ptrace_scope is {ptrace_scope}"
        return Missing(what, "sysctl kernel.yama.ptrace_scope=1, or run with the capability SYS_PTRACE")
    what = f"reading another process's memory is refused ({name})"
    return Missing(what, "in a container: --cap-add SYS_PTRACE, or a seccomp profile that allows process_vm_readv")


class Page:
    """A page that both ranks map, and where flags lie in it."""

    def __init__(self, bench: Bench) -> None:
        memory = bench.device.shared_memory("memfd")
        shared = memory.allocate(_PAGE_BYTES) if bench.rank == 0 else None
        handle = hand_over(bench, memory.export(shared) if shared else None)
        self._shared = shared or memory.open(handle, _PAGE_BYTES)
        handle.close()
        self.address = int(self._shared.array.ctypes.data)
        self.close = self._shared.close

    def flag(self, rank: int) -> int:
        """The address of a rank's flag."""
        return self.address + rank * _LINE_BYTES

    def value(self, rank: int) -> int:
        """Where a rank's flag stands."""
        return int(self._shared.array.view(np.uint64)[rank * _LINE_BYTES // 8])


def _flag_rounds(bench: Bench, page: Page, volley: Callable[[int, Any], int]) -> Callable[[], list[float]]:
    """A stage's call: a volley of rounds on flags, compiled before any rank waits for another."""
    took = np.zeros(_FLAG_ROUNDS, np.int64)
    count = [0]
    volley(0, took[:0])
    bench.barrier()

    def call() -> list[float]:
        gave_up = volley(count[0], took)
        expect(gave_up == 0, f"round {gave_up} was given up: no signal within {_LOOKS} looks")
        count[0] += took.size
        stand = [page.value(rank) for rank in range(bench.world)]
        expect(stand == [count[0]] * bench.world, f"the flags stand at {stand} after {count[0]} rounds")
        return [float(each) * 1e-9 for each in took[1:]]

    return call


def _compiled_flags(bench: Bench) -> Any:
    if bench.traits.kernels != "numba":
        raise Skip(NEEDS_NUMBA)
    from . import _host_flags

    return _host_flags


def signal(bench: Bench, means: str) -> Task:
    """One way between two processes: half of each round of a ping-pong."""
    found = {"counted": "half a round: there and back"}
    if means == "flag":
        _host_flags = _compiled_flags(bench)

        page = Page(bench)
        mine, theirs = page.flag(1 - bench.rank), page.flag(bench.rank)
        serves = bench.rank == 0
        call = _flag_rounds(
            bench, page, lambda start, took: _host_flags.ping_pong(mine, theirs, serves, start, _LOOKS, took)
        )
        clock = Observed(_host_flags.look_seconds(), "s")
        return Task.of(tail_stage(call, 2), check=lambda: {"clock": clock}, close=page.close, notes=found)
    stream = Stream(bench, means)
    return Task.of(tail_stage(stream.rounds, 2), check=stream.check, close=stream.close, notes=found)


def barrier(bench: Bench) -> Task:
    """A barrier of all ranks by a flag each in shared memory: seconds a barrier."""
    _host_flags = _compiled_flags(bench)
    page = Page(bench)
    call = _flag_rounds(
        bench,
        page,
        lambda start, took: _host_flags.all_meet(
            page.address, _LINE_BYTES, bench.rank, bench.world, start, _LOOKS, took
        ),
    )
    clock = Observed(_host_flags.look_seconds(), "s")
    return Task.of(tail_stage(call, 1), check=lambda: {"clock": clock}, close=page.close)


class Stream:
    """One side of a ping-pong of single bytes over a socket or a pair of pipes."""

    def __init__(self, bench: Bench, means: str) -> None:
        self._serves = bench.rank == 0
        self._count = 0
        self._last = -1
        if means == "socket":
            ours, theirs = socket.socketpair() if self._serves else (None, None)
            given = hand_over(bench, Handle(descriptors=(theirs.fileno(),)) if theirs else None)
            self._reading = self._writing = ours.detach() if ours else given.descriptors[0]
            if theirs:
                theirs.close()
            self._open = {self._reading}
            return
        there, back = (os.pipe(), os.pipe()) if self._serves else ((-1, -1), (-1, -1))
        given = hand_over(bench, Handle(descriptors=(there[0], back[1])) if self._serves else None)
        self._reading, self._writing = (back[0], there[1]) if self._serves else given.descriptors
        if self._serves:
            given.close()
        self._open = {self._reading, self._writing}

    def rounds(self) -> list[float]:
        """Seconds of each round but the first."""
        found = []
        last = time.perf_counter()
        for _ in range(_STREAM_ROUNDS):
            value = bytes([self._count % 256])
            if self._serves:
                os.write(self._writing, value)
            self._last = os.read(self._reading, 1)[0]
            if not self._serves:
                os.write(self._writing, value)
            self._count += 1
            now = time.perf_counter()
            found.append(now - last)
            last = now
        return found[1:]

    def check(self) -> Observation:
        """The last byte that came is the last one's number."""
        expected = (self._count - 1) % 256
        expect(self._last == expected, f"byte {self._last} came where {expected} was sent")
        return {}

    def close(self) -> None:
        """Hang up."""
        for descriptor in self._open:
            os.close(descriptor)
