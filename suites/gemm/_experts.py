"""Measure the products of larger mixtures of experts, by one call of cuBLAS and by our grouped kernel in Triton."""

from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .. import _triton
from .._matrix.product import on_nvidia, precision_of
from ._grouped import Call, ExpertLoads, GroupedProducts

# Experts, hidden size and inner size of an expert: https://huggingface.co/deepseek-ai/DeepSeek-V3/blob/main/config.json
# and https://huggingface.co/Qwen/Qwen3-30B-A3B/blob/main/config.json. The gate and up projections are one matrix.
_SHAPES = {"qwen3-30b-a3b": (128, 2048, 768), "deepseek-v3": (256, 7168, 2048)}
_ROWS, _COLS, _INNER, _WARPS, _STAGES = (64, 128), 256, 64, 8, 4  # of a program's tile, and its loads in flight

tl: Any = None  # triton.language, once a kernel is built

topic = gb.Topic(
    views=[gb.View("curve", "Expert GEMM throughput by load skew", ("expert_products",), "skew", by=("model", "by"))]
)


def multiply_tiles(x, weights, out, tiles, N, K, ROWS, COLS, INNER) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001, N803
    """Write one tile of Y = X·Wᵀ of an expert; `tiles` has an expert, a first row and the end of its rows each."""
    # Programs of one tile run together and share its rows of X, and the tiles of an expert share weights.
    block, tile = tl.program_id(0), tl.program_id(1)
    expert = tl.load(tiles + 3 * tile).to(tl.int64)
    row = tl.load(tiles + 3 * tile + 1) + tl.arange(0, ROWS)
    lines = (row < tl.load(tiles + 3 * tile + 2))[:, None]
    col, inner = block * COLS + tl.arange(0, COLS), tl.arange(0, INNER)
    left = x + row[:, None] * K + inner[None, :]
    right = weights + expert * N * K + col[None, :] * K + inner[:, None]
    total = tl.zeros([ROWS, COLS], tl.float32)
    for _ in range(0, K, INNER):
        total = tl.dot(tl.load(left, mask=lines, other=0.0), tl.load(right), total)
        left += INNER
        right += INNER
    tl.store(out + row[:, None] * N + col[None, :], total.to(out.dtype.element_ty), mask=lines)


def tiles_of(layout: ExpertLoads, rows: int) -> Any:
    """Return the tiles of at most `rows` tokens of one expert: expert, first token, end of its tokens; int32."""
    parts = (
        (expert, at, start + load) for expert, start, load in layout.parts for at in range(start, start + load, rows)
    )
    return np.array(list(parts), np.int32)


def by_triton(bench: gb.Bench, layout: ExpertLoads, products: GroupedProducts) -> tuple[Call, str]:
    """Return the call of all products by our kernel, and its name; raises Skip where it cannot be built."""
    n, k = products.n, products.k
    if n % _COLS or k % _INNER:
        raise gb.Skip(f"the kernel takes multiples of {_COLS} rows and {_INNER} columns, not {n} × {k}")
    types = {**dict.fromkeys(("x", "weights", "out"), "*bf16"), "tiles": "*i32"}
    rows = _ROWS[int(layout.loads.mean() > _ROWS[0])]
    sizes = {"N": n, "K": k, "ROWS": rows, "COLS": _COLS, "INNER": _INNER}
    kernel = _triton.BuiltKernel(bench, multiply_tiles, types, sizes, _WARPS, _STAGES)
    tiles = tiles_of(layout, rows)
    cells = (products.x, products.weights, products.y, bench.xp.asarray(tiles.ravel()))
    return kernel.call((n // _COLS, len(tiles)), *cells), f"our kernel in Triton {kernel.version}"


@topic.case(
    model=gb.points((), ("qwen3-30b-a3b",), tuple(_SHAPES)),
    tokens=gb.points((8192,), (1024,), (8192, 32768)),
    skew=gb.points((1,), full=(0, 1)),
    by=("cublas", "triton"),
    when=on_nvidia,
)
def expert_products(bench: gb.Bench, model: str, tokens: int, skew: float, by: str) -> gb.Task:
    """Throughput of the first products of a layer's experts (bfloat16), where `tokens` count once for each expert.

    Loads and operations are as in `grouped`. `by` is one call of cuBLAS, or our kernel with a program for each tile."""
    experts, hidden, inner = _SHAPES[model]
    layout = ExpertLoads.drawn(bench, tokens, experts, skew)
    products = GroupedProducts(bench, precision_of(bench, "bfloat16"), layout, 2 * inner, hidden)
    if by == "cublas":
        call, notes = products.by_library(), products.notes
    else:
        call, library = by_triton(bench, layout, products)
        notes = {**products.notes, "library": library}
    return gb.Task.of(products.stage(call, 1), check=products.check, notes=notes)
