"""Measure the rates of the vendor's products by precision, size and data, in bursts, sustained, and of layers."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpubench.api import suite as gb

from .._matrix.data import Operands
from .._matrix.formats import HALF_SUMS, PRECISIONS, Shape
from .._matrix.product import FAST, HALVES, on_nvidia, precision_of, product, with_counted_clock
from .._matrix.rotation import copies_of, rotated, rotation_notes
from .._matrix.vendor import vendor
from .._models import MODELS
from ._host import host_product
from ._scaled import MICRO, micro_product

_CUBE = "8192x8192x8192"
_STEADY = {"smoke": gb.Effort.sustained(0.6), "full": gb.Effort.sustained(1.5)}
_SUSTAINED = gb.Effort.sustained(2.0)  # a power cap changes the clock about every 50 ms, so this sees 40 levels
_BURST = 8  # products in a row: about 5 ms of 8192³, a fraction of the time in which a power cap acts
_REST_S = 0.03
_BURSTS_S = 0.4  # ten bursts and the rests between them
# In these models each token uses all weights of a layer.
_DENSE = tuple(name for name, model in MODELS.items() if model.experts == 1)
_FEW_TOKENS = 64  # with at most this many tokens, the weights determine how long a product takes

topic = gb.Topic(
    views=[
        gb.View("curve", "GEMM throughput by size", ("square",), x="n", by=("dtype",), log_x=True),
        gb.View("bars", "GEMM throughput by precision and size", ("square", "accumulate")),
        gb.View("bars", "GEMM throughput: burst, sustained, by data", ("burst", "sustained", "data")),
        gb.View("bars", "Language model layers: GEMM throughput", ("layer",), by=("model",)),
    ],
)


def _precisions(target: gb.Target) -> tuple[str, ...]:
    """Return the points of the axis `dtype`: the host's types, or on a GPU all, of which some are skipped."""
    if target.is_host:
        return target.device.dtypes
    return (*PRECISIONS, *(MICRO if on_nvidia(target) else ()))


def _sizes(target: gb.Target) -> Any:
    if target.is_host:
        return gb.points(smoke=(256,), quick=(256, 512, 1024, 2048), full=(256, 512, 1024, 2048, 4096))
    return gb.points(smoke=(1024,), quick=(1024, 2048, 4096, 8192), full=gb.powers_of_two(8, 14))


_QUICK = {  # the precisions for each size in the quick tier
    1024: (),
    2048: tuple(PRECISIONS),
    4096: (),
    8192: ("tf32", "bfloat16", "float8_e4m3", *MICRO),  # small products do not fill the units of four bits
}


def _in_tier(target: gb.Target, params: Mapping[str, Any]) -> bool:
    """Return whether a point is measured: on a GPU quick has only some precisions at each size, as _QUICK says."""
    return target.is_host or target.tier != "quick" or params["dtype"] in _QUICK[params["n"]]


# The headline is the largest size at which an H200 stays below its power cap. At larger sizes the rate depends on the
# clock that the cap allows, which differs by 2 % between processes.
@topic.case(version=2, dtype=_precisions, n=_sizes, where=_in_tier, headline={"dtype": "bfloat16", "n": 2048})
def square(bench: gb.Bench, dtype: str, n: int) -> gb.Task:
    """Throughput of C = A·B of N×N matrices: 2·N³ operations; formats of at most 8 bits have B transposed.

    `mxfp8` has a power of two for 32 elements along K, `nvfp4` four bits and a scale for 16 elements (Blackwell)."""
    if dtype in MICRO:
        return micro_product(bench, dtype, n, gb.POINT if n <= 2048 else gb.TIER)
    precision = precision_of(bench, dtype)
    shape = Shape(n, n, n, precision.order)
    if not bench.traits.is_gpu:
        return host_product(bench, precision, shape)
    if n < 2048 or (n == 2048 and dtype != "bfloat16"):  # below the power cap, and not the headline
        return product(bench, precision, shape, effort=gb.POINT)
    if n == 8192 and (bench.target.tier == "full" or dtype in ("bfloat16", "float8_e4m3")):
        return product(bench, precision, shape, effort=_SUSTAINED)
    return product(bench, precision, shape)


@topic.case(
    sums=gb.points(("float16",), full=("float16", "float32")),
    n=gb.points((2048,), (1024,), (1024, 2048, 4096, 8192)),
    when=on_nvidia,
)
def accumulate(bench: gb.Bench, sums: str, n: int) -> gb.Task:
    """Throughput of C = A·B in float16 with sums in float16 or float32, 2·N³ operations; compare the errors."""
    precision = HALF_SUMS if sums == "float16" else precision_of(bench, "float16")
    return product(bench, precision, Shape(n, n, n), effort=gb.POINT)


_DATA = gb.points((), ("normal",), ("normal", "uniform", "constant", "zeros"))
_BY_DATA = gb.points(("bfloat16",), full=(*FAST, "float64"))


def _data_points(_: gb.Target, params: Mapping[str, Any]) -> bool:
    return params["dtype"] in HALVES or params["data"] in ("normal", "zeros")


@topic.case(version=2, data=_DATA, dtype=_BY_DATA, n=gb.points((8192,), (1024,)), when=on_nvidia, where=_data_points)
def data(bench: gb.Bench, data: str, dtype: str, n: int) -> gb.Task:
    """Throughput of a product of N×N matrices by their data, long enough to change power and clock: 2·N³ operations.

    `clock` is the mean clock during the products as the SMs count it, below the driver's under load."""
    precision, effort = precision_of(bench, dtype), _STEADY[bench.target.tier]
    return product(bench, precision, Shape(n, n, n, precision.order), data=data, effort=effort, counted=True)


def _burst_shapes(target: gb.Target) -> Any:
    """Return the points of the axis `shape`."""
    units = max(1, target.device.units)
    wide = max(side for side in range(1, math.isqrt(units) + 1) if units % side == 0)
    filling = f"{512 * (units // wide)}x{512 * wide}x8192"
    return gb.points((filling, _CUBE), ("1024x1024x1024",))


def _burst_points(target: gb.Target, params: Mapping[str, Any]) -> bool:
    return target.tier != "quick" or (params["dtype"] == "bfloat16" and params["shape"] != _CUBE)


@topic.case(dtype=gb.points(FAST, HALVES[:1]), shape=_burst_shapes, when=on_nvidia, where=_burst_points)
def burst(bench: gb.Bench, dtype: str, shape: str) -> gb.Task:
    """Throughput of products for milliseconds after a rest, before the power cap acts: 2·M·N·K operations each.

    `clock` is as in `data`."""
    precision = precision_of(bench, dtype)
    operands = Operands(bench, precision, Shape.parsed(shape, precision.order))
    by_vendor = vendor(bench, operands.product)

    def products() -> None:
        for _ in range(_BURST):
            by_vendor.call()

    effort, work = gb.Effort.sustained(_BURSTS_S), operands.work(_BURST)
    stage = replace(operands.stage(products, effort), work=work, max_calls=1, rest_s=_REST_S)
    notes = {**by_vendor.notes, "burst": f"{_BURST} products after {_REST_S} s of rest", **operands.notes}
    return gb.Task.of(with_counted_clock(bench, stage), check=operands.check, notes=notes)


@topic.case(dtype=FAST, n=gb.points((), full=(8192,)), when=on_nvidia)
def sustained(bench: gb.Bench, dtype: str, n: int) -> gb.Task:
    """Throughput of products back to back for 30 s, at the clock that power and heat allow: 2·N³ operations each."""
    precision = precision_of(bench, dtype)
    return product(bench, precision, Shape(n, n, n, precision.order), effort=gb.Effort.sustained(30))


@topic.case(
    model=gb.points(("llama-3-8b",), full=_DENSE),
    layer=gb.points(("up",), full=("qkv", "out", "up", "down", "head")),
    tokens=gb.points((), (16,), (1, 16, 128, 2048)),
    dtype=gb.points(("bfloat16",), full=("bfloat16", "float8_e4m3")),
    when=on_nvidia,
)
def layer(bench: gb.Bench, model: str, layer: str, tokens: int, dtype: str) -> gb.Task:
    """One matrix of a published model with some tokens, by the vendor's library: Y = X·Wᵀ, W of rows × columns.

    With more than 64 tokens the figure is the throughput, 2·tokens·rows·columns operations. Up to 64 tokens reading the
    weights takes longest, and the figure is the bandwidth, with copies of the weights in turn."""
    matrix = MODELS[model].layer(layer)
    precision = precision_of(bench, dtype)
    shape = Shape(tokens, matrix.rows, matrix.cols, "nt")
    if tokens > _FEW_TOKENS:
        return product(bench, precision, shape, notes={"model": MODELS[model].source})
    operands = Operands(bench, precision, shape)
    copies = copies_of(bench, operands.b)
    products = [vendor(bench, replace(operands.product, b=copy)) for copy in copies]
    calls = [by_vendor.call for by_vendor in products]
    stage = rotated(calls, copies, shape.moved(precision), shape.flops, outputs=(operands.c,), inputs=operands.redraw)
    notes = {**products[0].notes, **rotation_notes(matrix.rows, matrix.cols, copies)}
    return gb.Task.of(stage, check=operands.check, notes=notes)
