"""Submit copies one by one, by a compiled loop over the driver's copy. Importing this module imports numba.

A loop in Python would measure Python: a call through a binding takes longer than the driver's own. The loop is
compiled by numba and calls the driver's function by its address."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ._submit import BlockCopies


def _emit_call(_: Any, function: Any, target: Any, source: Any, nbytes: Any, stream: Any) -> Any:
    """Return the signature and the code generator, for numba's `intrinsic`."""

    def code(_: Any, builder: Any, __: Any, args: Any) -> Any:
        word = ir.IntType(64)
        kind = ir.FunctionType(ir.IntType(32), [word] * 4)
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])

    return types.int32(function, target, source, nbytes, stream), code


_call = intrinsic(_emit_call)


def _submit_each(function: Any, targets: Any, sources: Any, nbytes: Any, stream: Any) -> Any:
    """Call the C function at address `function` with (targets[i], sources[i], nbytes, stream) for each i."""
    for i in range(targets.size):
        status = _call(function, targets[i], sources[i], nbytes, stream)
        if status != 0:
            return status
    return np.int32(0)


_copy_each = numba.njit(cache=True, nogil=True)(_submit_each)


def one_by_one(function: int, copies: BlockCopies, stream: int) -> Callable[[], None]:
    """Return a function that submits each block of `copies` by its own call of cuMemcpyAsync to a stream.

    `function` and `stream` are the addresses of cuMemcpyAsync and of the stream."""
    address, nbytes, queue = np.uint64(function), np.uint64(copies.block_bytes), np.uint64(stream)
    targets, sources = copies.targets, copies.sources

    def call() -> None:
        status = _copy_each(address, targets, sources, nbytes, queue)
        if status != 0:
            raise RuntimeError(f"a copy was refused: CUDA error {status}")

    return call
