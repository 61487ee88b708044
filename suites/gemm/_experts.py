"""Measure the products of larger mixtures of experts, by one call of cuBLAS and by our grouped kernels in Triton."""

import importlib
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .. import _triton
from .._matrix.product import on_nvidia, precision_of
from .._tensor_map import tensor_map
from ._grouped import Call, ExpertLoads, GroupedProducts

# Experts, hidden size and inner size of an expert: https://huggingface.co/deepseek-ai/DeepSeek-V3/blob/main/config.json
# and https://huggingface.co/Qwen/Qwen3-30B-A3B/blob/main/config.json. The gate and up projections are one matrix.
_SHAPES = {"qwen3-30b-a3b": (128, 2048, 768), "deepseek-v3": (256, 7168, 2048)}
# Rows and columns of a program's tile, its warps, the elements that it takes at once, and its loads in flight.
_ROWS, _COLS, _WARPS, _INNER, _STAGES = 64, 128, 4, 64, 4
# On Hopper: rows of weights of a warpgroup, most tokens of a tile, tokens of a load, loads in flight, and registers.
_HOPPER, _REGISTERS = {"ROWS": 128, "MOST": 128, "BOX": 16, "STAGES": 4}, 168

tl: Any = None  # triton.language, once a kernel is built

topic = gb.Topic(
    views=[gb.View("curve", "Expert GEMM throughput by load skew", ("expert_products",), "skew", by=("model", "by"))]
)


def multiply_tiles(x, weights, out, tiles, N, K, ROWS, COLS, INNER) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001, N803
    """Write one tile of Y = X·Wᵀ of an expert; `tiles` is as from `tiles_of`."""
    tiles += 4 * tl.program_id(0)
    expert = tl.load(tiles).to(tl.int64)
    row = tl.load(tiles + 1) + tl.arange(0, ROWS)
    lines = (row < tl.load(tiles + 2))[:, None]
    col, inner = tl.load(tiles + 3) * COLS + tl.arange(0, COLS), tl.arange(0, INNER)
    left = x + row[:, None] * K + inner[None, :]
    right = weights + expert * N * K + col[None, :] * K + inner[:, None]
    total = tl.zeros([ROWS, COLS], tl.float32)
    for _ in range(0, K, INNER):
        total = tl.dot(tl.load(left, mask=lines, other=0.0), tl.load(right), total)
        left += INNER
        right += INNER
    tl.store(out + row[:, None] * N + col[None, :], total.to(out.dtype.element_ty), mask=lines)


def tiles_of(layout: ExpertLoads, rows: int, blocks: int) -> Any:
    """Return tiles of at most `rows` tokens: expert, first token, end of its tokens, block of its weights; int32.

    Popular experts, which need matrix units, take turns with the others, which come last."""
    tiles = np.array(
        [
            (expert, at, start + load, block)
            for expert, start, load in layout.parts
            for block in range(blocks)
            for at in range(start, start + load, rows)
        ],
        np.int32,
    )
    is_popular = np.bincount(tiles[:, 0])[tiles[:, 0]] > blocks
    pace = max(1, 1.1 * is_popular.sum() / max(1, (~is_popular).sum()))
    turns = np.where(is_popular, np.cumsum(is_popular), np.cumsum(~is_popular) * pace)
    return tiles[np.argsort(turns, kind="stable")]


def by_triton(bench: gb.Bench, layout: ExpertLoads, products: GroupedProducts) -> tuple[Call, str]:
    """Return the call of all products by our kernel, and its name; raises Skip where it cannot be built."""
    n, k, triton = products.n, products.k, _triton.imported()
    is_hopper = gb.Architecture.parse(bench.traits.arch).capability // 10 == 9
    rows, cols = (_HOPPER["MOST"], 2 * _HOPPER["ROWS"]) if is_hopper else (_ROWS, _COLS)
    tiles = tiles_of(layout, rows, n // cols)
    results = products.y, bench.xp.asarray(tiles.ravel())
    if not is_hopper:
        types = {**dict.fromkeys(("x", "weights", "out"), "*bf16"), "tiles": "*i32"}
        sizes = {"N": n, "K": k, "ROWS": rows, "COLS": cols, "INNER": _INNER}
        kernel = _triton.BuiltKernel(bench, multiply_tiles, types, sizes, _WARPS, _STAGES)
        call = kernel.call((len(tiles),), products.x, products.weights, *results)
        return call, f"our kernel in Triton {triton.__version__}"
    from ._hopper_experts import grouped  # needs Triton

    swizzled = repr(importlib.import_module("triton.experimental.gluon.language").NVMMASharedLayout(128, 16, 2))
    boxes = {"weights": _HOPPER["ROWS"], "tokens": _HOPPER["BOX"]}
    types = {name: f"tensordesc<bf16[{lines}, {_INNER}],{swizzled}>" for name, lines in boxes.items()}
    types |= {"out": "*bf16", "tiles": "*i32"}
    kernel = _triton.BuiltKernel(bench, grouped, types, {"N": n, "K": k, **_HOPPER}, 4, 1, _REGISTERS)
    maps: list[Any] = []
    for array, box in zip((products.weights, products.x), kernel.boxes, strict=True):
        lines = array.size // k
        maps += [tensor_map(array, lines, k, *box), np.int32(lines), np.int32(k), np.int64(k), np.int64(1)]
    return kernel.call((len(tiles),), *maps, *results), f"our kernel in Gluon, Triton {triton.__version__}"


@topic.case(
    model=gb.points((), ("qwen3-30b-a3b",), tuple(_SHAPES)),
    tokens=gb.points((8192,), (1024,), (8192, 32768)),
    skew=gb.points((1,), full=(0, 1)),
    by=("cublas", "triton"),
    when=on_nvidia,
)
def expert_products(bench: gb.Bench, model: str, tokens: int, skew: float, by: str) -> gb.Task:
    """Throughput of the first products of a layer's experts (bfloat16), where `tokens` count once for each expert.

    Loads and operations are as in `grouped`. `by` is one call of cuBLAS, or our kernel, which is in Gluon on Hopper."""
    experts, hidden, inner = _SHAPES[model]
    layout = ExpertLoads.drawn(bench, tokens, experts, skew)
    products = GroupedProducts(bench, precision_of(bench, "bfloat16"), layout, 2 * inner, hidden)
    if by == "cublas":
        call, notes = products.by_library(), products.notes
    else:
        call, library = by_triton(bench, layout, products)
        notes = {**products.notes, "library": library}
    return gb.Task.of(products.stage(call, 1), check=products.check, notes=notes)
