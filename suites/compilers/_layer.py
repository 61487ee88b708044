"""Measure attention of a prompt, and one whole decoder layer, by libraries, by compilers and by our kernels."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .. import inference
from .._checks import in_turn
from .._models import MODELS, Layer, Model
from ..inference._chain import PrefillChain, prefill_bytes
from ..inference._exact import turns
from ..inference._prefill_attention import PROVIDERS, PrefillAttention, PromptShape
from ..inference._weights import ModelWeights
from ._cases import in_full, runtime_of, task_of
from ._operators import OPERATORS, Operator, Problem, Rows
from ._providers import Built

_MASKED = -30000.0  # added to the score of a later token: its exponential is 0
NORMED = OPERATORS["rmsnorm"].expression
_MATRICES, _NORMS = ("qkv", "out", "up", "down"), ("first", "second")

topic = gb.Topic(
    views=[
        gb.View("bars", "Attention of a prompt: throughput by provider", ("attention",), by=("by",)),
        gb.View("bars", "A decoder layer: throughput by provider", ("layer",), by=("by",)),
    ]
)


def _inference_bench(bench: gb.Bench) -> gb.Bench:
    """Return `bench` with the package of the suite inference, so that it compiles that suite's kernels."""
    return replace(bench, package=inference.__name__)


def on_gpu_in_full(target: gb.Target) -> bool:
    """Return whether the target is a GPU and the tier is `full`."""
    return gb.on_gpu(target) and in_full(target)


def with_launches(bench: gb.Bench, task: gb.Task, eager: str) -> gb.Task:
    """Return `task` with its number of launches as an observed value, and with the note `eager`.

    `eager` names the provider that the task is compared with. The task has one stage without a name."""
    call = task.stages[""].call

    def check() -> gb.Observation:
        """Return what the task's own check observed, and the launches where the device can count them."""
        observed, launches = dict(task.check() or {}), bench.device.launches_of(call)
        return observed if launches is None else {**observed, "launches": gb.Observed(launches)}

    return replace(task, check=check, notes={**task.notes, "eager": eager})


def _attention_runtime(params: Mapping[str, Any]) -> str:
    return runtime_of({"by": "torch" if params["by"] == "cudnn" else params["by"]})


@topic.case(
    tokens=(2048,),
    heads=(32,),
    kv_heads=(8,),
    dim=(128,),
    by=tuple(PROVIDERS),
    runtime=_attention_runtime,
    when=on_gpu_in_full,
)
def attention(bench: gb.Bench, tokens: int, heads: int, kv_heads: int, dim: int, by: str) -> gb.Task:
    """Throughput of causal attention of a prompt (float16): 4·`dim` operations for each head and pair of tokens.

    Pairs that the causal mask removes do not count. `unfused` is two batched products of the vendor's library and a
    softmax between them. The others are one kernel: ours in Triton, torch's, and cuDNN's."""
    prefill_attention = PrefillAttention(_inference_bench(bench), PromptShape(tokens, heads, kv_heads, dim), by)
    return with_launches(bench, prefill_attention.task(), "unfused")


def decoder_layer(model: Model, xp: Any, x: Any, *parts: Any) -> Any:
    """Return the output of a layer for the tokens x, both (tokens, hidden), in functions that array libraries share.

    `xp` is the library's module."""
    qkv, out, up, down, first, second, cosine, sine, mask = parts
    tokens, heads, kv_heads, dim = x.shape[0], model.heads, model.kv_heads, model.dim
    projected = xp.matmul(NORMED(xp, x, first), qkv.T).reshape(tokens, heads + 2 * kv_heads, dim)
    projected = projected.swapaxes(0, 1)
    turned = _rotated(xp, projected[: heads + kv_heads], cosine, sine)
    queries = turned[:heads].reshape(kv_heads, heads // kv_heads * tokens, dim)
    scores = xp.matmul(queries, turned[heads:].swapaxes(1, 2)) * dim**-0.5
    scores = scores.reshape(heads, tokens, tokens) + mask
    powers = xp.exp(scores - xp.amax(scores, axis=-1, keepdims=True))
    shares = powers / xp.sum(powers, axis=-1, keepdims=True)
    attended = xp.matmul(shares.reshape(kv_heads, heads // kv_heads * tokens, tokens), projected[heads + kv_heads :])
    attended = attended.reshape(heads, tokens, dim).swapaxes(0, 1).reshape(tokens, heads * dim)
    x = x + xp.matmul(attended, out.T)
    gated = xp.matmul(NORMED(xp, x, second), up.T)
    gate, values = gated[:, : gated.shape[1] // 2], gated[:, gated.shape[1] // 2 :]
    return x + xp.matmul(gate / (1 + xp.exp(-gate)) * values, down.T)


def _rotated(xp: Any, x: Any, cosine: Any, sine: Any) -> Any:
    """Return x, (heads, tokens, dim), with its elements i and i + dim/2 rotated by the angle of their token."""
    half = x.shape[-1] // 2
    low, high = x[..., :half], x[..., half:]
    return xp.concatenate([low * cosine - high * sine, high * cosine + low * sine], axis=-1)


class LayerProblem(Problem):
    """One layer of a model over the `tokens` tokens of a prompt, in float16.

    `weights` are seeded, like the weights of the suite inference."""

    operators = {  # noqa: RUF012
        "layer": Operator("layer", ("x", *_MATRICES, *_NORMS, "cosine", "sine", "mask"), decoder_layer)
    }
    quantity = "flops"

    def __init__(self, bench: gb.Bench, model: Model, tokens: int) -> None:
        hidden = model.head.cols
        self.model = replace(model, depth=1, head=Layer("head", tokens, hidden))  # a prompt has each token once
        self.weights = ModelWeights(bench, self.model, "float16", 8 * prefill_bytes(self.model, tokens))
        norms = self.weights.norms
        norms[:] = norms.astype("float16")  # so that all providers have the same
        super().__init__(bench, "layer", tokens, hidden, "float16")
        self.operator = replace(self.operator, expression=partial(decoder_layer, self.model))

    def _drawn(self, bench: gb.Bench, name: str) -> Any:
        """Return the input `name` as a device array in float16."""
        if name == "x":
            return self.weights.embedding.view("float16").reshape(self.rows, self.cols)
        if name in _MATRICES:
            return self.weights.layers[0][name].words.view("float16").reshape(self.shape_of(name))
        if name in _NORMS:
            return self.weights.norms[_NORMS.index(name)].astype("float16")
        if name == "mask":
            return bench.xp.asarray(np.triu(np.full((self.rows, self.rows), _MASKED), 1).astype("float16"))
        turn = turns(self.rows, self.model.dim)[..., ("cosine", "sine").index(name)]
        return bench.xp.asarray(np.ascontiguousarray(turn).astype("float16"))

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Return the shape of the input `name`; the factors of a norm have one element for each column."""
        if name in _MATRICES:
            return (self.model.layer(name).rows, self.model.layer(name).cols)
        turn = (self.rows, self.model.dim // 2)
        plain = {"x": (self.rows, self.cols), "mask": (self.rows, self.rows), "cosine": turn, "sine": turn}
        return plain.get(name, (self.cols,))

    @property
    def work(self) -> gb.Work:
        """The work of a call: operations of the products and of the pairs of tokens that the mask leaves.

        The bytes moved count weights, tokens and results once."""
        model, tokens = self.model, self.rows
        matrices = sum(layer.size for layer in model.layers)
        pairs = tokens * (tokens + 1) / 2
        flops = 2.0 * tokens * matrices + 4.0 * model.heads * model.dim * pairs
        return gb.Work(moved=2.0 * (matrices + 2 * tokens * self.cols), flops=flops)

    def expected(self) -> Rows:
        """Return the checked rows in double precision, computed on the device once for the same inputs."""
        if not self._exact:
            wide = (array.astype("float64") for array in self.inputs.values())
            (output,) = self.operator.outputs_of(self.weights.make.xp, *wide)
            self._exact = (self.rows_of(output),)
        return self._exact

    def vendor(self, bench: gb.Bench) -> Built:
        """Return the layer as all calls of the suite inference's prefill but the last, which is the head."""
        prefill, tokens = PrefillChain(_inference_bench(bench), self.weights, self.rows), self.rows
        chain, device = prefill.chain, bench.device
        device.copy(chain.device_input, np.arange(tokens, dtype=np.uint32))
        chain.turns[..., 0], chain.turns[..., 1] = self.inputs["cosine"], self.inputs["sine"]
        stream = chain.stream.reshape(tokens, self.cols)
        notes = {"library": "the vendor's products, chain.cu", "precision": "sums and the residual stream in float32"}
        poison = partial(bench.poison, *prefill.outputs)
        return Built(in_turn(*prefill.calls[:-1]), lambda: (self.rows_of(stream),), poison, notes)


@topic.case(
    model=("llama-3-8b",),
    tokens=(2048,),
    by=("cupy", "vendor", "torch", "inductor", "jax"),
    runtime=runtime_of,
    when=on_gpu_in_full,
)
def layer(bench: gb.Bench, model: str, tokens: int, by: str) -> gb.Task:
    """Throughput of one decoder layer over the tokens of a prompt (float16), by operations of products and attention.

    `by` names the compiler or library. `vendor` is the layer of the suite inference: the vendor's products, and our
    kernels between them."""
    return task_of(bench, LayerProblem(bench, MODELS[model], tokens), by)
