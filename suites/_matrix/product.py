"""Measure one product by the vendor's library."""

from collections.abc import Mapping

from gpubench.api import suite as gb

from .data import Operands
from .formats import PRECISIONS, Precision, Shape
from .vendor import vendor

HALVES = ("float16", "bfloat16")
FAST = (*HALVES, "float8_e4m3")


def on_nvidia(target: gb.Target) -> bool:
    """Return whether the target is a GPU of NVIDIA."""
    return target.device.architecture.vendor == "nvidia"


def precision_of(bench: gb.Bench, dtype: str) -> Precision:
    """Return the precision named `dtype`, a key of PRECISIONS; raises Skip if the device has no products of it."""
    if dtype not in bench.device.device.dtypes:
        raise gb.Skip(f"{bench.device.device.name} ({bench.traits.arch}) does not support matrix products in {dtype}")
    return PRECISIONS[dtype]


def product(
    bench: gb.Bench,
    precision: Precision,
    shape: Shape,
    *,
    data: str = "normal",
    effort: gb.Effort = gb.TIER,
    notes: Mapping[str, str] | None = None,
) -> gb.Task:
    """Return one product by the vendor's library as a task, judged by its operations; raises Skip if it is unsupported.

    `data` is a kind of data that Operands takes, and `notes` are further notes."""
    operands = Operands(bench, precision, shape, data)
    by_vendor = vendor(bench, operands.product)
    stage = operands.stage(by_vendor.call, effort)
    every_note = {**by_vendor.notes, **(notes or {}), **operands.notes}
    return gb.Task.of(stage, check=operands.check, notes=every_note)
