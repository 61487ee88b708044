"""Measure one product by the vendor's library."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from gpubench.api import suite as gb

from .data import Operands
from .formats import PRECISIONS, Precision, Shape
from .vendor import vendor

HALVES = ("float16", "bfloat16")
FAST = (*HALVES, "float8_e4m3")
_MOST_UNITS = 1024  # places for the numbers of SMs


def on_nvidia(target: gb.Target) -> bool:
    """Return whether the target is a GPU of NVIDIA."""
    return target.device.architecture.vendor == "nvidia"


def precision_of(bench: gb.Bench, dtype: str) -> Precision:
    """Return the precision named `dtype`, a key of PRECISIONS; raises Skip if the device has no products of it."""
    if dtype not in bench.device.device.dtypes:
        raise gb.Skip(f"{bench.device.device.name} ({bench.traits.arch}) does not support matrix products in {dtype}")
    return PRECISIONS[dtype]


def with_counted_clock(bench: gb.Bench, stage: gb.Stage) -> gb.Stage:
    """Return a stage of long products that observes `clock`: the mean clock of its calls in Hz, as the SMs count it.

    Under load an SM runs slower than the clock that the driver reports. Two launches of some 2 µs read the cycles, one
    before a sample and one at the end of each call."""
    stamp, units = bench.kernel("matrix_data.cu", "stamp"), (max(1, bench.device.device.units),)
    first, last = (bench.xp.zeros(2 * _MOST_UNITS, "uint64") for _ in range(2))

    def call() -> None:
        stage.call()
        stamp(units, (1,), (last,))

    def clock() -> gb.Observation:
        begin, end = (bench.device.to_host(stamps).reshape(-1, 2) for stamps in (first, last))
        cycles, nanoseconds = (end - begin)[(begin[:, 1] > 0) & (end[:, 1] > begin[:, 1])].T
        return {"clock": gb.Observed(float(np.median(cycles / nanoseconds)) * 1e9, "Hz", "more")}

    return replace(stage, call=call, lead=lambda: stamp(units, (1,), (first,)), probe=clock)


def product(
    bench: gb.Bench,
    precision: Precision,
    shape: Shape,
    *,
    data: str = "normal",
    effort: gb.Effort = gb.TIER,
    notes: Mapping[str, str] | None = None,
    counted: bool = False,
) -> gb.Task:
    """Return one product by the vendor's library as a task, judged by its operations; raises Skip if it is unsupported.

    `data` is a kind of data that Operands takes, and `notes` are further notes. If `counted`, the stage is
    `with_counted_clock`."""
    operands = Operands(bench, precision, shape, data)
    by_vendor = vendor(bench, operands.product)
    stage = operands.stage(by_vendor.call, effort)
    stage = with_counted_clock(bench, stage) if counted else stage
    every_note = {**by_vendor.notes, **(notes or {}), **operands.notes}
    return gb.Task.of(stage, check=operands.check, notes=every_note)
