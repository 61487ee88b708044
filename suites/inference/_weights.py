"""Hold the seeded weights of a whole model in the memory of a GPU, in the formats of the suite gemm."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._checks import in_turn
from .._matrix.data import Maker
from .._matrix.formats import FORMATS, PRECISIONS, MatrixProduct, Shape
from .._matrix.gemv import (
    GROUP,
    KINDS,
    Call,
    Launch,
    Vectors,
    Weights,
    compile_tensor_calls,
    order_of,
    tensor_call,
    warp_call,
)
from .._matrix.vendor import WORKSPACE_BYTES, alike
from .._models import Layer, Model
from .._tensor_map import tensor_map
from ._eight import EIGHT_KINDS, ROUNDOFF, EightWeights

_HALF = FORMATS["float16"]
_SPARE_BYTES = 2**31
MODEL_KINDS = KINDS | EIGHT_KINDS
HALF_ROUNDOFF = 2.0**-11
_OUR_TOKENS = 8  # tokens up to which skinny.cu multiplies halves as fast as the vendor's library
# As in half_products.cu: rows of a box, columns of a stage, threads of a block, stages, and the tokens for which it is
# built. They were the fastest of 21 plans on an H200.
_BOX, _STAGE, _STAGE_THREADS, _STAGES, _STAGE_TOKENS = 64, 128, 288, 4, (16, 32)

AnyWeights = Weights | EightWeights


def _half_defines(tokens: int, is_gated: bool) -> dict[str, int]:
    """Return the macros, by name, with which half_products.cu is built."""
    return {
        "TOKENS": next(size for size in _STAGE_TOKENS if size >= tokens),
        "GATED": int(is_gated),
        "DEPTH": _STAGES,
    }


def described(weights: Weights, halves: Any, x: Any, y: Any, tokens: int) -> MatrixProduct:
    """Return Y = X·Wᵀ of flat device arrays of halves, where W has the sizes of `weights`."""
    shape = Shape(tokens, weights.rows, weights.cols, "nt")
    return MatrixProduct(PRECISIONS["float16"], shape, x, halves, y)


class ModelWeights:
    """The weights of a model, drawn at random so that numbers keep their size from layer to layer.

    `kind` is a key of MODEL_KINDS. `layers` has the matrices of each layer by name. Quantised weights lie as products
    with `tokens` tokens read them fastest."""

    def __init__(self, bench: gb.Bench, model: Model, kind: str, further_bytes: float, tokens: int = 1) -> None:
        described = MODEL_KINDS[kind]
        stored = described.bits / 8 + (2 / GROUP if described.is_quantised else 0)
        bench.need(1.05 * model.size * stored + _HALF.itemsize * model.head.size + further_bytes + _SPARE_BYTES)
        self.bench, self.model, self.kind = bench, model, kind
        self.make, self._rng = Maker(self.bench), bench.rng
        self._room: Any = None
        self.eights: dict[tuple[int, int], Any] = {}
        self.roundoff = ROUNDOFF if kind in EIGHT_KINDS else HALF_ROUNDOFF
        self._order = order_of(bench, tokens) if described.is_quantised else 0
        self.layers = [{layer.name: self._drawn(layer) for layer in model.layers} for _ in range(model.depth)]
        head = "float16" if kind in EIGHT_KINDS else kind, model.head.rows, model.head.cols
        self.head = Weights(self.make, *head, self._seed(), model.head.cols**-0.5, self._order)
        self.embedding = self.make.drawn(_HALF, model.head.size, self._seed())
        sizes = 2 * model.depth + 1, model.head.cols
        self.norms = bench.xp.asarray(self._rng.uniform(0.9, 1.1, sizes).astype(np.float32))
        self.shifts = bench.xp.asarray(self._rng.uniform(-0.1, 0.1, sizes).astype(np.float32))
        self.nbytes = self.head.nbytes + sum(weights.nbytes for layer in self.layers for weights in layer.values())

    def _seed(self) -> int:
        return int(self._rng.integers(2**63))

    def _drawn(self, layer: Layer) -> AnyWeights:
        """Return the seeded weights of a matrix of a layer."""
        size, seed, spread = (layer.rows, layer.cols), self._seed(), layer.cols**-0.5
        if self.kind in EIGHT_KINDS:
            return EightWeights(self.bench, self.make, self.kind, *size, seed, spread)
        return Weights(self.make, self.kind, *size, seed, spread, self._order)

    def compile(self, tokens: int) -> None:
        """Compile the kernels of all products with `tokens` tokens, all variants of skinny.cu at the same time.

        It does nothing where gemv.cu multiplies a single token, or the vendor's library many."""
        if (not self._order and tokens == 1) or self.is_by_vendor(tokens):
            return
        if self._is_by_half_products(tokens):
            every = [_half_defines(tokens, is_gated) for is_gated in (False, True)]
            self.bench.compile("half_products.cu", "half_products", every)
            return
        # A mixture of experts computes these matrices with special kernels.
        networks = ("up", "down") if self.model.experts > 1 else ()
        matrices = [
            (weights, self._launch(weights, tokens, name == "up" and self.model.is_gated))
            for name, weights in {**self.layers[0], "head": self.head}.items()
            if name not in networks and isinstance(weights, Weights)
        ]
        compile_tensor_calls(self.bench, matrices, tokens)

    def of(self, name: str) -> list[Weights]:
        """Return the matrix `name` of every layer, which has no eight bits."""
        return [weights for layer in self.layers if isinstance(weights := layer[name], Weights)]

    def products(self, name: str, x: Any, y: Any, tokens: int, is_gated: bool = False) -> list[Call]:
        """Return the call of Y = X·Wᵀ for the matrix `name` of every layer; in eight bits, None as `x` is rounded.

        `x` and `y` are flat device arrays of halves. The vendor's products of all layers have the same algorithm."""
        eights = [weights for layer in self.layers if isinstance(weights := layer[name], EightWeights)]
        if eights:
            calls = alike(
                self.bench, [weights.described(y, tokens, self.eights) for weights in eights], self.workspace()
            )
            if x is None:
                return calls
            return [in_turn(eights[0].rounding(x, tokens, self.eights), call) for call in calls]
        if self.is_by_vendor(tokens):
            return alike(
                self.bench,
                [described(weights, weights.words, x, y, tokens) for weights in self.of(name)],
                self.workspace(),
            )
        return [self.product(weights, x, y, tokens, is_gated) for weights in self.of(name)]

    def product(self, weights: Weights, x: Any, y: Any, tokens: int, is_gated: bool = False) -> Call:
        """Return the call of Y = X·Wᵀ for `tokens` tokens, by gemv.cu, skinny.cu or the vendor's library.

        `x` and `y` are flat device arrays of halves. The vendor's library has no gated product."""
        if self.is_by_vendor(tokens):
            (call,) = alike(self.bench, [described(weights, weights.words, x, y, tokens)], self.workspace())
            return call
        if self._is_by_half_products(tokens):
            return self._half_call(weights, x, y, tokens, is_gated)
        launch = self._launch(weights, tokens, is_gated)
        if self._order or tokens > 1:
            return tensor_call(self.bench, weights, Vectors(x, y), tokens, launch, self.workspace())
        return warp_call(self.bench, weights, Vectors(x, y), launch)

    def product_files(self, tokens: int) -> str:
        """Return what multiplies `tokens` tokens, for a note."""
        if self.kind in EIGHT_KINDS or self.is_by_vendor(tokens):
            return "the vendor's products"
        if self._is_by_half_products(tokens):
            return "half_products.cu"
        return f"gemv.cu, {self.head.source(tokens)}"

    def is_by_vendor(self, tokens: int) -> bool:
        """Return whether the vendor's library multiplies: halves by more tokens than our kernels are fast with."""
        is_few = tokens <= _OUR_TOKENS or self._is_by_half_products(tokens)
        return not MODEL_KINDS[self.kind].is_quantised and not is_few and self.bench.traits.vendor == "nvidia"

    def _is_by_half_products(self, tokens: int) -> bool:
        is_few = _OUR_TOKENS < tokens <= _STAGE_TOKENS[-1]
        return self.kind == "float16" and is_few and "wgmma" in self.bench.traits.features

    def _half_call(self, weights: Weights, x: Any, y: Any, tokens: int, is_gated: bool) -> Call:
        """Return the early launch of Y = X·Wᵀ by half_products.cu."""
        defines, units = _half_defines(tokens, is_gated), self.bench.device.device.units
        kernel, rows = self.bench.kernel("half_products.cu", "half_products", **defines), weights.rows // (1 + is_gated)
        panels = -(-rows // (_BOX if is_gated else 2 * _BOX))
        whole = units // panels * panels  # blocks that share panels evenly
        blocks = min(whole if 20 * whole >= 19 * units else units, panels * (weights.cols // _STAGE))
        most = defines["TOKENS"]
        maps = (
            tensor_map(weights.words, weights.rows, weights.cols, _BOX, _BOX),
            tensor_map(x, tokens, weights.cols, most, _BOX),
        )
        numbers = map(np.uint32, (rows, weights.cols, tokens))
        args = (*maps, y, *numbers, self.workspace(), self.bench.xp.zeros(panels, "uint32"))
        shared_bytes = 1024 + _STAGES * 2 * _STAGE * (2 * _BOX + most) + is_gated * 256 * most
        return partial(kernel.early, (blocks,), (_STAGE_THREADS,), args, shared_bytes)

    def workspace(self) -> Any:
        """Return the one workspace of all products of the vendor's library, which run one after another."""
        if self._room is None:
            self._room = self.bench.xp.empty(WORKSPACE_BYTES, "uint8")
        return self._room

    def _launch(self, weights: Weights, tokens: int, is_gated: bool) -> Launch:
        """Return how the product of these weights is launched."""
        is_early = tokens == 1 or not weights.kind.is_quantised or weights.is_by_groups(tokens)
        return Launch(is_early, is_gated)
