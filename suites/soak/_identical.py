"""Compare results bit by bit; a difference is reported with device, kernel, address and bits."""

from typing import Any

import numpy as np

from gpubench.api import suite as gb

_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_PASS_S = 10.0  # seconds of a case in one pass of the full tier


def effort(bench: gb.Bench, seconds: float = _PASS_S) -> gb.Effort:
    """Return the effort of a stage: `seconds` in the full tier, a single point of a curve in the other tiers."""
    return gb.Effort.sustained(seconds) if bench.target.tier == "full" else gb.POINT


def bits(array: Any) -> Any:
    """Return `array` (NumPy or CuPy) viewed as unsigned integers of the same size, because a NaN never equals a NaN."""
    return array.view(_WORDS[array.itemsize])


def invert(array: Any, expected: Any, bench: gb.Bench) -> None:
    """Write the bitwise inverse of `expected` to `array`, so that an element that is not written again is wrong.

    The arrays have the same shape and dtype; both lie on the host, or both on the device."""
    xp = np if isinstance(array, np.ndarray) else bench.xp
    xp.invert(bits(expected), out=bits(array))


def expect_identical(bench: gb.Bench, kernel: str, array: Any, expected: Any) -> None:
    """Raise WrongAnswer if a bit of `array` differs from `expected`; `kernel` names the work in the message.

    The arrays have the same shape and dtype; both lie on the host, or both on the device."""
    seen, expected_bits = bits(array).ravel(), bits(expected).ravel()
    wrong = seen != expected_bits
    count = int(wrong.sum())
    if count:
        first = int(wrong.argmax())
        raise difference_error(bench, kernel, array, first, int(expected_bits[first]), int(seen[first]), count)


def difference_error(
    bench: gb.Bench, kernel: str, array: Any, index: int, expected: int, seen: int, count: int
) -> gb.WrongAnswer:
    """Return the WrongAnswer for `array`, which has `count` wrong elements; the first has the flat index `index`.

    `kernel` names the work; `expected` and `seen` are the bits of that element as integers."""
    device, width = bench.device.device, 2 * array.itemsize
    start = int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)
    where = f"the first at address {start + index * array.itemsize:#x} (element {index})"
    bits_text = f"expected 0x{expected:0{width}x}, seen 0x{seen:0{width}x}, wrong bits: {(expected ^ seen).bit_count()}"
    named = f"{device.id} ({device.name}{', ' + device.uuid if device.uuid else ''})"
    return gb.WrongAnswer(f"{named}, {kernel}: {count} of {array.size} values are wrong, {where}: {bits_text}")
