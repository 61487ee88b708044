"""Measure one step and one prefill of a whole model: every token of a batch through all layers, with a KV cache."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.api import suite as gb

from .._checks import in_turn
from .._models import MODELS, Model
from ._chain import CacheMemory, DecodeChain, PrefillChain, prefill_bytes
from ._toy import TOY, Tokens, ToyModel, ToyWeights
from ._weights import ModelWeights

_BOUND = 1e-4  # bound of the relative error of float32 logits; 4 layers cause about 3e-7
_TOY = ("toy",)  # the model that the host runs
# Every model is measured at this context, prompt length and largest batch.
_CONTEXT, _PROMPT, _MOST_BATCH = 2048, 2048, 64
_QUICK = ((1, _CONTEXT), (16, 512))  # batch and context of the steps of the quick tier
_STEP_S, _PREFILL_S = 3.0, 4.0  # sampling times that fill three quarters of a case, besides its check
_CHECK_S = 5e-11  # additional sampling seconds per weight: three times as long as the check of a step takes on an H200
# Kinds of weights of further models: the 70B model has kinds that fit into one GPU, the others kinds with kernels.
_KINDS = {
    "llama-3-70b": ("int4",),
    "chatglm-6b": ("float16", "int4"),
    "olmoe-1b-7b": ("float16",),
}

topic = gb.Topic(
    views=[
        gb.View(
            "curve",
            "Throughput of a step by batch size",
            ("step",),
            x="batch",
            by=("model", "weights", "context"),
            log_x=True,
        ),
        gb.View(
            "curve",
            "Throughput of a prefill by tokens of the prompt",
            ("prefill",),
            x="tokens",
            by=("model", "weights"),
        ),
    ],
)

Logits = npt.NDArray[Any]


def logits_error(weights: ToyWeights, sequence: Tokens, logits: Logits) -> float:
    """Return the relative error of the logits after `sequence`, compared with a prefill of it in double precision.

    `logits` has the shape (vocabulary,). Raises WrongAnswer if the error is above 1e-4."""
    exact = ToyModel(weights, 1, len(sequence), np.float64).prefill(0, sequence)
    error = float(np.linalg.norm(logits - exact) / np.linalg.norm(exact))
    gb.expect(error <= _BOUND, f"the relative error {error:.3g} of the logits is above {_BOUND:.3g}")
    return error


class ToyStep:
    """A step of the toy model for `batch` sequences, each of which has `context` tokens after the step."""

    def __init__(self, bench: gb.Bench, batch: int, context: int) -> None:
        self._rng = bench.rng
        self.weights = ToyWeights.drawn(TOY, self._rng)
        self.model = ToyModel(self.weights, batch, context)
        self._sequences = self._rng.integers(0, TOY.head.rows, (batch, context))
        for slot, sequence in enumerate(self._sequences):
            self.model.prefill(slot, sequence[:-1])
        self._slots, self._lengths = np.arange(batch), self.model.lengths.copy()
        self.logits = np.empty((batch, TOY.head.rows), np.float32)
        self.tokens = np.empty(batch, np.int64)
        appended = (cache[:, :, :, -1] for cache in (self.model.keys, self.model.values))
        self.outputs = (self.logits, self.tokens, *appended)

    def __call__(self) -> None:
        """Compute the logits and the most likely token that follows each sequence."""
        self.model.lengths[:] = self._lengths
        self.logits[:] = self.model.step(self._slots, self._sequences[:, -1])
        np.argmax(self.logits, axis=1, out=self.tokens)

    def check(self) -> gb.Observation:
        """Compare one random sequence with double precision, and each sequence's token with a batch of one.

        Returns the relative error, and the share of sequences whose token differs alone."""
        gb.expect(bool(np.isfinite(self.logits).all()), "logits are not written, NaN or infinite")
        gb.expect(
            bool((self.tokens == self.logits.argmax(axis=1)).all()), "a chosen token does not have the largest logit"
        )
        row = int(self._rng.integers(len(self.tokens)))
        error = logits_error(self.weights, self._sequences[row], self.logits[row])
        return {"error": gb.Observed(error), "differing": gb.Observed(self._differing() / len(self.tokens))}

    def _differing(self) -> int:
        """Return the number of sequences whose token in this batch differs from the token in a batch of one."""
        self.model.lengths[:] = self._lengths
        rows = zip(self._slots[:, None], self._sequences[:, -1:], strict=True)
        alone = [int(self.model.step(slot, last)[0].argmax()) for slot, last in rows]
        return int(np.count_nonzero(self.tokens != alone))


def _models(target: gb.Target) -> Any:
    return _TOY if target.is_host else gb.points(("llama-3-8b",), full=("llama-3-8b", *_KINDS))


def _weights(target: gb.Target) -> Any:
    return ("float32",) if target.is_host else gb.points(("float16", "int4"), ("int4",), ("float16", "int8", "int4"))


def _batches(target: gb.Target) -> Any:
    return gb.points((1, 2, 4, 8), (2,)) if target.is_host else gb.points((1, 16), (1,), gb.powers_of_two(0, 6))


def _contexts(target: gb.Target) -> Any:
    return (
        gb.points((16, 64), (16,), (16, 32, 64, 96))
        if target.is_host
        else gb.points((512, 2048), (512,), (512, 2048, 8192))
    )


def _step_points(target: gb.Target, params: Mapping[str, Any]) -> bool:
    """Return whether a point is measured: on the host every point; for llama-3-8b on a GPU the batches 1 and 64.

    At a context of 2048 tokens all its batches are measured; quick has two points, one that is compared with other
    tools and one with the number of tokens of a simulated query. Other models have the batches 1 and 16 at that
    context. The largest batch shows what a token of context costs, which is about the same in every batch."""
    batch, context = params["batch"], params["context"]
    if target.is_host:
        return True
    if params["model"] != "llama-3-8b":
        return params["weights"] in _KINDS[params["model"]] and batch in (1, 16) and context == _CONTEXT
    if target.tier == "quick":
        return (batch, context) in _QUICK
    return bool(batch in (1, _MOST_BATCH) or context == _CONTEXT)


def _prompt_points(target: gb.Target, params: Mapping[str, Any]) -> bool:
    """Return whether a point is measured: on a GPU only a prompt that the simulation or the curve needs.

    In full, prompts have up to 8192 tokens in float16, 2048 in int4 and 512 in int8; quick takes int4 without 2048
    tokens. Of models other than llama-3-8b only prompts of 2048 tokens are measured, and no mixtures of experts."""
    model, weights, tokens = params["model"], params["weights"], params["tokens"]
    if target.is_host:
        return True
    if model != "llama-3-8b":
        return MODELS[model].experts == 1 and tokens == _PROMPT and weights in _KINDS[model]
    if target.tier == "quick":
        return bool(weights == "float16" or tokens != _PROMPT)
    return bool(tokens <= {"float16": 8192, "int8": 512, "int4": _PROMPT}[weights])


def _effort(bench: gb.Bench, is_representative: bool, seconds: float) -> gb.Effort:
    """Return Effort.sustained(`seconds`) in the full tier if the point `is_representative`, else POINT."""
    return gb.Effort.sustained(seconds) if bench.target.tier == "full" and is_representative else gb.POINT


@topic.case(
    model=_models,
    weights=_weights,
    batch=_batches,
    context=_contexts,
    where=_step_points,
)
def step(bench: gb.Bench, model: str, weights: str, batch: int, context: int) -> gb.Task:
    """Tokens per second of one step, which appends a token to each of `batch` sequences of `context` tokens.

    The weights and the KV cache count as read once. `weights` is the type of the weights."""
    if model in MODELS:
        chosen = MODELS[model]
        effort = _effort(bench, batch in (1, 16) and context == _CONTEXT, _STEP_S + _CHECK_S * chosen.size)
        return step_task(bench, chosen, weights, batch, context, effort)
    built = ToyStep(bench, batch, context)
    work = TOY.step(batch, context, built.weights.nbytes, 4)
    stage = gb.Stage(built, work, "items", effort=gb.POINT, item="token", outputs=built.outputs)
    return gb.Task.of(stage, check=built.check, notes=toy_notes())


def _prompts(target: gb.Target) -> Any:
    """Return the points of the axis `tokens`, lengths of a prompt in tokens."""
    return (
        gb.points((16, 32, 64), (16,), (16, 32, 64, 96))
        if target.is_host
        else gb.points((512, 2048), (128,), (128, 512, 2048, 8192))
    )


@topic.case(
    model=_models,
    weights=_weights,
    tokens=_prompts,
    where=_prompt_points,
    headline={"model": "llama-3-8b", "weights": "float16", "tokens": 2048},
)
def prefill(bench: gb.Bench, model: str, weights: str, tokens: int) -> gb.Task:
    """Tokens of a prompt per second, from the prompt of `tokens` tokens to the first token of the answer.

    `weights` is the type of the weights. On a GPU attention is two batched products and a softmax between them, over
    all pairs of tokens; operations count the pairs that a token attends to."""
    if model in MODELS:
        # The check of the 70B model takes longer than its samples.
        is_representative = tokens == _PROMPT and model != "llama-3-70b"
        return prefill_task(bench, MODELS[model], weights, tokens, _effort(bench, is_representative, _PREFILL_S))
    rng = bench.rng
    drawn = ToyWeights.drawn(TOY, rng)
    toy, prompt = ToyModel(drawn, 1, tokens), rng.integers(0, TOY.head.rows, tokens)
    logits = np.empty(TOY.head.rows, np.float32)

    def check() -> gb.Observation:
        """Compare the logits with double precision; return the relative error."""
        return {"error": gb.Observed(logits_error(drawn, prompt, logits))}

    stage = gb.Stage(
        lambda: np.copyto(logits, toy.prefill(0, prompt)),
        TOY.prefill(tokens, drawn.nbytes, 4),
        "items",
        effort=gb.POINT,
        item="token",
        outputs=(logits,),
    )
    return gb.Task.of(stage, check=check, notes=toy_notes())


def _peak_memory(bench: gb.Bench, free_bytes: int) -> gb.Observed:
    """Return the bytes given out since the device had `free_bytes` free; call it before a check makes arrays."""
    return gb.Observed(float(max(0, free_bytes - bench.device.free_bytes())), "B")


def step_task(
    bench: gb.Bench, model: Model, kind: str, batch: int, context: int, effort: gb.Effort = gb.POINT
) -> gb.Task:
    """Return one step of `batch` sequences, which have `context` tokens after it, as a task judged by its tokens.

    `kind` is the type of the weights, a key of KINDS. Raises Skip if the model does not fit into the free memory."""
    free_bytes = bench.device.free_bytes()
    weights = ModelWeights(bench, model, kind, float(batch) * context * model.cache_bytes())
    memory = CacheMemory.drawn(weights, batch, context)
    step = DecodeChain(bench, weights, memory, batch)
    alone = DecodeChain(bench, weights, memory, 1) if batch > 1 else None

    first_observed: dict[str, gb.Observed] = {}  # values of the first check, which later checks need not measure again

    def check() -> gb.Observation:
        """Compare the step; the first check also observes peak memory and tokens that differ in a batch of one."""
        first = not first_observed
        first_observed.setdefault("peak_memory", _peak_memory(bench, free_bytes))
        observed = step.check()
        if alone and first:
            first_observed["differing"] = gb.Observed(step.differing(alone))
        return {**first_observed, **observed}

    work = model.step(batch, context, step.weight_bytes())
    stage = gb.Stage(
        in_turn(*step.calls),
        work,
        "items",
        "dram",
        modes=("graph",),
        max_calls=2,
        effort=effort,
        item="token",
        outputs=step.outputs,
    )
    files = "gemv.cu, skinny.cu, attention.cu, chain.cu" + (", experts.cu" if model.experts > 1 else "")
    launches = "early" if "early_launch" in bench.traits.features else "in turn"
    notes = step.chain.notes(f"{len(step.calls)} calls in a graph, launched {launches}: {files}")
    return gb.Task.of(stage, check=check, notes=notes)


def prefill_task(bench: gb.Bench, model: Model, kind: str, tokens: int, effort: gb.Effort = gb.POINT) -> gb.Task:
    """Return the prefill of a prompt of `tokens` tokens as a task judged by its tokens.

    `kind` is the type of the weights, a key of KINDS. Raises Skip if the model does not fit into the free memory."""
    free_bytes = bench.device.free_bytes()
    weights = ModelWeights(bench, model, kind, prefill_bytes(model, tokens))
    prefill = PrefillChain(bench, weights, tokens)
    first_observed: dict[str, gb.Observed] = {}  # later checks would also count the arrays of the first check

    def check() -> gb.Observation:
        first_observed.setdefault("peak_memory", _peak_memory(bench, free_bytes))
        return {**first_observed, **prefill.check()}

    work, call = model.prefill(tokens, weights.nbytes), in_turn(*prefill.calls)
    outputs = prefill.outputs
    stage = gb.Stage(call, work, "items", "tensor.float16", max_calls=1, effort=effort, item="token", outputs=outputs)
    notes = prefill.chain.notes(f"{len(prefill.calls)} calls: the vendor's products, chain.cu, the head by gemv.cu")
    return gb.Task.of(stage, check=check, notes=notes)


def toy_notes() -> dict[str, str]:
    """Return the notes `model` and `data` on the toy model."""
    return {
        "model": f"{TOY.depth} layers, {TOY.size} seeded weights: it shows the method, not a rate",
        "data": "seeded",
    }
