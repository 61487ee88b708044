"""Describe language models by their matrices and their attention, from the published configurations.

A weight matrix is (rows, cols): outputs by inputs. Norms and rotations are left out, because they are not products."""

import re
from dataclasses import dataclass
from typing import Literal

from gpubench.model import Work

Norm = Literal["rms", "layer"]

_SAME_SIZE = 2e-4  # relative: norms and biases, which no matrix holds, are at most 1e-4 of the parameters


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
    """The matrices of one of `depth` equal layers, in the order of use, and the head after the last layer.

    Attention has `heads` heads of `dim` elements each, and `kv_heads` heads of keys and values, which they share
    evenly. A norm divides by the root mean square (`rms`), or subtracts the mean first and adds a shift at the end
    (`layer`). In a mixture of experts, `up` and `down` hold the matrices of all `experts`, and each token uses `active`
    of them. `source` names the published configuration."""

    layers: tuple[Layer, ...]
    depth: int
    head: Layer
    heads: int
    kv_heads: int
    dim: int
    source: str
    is_tied: bool = False  # the head is the embedding, which is stored once
    norm: Norm = "rms"
    experts: int = 1
    active: int = 1

    @property
    def is_gated(self) -> bool:
        """Whether half of `up` is a gate (SiLU) for the other half; without a gate, GELU is applied to `up`."""
        return self.layer("up").rows == 2 * self.layer("down").cols * self.experts

    @property
    def expert_size(self) -> int:
        """The number of weights of one expert in one layer; without a mixture, of the feed-forward network."""
        return (self.layer("up").size + self.layer("down").size) // self.experts

    @property
    def active_size(self) -> int:
        """The number of weights by which one token is multiplied."""
        return self.size - self.depth * (self.experts - self.active) * self.expert_size

    def layer(self, name: str) -> Layer:
        """Return the matrix with this name. Raises KeyError if there is none."""
        return {layer.name: layer for layer in (*self.layers, self.head)}[name]

    @property
    def matrices(self) -> tuple[Layer, ...]:
        """Every matrix of the model, in the order of use."""
        return self.layers * self.depth + (self.head,)

    @property
    def size(self) -> int:
        """The number of weights in all matrices."""
        return sum(layer.size for layer in self.matrices)

    @property
    def parameters(self) -> int:
        """The number of parameters in all matrices and the embedding, of which a step reads one row per token."""
        return self.size + (0 if self.is_tied else self.head.size)

    def cache_bytes(self, itemsize: float = 2) -> float:
        """Return the bytes of keys and values that one token adds to all layers; `itemsize` is in bytes."""
        return 2 * itemsize * self.depth * self.kv_heads * self.dim

    def between_bytes(self, tokens: int) -> float:
        """Return the bytes that norms, rotations and gates move in a prefill, each kernel by itself in float16.

        A norm reads and writes the sum of all layers in float32; it is twice in a layer, the others once."""
        up, down, qkv = (self.layer(name) for name in ("up", "down", "qkv"))
        inner = 2 * up.rows + 2 * down.cols
        return float(tokens) * self.depth * (2 * 12 * self.head.cols + 4 * qkv.rows + inner)

    def step(self, batch: float, context: float, weight_bytes: float, itemsize: float = 2) -> Work:
        """Return the work of one step of `batch` sequences, each of which then has `context` tokens in the cache.

        It reads all weights (`weight_bytes`) and the cached keys and values once; `itemsize` is the bytes of a cached
        element. An item is a token."""
        attention = 4.0 * self.depth * self.heads * self.dim * context
        moved = weight_bytes + float(batch) * context * self.cache_bytes(itemsize)
        return Work(moved=moved, flops=batch * (2.0 * self.active_size + attention), items=batch)

    def prefill(self, tokens: int, weight_bytes: float, itemsize: float = 2) -> Work:
        """Return the work of the prefill of a prompt of `tokens` tokens: all layers for each, the head for one.

        Each token attends to the tokens before it and to itself; the head is applied to the last one. It reads all
        weights (`weight_bytes`) once and writes the keys and values, of `itemsize` bytes per element. An item is a
        token."""
        products = 2.0 * tokens * (self.active_size - self.head.size) + 2.0 * self.head.size
        attention = 4.0 * self.depth * self.heads * self.dim * tokens * (tokens + 1) / 2
        moved = weight_bytes + float(tokens) * self.cache_bytes(itemsize)
        return Work(moved=moved, flops=products + attention, items=tokens)


def model(
    hidden: int,
    inner: int,
    heads: int,
    kv_heads: int,
    ups: int,
    depth: int,
    vocabulary: int,
    source: str,
    is_tied: bool = False,
    norm: Norm = "rms",
) -> Model:
    """Return a model of `depth` layers with `hidden` elements per token and `inner` in the feed-forward network.

    `heads` and `kv_heads` are the numbers of attention heads and of heads of keys and values. `ups` is the number of
    matrices in `up`: two with a gate. `vocabulary` is the number of tokens that the head scores, and `source` the
    document of the configuration."""
    dim = hidden // heads
    layers = (
        Layer("qkv", hidden + 2 * kv_heads * dim, hidden),
        Layer("out", hidden, hidden),
        Layer("up", ups * inner, hidden),
        Layer("down", hidden, inner),
    )
    return Model(layers, depth, Layer("head", vocabulary, hidden), heads, kv_heads, dim, source, is_tied, norm)


def mixture(
    hidden: int, inner: int, heads: int, experts: int, active: int, depth: int, vocabulary: int, source: str
) -> Model:
    """Return a mixture of `experts` experts with a gate; each token uses `active` of them.

    The other arguments are the same as for `model`; the heads share no keys and values."""
    layers = (
        Layer("qkv", 3 * hidden, hidden),
        Layer("out", hidden, hidden),
        Layer("router", experts, hidden),
        Layer("up", 2 * experts * inner, hidden),
        Layer("down", experts * hidden, inner),
    )
    head = Layer("head", vocabulary, hidden)
    return Model(layers, depth, head, heads, heads, hidden // heads, source, experts=experts, active=active)


LANGUAGE_MODELS = {
    "chatglm-6b": model(4096, 16384, 32, 32, 1, 28, 130528, "THUDM/chatglm-6b, config.json", norm="layer"),
    "llama-2-7b": model(4096, 11008, 32, 32, 2, 32, 32000, "meta-llama/Llama-2-7b-hf, config.json"),
    "llama-2-13b": model(5120, 13824, 40, 40, 2, 40, 32000, "meta-llama/Llama-2-13b-hf, config.json"),
    "llama-2-70b": model(8192, 28672, 64, 8, 2, 80, 32000, "meta-llama/Llama-2-70b-hf, config.json"),
    "llama-3-8b": model(4096, 14336, 32, 8, 2, 32, 128256, "meta-llama/Meta-Llama-3-8B, config.json"),
    "llama-3-70b": model(8192, 28672, 64, 8, 2, 80, 128256, "meta-llama/Meta-Llama-3-70B, config.json"),
    "llama-3.2-1b": model(2048, 8192, 32, 8, 2, 16, 128256, "meta-llama/Llama-3.2-1B, config.json", is_tied=True),
    "llama-3.2-3b": model(3072, 8192, 24, 8, 2, 28, 128256, "meta-llama/Llama-3.2-3B, config.json", is_tied=True),
    "mistral-7b-v0.3": model(4096, 14336, 32, 8, 2, 32, 32768, "mistralai/Mistral-7B-v0.3, config.json"),
    "qwen2.5-7b": model(3584, 18944, 28, 4, 2, 28, 152064, "Qwen/Qwen2.5-7B, config.json"),
    "qwen2.5-14b": model(5120, 13824, 40, 8, 2, 48, 152064, "Qwen/Qwen2.5-14B, config.json"),
    "qwen2.5-32b": model(5120, 27648, 40, 8, 2, 64, 152064, "Qwen/Qwen2.5-32B, config.json"),
    "qwen2.5-72b": model(8192, 29568, 64, 8, 2, 80, 152064, "Qwen/Qwen2.5-72B, config.json"),
    "qwen3-8b": model(4096, 12288, 32, 8, 2, 36, 151936, "Qwen/Qwen3-8B, config.json"),
}
# Parts of published names of the models above, and of others that have the same matrices.
_NAMES = {
    "chatglm-6b": r"chatglm-6b",
    "llama-2-7b": r"llama-?2-7b",
    "llama-2-13b": r"llama-?2-13b",
    "llama-2-70b": r"llama-?2-70b",
    "llama-3-8b": r"llama-?3(\.1)?-8b|distill-llama-8b",
    "llama-3-70b": r"llama-?3(\.[13])?-70b|distill-llama-70b",
    "llama-3.2-1b": r"llama-?3\.2-1b",
    "llama-3.2-3b": r"llama-?3\.2-3b",
    "mistral-7b-v0.3": r"mistral-7b-(instruct-)?v0\.3",
    "qwen2.5-7b": r"qwen2(\.5)?-(coder-|math-)?7b|distill-qwen-7b",
    "qwen2.5-14b": r"qwen2\.5-(coder-)?14b|distill-qwen-14b",
    "qwen2.5-32b": r"qwen2\.5-(coder-)?32b|distill-qwen-32b",
    "qwen2.5-72b": r"qwen2(\.5)?-(math-)?72b",
    "qwen3-8b": r"qwen3-8b",
}


def model_named(name: str) -> str:
    """Return the key in `LANGUAGE_MODELS` for a name such as `meta-llama/Llama-3.1-8B-Instruct`; empty if none fits."""
    text = name.lower().replace("_", "-")
    return next((key for key, pattern in _NAMES.items() if re.search(rf"(?<![a-z0-9])({pattern})(?![\w.])", text)), "")


def model_of_size(parameters: int) -> str:
    """Return the key in `LANGUAGE_MODELS` of the first model with this number of parameters, to 0.02 %.

    The result is empty if there is none."""
    close = (
        key for key, candidate in LANGUAGE_MODELS.items() if abs(candidate.parameters / parameters - 1) < _SAME_SIZE
    )
    return next(close, "")
