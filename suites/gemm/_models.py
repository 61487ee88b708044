"""Language models as their matrices: the products of one layer, by the published configurations.

A weight matrix is (rows, cols): outputs by inputs. What attention does between `qkv` and `out`, norms
and rotations are no products with weights and are left out.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layer:
    """One weight matrix: y (rows) = W (rows × cols) · x (cols)."""

    name: str
    rows: int
    cols: int

    @property
    def size(self) -> int:
        """Its number of weights."""
        return self.rows * self.cols


@dataclass(frozen=True, slots=True)
class Model:
    """The matrices of one of `depth` equal layers, in the order they are used, and the head after the last."""

    layers: tuple[Layer, ...]
    depth: int
    head: Layer
    source: str

    def layer(self, name: str) -> Layer:
        """The matrix of that name; KeyError where there is none."""
        return {layer.name: layer for layer in (*self.layers, self.head)}[name]

    @property
    def matrices(self) -> tuple[Layer, ...]:
        """Every matrix of the model, in the order they are used."""
        return self.layers * self.depth + (self.head,)

    @property
    def size(self) -> int:
        """The weights that one token meets."""
        return sum(layer.size for layer in self.matrices)


def _gated(hidden: int, inner: int, keys: int, depth: int, vocabulary: int, source: str) -> Model:
    """A layer with grouped-query attention and a gated feed-forward network, gate and up as one matrix."""
    layers = (
        Layer("qkv", hidden + 2 * keys, hidden),
        Layer("out", hidden, hidden),
        Layer("up", 2 * inner, hidden),
        Layer("down", hidden, inner),
    )
    return Model(layers, depth, Layer("head", vocabulary, hidden), source)


def _plain(hidden: int, inner: int, depth: int, vocabulary: int, source: str) -> Model:
    """A layer with full attention and a feed-forward network of two matrices."""
    layers = (
        Layer("qkv", 3 * hidden, hidden),
        Layer("out", hidden, hidden),
        Layer("up", inner, hidden),
        Layer("down", hidden, inner),
    )
    return Model(layers, depth, Layer("head", vocabulary, hidden), source)


# keys: 8 heads of 128, num_key_value_heads × hidden_size / num_attention_heads
MODELS = {
    "chatglm-6b": _plain(4096, 16384, 28, 130528, "THUDM/chatglm-6b, config.json"),
    "llama-3-8b": _gated(4096, 14336, 1024, 32, 128256, "meta-llama/Meta-Llama-3-8B, config.json"),
    "llama-3-70b": _gated(8192, 28672, 1024, 80, 128256, "meta-llama/Meta-Llama-3-70B, config.json"),
}
