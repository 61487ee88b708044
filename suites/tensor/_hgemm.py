"""Measure the HGEMM ladder: kernels for C = A·Bᵀ of halves, from one thread per element to Hopper's instructions."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gpubench.api import suite as gb

from .._matrix.data import Operands
from .._matrix.formats import PRECISIONS, Shape
from .._matrix.vendor import vendor
from ._rungs import RUNGS

_SLOW = ("naive",)  # takes half a second for 8192³
_MOST_SLOW = 4096
_QUICK = ("mma", "async", "bulk", "wgmma", "mfma", "vendor")


topic = gb.Topic(
    views=[
        gb.View("bars", "HGEMM ladder: throughput of each kernel", ("hgemm",), by=("n",)),
        gb.View(
            "bars", "HGEMM ladder: share of the vendor's rate, timed in turn", ("hgemm",), by=("n",), series="of_vendor"
        ),
        gb.View("curve", "HGEMM ladder: throughput by size", ("hgemm",), x="n", by=("rung",), log_x=True),
    ],
)


def _rungs(target: gb.Target) -> Any:
    """Return the axis of rungs for the target's vendor by name; `vendor`, the vendor library's product, is the last."""
    nvidia, amd = ("wmma", "mma", "swizzled", "async", "bulk", "wgmma"), ("mfma",)
    foreign = amd if target.device.architecture.vendor == "nvidia" else nvidia
    full = tuple(rung for rung in (*RUNGS, "vendor") if rung not in foreign)
    quick = tuple(rung for rung in full if rung in _QUICK)
    return gb.points(quick, full[:-1], full)


def _in_time(target: gb.Target, params: Mapping[str, Any]) -> bool:
    """Return whether a point is measured: the slowest rung, `naive`, has no matrices of more than 4096 rows."""
    del target
    return params["rung"] not in _SLOW or params["n"] <= _MOST_SLOW


def paired(bench: gb.Bench, call: Callable[[], None], by_vendor: Callable[[], None]) -> Callable[[], gb.Observation]:
    """Return a probe that times `call` and `by_vendor` in turn and observes `of_vendor`, a share in percent.

    It is the share of the rate of `call` in the rate of `by_vendor`."""
    by_vendor()  # the library's first call waits for the device
    bench.device.synchronize()

    def seconds(timed: Callable[[], None], lead: Callable[[], None]) -> float:
        return bench.device.time(timed, 1, gated=False, lead=lead).device[0]

    def probe() -> gb.Observation:
        return {"of_vendor": gb.Observed(100 * seconds(by_vendor, call) / seconds(call, by_vendor), "%", "more")}

    return probe


@topic.case(
    rung=_rungs,
    n=gb.points((4096,), (1024,), (1024, 2048, 4096, 8192, 16384)),
    when=gb.on_gpu,
    where=_in_time,
    headline={"rung": "vendor", "n": 4096},
)
def hgemm(bench: gb.Bench, rung: str, n: int) -> gb.Task:
    """Throughput of one kernel of the HGEMM ladder, `rung`: C = A·Bᵀ of n × n float16 matrices, sums in float32.

    It counts 2·n³ operations. `of_vendor` is the rate as a share of the vendor's, timed in turn."""
    operands = Operands(bench, PRECISIONS["float16"], Shape(n, n, n, "nt"))
    by_vendor = vendor(bench, operands.product)
    effort = gb.TIER if bench.target.tier == "full" else gb.POINT
    if rung == "vendor":
        return gb.Task.of(
            operands.stage(by_vendor.call, effort),
            check=operands.check,
            poison=operands.poison,
            notes={**by_vendor.notes, **operands.notes},
        )
    call, notes = RUNGS[rung].build(bench, operands.product)
    # The vendor's product writes to a separate C, so that the check sees the results of this kernel only.
    vendor_product = vendor(bench, replace(operands.product, c=bench.xp.empty_like(operands.c)))
    stage = replace(operands.stage(call, effort), probe=paired(bench, call, vendor_product.call))
    return gb.Task.of(stage, check=operands.check, poison=operands.poison, notes={**notes, **operands.notes})
