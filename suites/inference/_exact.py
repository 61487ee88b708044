"""Compute the chain of a model in double precision for a few tokens, from stored weights and cached keys and values.

A token is computed from its embedding through all layers. It attends to the cached keys and values of the tokens
before it, and to its own, which are compared with the exact ones."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.api import suite as gb

from .._matrix.formats import FORMATS
from ._weights import AnyWeights, ModelWeights

_HALF = FORMATS["float16"]
_ROTARY_BASE = 500_000.0  # rope_theta of meta-llama/Meta-Llama-3-8B, config.json
_EPSILON = 1e-5  # epsilon of the norms, as in chain.cu
_ROUNDINGS = 8  # roundings to a half per layer: norm, qkv, queries and keys, attention, out, norm, gate, down

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Keys and values of a layer as (sequence, KV head, capacity, dim) halves."""

    capacity: int
    kv_heads: int
    dim: int


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A token of a sequence at a place, whose logits or cached keys are compared."""

    sequence: int
    place: int
    token: int


class ExactChain:
    """The chain of some tokens in double precision, which go through the layers together.

    `caches` has the keys and values of each layer."""

    def __init__(
        self, weights: ModelWeights, caches: Sequence[tuple[Any, Any]], layout: CacheLayout, routes: Any = None
    ) -> None:
        self._weights, self._model, self._caches, self._layout = weights, weights.model, caches, layout
        self._routes = routes
        # For sampled tokens: layer, token, its key and its value.
        self._own: list[tuple[int, SampledToken, Doubles, Doubles]] = []
        self._turns = turns(layout.capacity, layout.dim)
        self._xp, self._to_host = weights.make.xp, weights.make.to_host

    def logits(self, sampled: Sequence[SampledToken]) -> Doubles:
        """Return the logits of the tokens `sampled` as NumPy doubles, (tokens, vocabulary).

        Raises WrongAnswer if the cached keys or values of a token differ from the exact ones by more than rounding
        explains."""
        weights, model, hidden = self._weights, self._model, self._model.head.cols
        rows = [weights.embedding[token.token * hidden : (token.token + 1) * hidden] for token in sampled]
        x = np.stack([self._to_host(row).view(np.float16).astype(float) for row in rows])
        norms = self._norms()
        for layer, matrices in enumerate(weights.layers):
            qkv = self._product(matrices["qkv"], norms[2 * layer](x))
            heads = qkv.reshape(len(sampled), -1, model.dim)
            attended = [
                self._attended(layer, token, token_heads) for token, token_heads in zip(sampled, heads, strict=True)
            ]
            x = x + self._product(matrices["out"], np.stack(attended))
            x = x + self._network(layer, matrices, norms[2 * layer + 1](x), sampled)
        self._logits = self._product(weights.head, norms[-1](x))
        return self._logits

    def again(self) -> Doubles:
        """Return the last logits again; raises WrongAnswer if the cache has no longer the same keys and values."""
        for entry in self._own:
            self._compare(*entry)
        return self._logits

    def _network(
        self, layer: int, matrices: Mapping[str, AnyWeights], x: Doubles, sampled: Sequence[SampledToken]
    ) -> Doubles:
        """Return the output of the feed-forward network of a layer for x, both (tokens, hidden)."""
        model = self._model
        up = self._product(matrices["up"], x)
        if model.experts == 1:
            return self._product(matrices["down"], gated(up) if model.is_gated else gelu(up))
        rows = []
        for token, logits, values in zip(sampled, self._product(matrices["router"], x), up, strict=True):
            chosen = self._chosen(layer, token, logits)
            shares = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
            inner = gated(values.reshape(model.experts, -1)[chosen])
            outputs = self._product(matrices["down"], inner).reshape(len(chosen), model.experts, -1)
            rows.append(shares[chosen] @ outputs[np.arange(len(chosen)), chosen])
        return np.stack(rows)

    def _chosen(self, layer: int, sampled: SampledToken, logits: Doubles) -> Any:
        """Return the experts that the device has chosen for a token, int64, given the exact `logits` of the router."""
        chosen = self._routes[layer, sampled.sequence]
        gb.expect(
            len(set(chosen.tolist())) == len(chosen), f"the experts {chosen.tolist()} of layer {layer} are not distinct"
        )
        gb.expect(bool((chosen < len(logits)).all()), f"the experts of layer {layer} are not written")
        shortfall = float(np.delete(logits, chosen).max() - logits[chosen].min())
        bound = 2 * rounding_bound(layer + 1, self._weights.roundoff) * float(np.sqrt(np.mean(logits**2)))
        gb.expect(shortfall <= bound, f"the router of layer {layer} prefers another expert by {shortfall:.3g}")
        return chosen

    def _norms(self) -> list[Callable[[Doubles], Doubles]]:
        """Return the norms of the model in their order: functions of (tokens, hidden) that return the same shape."""
        factors, shifts = (self._to_host(array).astype(float) for array in (self._weights.norms, self._weights.shifts))
        if self._model.norm == "rms":
            return [partial(normed, factors=row) for row in factors]
        return [partial(layer_normed, factors=row, shifts=shift) for row, shift in zip(factors, shifts, strict=True)]

    def _product(self, weights: AnyWeights, x: Doubles) -> Doubles:
        """Return X·Wᵀ in double precision, computed on the device."""
        return np.asarray(self._to_host(weights.product(self._xp.asarray(x))))

    def _attended(self, layer: int, sampled: SampledToken, heads: Doubles) -> Doubles:
        """Return the attention output of one token in a layer, flat: (heads · dim,)."""
        model, xp = self._model, self._xp
        rotated_heads = rotated(heads[: model.heads + model.kv_heads], self._turns[sampled.place])
        queries = rotated_heads[: model.heads].reshape(model.kv_heads, -1, model.dim)
        keys, values = (self._doubles(array, sampled) for array in self._caches[layer])
        entry = layer, sampled, rotated_heads[model.heads :], heads[model.heads + model.kv_heads :]
        self._compare(*entry)
        self._own.append(entry)
        scores = self._to_host(xp.matmul(xp.asarray(queries), keys.transpose(0, 2, 1))) / math.sqrt(model.dim)
        powers = np.exp(scores - scores.max(axis=2, keepdims=True))
        shares = xp.asarray(powers / powers.sum(axis=2, keepdims=True))
        return np.asarray(self._to_host(xp.matmul(shares, values))).ravel()

    def _doubles(self, array: Any, sampled: SampledToken) -> Any:
        """Return the cached keys or values (`array`) of the token's sequence, up to the token and with it."""
        layout = self._layout
        lines = layout.kv_heads * layout.capacity
        first = sampled.sequence * lines * layout.dim
        part = array[first : first + lines * layout.dim]
        wide = self._weights.make.widened(part, _HALF, lines, layout.dim, (layout.dim, 1))
        return wide.reshape(layout.kv_heads, layout.capacity, layout.dim)[:, : sampled.place + 1]

    def _compare(self, layer: int, sampled: SampledToken, *exact: Doubles) -> None:
        """Raise WrongAnswer if the cached key or value of a token in a layer differs by more than rounding explains."""
        layout, bound = self._layout, rounding_bound(layer + 1, self._weights.roundoff)
        for array, expected in zip(self._caches[layer], exact, strict=True):
            places = array.view("uint16").reshape(-1, layout.kv_heads, layout.capacity, layout.dim)
            stored = self._to_host(places[sampled.sequence, :, sampled.place]).view(np.float16).astype(float)
            error = relative(stored, expected)
            gb.expect(
                error <= bound,
                f"the relative error {error:.3g} of a key or value of layer {layer} is above {bound:.3g}",
            )


def rounding_bound(layers: int, roundoff: float) -> float:
    """Return the largest relative error that this many layers may have; each rounds several times."""
    return 4 * roundoff * math.sqrt(_ROUNDINGS * layers)


def relative(values: Doubles, exact: Doubles) -> float:
    """Return ‖values − exact‖/‖exact‖, or infinity if any value is NaN or infinite."""
    error = float(np.linalg.norm(values - exact) / np.linalg.norm(exact))
    return error if math.isfinite(error) else math.inf


def turns(places: int, dim: int) -> Doubles:
    """Return cosine and sine of the rotary embedding: (places, dim/2, 2)."""
    half = dim // 2
    angles = np.arange(places)[:, None] * _ROTARY_BASE ** (-np.arange(half) / half)
    return np.stack([np.cos(angles), np.sin(angles)], axis=2)


def rotated(x: Doubles, turn: Doubles) -> Doubles:
    """Rotate the elements i and i + dim/2 of each row by the turns (dim/2, 2) of its place."""
    first, second = np.split(x, 2, axis=-1)
    cosine, sine = turn[..., 0], turn[..., 1]
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def gated(x: Doubles) -> Doubles:
    """Return the second half of each row times the SiLU of the first half."""
    gate, up = np.split(x, 2, axis=-1)
    return np.asarray(gate / (1 + np.exp(-gate)) * up)


def gelu(x: Doubles) -> Doubles:
    """Return GELU by its approximation with a hyperbolic tangent (Hendrycks and Gimpel, 2016), as ChatGLM-6B does."""
    return np.asarray(x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def layer_normed(x: Doubles, factors: Doubles, shifts: Doubles) -> Doubles:
    """Return each row without its mean over its standard deviation, times the factors, plus the shifts."""
    centred = x - np.mean(x, axis=-1, keepdims=True)
    return normed(centred, factors) + shifts


def normed(x: Doubles, factors: Doubles) -> Doubles:
    """Return each row over its root mean square, times the factors."""
    return np.asarray(x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + _EPSILON) * factors)
