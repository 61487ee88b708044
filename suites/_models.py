"""Language models as their matrices and their attention, by the published configurations.

A weight matrix is (rows, cols): outputs by inputs. Norms and rotations are left out, because they are no products.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpubench.api.suite import Work


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
    """The matrices of one of `depth` equal layers, in the order they are used, and the head after the last.

    Attention has `heads` heads of `dim` elements; as many of them as `kv_heads` divides share keys and values.
    """

    layers: tuple[Layer, ...]
    depth: int
    head: Layer
    heads: int
    kv_heads: int
    dim: int
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

    def cache_bytes(self, itemsize: int = 2) -> int:
        """Return the bytes of keys and values that one token leaves in the cache of all layers."""
        return 2 * itemsize * self.depth * self.kv_heads * self.dim

    def step(self, batch: int, context: int, weight_bytes: float, itemsize: int = 2) -> Work:
        """Count one step: `batch` sequences, each of which has `context` tokens in the cache after it.

        Bytes are those of all weights and of the cached keys and values, each read once; an item is a token.
        """
        attention = 4.0 * self.depth * self.heads * self.dim * context
        moved = weight_bytes + float(batch) * context * self.cache_bytes(itemsize)
        return Work(moved=moved, flops=batch * (2.0 * self.size + attention), items=batch)

    def prefill(self, tokens: int, weight_bytes: float, itemsize: int = 2) -> Work:
        """Count the prefill of one prompt: all layers for every token, the head for the last one.

        Each token attends to those before it and to itself. Bytes are those of all weights and of the keys and values
        that are written; an item is a token of the prompt.
        """
        products = 2.0 * tokens * (self.size - self.head.size) + 2.0 * self.head.size
        attention = 4.0 * self.depth * self.heads * self.dim * tokens * (tokens + 1) / 2
        moved = weight_bytes + float(tokens) * self.cache_bytes(itemsize)
        return Work(moved=moved, flops=products + attention, items=tokens)


def model(
    hidden: int, inner: int, heads: int, kv_heads: int, ups: int, depth: int, vocabulary: int, source: str
) -> Model:
    """Return a model whose `up` is `ups` matrices: two with a gate."""
    dim = hidden // heads
    layers = (
        Layer("qkv", hidden + 2 * kv_heads * dim, hidden),
        Layer("out", hidden, hidden),
        Layer("up", ups * inner, hidden),
        Layer("down", hidden, inner),
    )
    return Model(layers, depth, Layer("head", vocabulary, hidden), heads, kv_heads, dim, source)


MODELS = {
    "chatglm-6b": model(4096, 16384, 32, 32, 1, 28, 130528, "THUDM/chatglm-6b, config.json"),
    "llama-3-8b": model(4096, 14336, 32, 8, 2, 32, 128256, "meta-llama/Meta-Llama-3-8B, config.json"),
    "llama-3-70b": model(8192, 28672, 64, 8, 2, 80, 128256, "meta-llama/Meta-Llama-3-70B, config.json"),
}
