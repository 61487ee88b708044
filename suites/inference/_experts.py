"""Compute the feed-forward networks of a mixture of experts in a step, by the kernels of experts.cu."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.api import suite as gb

from .._matrix.gemv import Weights
from .._models import Model

_THREADS, _MOST_THREADS, _MOST_TOKENS = 256, 1024, 64  # as in experts.cu

Call = Callable[[], None]


class Experts:
    """The networks of all layers for `rows` tokens; `kind` names how weights are stored.

    Raises Skip for other weights than float16, and for more tokens or experts than the kernels take (64 and 1024)."""

    def __init__(self, bench: gb.Bench, model: Model, kind: str, rows: int) -> None:
        if kind != "float16":
            raise gb.Skip(f"the kernels of a mixture of experts take weights in float16, not {kind}")
        if rows > _MOST_TOKENS or model.experts > _MOST_THREADS:
            raise gb.Skip(
                f"the kernels of a mixture of experts take {_MOST_TOKENS} tokens and {_MOST_THREADS} experts at most"
            )
        self._bench, self._model, self._rows, xp = bench, model, rows, bench.xp
        self._pairs = rows * model.active
        self.chosen = xp.empty((model.depth, self._pairs), "uint32")
        self._ranks = xp.empty(rows * model.experts, "uint32")
        self._active, self._masks = xp.empty(model.experts, "uint32"), xp.empty(model.experts, "uint64")
        self._shares = xp.empty(self._pairs, "float32")
        self._gated = xp.empty(self._pairs * model.layer("down").cols, "uint16")
        self._parts = xp.empty(self._pairs * model.head.cols, "float32")
        self.outputs = (self.chosen, self._ranks, self._shares, self._gated, self._parts)
        names = ("choose", "expert_up", "expert_down", "join_experts")
        sizes = {"EXPERTS": model.experts, "ACTIVE": model.active}
        self._kernels = {name: bench.kernel("experts.cu", name, **sizes) for name in names}

    def calls(self, layer: int, weights: Mapping[str, Weights], room: Mapping[str, Any]) -> list[Call]:
        """Return the calls of the network of the layer with the number `layer`, after the product of its router.

        `weights` are the layer's matrices by name, and `room` the device arrays of a Chain by name."""
        model, warps = self._model, _THREADS // self._bench.traits.warp
        hidden, inner = model.head.cols, model.layer("down").cols
        gathered = self._active, self._masks, self._ranks
        slots = min(model.experts, self._pairs)  # the largest number of experts that can have tokens
        lanes = _MOST_THREADS // model.experts * model.experts
        chosen = (room["router"], self.chosen[layer], self._shares, self._ranks, self._active, self._masks)
        up = (weights["up"].words, room["normed"], *gathered, self._gated)
        down = (weights["down"].words, self._gated, *gathered, self._shares, self._parts)
        return [
            self._launch("choose", (1,), chosen, self._rows, threads=lanes),
            self._launch("expert_up", (-(-inner // warps), slots), up, hidden, inner),
            self._launch("expert_down", (-(-hidden // warps), slots), down, inner, hidden),
            self._launch("join_experts", (-(-hidden // _THREADS), self._rows), (self._parts, room["down"]), hidden),
        ]

    def _launch(
        self, name: str, grid: tuple[int, ...], arrays: tuple[Any, ...], *numbers: int, threads: int = _THREADS
    ) -> Call:
        """Return the launch of the kernel `name` of experts.cu on these arrays and 32-bit numbers."""
        return partial(self._kernels[name], grid, (threads,), (*arrays, *map(np.uint32, numbers)))

    def routes(self) -> npt.NDArray[np.int64]:
        """Return the chosen experts of the last calls as a NumPy array, int64, shape (layers, tokens, ranks)."""
        chosen = self._bench.device.to_host(self.chosen)
        return np.asarray(chosen.reshape(self._model.depth, self._rows, -1).astype(np.int64))

    def touched(self) -> float:
        """Return the number of experts that have a token in the last calls, as the mean over the layers."""
        return float(np.mean([len(np.unique(layer)) for layer in self.routes()]))
