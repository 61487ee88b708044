"""Measure how much of a time is covered by intervals, such as the kernels of a device."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
LAUNCH_S = 1e-3  # a shorter gap between kernels counts as launch overhead, a longer one as a wait for the program


def covered_seconds(start: Floats, end: Floats) -> float:
    """Return the time in s that at least one interval from `start` (ascending) to `end` covers."""
    if not len(start):
        return 0.0
    covered = np.maximum.accumulate(end)
    begins = np.maximum(start[1:], covered[:-1])
    return float(end[0] - start[0] + np.maximum(end[1:] - begins, 0).sum())


def uncovered_gaps(start: Floats, end: Floats) -> Floats:
    """Return the lengths in s of the gaps between intervals, which are in order of `start`."""
    gaps: Floats = start[1:] - np.maximum.accumulate(end)[:-1]
    return gaps[gaps > 0]


def device_seconds(start: Floats, end: Floats, is_copy: npt.NDArray[np.bool_]) -> dict[str, float]:
    """Return where the time of a device went, in s, from its kernels and copies in order of `start`."""
    busy, of_kernels = covered_seconds(start, end), covered_seconds(start[~is_copy], end[~is_copy])
    of_copies, gaps = covered_seconds(start[is_copy], end[is_copy]), uncovered_gaps(start, end)
    return {
        "busy": busy,
        "kernels": of_kernels,
        "copies": of_copies,
        "overlap": of_kernels + of_copies - busy,
        "launch gaps": float(gaps[gaps < LAUNCH_S].sum()),
        "waits": float(gaps[gaps >= LAUNCH_S].sum()),
    }
