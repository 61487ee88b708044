"""Take the steps of a started process, and time each by the clock that the starting process reads too."""

import sys
import time
from collections.abc import Sequence
from typing import Any

from ._host_start import HostStart, StartOrder

PRELUDE = (
    "import time; marks = [('interpreter', time.monotonic())]; import numpy; marks.append(('numpy', time.monotonic()))"
)
_OWN, _INPUTS = "gpubench", "inputs"  # the parts in which gpubench is imported and the matrices are made


def parts_of(marks: Sequence[tuple[str, float]], started: float) -> dict[str, float]:
    """Return the seconds of each part by its name.

    `marks` are (name of the part, moment at which it ended) in order of time, in seconds of one clock."""
    ends = [started, *(moment for _, moment in marks)]
    return {name: end - begin for (name, end), begin in zip(marks, ends, strict=False)}


def _start_of(order: StartOrder) -> Any:
    """Return the HostStart or GpuStart for the device of `order`."""
    if not order.pci:
        return HostStart(order)
    from ._gpu import GpuStart

    return GpuStart(order)


class StartedProcess:
    """The steps of a started process, which begins to measure itself before gpubench is imported (`PRELUDE`)."""

    def start(self, order: StartOrder) -> None:
        """Take the steps of the order."""
        self._marks: list[tuple[str, float]] = [*vars(sys.modules["__main__"])["marks"], (_OWN, time.monotonic())]
        self._start = _start_of(order)
        self._marks.append((_INPUTS, time.monotonic()))
        for step in order.steps:
            getattr(self._start, step)()
            self._marks.append((step, time.monotonic()))

    def checked(self, started: float) -> dict[str, float]:
        """Check the results, and return the seconds of each part; `started` is the time at which the process began."""
        self._start.check()
        return parts_of(self._marks, started)
