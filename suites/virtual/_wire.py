"""Forward seven calls of a driver to another process, by code that numba compiles: both ends and their loops.

A message is eight words of 64 bits, followed by data if it carries any. A client sends the number of a call and its
arguments; a server makes the call and answers if it is asked to. Both ends are sockets, given as descriptors."""

from collections.abc import Callable
from importlib import resources
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gpubench.api import libraries as lib
from gpubench.api import suite as gb

MEMORY_INFO, ALLOCATE, FREE, TO_DEVICE, TO_HOST, LAUNCH, SYNCHRONIZE, STOP = range(8)
WORDS = 8  # words per message
_ARGUMENTS = 11  # of cuLaunchKernel, the function with the most; other functions ignore the rest
_OP, ANSWERED, _A, _B, _C, _D, DELAY_NS = range(7)  # of a message: call, whether it is answered, arguments, delay
_STATUS, _FIRST, _SECOND, _MADE = range(4)  # words of an answer: the first error, the call's values, the calls made
_NO_SIGNAL = 0x4000  # MSG_NOSIGNAL, Linux
_MESSAGE_BYTES = 8 * WORDS
_CLOCK_MONOTONIC = 1
_NAMES = "cuMemGetInfo cuMemAlloc cuMemFree cuMemcpyHtoDAsync cuMemcpyDtoHAsync cuLaunchKernel cuStreamSynchronize"
_CELLS = 12  # the kernel, the stream, two values, the kernel's three parameters, their addresses, two copy streams
_VERSION = 12_000  # CUDA 12.0: functions are looked up in the variant of that version, such as cuMemAlloc_v2
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
LOST = -1  # returned by a loop if the other process has gone

Compiled = Callable[..., Any]

# libc's functions are found by name when the code is loaded, so that the machine code can be cached on disk.
_send = types.ExternalFunction("send", types.intp(types.int32, types.uintp, types.uintp, types.int32))
_recv = types.ExternalFunction("recv", types.intp(types.int32, types.uintp, types.uintp, types.int32))
_clock = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.uintp))
_ARGUMENT_TYPES = types.UniTuple(types.int64, _ARGUMENTS)


def _invoke_of(_typing: Any, _address: Any, _arguments: Any) -> Any:
    """Return the type and the code of `_invoke`, which calls the C function at an address with a tuple of arguments."""

    def emit(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(64)] * _ARGUMENTS)
        function = builder.inttoptr(args[0], kind.as_pointer())
        return builder.call(function, [builder.extract_value(args[1], index) for index in range(_ARGUMENTS)])

    return types.int32(types.int64, _ARGUMENT_TYPES), emit


_invoke: Compiled = intrinsic(_invoke_of)
# What is compiled runs without Python's lock, and its machine code is cached on disk.
_compiled: Callable[[Compiled], Compiled] = numba.njit(cache=True, nogil=True)


@_compiled
def _passed(link: Any, address: Any, nbytes: Any, is_sent: Any) -> Any:
    """Send `nbytes` from `address` over the socket `link`, or receive them; return False if the peer is gone."""
    done = 0
    while done < nbytes:
        place, left, end = np.uint64(address + done), np.uint64(nbytes - done), np.int32(link)
        moved = _send(end, place, left, np.int32(_NO_SIGNAL)) if is_sent else _recv(end, place, left, np.int32(0))
        if moved <= 0:
            return False
        done += moved
    return True


@_compiled
def _wait(delay_ns: Any) -> Any:
    """Spin for `delay_ns`, as a network would delay a round trip."""
    pair = np.zeros(2, np.int64)  # struct timespec
    _clock(np.int32(_CLOCK_MONOTONIC), np.uint64(pair.ctypes.data))
    end = 1_000_000_000 * pair[0] + pair[1] + delay_ns
    while 1_000_000_000 * pair[0] + pair[1] < end:
        _clock(np.int32(_CLOCK_MONOTONIC), np.uint64(pair.ctypes.data))


@_compiled
def _call(table: Any, op: Any, a: Any, b: Any, c: Any, d: Any, cells: Any) -> Any:
    """Make the call number `op` by the function addresses `table` (int64); return the driver's error, or 0."""
    values = cells.ctypes.data + 16
    if op == LAUNCH:
        cells[4], cells[5], cells[6] = a, b, c
        cells[7], cells[8], cells[9] = values + 16, values + 24, values + 32
        return _invoke(table[LAUNCH], (cells[0], d, 1, 1, 256, 1, 1, 0, cells[1], values + 40, 0))
    if op == MEMORY_INFO:
        a, b = values, values + 8
    if op == ALLOCATE:
        a, b = values, a
    if op == SYNCHRONIZE and a == 0:
        a = cells[1]
    return _invoke(table[op], (a, b, c, d, 0, 0, 0, 0, 0, 0, 0))


@_compiled
def _transferred(link: Any, table: Any, op: Any, place: Any, nbytes: Any, buffers: Any, cells: Any) -> Any:
    """Move `nbytes` between `link` and device memory at `place`; of two `buffers`, one fills while one is copied."""
    status, size, parts = 0, buffers.shape[1], -(-nbytes // buffers.shape[1])
    for part in range(parts + 1):
        at, stream, begin = buffers[part % 2].ctypes.data, cells[10 + part % 2], part * size
        length, error = min(size, nbytes - begin), 0
        if op == TO_DEVICE and part < parts:
            error = _call(table, SYNCHRONIZE, stream, 0, 0, 0, cells)  # the buffer is free again
            if not _passed(link, at, length, False):
                return LOST
            error = error or _call(table, op, place + begin, at, length, stream, cells)
        if op == TO_HOST and part < parts:
            error = _call(table, op, at, place + begin, length, stream, cells)
        if op == TO_HOST and part > 0:
            error = error or _call(table, SYNCHRONIZE, cells[10 + (part - 1) % 2], 0, 0, 0, cells)
            if not _passed(link, buffers[(part - 1) % 2].ctypes.data, min(size, nbytes - begin + size), True):
                return LOST
        status = status or error
    for stream in cells[10:]:
        error = _call(table, SYNCHRONIZE, stream, 0, 0, 0, cells)
        status = status or error
    return status


@_compiled
def serve(link: Any, table: Any, cells: Any, buffers: Any) -> Any:
    """Make the calls that arrive on `link` until STOP, and delay each answer as its message says."""
    message, answer = np.zeros(WORDS, np.int64), np.zeros(WORDS, np.int64)
    while _passed(link, message.ctypes.data, _MESSAGE_BYTES, False) and message[_OP] != STOP:
        if message[_OP] in (TO_DEVICE, TO_HOST):
            status = _transferred(link, table, message[_OP], message[_A], message[_B], buffers, cells)
            if status == LOST:
                return
        else:
            status = _call(table, message[_OP], message[_A], message[_B], message[_C], message[_D], cells)
        answer[_MADE] += 1
        answer[_STATUS] = answer[_STATUS] or status
        if message[ANSWERED]:
            answer[_FIRST], answer[_SECOND] = cells[2], cells[3]
            if message[DELAY_NS]:
                _wait(message[DELAY_NS])
            if not _passed(link, answer.ctypes.data, _MESSAGE_BYTES, True):
                return
            answer[_STATUS] = 0


@_compiled
def request(link: Any, messages: Any, answer: Any, host: Any) -> Any:
    """Make the calls of `messages` (int64, shape (calls, 8)), and wait for each answer that one asks for.

    A copy moves the first bytes of `host` (uint8). Return 0, the driver's error, or LOST."""
    for index in range(len(messages)):
        op = messages[index, _OP]
        size = messages[index, _B] if op in (TO_DEVICE, TO_HOST) else 0
        is_sent = _passed(link, messages.ctypes.data + index * _MESSAGE_BYTES, _MESSAGE_BYTES, True)
        if not is_sent or not _passed(link, host.ctypes.data, size, op == TO_DEVICE):
            return LOST
        if messages[index, ANSWERED]:
            if not _passed(link, answer.ctypes.data, _MESSAGE_BYTES, False):
                return LOST
            if answer[_STATUS] != 0:
                return answer[_STATUS]
    return 0


@_compiled
def make(table: Any, messages: Any, cells: Any, host: Any) -> Any:
    """Make the calls of `messages` in this process, and wait for each copy; return the driver's first error, or 0."""
    status, stream, at = 0, cells[10], host.ctypes.data
    for index in range(len(messages)):
        op, a, b = messages[index, _OP], messages[index, _A], messages[index, _B]
        if op == TO_DEVICE:
            error = _call(table, op, a, at, b, stream, cells)
        elif op == TO_HOST:
            error = _call(table, op, at, a, b, stream, cells)
        else:
            error = _call(table, op, a, b, messages[index, _C], messages[index, _D], cells)
        if op in (TO_DEVICE, TO_HOST):
            error = error or _call(table, SYNCHRONIZE, stream, 0, 0, 0, cells)
        status = status or error
    return status


@_compiled
def call_again(address: Any, arguments: Any, count: Any, second: Any = None, cell: Any = None) -> Any:
    """Call the function at `address` `count` times, each time then `second` with `cell[0]` if given; count failures."""
    failed = 0
    for _ in range(count):
        failed += _invoke(address, arguments) != 0
        if second is not None:  # decided when this is compiled
            failed += _invoke(second, (cell[0], 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)) != 0
    return failed


class LocalDriver:
    """Seven calls of CUDA's driver in this process: `table` holds their addresses by the call numbers of `_wire`."""

    def __init__(self, bench: gb.Bench) -> None:
        if bench.traits.vendor != "nvidia":
            raise gb.Skip("needs CUDA's driver; HIP has the same calls, but they have not been tried yet")
        self.cells = np.zeros(_CELLS, np.int64)
        self._driver = lib.Driver()
        self._context = self._driver("cuCtxGetCurrent")
        source = (resources.files(__package__) / "forward.cu").read_text(encoding="utf-8")
        self._kernel = bench.xp.RawModule(code=source).get_function("add_words")
        self._streams = [self._driver("cuStreamCreate", _NON_BLOCKING) for _ in range(2)]
        self.table = np.array([self.address(symbol) for symbol in _NAMES.split()], np.int64)
        self.cells[:2] = int(self._kernel.kernel.ptr), bench.device.stream
        self.cells[10:] = [int(stream) for stream in self._streams]

    def address(self, symbol: str) -> int:
        """Return the address of a driver function in its variant for CUDA 12.0; raises Skip if there is none."""
        address, _ = self._driver("cuGetProcAddress", symbol.encode(), _VERSION, 0)
        if not int(address):
            raise gb.Skip(f"the driver does not have {symbol}")
        return int(address)

    def enter(self) -> None:
        self._driver("cuCtxSetCurrent", self._context)

    def close(self) -> None:
        for stream in self._streams:
            self._driver("cuStreamDestroy", stream)
