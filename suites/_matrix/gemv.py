"""Call our kernels for few tokens against many weights, gemv.cu and skinny*.cu, and make weights and references."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._checks import flipping, in_turn
from .._tensor_map import tensor_map
from .data import Maker
from .formats import FORMATS, PRECISIONS, Precision
from .rotation import copies_of, rotated, rotation_notes
from .vendor import ProductCall

GROUP = 128  # weights that share a scale; the number of columns is a multiple of it
_THREADS = 256  # threads per block, as in gemv.cu
_CHUNK = 2**26  # weights that are widened to double precision at once
_MANY_ROWS = 2**14  # with at least this many rows, blocks of two panels still fill the device
_FEW_ROWS_THREADS = 512  # threads of a block that shares the columns of a few rows of int4 weights
_TILE = 16  # rows of a tile of quantised weights in skinny.cu
_LANES_A_TOKEN = 4  # lanes of a warp per token in skinny.cu: 8 tokens at once on NVIDIA, 16 on AMD
_MOST_TOKENS = 64  # of skinny.cu; skinny_wgmma.cu takes twice as many
_LEAST_GROUPS = 10  # of 128 columns that a block multiplies, or the sums of more blocks are slower to add
_SHARED_BYTES = 225 * 1024  # of a compute unit of Hopper, less what a few blocks have besides
_FEW_TOKENS = 2  # tokens up to which skinny.cu is as fast as skinny_wgmma.cu with quantised weights
_PAIRED = 2  # the order of weights for skinny_wgmma.cu
# Warpgroups, groups ahead and resident blocks of skinny_wgmma.cu that were fastest on an H200, by the bits of weights,
# for few rows and for many, for each number of tokens.
_WIDTHS = (8, 16, 32, 64, 128)
_GROUP_PLANS = {
    4: (
        ((1, 4, 2), (1, 2, 2), (1, 2, 2), (2, 2, 1), (1, 2, 1)),
        ((2, 2, 2), (2, 2, 2), (4, 2, 1), (4, 1, 1), (2, 1, 1)),
    ),
    8: (((1, 2, 2), (1, 2, 2), (1, 2, 1), (1, 2, 1), (2, 1, 1)), ((2, 1, 1),) * 5),
}

Call = Callable[[], None]


@dataclass(frozen=True, slots=True)
class WeightKind:
    """How weights are stored: the kernels' `number` for it, the bits of a weight, and the format of x and y."""

    number: int
    bits: int
    vectors: str

    @property
    def is_quantised(self) -> bool:
        """Whether each group of weights has a scale."""
        return self.number >= 3

    @property
    def precision(self) -> Precision:
        """The precision that bounds the error: products of the stored weights, sums in float32."""
        return PRECISIONS[self.vectors]


KINDS = {
    "float32": WeightKind(0, 32, "float32"),
    "float16": WeightKind(1, 16, "float16"),
    "bfloat16": WeightKind(2, 16, "bfloat16"),
    "int8": WeightKind(3, 8, "float16"),
    "int4": WeightKind(4, 4, "float16"),
}


class Weights:
    """A matrix of `rows` × `cols` seeded normal weights, times `spread`; quantised, each group of 128 has a scale.

    `kind` is a key of KINDS. `words` has the weights, and `scales` the scales as the bits of halves: CuPy arrays.
    Quantised weights lie row by row or in another `order` (order_of)."""

    def __init__(
        self, make: Maker, kind: str, rows: int, cols: int, seed: int, spread: float = 1.0, order: int = 0
    ) -> None:
        if cols % GROUP:
            raise gb.Skip(f"the kernels need a multiple of {GROUP} columns, not {cols}")
        self.kind, self.rows, self.cols = KINDS[kind], rows, cols
        self._name, self._make, self._seed, self._spread = kind, make, seed, spread
        order = order if self.kind.is_quantised else 0
        self.is_paired, self._order = order == _PAIRED, (np.uint64(cols // GROUP), np.uint32(order))
        xp = make.xp
        if self.kind.is_quantised:
            room = -(-rows // _TILE) * _TILE * cols  # whole tiles; rows beyond the matrix have the scale 0
            self.words = xp.zeros(room * self.kind.bits // 32, "uint32")
            self.scales = xp.zeros(room // GROUP, "uint16")
            groups = rows * cols // GROUP
            numbers = np.uint64(groups), *self._order, np.uint64(seed), np.float32(spread)
            make.run(f"quantise_{kind}", groups, self.words, self.scales, *numbers)
        else:
            self.words = make.drawn(FORMATS[kind], rows * cols, seed, spread=spread)
            self.scales = xp.empty(0, "uint16")

    @property
    def nbytes(self) -> int:
        """Bytes of the weights and their scales."""
        count = self.rows * self.cols
        return count * self.kind.bits // 8 + (2 * count // GROUP if self.kind.is_quantised else 0)

    @property
    def power(self) -> int:
        """A power of two for skinny_wgmma.cu: times it, the scale of weights of less than 7 spreads is a half."""
        return (15 if self.kind.bits == 4 else 19) - math.ceil(math.log2(self._spread))

    @property
    def most_tokens(self) -> int:
        """The tokens that a launch multiplies at most."""
        return _MOST_TOKENS * (2 if self.is_paired else 1)

    def is_by_groups(self, tokens: int) -> bool:
        """Return whether skinny_wgmma.cu multiplies these weights by `tokens` tokens."""
        return self.is_paired and tokens > _FEW_TOKENS

    def source(self, tokens: int) -> str:
        """Return the name of the file with the kernel by which `tensor_call` multiplies."""
        return "skinny_wgmma.cu" if self.is_by_groups(tokens) else "skinny.cu"

    def copy(self) -> Weights:
        """Return the same weights elsewhere in memory."""
        twin: Weights = object.__new__(Weights)
        twin.__dict__.update(self.__dict__, words=self.words.copy(), scales=self.scales.copy())
        return twin

    def product(self, x: Any, original: bool = False) -> Any:
        """Return X·Wᵀ as doubles (tokens, rows) on the device, where X has doubles (tokens, cols).

        W are the stored weights, or with `original` the weights before quantisation."""
        most = max(1, _CHUNK // self.cols)
        parts = [x @ self._rows(first, min(most, self.rows - first), original).T for first in range(0, self.rows, most)]
        return parts[0] if len(parts) == 1 else self._make.xp.concatenate(parts, axis=1)

    def _rows(self, first: int, count: int, original: bool) -> Any:
        """Return `count` rows from row `first` on as doubles (count, cols) on the device."""
        make, start, size = self._make, first * self.cols, count * self.cols
        if original or not self.kind.is_quantised:
            plain = FORMATS["float32" if original else self._name]
            part = self.words[start : start + size]
            if original:
                part = make.xp.empty(size, "float32")
                make.fill(part, plain, self._seed, spread=self._spread, first=start)
            return make.widened(part, plain, count, self.cols, (self.cols, 1))
        out = make.xp.empty((count, self.cols), "float64")
        make.run(f"restore_{self._name}", size, *self._stored(start, size), out)
        return out

    def _stored(self, first: int, count: int) -> tuple[Any, ...]:
        """Return the arguments of a kernel that restores `count` quantised weights from weight `first` on."""
        return self.words, self.scales, np.uint64(first), np.uint64(count), *self._order

    def restore(self, out: Any) -> None:
        """Write quantised weights as halves, row by row, to `out`: a device array of rows · cols elements."""
        size = self.rows * self.cols
        self._make.run(f"restore_{self._name}_half", size, *self._stored(0, size), out)


@dataclass(frozen=True, slots=True)
class Vectors:
    """The flat CuPy arrays X (tokens × cols) and Y (tokens × rows)."""

    x: Any
    y: Any


@dataclass(frozen=True, slots=True)
class Launch:
    """How a product is launched.

    An early launch (`is_early`) fetches weights while the launch before it writes x."""

    is_early: bool = False
    is_gated: bool = False

    @property
    def halves(self) -> int:
        """Rows of W for each row of Y."""
        return 2 if self.is_gated else 1


PLAIN = Launch()


def compared(make: Maker, weights: Weights, vectors: Vectors, tokens: int) -> gb.Observation:
    """Return the relative error of Y as `error`, and the error that quantisation adds as `quantisation_error`.

    Weights that are not quantised have only the first. Y has `tokens` tokens."""
    kind = FORMATS[weights.kind.vectors]
    missing = make.count_unwritten(vectors.y, kind)
    gb.expect(missing == 0, f"{missing} elements of y are not written, NaN or infinite")
    x = make.widened(vectors.x, kind, tokens, weights.cols, (weights.cols, 1))
    y = make.widened(vectors.y, kind, tokens, weights.rows, (weights.rows, 1))
    exact = weights.product(x)
    error, bound = distance(make, y, exact), weights.kind.precision.bound(weights.cols)
    gb.expect(error <= bound, f"the relative error {error:.3g} is above {bound:.3g}")
    errors = {"error": gb.Observed(error)}
    if weights.kind.is_quantised:
        errors["quantisation_error"] = gb.Observed(distance(make, exact, weights.product(x, original=True)))
    return errors


def distance(make: Maker, result: Any, reference: Any) -> float:
    """Return ‖result − reference‖/‖reference‖ of two arrays on the device."""
    expected = make.to_host(reference)
    return float(np.linalg.norm(make.to_host(result) - expected) / np.linalg.norm(expected))


@dataclass(frozen=True, slots=True)
class WarpPlan:
    """How gemv.cu is built and launched.

    `resident` blocks on each compute unit take all rows in turn; with 0 each block has its own rows."""

    team: int
    share: int
    ahead: int
    resident: int = 0

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return _THREADS // self.team * self.share

    def defines(self, kind: WeightKind, launch: Launch) -> dict[str, int]:
        """Return the macros, by name, with which gemv.cu is built for weights of `kind`."""
        numbers = {"TEAM": self.team, "SHARE": self.share, "AHEAD": self.ahead}
        return {"WEIGHTS": kind.number, **numbers, "GATED": int(launch.is_gated)}


def warp_plan(kind: WeightKind, cols: int, warp: int, launch: Launch = PLAIN) -> WarpPlan:
    """Return the plan of gemv.cu that was fastest on an H200, for rows of `cols` weights of `kind`.

    `warp` is the number of threads of a warp. A thread has about four vectors of a row."""
    if kind.is_quantised:
        return WarpPlan(warp, 2, 2)
    quarter = max(cols * kind.bits // 128 // 4, 1)
    # A power of two, because a team reduces its sums by halves.
    team = max(warp, min(_THREADS, 1 << (quarter.bit_length() - 1)))
    return WarpPlan(team, 2, 4, 4) if launch.is_early else WarpPlan(team, launch.halves, 2)


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """How skinny.cu is built and launched; the first lines of skinny.cu explain the numbers.

    `tiles` are tiles of tokens, `panels` are panels of 16 rows of a warp, `down` × `across` are the warps of a block,
    `ahead` × 128 columns are in flight, `splits` blocks share the columns, and `warp` is the threads of a warp."""

    tiles: int
    panels: int
    down: int
    across: int
    ahead: int
    splits: int
    warp: int = 32

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return 16 * self.panels * self.down

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warp * self.across * self.down

    def defines(self, weights: Weights, launch: Launch) -> dict[str, int]:
        """Return the macros, by name, with which skinny.cu is built for these weights."""
        sizes = {"TILES": self.tiles, "PANELS": self.panels, "DOWN": self.down, "ACROSS": self.across}
        kinds = {"WEIGHTS": weights.kind.number, "PAIRED": int(weights.is_paired), "GATED": int(launch.is_gated)}
        return {**kinds, **sizes, "AHEAD": self.ahead}


def tensor_plan(
    kind: WeightKind, rows: int, tokens: int, units: int, warp: int = 32, is_gated: bool = False
) -> TensorPlan:
    """Return the plan of skinny.cu that was fastest on an H200 for `rows` rows of weights and `tokens` tokens.

    `kind` is the type of the weights, `units` the number of compute units, and `warp` the threads of a warp."""
    width = warp // _LANES_A_TOKEN
    tiles = next(tiles for tiles in (1, 2, 4, 8) if width * tiles >= tokens)
    widest = width * tiles == _MOST_TOKENS
    if tiles == 1 and kind.bits == 4:
        if rows >= _MANY_ROWS:
            return TensorPlan(1, 2, 1, 4, 1, 1, warp)
        # Two blocks of one panel are resident on each compute unit.
        panels = 2 if is_gated or rows > 2 * 16 * units else 1
        return TensorPlan(1, panels, 1, _FEW_ROWS_THREADS // warp, 1, 1, warp)
    panels = 2 if is_gated or kind.bits == 4 or (tiles > 1 and rows >= _MANY_ROWS) or widest else 1
    if tiles == 1:
        return TensorPlan(1, panels, 1, 8, 2, 1, warp)
    down = 4 if widest else 8
    blocks = -(-rows // (16 * panels * down))
    return TensorPlan(tiles, panels, down, 1, 2, max(1, min(8, units // blocks)), warp)


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """How skinny_wgmma.cu is built and launched; the first lines of skinny_wgmma.cu explain the numbers.

    A block computes `tokens` tokens, and `resident` blocks run on each compute unit."""

    tokens: int
    warpgroups: int
    ahead: int
    depth: int
    resident: int
    is_gated: bool

    @property
    def rows(self) -> int:
        """Rows of Y of a block."""
        return 64 * self.warpgroups // (2 if self.is_gated else 1)

    @property
    def threads(self) -> int:
        """Threads of a block, of which a warp copies and the other ones multiply."""
        return 128 * self.warpgroups + 32

    @property
    def part_bytes(self) -> int:
        """Bytes of two parts of sums, which a block may leave."""
        return 512 * self.warpgroups * self.tokens

    def shared_bytes(self, kind: WeightKind) -> int:
        """Return the dynamic shared memory of a block: stages of X and of weights, and the sums to be gated."""
        group = 2 * GROUP * self.tokens + 64 * self.warpgroups * (GROUP * kind.bits // 8 + 2)
        return 1024 + self.depth * self.ahead * group + self.is_gated * self.part_bytes // 4

    def defines(self, kind: WeightKind) -> dict[str, int]:
        """Return the macros, by name, with which skinny_wgmma.cu is built for weights of `kind`."""
        sizes = {"TOKENS": self.tokens, "WARPGROUPS": self.warpgroups, "AHEAD": self.ahead, "DEPTH": self.depth}
        rest = {"RESIDENT": self.resident, "GATED": int(self.is_gated)}
        return {"WEIGHTS": kind.number, **sizes, **rest}

    def maps(self, weights: Weights) -> tuple[Any, Any]:
        """Return the tensor maps of the weights and of their scales."""
        tiles, groups = -(-weights.rows // _TILE), weights.cols // GROUP
        rows, eights = 4 * self.warpgroups // (2 if self.is_gated else 1), _TILE * GROUP * weights.kind.bits // 64
        piece = 1 if self.ahead % 2 else 8 // weights.kind.bits
        return (
            tensor_map(weights.words, tiles, groups * eights, rows, piece * eights, is_plain=True),
            tensor_map(weights.scales, tiles, groups * 4, rows, self.ahead * 4, is_plain=True),
        )


def group_plan(kind: WeightKind, rows: int, cols: int, tokens: int, is_gated: bool = False) -> GroupPlan:
    """Return the plan of skinny_wgmma.cu that was fastest on an H200 for `rows` rows of `cols` weights."""
    place = bisect.bisect_left(_WIDTHS, tokens)
    warpgroups, ahead, resident = _GROUP_PLANS[kind.bits][rows >= _MANY_ROWS][place]
    # Two warps of a warpgroup have the gates, and copies of one warpgroup's half would not be aligned.
    warpgroups, ahead = max(warpgroups, 1 + is_gated), math.gcd(ahead, cols // GROUP)
    single = GroupPlan(_WIDTHS[place], warpgroups, ahead, 1, resident, is_gated)
    none = replace(single, depth=0).shared_bytes(kind)
    depth = (_SHARED_BYTES // resident - none) // (single.shared_bytes(kind) - none)
    return replace(single, depth=depth)


def warp_call(bench: gb.Bench, weights: Weights, vectors: Vectors, launch: Launch = PLAIN) -> Call:
    """Return the call of Y = W·x by gemv.cu, for one token, launched as `launch` says."""
    plan = warp_plan(weights.kind, weights.cols, bench.traits.warp, launch)
    kernel = bench.kernel("gemv.cu", "gemv", **plan.defines(weights.kind, launch))
    blocks, most = -(-weights.rows // plan.rows), plan.resident * bench.device.device.units
    grid = (min(blocks, most) if most else blocks,)
    rows = weights.rows // launch.halves
    args = (weights.words, weights.scales, vectors.x, vectors.y, np.uint32(rows), np.uint32(weights.cols))
    return partial(kernel.early if launch.is_early else kernel, grid, (_THREADS,), args)


def tensor_call(
    bench: gb.Bench, weights: Weights, vectors: Vectors, tokens: int, launch: Launch = PLAIN, room: Any = None
) -> Call:
    """Return the call of Y = X·Wᵀ by skinny.cu or, on Hopper, skinny_wgmma.cu, launched as `launch` says.

    More tokens than weights.most_tokens are several launches. `room` is a workspace of WORKSPACE_BYTES that other
    products may use too. Raises Skip without matrix instructions."""
    if tokens > weights.most_tokens:
        rows, most = weights.rows // launch.halves, weights.most_tokens
        parts = (
            (min(most, tokens - first), Vectors(vectors.x[first * weights.cols :], vectors.y[first * rows :]))
            for first in range(0, tokens, most)
        )
        return in_turn(*(tensor_call(bench, weights, part, count, launch, room) for count, part in parts))
    if weights.is_by_groups(tokens):
        return _group_call(bench, weights, vectors, tokens, launch, room)
    xp, plan = bench.xp, _tensor_plan(bench, weights, tokens, launch)
    kernel = bench.kernel("skinny.cu", "skinny", **plan.defines(weights, launch))
    grid = (-(-weights.rows // plan.rows), plan.splits)
    parts = xp.empty(plan.splits * tokens * weights.rows if plan.splits > 1 else 0, "float32")
    arrived = xp.zeros(grid[0], "uint32")
    numbers = (np.uint32(value) for value in (weights.rows // launch.halves, weights.cols, tokens))
    args = (weights.words, weights.scales, vectors.x, vectors.y, *numbers, parts, arrived)
    return partial(kernel.early if launch.is_early else kernel, grid, (plan.threads,), args)


def order_of(bench: gb.Bench, tokens: int) -> int:
    """Return how quantised weights lie that are multiplied by up to `tokens` tokens, as a number of matrix_data.cu.

    It is 2 for skinny_wgmma.cu, which is faster from three tokens on, 1 for skinny.cu, and 0, row by row, without
    matrix instructions."""
    features = bench.traits.features
    return _PAIRED if tokens > _FEW_TOKENS and "wgmma" in features else int("matrix" in features)


def _group_call(
    bench: gb.Bench, weights: Weights, vectors: Vectors, tokens: int, launch: Launch, room: Any = None
) -> Call:
    """Return the early launch of skinny_wgmma.cu."""
    kind, rows, groups = weights.kind, weights.rows // launch.halves, weights.cols // GROUP
    plan = group_plan(kind, weights.rows, weights.cols, tokens, launch.is_gated)
    kernel = bench.kernel("skinny_wgmma.cu", "skinny_wgmma", **plan.defines(kind))
    panels, most = -(-rows // plan.rows), bench.device.device.units * plan.resident
    blocks = panels * max(1, min(most // panels, groups // _LEAST_GROUPS))  # that share no part of the columns
    if not 0.6 * most <= blocks <= most:
        blocks = min(most, panels * groups // plan.ahead)
    needed = blocks * plan.part_bytes
    parts = room if room is not None and room.nbytes >= needed else bench.xp.empty(needed, "uint8")
    maps = *plan.maps(weights), tensor_map(vectors.x, tokens, weights.cols, plan.tokens, GROUP // 2)
    numbers = (np.uint32(number) for number in (rows, weights.cols, tokens, weights.power))
    args = (*maps, vectors.y, *numbers, parts, bench.xp.zeros(panels, "uint32"))
    call = partial(kernel.early, (blocks,), (plan.threads,), args, plan.shared_bytes(kind))
    call.__dict__["arrays"] = weights, vectors  # which the maps do not keep in memory
    return call


def compile_tensor_calls(bench: gb.Bench, matrices: Iterable[tuple[Weights, Launch]], tokens: int) -> None:
    """Compile the kernel of the products of these matrices with `tokens` tokens, all variants at the same time.

    A variant takes up to a second. Raises Skip without matrix instructions."""
    variants: dict[str, list[dict[str, int]]] = {"skinny": [], "skinny_wgmma": []}
    for weights, launch in matrices:
        count = min(tokens, weights.most_tokens)
        if weights.is_by_groups(count):
            name, defines = (
                "skinny_wgmma",
                group_plan(weights.kind, weights.rows, weights.cols, count, launch.is_gated).defines(weights.kind),
            )
        else:
            name, defines = "skinny", _tensor_plan(bench, weights, count, launch).defines(weights, launch)
        if defines not in variants[name]:
            variants[name].append(defines)
    for name, every in variants.items():
        if every:
            bench.compile(f"{name}.cu", name, every)


def _tensor_plan(bench: gb.Bench, weights: Weights, tokens: int, launch: Launch) -> TensorPlan:
    """Return the plan of skinny.cu for these weights, for the device of `bench`."""
    if "matrix" not in bench.traits.features:
        raise gb.Skip(f"the kernel with matrix instructions needs sm_80, gfx90a or newer, not {bench.traits.arch}")
    units, warp = bench.device.device.units, bench.traits.warp
    return tensor_plan(weights.kind, weights.rows, tokens, units, warp, launch.is_gated)


def few_tokens_task(
    bench: gb.Bench,
    product_of: Callable[[Weights, Vectors], ProductCall],
    kind: str,
    rows: int,
    cols: int,
    tokens: int,
    *,
    tiled: bool,
) -> gb.Task:
    """Return Y = X·Wᵀ as a task, with copies of the weights in turn; every copy must give the same Y.

    `kind`, a key of KINDS, `rows` and `cols` describe W, and X has `tokens` rows."""
    bench.need(1.2 * (max(rows * cols * KINDS[kind].bits / 8, 4 * bench.target.device.cache_bytes) * 2) + 2**31)
    make, rng = Maker(bench), bench.rng
    seeds = [int(seed) for seed in rng.integers(2**63, size=2)]
    weights = Weights(make, kind, rows, cols, seeds[0], order=order_of(bench, tokens) if tiled else 0)
    copies: list[Weights] = copies_of(bench, weights)
    plain = FORMATS[weights.kind.vectors]
    x, ys = make.drawn(plain, tokens * cols, seeds[1]), bench.xp.empty((len(copies), tokens * rows), plain.storage)
    products = [product_of(copy, Vectors(x, y)) for copy, y in zip(copies, ys, strict=True)]

    def check() -> gb.Observation:
        """Compare one Y with double precision, and all other Ys with that Y bit by bit; return the errors of Y."""
        written = make.written(ys)
        first = int(written[0]) if written.size else 0
        differing = make.differing(ys, first)
        gb.expect(differing == 0, f"{differing} words of {len(written)} copies of y differ from the first copy")
        return compared(make, weights, Vectors(x, ys[first]), tokens)

    moved = float(weights.nbytes + plain.itemsize * tokens * (rows + cols))
    calls = [product.call for product in products]
    stage = rotated(calls, copies, moved, 2.0 * rows * cols * tokens, gb.POINT, (ys,), flipping(x))
    notes = {**products[0].notes, **rotation_notes(rows, cols, copies)}
    return gb.Task.of(stage, check=check, notes=notes)
