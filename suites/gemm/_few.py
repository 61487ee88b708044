"""Measure few tokens against many weights: memory that is only read, GEMV, and products of up to 64 tokens."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._checks import expect_equal
from .._matrix.formats import MatrixProduct, Shape
from .._matrix.gemv import GROUP, KINDS, Vectors, Weights, few_tokens_task, tensor_call, warp_call
from .._matrix.vendor import ProductCall, vendor
from .._stream import open_stream
from ._host import host_gemv

_SUPPORTED = {  # kinds of weights that each path supports
    "warp": tuple(KINDS),
    "tensor": ("float16", "bfloat16", "int8", "int4"),
    "vendor": ("float32", "float16", "bfloat16"),
}
_LARGE_BYTES = 448 * 2**20  # 28672 × 8192 weights in float16, a matrix of a 70B model
_ROWS, _COLS = 28672, 8192  # rows and columns of the weights that are multiplied by several tokens, as in a 70B model
_KERNEL = ("path", "weights")

topic = gb.Topic(
    views=[
        gb.View("transfer", "GEMV bandwidth by size of the weights", ("gemv",), "size_bytes", by=_KERNEL),
        gb.View("curve", "Skinny GEMM bandwidth by tokens", ("skinny",), "tokens", by=_KERNEL, log_x=True),
    ]
)


@topic.case(size_bytes=gb.points((2**32,), (2**28,)), when=gb.on_gpu)
def read(bench: gb.Bench, size_bytes: int) -> gb.Task:
    """Bandwidth of memory that is only read, each byte once: the upper bound of the cases `gemv` and `skinny`."""
    stream = open_stream(bench, size_bytes, "float32", 1)
    drawn, partials = stream.drawn(), stream.partial(np.uint64)
    call = stream.call("read", drawn.array, stream.count, partials)

    def check() -> None:
        expect_equal(bench.device.to_host(partials), stream.expected_xor(drawn), "partial results")

    work, inputs = gb.Work(moved=size_bytes, payload=size_bytes), partial(stream.redraw, drawn)
    stage = gb.Stage(call, work, "moved", "dram", outputs=(partials,), inputs=inputs)
    return gb.Task.of(stage, check=check)


def _weight_sizes(target: gb.Target) -> Any:
    """Return the points of the axis `size_bytes`: sizes of weights from 256 KiB to 1 GiB, on the host to 448 MiB."""
    if target.is_host:
        return gb.points((2**27,), (2**21,), (*gb.powers_of_two(18, 28, 2), _LARGE_BYTES))
    return gb.points(
        (2**23, 2**27, _LARGE_BYTES), (2**23,), (*gb.powers_of_two(18, 28), _LARGE_BYTES, *gb.powers_of_two(29, 30))
    )


def _paths(target: gb.Target) -> tuple[str, ...]:
    return ("vendor",) if target.is_host else ("warp", "tensor", "vendor")


def _weights(target: gb.Target) -> Any:
    return ("float32",) if target.is_host else gb.points(("float16", "int8", "int4"), full=tuple(KINDS))


def _has_path(target: gb.Target, params: Mapping[str, Any]) -> bool:
    """Return whether a point is measured: the path must support the weights, and only full takes all of `gemv`."""
    path, weights = params["path"], params["weights"]
    architecture = target.device.architecture
    has_matrix = architecture.vendor == "nvidia" or "matrix" in architecture.features  # the oldest of NVIDIA skip
    if weights not in _SUPPORTED[path] or (path == "tensor" and not has_matrix):
        return False
    if target.tier == "full" or "size_bytes" not in params or target.is_host:
        return True
    if target.tier == "quick" and KINDS[weights].is_quantised and params["size_bytes"] != _LARGE_BYTES:
        return False
    return bool(path != ("warp" if weights == "int4" else "tensor"))


def sides(size_bytes: int, kind: str) -> tuple[int, int]:
    """Return the rows and columns of weights of the type `kind` (a key of KINDS) that take about `size_bytes`.

    The columns are the largest power of two that is at most the root of the number of weights, but at least 128."""
    count = size_bytes * 8 // KINDS[kind].bits
    cols = max(GROUP, 1 << (math.isqrt(count).bit_length() - 1))
    return count // cols, cols


@topic.case(path=_paths, weights=_weights, size_bytes=_weight_sizes, where=_has_path)
def gemv(bench: gb.Bench, path: str, weights: str, size_bytes: int) -> gb.Task:
    """Bandwidth of Y = W·x with weights of `size_bytes`: itemsize·(M·N + N + M) bytes moved, and the scales.

    Copies of the weights are used in turn, so that they come from memory. `warp` is our kernel of fused multiply-adds,
    `tensor` our kernel of matrix instructions, `vendor` the vendor's library."""
    rows, cols = sides(size_bytes, weights)
    return few_tokens(bench, path, weights, rows, cols, 1) if bench.traits.is_gpu else host_gemv(bench, rows, cols)


@topic.case(
    path=("tensor", "vendor"),
    weights=gb.points(("float16",), full=("float16", "bfloat16", "int8", "int4")),
    tokens=gb.points((16,), full=(1, 2, 4, 8, 16, 32, 64)),
    when=gb.on_gpu,
    where=_has_path,
)
def skinny(bench: gb.Bench, path: str, weights: str, tokens: int) -> gb.Task:
    """Bandwidth of Y = X·Wᵀ of few tokens and 28672 × 8192 weights (a 70B model's).

    Copies of the weights are used in turn, so that they come from memory."""
    return few_tokens(bench, path, weights, _ROWS, _COLS, tokens)


def few_tokens(bench: gb.Bench, path: str, kind: str, rows: int, cols: int, tokens: int) -> gb.Task:
    """Return Y = X·Wᵀ by a path (`warp`, `tensor` or `vendor`) as a task; raises Skip if it is unsupported.

    `kind`, `rows` and `cols` describe W, and X has `tokens` rows. The path `warp` takes one token."""

    def product_of(weights: Weights, vectors: Vectors) -> ProductCall:
        """Return the call of the path for one copy of the weights and its vectors."""
        if path == "warp":
            return ProductCall(warp_call(bench, weights, vectors), {"library": "gemv.cu"})
        if path == "tensor":
            notes = {"library": weights.source(tokens)}
            return ProductCall(tensor_call(bench, weights, vectors, tokens), notes)
        shape = Shape(tokens, rows, cols, "nt")
        return vendor(bench, MatrixProduct(weights.kind.precision, shape, vectors.x, weights.words, vectors.y))

    return few_tokens_task(bench, product_of, kind, rows, cols, tokens, tiled=path == "tensor")
