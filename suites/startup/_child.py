"""Take the steps of a started process, and time each by the clock that the starting process reads too."""

import json
import os
import pickle
import sys
import time
from collections.abc import Sequence
from typing import Any

from gpubench.api import suite as gb

from .._processes import READY, resident_bytes
from ._host_start import HostStart, StartOrder

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


def main(marks: list[tuple[str, float]]) -> None:
    """Take the steps of the order on standard input, signal READY, check the results, and write the answer as JSON.

    `marks` are the parts so far, as in `parts_of`; the steps are added to them."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries may print to standard output, which carries only the answer
    order: StartOrder = pickle.load(sys.stdin.buffer)  # noqa: S301 - the sender is the process that started this one
    answer: dict[str, object]
    try:
        marks.append((_OWN, time.monotonic()))
        start = _start_of(order)
        marks.append((_INPUTS, time.monotonic()))
        for step in order.steps:
            getattr(start, step)()
            marks.append((step, time.monotonic()))
        os.write(int(sys.argv[-1]), READY)
        start.check()
        answer = {"seconds": parts_of(marks, float(sys.argv[1])), "resident_bytes": resident_bytes()}
    except gb.Unavailable as library:
        answer = {"missing": (library.problem, library.remedy)}
    except gb.WrongAnswer as finding:
        answer = {"wrong": str(finding)}
    with answers:
        json.dump(answer, answers)
