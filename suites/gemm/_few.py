"""Few tokens against many weights as tasks: buffers in turn, by our kernels and by the vendor's library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpubench.api.suite import POINT, TIER, Bench, Observation, Stage, Target, Task, Work, expect

from .._stream import Drawn, Stream
from . import _host
from ._data import Maker, Operands, judged
from ._formats import FORMATS, PRECISIONS, Precision, Shape
from ._gemv import GROUP, KINDS, Call, Vectors, Weights, compared, poison, tensor_call, warp_call
from ._vendor import Arrays, vendor

MOST_TOKENS = 64  # up to here weights decide how long a product takes
_PATHS = {  # what each can do
    "warp": tuple(KINDS),
    "tensor": ("float16", "bfloat16", "int8", "int4"),
    "vendor": ("float32", "float16", "bfloat16"),
}
_MATRIX = ("sm_", "gfx90a", "gfx942", "gfx950")  # architectures, but for the oldest of NVIDIA's: those skip
_QUICK_SIZES = (2**23, 448 * 2**20)  # of quantised weights


def has_path(target: Target, params: Mapping[str, Any]) -> bool:
    """Whether this kind of weights is taken on this path here; in quick, only the better of our two."""
    path, weights = str(params["path"]), str(params["weights"])
    if weights not in _PATHS[path] or (path == "tensor" and not target.device.arch.startswith(_MATRIX)):
        return False
    if target.tier == "full" or "size_bytes" not in params or target.is_host:
        return True
    if KINDS[weights].is_quantised and params["size_bytes"] not in _QUICK_SIZES:
        return False
    return path != ("warp" if weights == "int4" else "tensor")


def sides(size_bytes: int, kind: str) -> tuple[int, int]:
    """Rows and columns of weights of that size: as many columns as a power of two below the root, the rest rows."""
    count = size_bytes * 8 // KINDS[kind].bits
    cols = max(GROUP, 1 << (math.isqrt(count).bit_length() - 1))
    return count // cols, cols


def task(bench: Bench, path: str, kind: str, rows: int, cols: int, tokens: int) -> Task:
    """Y = X·Wᵀ by one path."""
    if not bench.traits.is_gpu:
        return _on_host(bench, rows, cols)
    bench.need(1.2 * (max(rows * cols * KINDS[kind].bits / 8, 4 * bench.target.device.cache_bytes) * 2) + 2**31)
    make, rng = Maker(bench), bench.rng
    seeds = [int(seed) for seed in rng.integers(2**63, size=2)]
    weights = Weights(make, kind, rows, cols, seeds[0], tiled=path == "tensor")
    copies = [weights, *(weights.copy() for _ in range(bench.copies(weights.nbytes) - 1))]
    plain = FORMATS[weights.kind.vectors]
    x, ys = make.drawn(plain, tokens * cols, seeds[1]), bench.xp.empty((len(copies), tokens * rows), plain.storage)
    calls, notes = _calls(bench, path, copies, x, ys, tokens)
    work = Work(moved=float(weights.nbytes + plain.itemsize * tokens * (rows + cols)), flops=2.0 * rows * cols * tokens)

    def check() -> Observation:
        other = make.differing(ys)
        expect(other == 0, f"{other} words of {len(ys)} copies of y differ from the first copy's")
        return compared(make, weights, Vectors(x, ys[0]), tokens)

    stage = Stage(
        calls[0], work, "moved", "dram", modes=(), rotation=tuple(calls), effort=POINT if tokens == 1 else TIER
    )
    return Task.of(stage, check=check, poison=lambda: poison(ys), notes={**notes, **_words(rows, cols, copies)})


def _calls(
    bench: Bench, path: str, copies: Sequence[Weights], x: Any, ys: Any, tokens: int
) -> tuple[list[Call], Mapping[str, str]]:
    held = [Vectors(x, y) for y in ys]
    if path == "warp":
        return [warp_call(bench, w, h) for w, h in zip(copies, held, strict=True)], {"library": "gemv.cu"}
    if path == "tensor":
        return [tensor_call(bench, w, h, tokens) for w, h in zip(copies, held, strict=True)], {"library": "skinny.cu"}
    shape = Shape(tokens, copies[0].rows, copies[0].cols, "nt")
    precision = copies[0].kind.precision
    found = [vendor(bench, precision, shape, Arrays(x, w.words, h.y)) for w, h in zip(copies, held, strict=True)]
    return [each.call for each in found], found[0].notes


def _words(rows: int, cols: int, copies: Sequence[Any]) -> Mapping[str, str]:
    return {"weights": f"{rows} × {cols}, {len(copies)} copies in turn", "data": "N(0,1)"}


def by_vendor(bench: Bench, precision: Precision, shape: Shape) -> Task:
    """Few tokens by the vendor's library in any precision: bytes moved, with copies of the weights in turn."""
    operands = Operands(bench, precision, shape)
    copies = [operands.b, *(operands.b.copy() for _ in range(bench.copies(operands.b.nbytes) - 1))]
    found = [vendor(bench, precision, shape, Arrays(operands.a, copy, operands.c)) for copy in copies]
    work = Work(moved=shape.moved(precision), flops=shape.flops)
    calls = tuple(each.call for each in found)
    stage = Stage(calls[0], work, "moved", "dram", modes=(), rotation=calls)
    notes = {**found[0].notes, **_words(shape.n, shape.k, copies)}
    return Task.of(stage, check=operands.check, poison=operands.poison, notes=notes)


def reading(bench: Bench, stream: Stream, b: Drawn, parts: Any, call: Call, size_bytes: int) -> Task:
    """What a plain read of memory reaches, every partial result compared."""

    def check() -> Observation:
        wrong = np.count_nonzero(bench.device.to_host(parts) != stream.expected_xor(b))
        expect(wrong == 0, f"{wrong} of {stream.parts} partial results are wrong")
        return {}

    stage = Stage(call, Work(moved=size_bytes, payload=size_bytes), "moved", "dram")
    return Task.of(stage, check=check, poison=lambda: parts.fill(0))


def _on_host(bench: Bench, rows: int, cols: int) -> Task:
    """NumPy's BLAS, copies of the weights in turn."""
    bench.need(4.0 * (rows * cols * 4) + 4 * bench.target.device.cache_bytes)
    rng = bench.rng
    weights = rng.standard_normal((rows, cols), dtype=np.float32)
    x, y = rng.standard_normal(cols, dtype=np.float32), np.empty(rows, np.float32)
    copies = [weights, *(weights.copy() for _ in range(bench.copies(weights.nbytes) - 1))]
    calls = tuple((lambda w=each: np.matmul(w, x, out=y)) for each in copies)

    def check() -> Observation:
        wide, terms = weights.astype(float) @ x, np.abs(weights).astype(float) @ np.abs(x)
        return judged(PRECISIONS["float32"], cols, y, wide, terms)

    work = Work(moved=4.0 * (rows * cols + rows + cols), flops=2.0 * rows * cols)
    stage = Stage(calls[0], work, "moved", "dram", modes=(), rotation=calls)
    notes = {"library": _host.library(), "threads": _host.threads(), **_words(rows, cols, copies)}
    return Task.of(stage, check=check, poison=lambda: y.fill(np.nan), notes=notes)
