"""Compile the host's kernels with numba; they have the same names and meanings as in the .cu files.

Importing this module imports numba, so suites import it only where a kernel is wanted. Loops run over all threads of
the process's affinity; `n` is the number of elements."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import prange, types
from numba.extending import intrinsic

Compiled = Callable[..., Any]

# numba's own thread pool sleeps while OpenMP's spins. On a machine that is not quite idle, a spinning thread keeps the
# thread that it waits for off its core for a time slice of the scheduler. The user's choice takes precedence.
if numba.config.THREADING_LAYER == "default":
    numba.config.THREADING_LAYER = "workqueue"

_GOLDEN, _FIRST, _SECOND = (np.uint64(word) for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_S27, _S30, _S31, _S64 = (np.uint64(shift) for shift in (27, 30, 31, 64))


def parallel(function: Compiled) -> Compiled:
    """Return the function compiled for all threads of the process; its machine code is cached on disk."""
    compiled: Compiled = numba.njit(parallel=True, cache=True)(function)
    return compiled


def _random_real(seed: Any, i: Any, bits: Any, grid: Any) -> Any:
    """Return element `i` of the data of `seed` (uint64) as float64, uniform in [-1, 1): a multiple of `grid`."""
    x = seed + np.uint64(i) * _GOLDEN
    x = (x ^ (x >> _S30)) * _FIRST
    x = (x ^ (x >> _S27)) * _SECOND
    x = x ^ (x >> _S31)
    return np.float64(x >> (_S64 - bits)) * grid - 1.0


_compiled_random_real = numba.njit(inline="always")(_random_real)


def _fill(a: Any, n: Any, seed: Any) -> None:
    """Fill the first `n` elements of `a` with the data of `seed`, uniform in [-1, 1)."""
    bits = np.uint64(24 if a.itemsize == 4 else 53)
    grid = 0.5 ** (np.float64(bits) - 1.0)
    for i in prange(n):
        a[i] = _compiled_random_real(seed, i, bits, grid)


def _write(a: Any, n: Any, value: Any) -> None:
    for i in prange(n):
        a[i] = value


def _copy(a: Any, b: Any, n: Any) -> None:
    for i in prange(n):
        a[i] = b[i]


def _scale(a: Any, b: Any, n: Any, s: Any) -> None:
    for i in prange(n):
        a[i] = s * b[i]


def _add(a: Any, b: Any, c: Any, n: Any) -> None:
    for i in prange(n):
        a[i] = b[i] + c[i]


def _triad(a: Any, b: Any, c: Any, n: Any, s: Any) -> None:
    for i in prange(n):
        a[i] = b[i] + s * c[i]


def _xor(array: Any) -> Any:
    """Return the exclusive or of an array of 64-bit words."""
    combined = np.uint64(0)
    for i in range(array.size):
        combined ^= array[i]
    return combined


def _dot_product(b: Any, c: Any) -> Any:
    """Return the sum of products of two arrays of equal length, in double precision."""
    total = 0.0
    for i in range(b.size):
        total += np.float64(b[i]) * np.float64(c[i])
    return total


xor_of = numba.njit(_xor)
# lets the compiler add in vector lanes
_compiled_dot_product = numba.njit(fastmath={"reassoc", "contract"})(_dot_product)


def _read(b: Any, n: Any, parts: Any) -> None:
    """Write to each element of `parts` (uint64) the exclusive or of one share of the first `n` elements of `b`."""
    elements = b[:n].view(np.uint64)
    share = elements.size // parts.size
    for part in prange(parts.size):
        parts[part] = xor_of(elements[part * share : (part + 1) * share])


def _dot(b: Any, c: Any, n: Any, parts: Any) -> None:
    """Write to each element of `parts` the sum of products of one share of the first `n` elements of b and c."""
    share = n // parts.size
    for part in prange(parts.size):
        parts[part] = _compiled_dot_product(b[part * share : (part + 1) * share], c[part * share : (part + 1) * share])


def _count_mistakes(a: Any, n: Any, seed_b: Any, seed_c: Any, k: Any, kb: Any, kc: Any, parts: Any) -> None:
    """Write to each element of `parts` the number of elements of one share of `a` that differ from k + kb·b + kc·c."""
    bits = np.uint64(24 if a.itemsize == 4 else 53)
    grid = 0.5 ** (np.float64(bits) - 1.0)
    share = n // parts.size
    for part in prange(parts.size):
        wrong = 0
        for i in range(part * share, (part + 1) * share):
            b, c = _compiled_random_real(seed_b, i, bits, grid), _compiled_random_real(seed_c, i, bits, grid)
            wrong += a[i] != a.dtype.type(k + (kb * b + kc * c))
        parts[part] = wrong


def _node_at(i: Any, order: Any) -> Any:
    """Return `RingOrder.at(i)` of the suite latency, the node at place `i` of a ring."""
    nodes, mask, shift, add, f1, f2, f3, f4 = order
    while True:
        i = (i + add) & mask
        i = (i ^ (i >> shift)) * f1 & mask
        i = (i ^ (i >> shift)) * f2 & mask
        i = (i ^ (i >> shift)) * f3 & mask
        i = (i ^ (i >> shift)) * f4 & mask
        i ^= i >> shift
        if i < nodes:
            return i


_compiled_node_at = numba.njit(_node_at)


def _link(ring: Any, order: Any, stride: Any) -> None:
    """Write into the word of each node of `ring` (uint64) the index of the next node's word."""
    for i in range(order[0]):
        node, successor = np.uint64(i), np.uint64(i) + np.uint64(1)
        successor = np.uint64(0) if successor == order[0] else successor
        ring[_compiled_node_at(node, order) * stride] = _compiled_node_at(successor, order) * stride


def _sweep(ring: Any, order: Any, stride: Any) -> Any:
    """Return the exclusive or of the words of all nodes of the ring, read in the order of their links."""
    seen = np.uint64(0)
    for i in range(order[0]):
        seen ^= ring[_compiled_node_at(np.uint64(i), order) * stride]
    return seen


def _emit_load(_: Any, array: Any, place: Any) -> Any:
    """Return numba's signature and code generator for a load of word `place` of an array of uint64."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        struct = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.load_atomic(builder.gep(struct.data, [args[1]]), "acquire", 8)

    return types.uint64(array, place), code


def _emit_store(_: Any, array: Any, place: Any, __: Any) -> Any:
    """Return numba's signature and code generator for a store of a uint64 into word `place` of an array of uint64."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        struct = context.make_array(signature.args[0])(context, builder, args[0])
        builder.store_atomic(args[2], builder.gep(struct.data, [args[1]]), "release", 8)
        return context.get_dummy_value()

    return types.void(array, place, types.uint64), code


_load_word, _store_word = intrinsic(_emit_load), intrinsic(_emit_store)


def _ask(array: Any, asking: Any, answering: Any, first: Any, last: Any, spins: Any) -> Any:
    """Write the words `first` to `last` to array[asking]; wait after each until array[answering] holds it too."""
    for turn in range(first, last + 1):
        _store_word(array, asking, np.uint64(turn))
        reads_left = spins
        while _load_word(array, answering) != turn:
            reads_left -= 1
            if reads_left == 0:
                return turn - 1
    return last


def _answer(array: Any, asking: Any, answering: Any, first: Any, last: Any, spins: Any) -> Any:
    """Wait for each of the words `first` to `last` in array[asking], and write that word to array[answering]."""
    for turn in range(first, last + 1):
        reads_left = spins
        while _load_word(array, asking) != turn:
            reads_left -= 1
            if reads_left == 0:
                return turn - 1
        _store_word(array, answering, np.uint64(turn))
    return last


def _chase(ring: Any, steps: Any, state: Any) -> None:
    """Follow `steps` links of the ring from the index state[0], and write the index that is reached to state[0]."""
    position = state[0]
    for _ in range(steps):
        position = ring[position]
    state[0] = position


KERNELS: dict[str, Compiled] = {
    "fill": parallel(_fill),
    "write": parallel(_write),
    "copy": parallel(_copy),
    "scale": parallel(_scale),
    "add": parallel(_add),
    "triad": parallel(_triad),
    "read": parallel(_read),
    "dot": parallel(_dot),
    "mistakes": parallel(_count_mistakes),
    "link": numba.njit(cache=True)(_link),
    "sweep": numba.njit(cache=True)(_sweep),
    # Two threads, or a thread and a GPU, exchange the words first … last: one writes each word to one address, and the
    # other answers it at another address. Both give up a wait after `spins` reads. They run without Python's lock.
    "ask": numba.njit(cache=True, nogil=True)(_ask),
    "answer": numba.njit(cache=True, nogil=True)(_answer),
    "chase": numba.njit(cache=True)(_chase),
}


def _place(target: Any, source: Any) -> None:
    for i in prange(target.shape[0]):
        target[i] = source[i]


_placed = parallel(_place)


def placed(array: Any) -> Any:
    """Return a copy of a NumPy array whose pages lie in memory near the threads that work on them.

    The threads of a parallel kernel, which divide the first axis among them, touch the pages of the copy first."""
    target = np.empty_like(array)
    _placed(target, array)
    return target


def on_threads(kernel: Compiled, count: int) -> Compiled:
    """Return a function that runs `kernel` on at most `count` threads, or `kernel` itself if `count` is 0."""
    if not count:
        return kernel

    def call(*args: Any) -> None:
        """Run the kernel on at most `count` threads, and restore numba's number of threads."""
        every = numba.get_num_threads()
        numba.set_num_threads(min(count, every))
        try:
            kernel(*args)
        finally:
            numba.set_num_threads(every)

    return call


def threads() -> str:
    """Return the number of threads and the threading layer of the parallel kernels; call it after one has run."""
    return f"{numba.get_num_threads()} ({numba.threading_layer()})"
