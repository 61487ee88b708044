"""Overwrite outputs before a check, so that a call that writes nothing is found."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from gpubench.plugins.backend import OpenDevice

_PART_BYTES = 2**24  # the device overwrites host memory in parts of this size


def poison(device: OpenDevice, arrays: Iterable[Any]) -> None:
    """Set every bit of `arrays`: that is NaN in a float of any format, and -1 or the largest number in an integer.

    A device fills its own arrays. On a GPU, host memory is overwritten by the processor and then by the device, so that
    the processor's caches do not hold its lines."""
    for array in arrays:
        words = array.view(f"i{min(array.itemsize, 8)}")
        if not (device.traits.is_gpu and isinstance(array, np.ndarray) and array.flags.c_contiguous and array.size):
            words.fill(-1)
            continue
        device.synchronize()
        words.fill(-1)  # so that a copy which does nothing leaves nothing of an earlier one
        words = words.reshape(-1)
        part = device.xp.full(min(words.size, _PART_BYTES // words.itemsize), -1, words.dtype)
        for first in range(0, words.size, part.size):
            rest = words[first : first + part.size]
            device.copy(rest, part[: rest.size])
        device.synchronize()
