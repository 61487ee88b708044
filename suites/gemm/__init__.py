"""Matrix products: the vendor's BLAS over precision, shape and data, and few tokens against many weights.

A product is 2·M·N·K operations, dense; inputs are N(0,1) unless a case says otherwise. Beside each rate
stands the error of the answer. Where a product is bound by its weights (GEMV, few tokens, decoding) the
figure is bytes moved, buffers in turn, so that weights come from memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpubench.api.suite import (
    POINT,
    TIER,
    Bench,
    Effort,
    Skip,
    Stage,
    Suite,
    Target,
    Task,
    View,
    Work,
    on_gpu,
    points,
    powers_of_two,
)

from .._stream import open_stream
from . import _decoder, _few, _host
from ._data import HostOperands
from ._formats import HALF_SUMS, PRECISIONS, Precision, Shape
from ._gemv import KINDS
from ._models import MODELS
from ._tasks import activated, bursting, product, ranking
from ._vendor import Activation

_KERNEL = ("path", "weights")

suite = Suite(
    "matrix multiplication: the vendor's BLAS by precision, shape and data; GEMV and few tokens by our kernels too",
    views=[
        View("curve", "GEMM rate over size", ("square",), x="n", by=("dtype",), log_x=True),
        View("bars", "GEMM rate by precision and size", ("square", "accumulate")),
        View("bars", "Burst, sustained, and other data", ("burst", "sustained", "data")),
        View("curve", "GEMV rate over the weights' size", ("gemv",), "size_bytes", by=_KERNEL, log_x=True),
        View("transfer", "GEMV time over the weights' size", ("gemv",), "size_bytes", by=_KERNEL),
        View("curve", "Few tokens against 28672 × 8192 weights", ("skinny",), "tokens", by=_KERNEL, log_x=True),
        View("bars", "Language models: tokens a second", ("decoder",), by=("phase", "weights")),
        View("bars", "Layers of language models", ("layer",), by=("model",)),
        View("bars", "Shapes and layouts", ("tall", "batched", "transposed", "aligned", "epilogue")),
        View("matrix", "Shape map", ("shape",), x="n", y="m", by=("k",)),
        View("curve", "Wave quantisation: 4096 columns, rows by 128", ("wave",), x="m"),
        View("bars", "What the heuristics propose", ("ranked",), by=("dtype",)),
    ],
)

_HALVES = ("float16", "bfloat16")
_FAST = (*_HALVES, "float8_e4m3")
_CUBE = "8192x8192x8192"
_STEADY = {
    "smoke": Effort.sustained(0.6),
    "quick": Effort.sustained(0.5),
    "full": Effort.sustained(2.6),
}


def _on_nvidia(target: Target) -> bool:
    return target.device.arch.startswith("sm_")


def _precisions(target: Target) -> tuple[str, ...]:
    """The host's own; of a GPU all: what it lacks is skipped, and says so."""
    return target.device.dtypes if target.is_host else tuple(PRECISIONS)


def _precision(bench: Bench, dtype: str) -> Precision:
    if dtype not in bench.device.device.dtypes:
        raise Skip(f"{bench.device.device.name} ({bench.traits.arch}) has no products of {dtype}")
    return PRECISIONS[dtype]


def _sizes(target: Target) -> Any:
    if target.is_host:
        return points(smoke=(256,), quick=(256, 512, 1024, 2048), full=(256, 512, 1024, 2048, 4096))
    return points(smoke=(1024,), quick=(1024, 2048, 4096, 8192), full=powers_of_two(8, 14))


_QUICK = {  # the telling precisions of a size; every one at 2048
    1024: (),
    4096: (),
    8192: ("tf32", "float16", "bfloat16", "float8_e4m3", "int8"),
}


def _telling(target: Target, params: Mapping[str, Any]) -> bool:
    return target.is_host or target.tier != "quick" or params["dtype"] in _QUICK.get(params["n"], (params["dtype"],))


# The headline is the largest size that an H200 does not bring under its power cap: from there on the
# clock that the cap leaves decides, and differs by 2 % between processes.
@suite.case(version=2, dtype=_precisions, n=_sizes, where=_telling, headline={"dtype": "bfloat16", "n": 2048})
def square(bench: Bench, dtype: str, n: int) -> Task:
    """C = A·B of N×N matrices: 2·N³ operations, 3·N² elements moved at the least; 8-bit formats with B transposed."""
    precision = _precision(bench, dtype)
    if not bench.traits.is_gpu:
        operands = HostOperands(bench, precision, Shape(n, n, n))
        work = Work(flops=operands.shape.flops, moved=operands.shape.moved(precision))
        stage = Stage(operands.product, work, "flops", dtype, max_calls=64)
        notes = {"library": _host.library(), "threads": _host.threads(), "data": "N(0,1)"}
        return Task.of(stage, check=operands.check, poison=operands.poison, notes=notes)
    brief = n < 2048 or (n == 2048 and dtype not in _HALVES)  # nowhere near the power cap
    return product(bench, precision, Shape(n, n, n, _order(precision)), effort=POINT if brief else TIER)


def _order(precision: Precision) -> str:
    return "nt" if precision.needs_transposed else "nn"


def _sides_of(shape: str) -> tuple[int, int, int]:
    m, n, k = (int(side) for side in shape.split("x"))
    return m, n, k


@suite.case(
    sums=points(("float16",), full=("float16", "float32")),
    n=points((2048,), (1024,), (1024, 2048, 4096, 8192)),
    when=_on_nvidia,
)
def accumulate(bench: Bench, sums: str, n: int) -> Task:
    """C = A·B of float16 matrices with sums in float16 or in float32: 2·N³ operations; compare the errors."""
    precision = HALF_SUMS if sums == "float16" else _precision(bench, "float16")
    return product(bench, precision, Shape(n, n, n), effort=POINT)


_DATA = points(("normal", "zeros"), full=("normal", "uniform", "constant", "zeros"))


@suite.case(data=_DATA, dtype=points(("bfloat16",), full=_HALVES), n=points((8192,), (1024,)), when=_on_nvidia)
def data(bench: Bench, data: str, dtype: str, n: int) -> Task:
    """One product of N×N matrices full of different data, long enough for power and clock to tell: 2·N³ operations."""
    return product(bench, _precision(bench, dtype), Shape(n, n, n), data=data, effort=_STEADY[bench.target.tier])


def _burst_shapes(target: Target) -> Any:
    """8192³, and a product whose tiles of 256 × 128 fill every multiprocessor eight times."""
    units = max(1, target.device.units)
    wide = max(side for side in range(1, math.isqrt(units) + 1) if units % side == 0)
    whole = f"{512 * (units // wide)}x{512 * wide}x8192"
    return points((whole, _CUBE), ("1024x1024x1024",))


def _burst_points(target: Target, params: Mapping[str, Any]) -> bool:
    return target.tier != "quick" or (params["shape"] == _CUBE) == (params["dtype"] == "float8_e4m3")


@suite.case(dtype=points(_FAST, _HALVES[:1]), shape=_burst_shapes, when=_on_nvidia, where=_burst_points)
def burst(bench: Bench, dtype: str, shape: str) -> Task:
    """Products for some milliseconds after a rest, before the power cap acts: 2·M·N·K operations each."""
    precision = _precision(bench, dtype)
    return bursting(bench, precision, Shape(*_sides_of(shape), _order(precision)))


@suite.case(dtype=_FAST, n=points((), full=(8192,)), when=_on_nvidia)
def sustained(bench: Bench, dtype: str, n: int) -> Task:
    """Products back to back for 30 s: the rate that power and heat leave, 2·N³ operations each."""
    precision = _precision(bench, dtype)
    return product(bench, precision, Shape(n, n, n, _order(precision)), effort=Effort.sustained(30))


_LAYERS = points(("up",), full=("qkv", "out", "up", "down", "head"))


@suite.case(
    model=points(("llama-3-8b",), full=tuple(MODELS)),
    layer=_LAYERS,
    tokens=points((1, 2048), (16,), (1, 16, 128, 2048)),
    dtype=points(("bfloat16",), full=("bfloat16", "float8_e4m3")),
    when=_on_nvidia,
)
def layer(bench: Bench, model: str, layer: str, tokens: int, dtype: str) -> Task:
    """One matrix of a published model against some tokens, by the vendor's library: Y = X·Wᵀ, 2·tokens·W operations.

    Up to 64 tokens the weights decide, and the figure is bytes moved, with buffers in turn.
    """
    matrix = MODELS[model].layer(layer)
    precision = _precision(bench, dtype)
    shape = Shape(tokens, matrix.rows, matrix.cols, "nt")
    if tokens <= _few.MOST_TOKENS:
        return _few.by_vendor(bench, precision, shape)
    return product(bench, precision, shape, notes={"model": MODELS[model].source})


_TALL = ("131072x64x4096", "64x131072x4096", "4096x64x131072", "131072x128x128", "1024x1024x65536")


@suite.case(
    shape=points(_TALL[:1], full=_TALL),
    dtype=points(("bfloat16",), full=("float32", "tf32", *_HALVES)),
    when=_on_nvidia,
)
def tall(bench: Bench, shape: str, dtype: str) -> Task:
    """Tall and skinny products, named M×N×K: 2·M·N·K operations."""
    return product(bench, _precision(bench, dtype), Shape(*_sides_of(shape)), effort=POINT)


@suite.case(
    batch=points((256,), full=(16, 256, 4096)),
    n=points((512,), (128,), (64, 128, 512)),
    dtype=points(("bfloat16",), full=("float64", "float32", "tf32", *_HALVES)),
    when=_on_nvidia,
)
def batched(bench: Bench, batch: int, n: int, dtype: str) -> Task:
    """`batch` products of N×N matrices in one call, at equal strides: 2·N³ operations each."""
    return product(bench, _precision(bench, dtype), Shape(n, n, n, "nn", batch), effort=POINT)


@suite.case(
    order=points((), ("nn",), full=("nn", "nt", "tn", "tt")),
    n=points((4096,), (1024,)),
    dtype=points(("float8_e4m3",), ("float16",), ("float32", "tf32", *_HALVES, "float8_e4m3", "int8")),
    when=_on_nvidia,
)
def transposed(bench: Bench, order: str, n: int, dtype: str) -> Task:
    """Which of A and B lies transposed (t): 2·N³ operations. 8-bit formats exist as `nt` alone: the rest is refused."""
    return product(bench, _precision(bench, dtype), Shape(n, n, n, order), effort=POINT)


@suite.case(
    n=points((4097,), (1023,), (4095, 4096, 4097)),
    dtype=points(("bfloat16", "float8_e4m3"), ("float16",), ("float32", "tf32", *_HALVES, "float8_e4m3", "int8")),
    when=_on_nvidia,
)
def aligned(bench: Bench, n: int, dtype: str) -> Task:
    """Rows that begin off every alignment, 4096 off by one: 2·N³ operations; what the library refuses is skipped."""
    precision = _precision(bench, dtype)
    return product(bench, precision, Shape(n, n, n, _order(precision)), effort=POINT)


@suite.case(
    activation=points(("gelu",), full=("none", "bias", "relu", "gelu")),
    n=points((4096,), (1024,)),
    dtype=points(("bfloat16",), full=("float32", *_HALVES)),
    when=_on_nvidia,
)
def epilogue(bench: Bench, activation: Activation, n: int, dtype: str) -> Task:
    """The product with a bias and an activation fused behind it by cuBLASLt: 2·N³ operations, theirs not counted."""
    return activated(bench, _precision(bench, dtype), Shape(n, n, n, "nt"), activation)


_SIDES = points((), full=(512, 1024, 1536, 2048, 3072, 4096, 6144, 8192))


@suite.case(m=_SIDES, n=_SIDES, k=(1024, 8192), when=_on_nvidia)
def shape(bench: Bench, m: int, n: int, k: int) -> Task:
    """One point of the shape map, bfloat16, B transposed: 2·M·N·K operations."""
    return product(bench, _precision(bench, "bfloat16"), Shape(m, n, k, "nt"), effort=POINT)


@suite.case(m=points((), full=tuple(range(128, 6272, 128))), when=_on_nvidia)
def wave(bench: Bench, m: int) -> Task:
    """M rows of bfloat16 against 4096 × 4096 weights: the rate falls where one more wave of tiles begins."""
    return product(bench, _precision(bench, "bfloat16"), Shape(m, 4096, 4096, "nt"), effort=POINT)


@suite.case(dtype=("bfloat16", "float8_e4m3"), n=points((), full=(4096,)), when=_on_nvidia)
def ranked(bench: Bench, dtype: str, n: int) -> Task:
    """What cuBLASLt's heuristics propose, first choice first, each timed: 2·N³ operations."""
    precision = _precision(bench, dtype)
    return ranking(bench, precision, Shape(n, n, n, _order(precision)))


@suite.case(size_bytes=points((2**32,), (2**28,)), when=on_gpu)
def read(bench: Bench, size_bytes: int) -> Task:
    """Memory that is only read: the roof of everything below, moved once."""
    stream = open_stream(bench, size_bytes, "float32", 1)
    b, parts = stream.drawn(), stream.partial(np.uint64)
    call = stream.call("read", b.array, stream.count, parts)
    return _few.reading(bench, stream, b, parts, call, size_bytes)


def _weight_sizes(target: Target) -> Any:
    if target.is_host:
        return points((2**23, 2**27), (2**21,), (*powers_of_two(18, 28, 2), 448 * 2**20))
    quick = (2**21, 2**23, 2**25, 2**27, 448 * 2**20)
    return points(quick, (2**23,), (*powers_of_two(18, 28), 448 * 2**20, *powers_of_two(29, 30)))


def _paths(target: Target) -> tuple[str, ...]:
    return ("vendor",) if target.is_host else ("warp", "tensor", "vendor")


def _weights(target: Target) -> Any:
    return ("float32",) if target.is_host else points(("float16", "int8", "int4"), full=tuple(KINDS))


@suite.case(path=_paths, weights=_weights, size_bytes=_weight_sizes, where=_few.has_path)
def gemv(bench: Bench, path: str, weights: str, size_bytes: int) -> Task:
    """Y = W·x with weights of that size: itemsize·(M·N + N + M) bytes moved and the scales, buffers in turn.

    `warp` is our kernel of fused multiply-adds, `tensor` ours of matrix instructions, `vendor` the library.
    """
    rows, cols = _few.sides(size_bytes, weights)
    return _few.task(bench, path, weights, rows, cols, 1)


@suite.case(
    path=("tensor", "vendor"),
    weights=points(("float16",), full=("float16", "bfloat16", "int8", "int4")),
    tokens=points((16,), full=(1, 2, 4, 8, 16, 32, 64)),
    when=on_gpu,
    where=_few.has_path,
)
def skinny(bench: Bench, path: str, weights: str, tokens: int) -> Task:
    """Y = X·Wᵀ of few tokens against 28672 × 8192 weights (a 70B model's): bytes moved, buffers in turn."""
    return _few.task(bench, path, weights, 28672, 8192, tokens)


@suite.case(
    model=points(("llama-3-8b",), full=("chatglm-6b", "llama-3-8b")),
    phase=points(("decode",), full=("decode", "prefill")),
    weights=points(("float16", "int4"), ("int4",), ("float16", "int8", "int4")),
    when=on_gpu,
)
def decoder(bench: Bench, model: str, phase: str, weights: str) -> Task:
    """All products of a model with seeded weights, one token after the other or a prompt of 2048: tokens a second."""
    return _decoder.build(bench, model, phase, weights)
