"""Forward seven calls of a driver to another process, by code that numba compiles: both ends and their loops.

A message is eight words of 64 bits, followed by data if it carries any. A client sends the number of a call and its
arguments; a server makes the call and answers if it is asked to. Both ends are sockets, given as descriptors."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

MEMORY_INFO, ALLOCATE, FREE, TO_DEVICE, TO_HOST, LAUNCH, SYNCHRONIZE, STOP = range(8)
WORDS = 8  # words per message
_ARGUMENTS = 11  # of cuLaunchKernel, the function with the most; other functions ignore the rest
_OP, _ANSWERED, _A, _B, _C, _D = range(6)  # words of a message: the call, whether it is answered, its arguments
_STATUS, _FIRST, _SECOND, _MADE = range(4)  # words of an answer: the first error, the call's values, the calls made
_NO_SIGNAL = 0x4000  # MSG_NOSIGNAL, Linux
_MESSAGE_BYTES = 8 * WORDS
_CLOCK_MONOTONIC = 1
LOST = -1  # returned by a loop if the other process has gone

Compiled = Callable[..., Any]

# libc's functions are found by name when the code is loaded, so that the machine code can be cached on disk.
_send = types.ExternalFunction("send", types.intp(types.int32, types.uintp, types.uintp, types.int32))
_recv = types.ExternalFunction("recv", types.intp(types.int32, types.uintp, types.uintp, types.int32))
_clock = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.uintp))
_ARGUMENT_TYPES = types.UniTuple(types.int64, _ARGUMENTS)


def _invoke_of(typing: Any, address: Any, arguments: Any) -> Any:
    """Return the type and the code of `_invoke`, which calls the C function at `address` with `arguments`."""
    del typing, address, arguments

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        """Return the LLVM value (int32) of the call; `args` are the LLVM values of the address and of the tuple."""
        del context, signature
        word = ir.IntType(64)
        kind = ir.FunctionType(ir.IntType(32), [word] * _ARGUMENTS)
        function = builder.inttoptr(args[0], kind.as_pointer())
        return builder.call(function, [builder.extract_value(args[1], index) for index in range(_ARGUMENTS)])

    return types.int32(types.int64, _ARGUMENT_TYPES), emit


_invoke: Compiled = intrinsic(_invoke_of)


def _compiled(function: Compiled) -> Compiled:
    """Return `function` compiled by numba: it runs without Python's lock, and its machine code is cached on disk."""
    compiled: Compiled = numba.njit(cache=True, nogil=True)(function)
    return compiled


def _write(link: Any, source: Any, nbytes: Any) -> Any:
    """Send `nbytes` from the address `source` over the socket `link`, and return True, or False if the peer is gone."""
    done = 0
    while done < nbytes:
        sent = _send(np.int32(link), np.uint64(source + done), np.uint64(nbytes - done), np.int32(_NO_SIGNAL))
        if sent <= 0:
            return False
        done += sent
    return True


def _read(link: Any, target: Any, nbytes: Any) -> Any:
    """Receive `nbytes` over the socket `link` to the address `target`; return True, or False if the peer is gone."""
    done = 0
    while done < nbytes:
        received = _recv(np.int32(link), np.uint64(target + done), np.uint64(nbytes - done), np.int32(0))
        if received <= 0:
            return False
        done += received
    return True


write, _receive = _compiled(_write), _compiled(_read)


def _spin(delay_ns: Any) -> Any:
    """Wait for `delay_ns`, as a network would delay a round trip."""
    pair = np.zeros(2, np.int64)  # struct timespec
    _clock(np.int32(_CLOCK_MONOTONIC), np.uint64(pair.ctypes.data))
    end = 1_000_000_000 * pair[0] + pair[1] + delay_ns
    while 1_000_000_000 * pair[0] + pair[1] < end:
        _clock(np.int32(_CLOCK_MONOTONIC), np.uint64(pair.ctypes.data))


_wait = _compiled(_spin)


def _call_of(table: Any, op: Any, a: Any, b: Any, c: Any, d: Any, cells: Any) -> Any:
    """Make the call number `op` by the function addresses `table` (int64); return the driver's error, or 0."""
    values = cells.ctypes.data + 16
    if op == LAUNCH:
        cells[4], cells[5], cells[6] = a, b, c
        for index in range(3):
            cells[7 + index] = cells.ctypes.data + 8 * (4 + index)
        parameters = cells.ctypes.data + 56
        return _invoke(table[LAUNCH], (cells[0], d, 1, 1, 256, 1, 1, 0, cells[1], parameters, 0))
    if op == MEMORY_INFO:
        return _invoke(table[op], (values, values + 8, 0, 0, 0, 0, 0, 0, 0, 0, 0))
    if op == ALLOCATE:
        return _invoke(table[op], (values, a, 0, 0, 0, 0, 0, 0, 0, 0, 0))
    if op == SYNCHRONIZE:
        return _invoke(table[op], (cells[1], 0, 0, 0, 0, 0, 0, 0, 0, 0, 0))
    return _invoke(table[op], (a, b, c, d, 0, 0, 0, 0, 0, 0, 0))  # the remaining calls: a free and the copies


_call = _compiled(_call_of)


def _transfer(link: Any, table: Any, op: Any, place: Any, nbytes: Any, buffers: Any, cells: Any) -> Any:
    """Move `nbytes` between `link` and device memory at `place`; of two `buffers`, one fills while one is copied."""
    status, size, parts = 0, buffers.shape[1], -(-nbytes // buffers.shape[1])
    for part in range(parts + 1):
        if op == TO_DEVICE and part < parts:
            at, stream = buffers[part % 2].ctypes.data, cells[10 + part % 2]
            length = min(size, nbytes - part * size)
            error = _invoke(table[SYNCHRONIZE], (stream, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0))  # the buffer is free again
            if not _receive(link, at, length):
                return LOST
            error = error or _call(table, op, place + part * size, at, length, stream, cells)
            status = status or error
        if op == TO_HOST and part < parts:
            error = _call(
                table,
                op,
                buffers[part % 2].ctypes.data,
                place + part * size,
                min(size, nbytes - part * size),
                cells[10 + part % 2],
                cells,
            )
            status = status or error
        if op == TO_HOST and part > 0:
            error = _invoke(table[SYNCHRONIZE], (cells[10 + (part - 1) % 2], 0, 0, 0, 0, 0, 0, 0, 0, 0, 0))
            if not write(link, buffers[(part - 1) % 2].ctypes.data, min(size, nbytes - (part - 1) * size)):
                return LOST
            status = status or error
    for index in range(2):
        error = _invoke(table[SYNCHRONIZE], (cells[10 + index], 0, 0, 0, 0, 0, 0, 0, 0, 0, 0))
        status = status or error
    return status


_transferred = _compiled(_transfer)


def _serve(link: Any, table: Any, cells: Any, buffers: Any, delay_ns: Any) -> Any:
    """Make the calls that arrive on `link` until STOP, and delay each answer by `delay_ns`."""
    message, answer = np.zeros(WORDS, np.int64), np.zeros(WORDS, np.int64)
    calls_made = 0
    while True:
        if not _receive(link, message.ctypes.data, _MESSAGE_BYTES):
            return LOST
        op = message[_OP]
        if op == STOP:
            return calls_made
        if op in (TO_DEVICE, TO_HOST):
            status = _transferred(link, table, op, message[_A], message[_B], buffers, cells)
            if status == LOST:
                return LOST
        else:
            status = _call(table, op, message[_A], message[_B], message[_C], message[_D], cells)
        calls_made += 1
        if answer[_STATUS] == 0:
            answer[_STATUS] = status
        if message[_ANSWERED]:
            answer[_FIRST], answer[_SECOND], answer[_MADE] = cells[2], cells[3], calls_made
            if delay_ns:
                _wait(delay_ns)
            if not write(link, answer.ctypes.data, _MESSAGE_BYTES):
                return LOST
            answer[_STATUS] = 0


def _request(link: Any, message: Any, answer: Any) -> Any:
    """Send the call in `message`, and wait for its answer in `answer`; return 0, the driver's error, or LOST."""
    message[_ANSWERED] = 1
    if not write(link, message.ctypes.data, _MESSAGE_BYTES):
        return LOST
    if not _receive(link, answer.ctypes.data, _MESSAGE_BYTES):
        return LOST
    return answer[_STATUS]


request = _compiled(_request)


def _repeat(link: Any, message: Any, answer: Any, count: Any, is_posted: Any) -> Any:
    """Make the call in `message` `count` times, each answered, or only the last one if `is_posted`."""
    for index in range(count):
        if is_posted and index + 1 < count:
            message[_ANSWERED] = 0
            if not write(link, message.ctypes.data, _MESSAGE_BYTES):
                return LOST
            continue
        status = request(link, message, answer)
        if status != 0:
            return status
    return 0


def _move(link: Any, message: Any, answer: Any, host: Any) -> Any:
    """Move the bytes of `host` (uint8) to the device or back."""
    message[_ANSWERED], message[_B] = 1, host.size
    if not write(link, message.ctypes.data, _MESSAGE_BYTES):
        return LOST
    to_device = message[_OP] == TO_DEVICE
    if not (write(link, host.ctypes.data, host.size) if to_device else _receive(link, host.ctypes.data, host.size)):
        return LOST
    return answer[_STATUS] if _receive(link, answer.ctypes.data, _MESSAGE_BYTES) else LOST


def _call_again(address: Any, arguments: Any, count: Any) -> Any:
    """Call the function at the address `address` `count` times; return the number of calls that failed."""
    failed = 0
    for _ in range(count):
        failed += _invoke(address, arguments) != 0
    return failed


def _call_pairs(first: Any, first_arguments: Any, second: Any, cell: Any, count: Any) -> Any:
    """Call the functions at the addresses `first` and `second` alternately, `count` times each."""
    failed = 0
    for _ in range(count):
        failed += _invoke(first, first_arguments) != 0
        failed += _invoke(second, (cell[0], 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)) != 0
    return failed


serve, repeat = _compiled(_serve), _compiled(_repeat)
move, call_again, call_pairs = _compiled(_move), _compiled(_call_again), _compiled(_call_pairs)
