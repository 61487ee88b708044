"""Describe matrices to the bulk tensor copies (TMA) of Hopper and newer GPUs."""

import ctypes
import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.api import suite as gb

# CUDA Driver API, "Tensor Map Object Management": a CUtensorMap has 128 bytes and is aligned to 64.
_MAP_BYTES, _MAP_ALIGNMENT = 128, 64
_UINT64, _FLOAT16, _NO_INTERLEAVE, _L2_PROMOTION_128_BYTES, _NO_FILL = 4, 6, 0, 2, 0
_NO_SWIZZLE, _SWIZZLE_128_BYTES = 0, 3


@functools.cache
def _encode() -> Any:
    """Return the driver's function cuTensorMapEncodeTiled, of ctypes; raises Skip if the driver does not have it."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    except (OSError, AttributeError) as error:
        raise gb.Skip(f"the driver has no tensor maps ({error}): they need a driver of CUDA 12 or newer") from error


def tensor_map(
    matrix: Any, rows: int, columns: int, box_rows: int, box_columns: int, is_plain: bool = False
) -> npt.NDArray[np.void]:
    """Return the tensor map of `matrix` for copies of boxes of box_rows × box_columns, as the argument of a kernel.

    `matrix` is a row-major float16 CuPy array of rows × columns; with `is_plain`, of words of 8 bytes, not swizzled."""
    kind, swizzle = (_UINT64, _NO_SWIZZLE) if is_plain else (_FLOAT16, _SWIZZLE_128_BYTES)
    room = np.zeros(_MAP_BYTES + _MAP_ALIGNMENT, np.uint8)
    first = -room.ctypes.data % _MAP_ALIGNMENT
    encoded = room[first : first + _MAP_BYTES]
    sizes = (ctypes.c_uint64 * 2)(columns, rows)
    strides = (ctypes.c_uint64 * 1)((8 if is_plain else 2) * columns)
    box, steps = (ctypes.c_uint32 * 2)(box_columns, box_rows), (ctypes.c_uint32 * 2)(1, 1)
    status = _encode()(
        ctypes.c_void_p(encoded.ctypes.data), kind, 2, ctypes.c_void_p(matrix.data.ptr), sizes, strides, box, steps,
        _NO_INTERLEAVE, swizzle, _L2_PROMOTION_128_BYTES, _NO_FILL,
    )  # fmt: skip
    if status:
        raise gb.DeviceError(f"cuTensorMapEncodeTiled of {rows} × {columns} failed with CUDA error {status}")
    return encoded.view(f"V{_MAP_BYTES}")  # CuPy passes an array of one element by value
