"""Forward seven calls of a driver to another process, by code that numba compiles: both ends and their loops.

A message is eight words of 64 bits, followed by data if it carries any. A client sends the number of a call and its
arguments; a server makes the call and answers if it is asked to."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .._host_flags import post, seen

MEMORY_INFO, ALLOCATE, FREE, TO_DEVICE, TO_HOST, LAUNCH, SYNCHRONIZE, STOP = range(8)
CALLS = 7
WORDS = 8  # words per message
# Arguments of cuLaunchKernel, the function with the most; other functions ignore the rest.
ARGUMENTS = 11
# Words of a message: the call, whether it is answered, its arguments.
_OP, _ANSWERED, _A, _B, _C, _D = range(6)
# Words of an answer: the first error since the last answer, the call's values, how many calls were made.
_STATUS, _FIRST, _SECOND, _MADE = range(4)
# Words of a link: a socket's descriptor or -1, the rings to write to and to read from, the bytes of a ring, the polls
# before a wait gives up.
_SOCKET, _OUT, _IN, _ROOM, _PATIENCE = range(5)
LINK_WORDS = 5
RING_HEAD_BYTES = 256  # the number of written bytes, and on a separate cache line the number of read bytes
_READ = 128
_NO_SIGNAL = 0x4000  # MSG_NOSIGNAL, Linux
_SPINS, _YIELDS = 4096, 1024  # polls before a wait yields the core, and polls before it sleeps
_NAP_US = 50
_MESSAGE_BYTES = 8 * WORDS
LOST = -1  # returned by a loop if the other process has gone

Compiled = Callable[..., Any]

# libc's functions are found by name when the code is loaded, so that the machine code can be cached on disk.
_send = types.ExternalFunction("send", types.intp(types.int32, types.uintp, types.uintp, types.int32))
_recv = types.ExternalFunction("recv", types.intp(types.int32, types.uintp, types.uintp, types.int32))
_memcpy = types.ExternalFunction("memcpy", types.uintp(types.uintp, types.uintp, types.uintp))
_yield = types.ExternalFunction("sched_yield", types.int32())
_sleep = types.ExternalFunction("usleep", types.int32(types.uint32))


_ARGUMENT_TYPES = types.UniTuple(types.int64, ARGUMENTS)


def _invoke_of(typing: Any, address: Any, arguments: Any) -> Any:
    """Return the type and the code of `_invoke`, which calls the C function at `address` with `arguments`."""
    del typing, address, arguments

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        """Return the LLVM value (int32) of the call; `args` are the LLVM values of the address and of the tuple."""
        del context, signature
        word = ir.IntType(64)
        kind = ir.FunctionType(ir.IntType(32), [word] * ARGUMENTS)
        function = builder.inttoptr(args[0], kind.as_pointer())
        return builder.call(function, [builder.extract_value(args[1], index) for index in range(ARGUMENTS)])

    return types.int32(types.int64, _ARGUMENT_TYPES), emit


_invoke: Compiled = intrinsic(_invoke_of)


def _compiled(function: Compiled) -> Compiled:
    """Return `function` compiled by numba: it runs without Python's lock, and its machine code is cached on disk."""
    compiled: Compiled = numba.njit(cache=True, nogil=True)(function)
    return compiled


def _await_change_of(address: Any, value: Any, looks: Any) -> Any:
    """Return the word (uint64) at `address` once it differs from `value`, or `value` after `looks` polls."""
    word = seen(address)
    for look in range(looks):
        if word != value:
            break
        if look > _SPINS + _YIELDS:
            _sleep(_NAP_US)
        elif look > _SPINS:
            _yield()
        word = seen(address)
    return word


_await_change = _compiled(_await_change_of)


def _ring_write(ring: Any, room: Any, source: Any, nbytes: Any, looks: Any) -> Any:
    """Copy `nbytes` from the address `source` into the ring buffer at the address `ring` as room becomes free."""
    done = np.uint64(0)
    written = seen(ring)
    while done < nbytes:
        read = seen(ring + np.uint64(_READ))
        if written - read == room:
            read = _await_change(ring + np.uint64(_READ), read, looks)
            if written - read == room:
                return False
        place = written % room
        size = min(nbytes - done, room - (written - read), room - place)
        _memcpy(ring + np.uint64(RING_HEAD_BYTES) + place, source + done, size)
        written += size
        done += size
        post(ring, written)
    return True


def _ring_read(ring: Any, room: Any, target: Any, nbytes: Any, looks: Any) -> Any:
    """Copy `nbytes` out of the ring buffer at the address `ring` to the address `target` as they arrive."""
    done = np.uint64(0)
    read = seen(ring + np.uint64(_READ))
    while done < nbytes:
        written = seen(ring)
        if written == read:
            written = _await_change(ring, read, looks)
            if written == read:
                return False
        place = read % room
        size = min(nbytes - done, written - read, room - place)
        _memcpy(target + done, ring + np.uint64(RING_HEAD_BYTES) + place, size)
        read += size
        done += size
        post(ring + np.uint64(_READ), read)
    return True


_to_ring, _from_ring = _compiled(_ring_write), _compiled(_ring_read)


def _write(link: Any, source: Any, nbytes: Any) -> Any:
    """Send `nbytes` from the address `source` over `link`, and return True, or False if the peer is gone."""
    if link[_SOCKET] < 0:
        rings = np.uint64(link[_OUT]), np.uint64(link[_ROOM])
        return _to_ring(rings[0], rings[1], np.uint64(source), np.uint64(nbytes), link[_PATIENCE])
    done = 0
    while done < nbytes:
        sent = _send(np.int32(link[_SOCKET]), np.uint64(source + done), np.uint64(nbytes - done), np.int32(_NO_SIGNAL))
        if sent <= 0:
            return False
        done += sent
    return True


def _read(link: Any, target: Any, nbytes: Any) -> Any:
    """Receive `nbytes` over `link` to the address `target`, and return True, or False if the peer is gone."""
    if link[_SOCKET] < 0:
        rings = np.uint64(link[_IN]), np.uint64(link[_ROOM])
        return _from_ring(rings[0], rings[1], np.uint64(target), np.uint64(nbytes), link[_PATIENCE])
    done = 0
    while done < nbytes:
        received = _recv(np.int32(link[_SOCKET]), np.uint64(target + done), np.uint64(nbytes - done), np.int32(0))
        if received <= 0:
            return False
        done += received
    return True


write, read = _compiled(_write), _compiled(_read)


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
    return _invoke(table[op], (a, b, c, 0, 0, 0, 0, 0, 0, 0, 0))  # the remaining calls: a free and the copies


_call = _compiled(_call_of)
call = _call


def _transfer(link: Any, table: Any, op: Any, place: Any, nbytes: Any, buffer: Any, cells: Any) -> Any:
    """Move `nbytes` between `link` and device memory at the address `place`, in parts through `buffer`."""
    status, done = 0, 0
    while done < nbytes:
        size = min(buffer.size, nbytes - done)
        at = buffer.ctypes.data
        if op == TO_DEVICE:
            if not read(link, at, size):
                return LOST
            call_status = _call(table, op, place + done, at, size, 0, cells)
        else:
            call_status = _call(table, op, at, place + done, size, 0, cells)
            if not write(link, at, size):
                return LOST
        status = call_status if status == 0 else status
        done += size
    return status


_transferred = _compiled(_transfer)


def _serve(link: Any, table: Any, cells: Any, buffer: Any) -> Any:
    """Make the calls that arrive on `link` until STOP."""
    message, answer = np.zeros(WORDS, np.int64), np.zeros(WORDS, np.int64)
    calls_made = 0
    while True:
        if not read(link, message.ctypes.data, _MESSAGE_BYTES):
            return LOST
        op = message[_OP]
        if op == STOP:
            return calls_made
        if op in (TO_DEVICE, TO_HOST):
            status = _transferred(link, table, op, message[_A], message[_B], buffer, cells)
            if status == LOST:
                return LOST
        else:
            status = _call(table, op, message[_A], message[_B], message[_C], message[_D], cells)
        calls_made += 1
        if answer[_STATUS] == 0:
            answer[_STATUS] = status
        if message[_ANSWERED]:
            answer[_FIRST], answer[_SECOND], answer[_MADE] = cells[2], cells[3], calls_made
            if not write(link, answer.ctypes.data, _MESSAGE_BYTES):
                return LOST
            answer[_STATUS] = 0


def _request(link: Any, message: Any, answer: Any) -> Any:
    """Send the call in `message`, and wait for its answer in `answer`; return 0, the driver's error, or LOST."""
    message[_ANSWERED] = 1
    if not write(link, message.ctypes.data, _MESSAGE_BYTES):
        return LOST
    if not read(link, answer.ctypes.data, _MESSAGE_BYTES):
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


def _repeat_pairs(link: Any, message: Any, answer: Any, count: Any, nbytes: Any) -> Any:
    """Allocate `nbytes` and free them, `count` times."""
    for _ in range(count):
        message[_OP], message[_A] = ALLOCATE, nbytes
        status = request(link, message, answer)
        if status == 0:
            message[_OP], message[_A] = FREE, answer[_FIRST]
            status = request(link, message, answer)
        if status != 0:
            return status
    return 0


def _repeat_here(table: Any, cells: Any, message: Any, count: Any) -> Any:
    """Make the call in `message` (int64, shape (WORDS,)) `count` times by the driver of this process."""
    op = message[_OP]
    for _ in range(count):
        status = _call(table, op, message[_A], message[_B], message[_C], message[_D], cells)
        if status == 0 and op == ALLOCATE:
            status = _call(table, FREE, cells[2], 0, 0, 0, cells)
        if status != 0:
            return status
    return 0


def _move(link: Any, message: Any, answer: Any, host: Any) -> Any:
    """Move the bytes of `host` (uint8) to the device or back."""
    message[_ANSWERED], message[_B] = 1, host.size
    if not write(link, message.ctypes.data, _MESSAGE_BYTES):
        return LOST
    to_device = message[_OP] == TO_DEVICE
    if not (write(link, host.ctypes.data, host.size) if to_device else read(link, host.ctypes.data, host.size)):
        return LOST
    return answer[_STATUS] if read(link, answer.ctypes.data, _MESSAGE_BYTES) else LOST


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
repeat_pairs, repeat_here = _compiled(_repeat_pairs), _compiled(_repeat_here)
move, call_again, call_pairs = _compiled(_move), _compiled(_call_again), _compiled(_call_pairs)
