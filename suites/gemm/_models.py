"""Language models as their matrices: the products of one layer, by the published configurations.

A weight matrix is (rows, cols): outputs by inputs. Attention between `qkv` and `out`, norms and rotations are left out,
because they are no products with weights.
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
        """The number of weights."""
        return self.rows * self.cols


@dataclass(frozen=True, slots=True)
class Model:
    """The matrices of one of `depth` equal layers, in the order they are used, and the head after the last."""

    layers: tuple[Layer, ...]
    depth: int
    head: Layer
    source: str

    def layer(self, name: str) -> Layer:
        """Return the matrix of that name; raises KeyError where there is none."""
        return {layer.name: layer for layer in (*self.layers, self.head)}[name]

    @property
    def matrices(self) -> tuple[Layer, ...]:
        """Every matrix of the model, in the order they are used."""
        return self.layers * self.depth + (self.head,)

    @property
    def size(self) -> int:
        """The number of weights in all matrices."""
        return sum(layer.size for layer in self.matrices)


def _model(hidden: int, inner: int, keys: int, ups: int, depth: int, vocabulary: int, source: str) -> Model:
    """Return a model whose attention has `keys` keys and values, and whose `up` is `ups` matrices: two with a gate."""
    layers = (
        Layer("qkv", hidden + 2 * keys, hidden),
        Layer("out", hidden, hidden),
        Layer("up", ups * inner, hidden),
        Layer("down", hidden, inner),
    )
    return Model(layers, depth, Layer("head", vocabulary, hidden), source)


# keys: num_key_value_heads × hidden_size / num_attention_heads; in Llama 3 that is 8 heads of 128
MODELS = {
    "chatglm-6b": _model(4096, 16384, 4096, 1, 28, 130528, "THUDM/chatglm-6b, config.json"),
    "llama-3-8b": _model(4096, 14336, 1024, 2, 32, 128256, "meta-llama/Meta-Llama-3-8B, config.json"),
    "llama-3-70b": _model(8192, 28672, 1024, 2, 80, 128256, "meta-llama/Meta-Llama-3-70B, config.json"),
}
