"""Send messages between two processes on the host: by socket, by pipe, and by the kernel's copy between processes."""

import ctypes
import errno
import os
import socket
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.api import suite as gb

from .._between import pattern, sizes
from .._checks import expect_equal, flipping, in_turn

_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_PR_SET_PTRACER = 0x59616D61  # linux/prctl.h: names the process that Yama allows to access this one
_ANY = ctypes.c_ulong(-1)
_REDRAW = b"r"

topic = gb.Topic()


@topic.case(ranks=2, when=gb.on_host, size_bytes=sizes)
def socket_(bench: gb.Bench, size_bytes: int) -> gb.Task:
    """Bandwidth of a message over a local socket, from the receiver's request to the last byte: payload."""
    return _message(bench, "socket", size_bytes)


@topic.case(ranks=2, when=gb.on_host, size_bytes=sizes)
def pipe(bench: gb.Bench, size_bytes: int) -> gb.Task:
    """Bandwidth of a message through a pipe, from the receiver's request (over a socket) to the last byte: payload."""
    return _message(bench, "pipe", size_bytes)


class MessageServer(threading.Thread):
    """A thread of rank 0 that answers every byte that arrives with the whole message.

    It serves one peer, at the abstract address `address` (unix(7)), until the peer closes the connection. The byte
    _REDRAW makes the message its other one, and is sent back."""

    def __init__(self, message: npt.NDArray[np.uint8], answer: int = -1) -> None:
        super().__init__(daemon=True)
        self.address = f"\0gpubench-{os.getpid()}-{id(self)}"
        self._message, self._redraw = message.data, flipping(message)
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.address)
        self._listener.listen(1)
        self.start()

    def run(self) -> None:
        """Accept one connection, and answer each byte with the message until the peer closes the connection."""
        with self._listener:
            connection, _ = self._listener.accept()
        with connection:
            while asked := connection.recv(1):
                if asked == _REDRAW:
                    self._redraw()
                    connection.sendall(asked)
                elif self._answer < 0:
                    connection.sendall(self._message)
                else:
                    _write_all(self._answer, self._message)


def _write_all(descriptor: int, missing: memoryview) -> None:
    while missing:
        missing = missing[os.write(descriptor, missing) :]


def _message(bench: gb.Bench, by: str, size_bytes: int) -> gb.Task:
    """Return this rank's task of a message of `size_bytes` from rank 0 to rank 1; both ranks must call it."""
    sent = pattern(size_bytes, bench.seed)
    if bench.rank == 0:
        return _serve(bench, by, sent)
    answer = bench.hand_over(None) if by == "pipe" else gb.Handle()
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

    def redraw() -> None:
        connection.sendall(_REDRAW)
        connection.recv(1)
        flip()

    def close() -> None:
        connection.close()
        answer.close()

    work, flip = gb.Work(payload=size_bytes), flipping(sent)
    stage = gb.Stage(fetch, work, "payload", effort=gb.POINT, outputs=(received,), inputs=redraw)
    return gb.Task.of(stage, check=partial(expect_equal, received, sent, "bytes received"), close=close)


def _serve(bench: gb.Bench, by: str, sent: npt.NDArray[np.uint8]) -> gb.Task:
    """Return the task of rank 0, which serves the message `sent` over a socket or a pipe (`by`)."""
    if by == "socket":
        bench.exchange(MessageServer(sent).address)
        return gb.Task.idle()
    reading, writing = os.pipe()
    bench.hand_over(gb.Handle(descriptors=(reading,))).close()
    bench.exchange(MessageServer(sent, writing).address)
    return gb.Task.idle(lambda: os.close(writing))


class _IoVector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))  # struct iovec, readv(2)


@topic.case(ranks=2, when=gb.on_host, size_bytes=sizes)
def direct(bench: gb.Bench, size_bytes: int) -> gb.Task:
    """Bandwidth of the kernel's copy out of the other process's private memory (process_vm_readv(2)): payload."""
    sent = pattern(size_bytes, bench.seed)
    if bench.rank == 0:
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PTRACER, _ANY, 0, 0, 0)
        bench.exchange((os.getpid(), int(sent.ctypes.data)))
        keep = [sent]

        def close() -> None:
            libc.prctl(_PR_SET_PTRACER, 0, 0, 0, 0)
            keep.clear()

        return gb.Task.idle(close)
    pid, address = bench.exchange(None)[0]
    received = np.empty(size_bytes, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.process_vm_readv.restype = libc.process_vm_writev.restype = ctypes.c_ssize_t

    def copy(call: Any = libc.process_vm_readv, array: npt.NDArray[np.uint8] = received) -> None:
        """Copy the whole message from the other process, or to it; raises OSError if the kernel refuses."""
        done = 0
        while done < size_bytes:  # one call copies 2 GiB at most
            local = _IoVector(array.ctypes.data + done, size_bytes - done)
            remote = _IoVector(address + done, size_bytes - done)
            count = call(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
            if count <= 0:
                raise OSError(ctypes.get_errno(), call.__name__)
            done += count

    try:
        copy()
    except OSError as error:
        raise refusal_error(error.errno or 0, _YAMA.read_text().strip() if _YAMA.exists() else "") from error
    work, redraw = gb.Work(payload=size_bytes), in_turn(flipping(sent), partial(copy, libc.process_vm_writev, sent))
    stage = gb.Stage(copy, work, "payload", effort=gb.POINT, outputs=(received,), inputs=redraw)
    return gb.Task.of(stage, check=partial(expect_equal, received, sent, "bytes read"))


def refusal_error(number: int, ptrace_scope: str) -> gb.Unavailable:
    """Return the error that says why the kernel refused to read another process's memory, with a remedy.

    `number` is the error number (errno). `ptrace_scope` is the content of Yama's setting of that name, or empty."""
    name = errno.errorcode.get(number, str(number))
    if number == errno.ENOSYS:
        return gb.Unavailable(
            "the kernel has no process_vm_readv (ENOSYS)", "use a kernel with CONFIG_CROSS_MEMORY_ATTACH"
        )
    if ptrace_scope not in ("", "0", "1"):
        reason = f"reading another process's memory is refused ({name}): kernel.yama.ptrace_scope is {ptrace_scope}"
        return gb.Unavailable(reason, "sysctl kernel.yama.ptrace_scope=1, or run with the capability SYS_PTRACE")
    reason = f"reading another process's memory is refused ({name})"
    return gb.Unavailable(
        reason, "in a container: --cap-add SYS_PTRACE, or a seccomp profile that allows process_vm_readv"
    )
