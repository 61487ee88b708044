"""Measure one step and one prefill of a whole model: every token of a batch through all layers, with a KV cache."""

from collections.abc import Mapping
from typing import Any

from gpubench.api import suite as gb

from .._checks import in_turn
from .._models import MODELS, Model
from ._chain import CacheMemory, DecodeChain, PrefillChain, prefill_bytes
from ._eight import EIGHT_KINDS
from ._weights import ModelWeights

# Every model is measured at this context and prompt length.
_CONTEXT, _PROMPT = 2048, 2048
_LONG_BATCH, _EIGHT_BATCH = 64, 16  # the batch of other contexts, and the smallest with weights of eight bits
_QUICK = ((1, _CONTEXT), (16, 512))  # batch and context of the steps of the quick tier
_STEP_S, _PREFILL_S = 3.0, 4.0  # sampling times that fill three quarters of a case, besides its check
_CHECK_S = 5e-11  # additional sampling seconds per weight: three times as long as the check of a step takes on an H200
# Kinds of weights of further models: the 70B model has kinds that fit into one GPU, the others kinds with kernels.
_KINDS = {
    "llama-3-70b": ("int4",),
    "chatglm-6b": ("float16", "int4"),
    "olmoe-1b-7b": ("float16",),
}
_MODEL = gb.points(("llama-3-8b",), full=("llama-3-8b", *_KINDS))

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


def _is_step(target: gb.Target, params: Mapping[str, Any]) -> bool:
    """Return whether a step is measured: of llama-3-8b the batches 1 and 64, and all batches at 2048 tokens.

    Quick has two points: one that is compared with other tools, and one of a batch. Other models have the batches 1 and
    16 at 2048 tokens. The batch 64 shows what a token of context costs, about the same in every batch."""
    batch, context = params["batch"], params["context"]
    if params["model"] != "llama-3-8b":
        return params["weights"] in _KINDS[params["model"]] and batch in (1, 16) and context == _CONTEXT
    if target.tier == "quick":
        return (batch, context) in _QUICK
    if params["weights"] in EIGHT_KINDS and batch < _EIGHT_BATCH:
        return False
    return bool(batch in (1, _LONG_BATCH) or context == _CONTEXT)


def _is_prompt(_target: gb.Target, params: Mapping[str, Any]) -> bool:
    """Return whether a prefill is measured: of other models than llama-3-8b 2048 tokens, and no mixtures of experts."""
    model, weights, tokens = params["model"], params["weights"], params["tokens"]
    if model != "llama-3-8b":
        return MODELS[model].experts == 1 and tokens == _PROMPT and weights in _KINDS[model]
    return bool(tokens <= {"float16": 8192, "int8": 512}.get(weights, _PROMPT))


def _effort(bench: gb.Bench, is_representative: bool, seconds: float) -> gb.Effort:
    """Return Effort.sustained(`seconds`) in the full tier if the point `is_representative`, else POINT."""
    return gb.Effort.sustained(seconds) if bench.target.tier == "full" and is_representative else gb.POINT


@topic.case(
    model=_MODEL,
    weights=gb.points(("float16",), ("int4",), ("float16", "int8", "int4", *EIGHT_KINDS)),
    batch=gb.points((1, 16), (1,), gb.powers_of_two(0, 8)),
    context=gb.points((512, 2048), (512,), (512, 2048, 8192)),
    when=gb.on_gpu,
    where=_is_step,
)
def step(bench: gb.Bench, model: str, weights: str, batch: int, context: int) -> gb.Task:
    """Tokens per second of one step, which appends a token to each of `batch` sequences of `context` tokens.

    The weights and the KV cache count as read once. `weights` is the type of the weights."""
    chosen = MODELS[model]
    effort = _effort(bench, batch in (1, 16) and context == _CONTEXT, _STEP_S + _CHECK_S * chosen.size)
    return step_task(bench, chosen, weights, batch, context, effort)


@topic.case(
    model=("llama-3-8b",),
    weights=("float16",),
    batch=gb.points((), (), (16, 64)),
    context=(_CONTEXT,),
    prefilled=(256,),
    when=gb.on_gpu,
)
def chunked_step(bench: gb.Bench, model: str, weights: str, batch: int, context: int, prefilled: int) -> gb.Task:
    """Tokens per second of a step as in `step` that also takes the first `prefilled` tokens of another prompt.

    All tokens go through the same products; both kinds of tokens count."""
    return step_task(bench, MODELS[model], weights, batch, context, gb.POINT, prefilled)


@topic.case(
    model=_MODEL,
    weights=gb.points(("float16",), ("int4",), ("float16", "int8", "int4", *EIGHT_KINDS)),
    tokens=gb.points((2048,), (128,), (128, 512, 2048, 8192)),
    when=gb.on_gpu,
    where=_is_prompt,
    headline={"model": "llama-3-8b", "weights": "float16", "tokens": 2048},
)
def prefill(bench: gb.Bench, model: str, weights: str, tokens: int) -> gb.Task:
    """Tokens of a prompt per second, from the prompt of `tokens` tokens to the first token of the answer.

    `weights` is the type of the weights. Attention is our kernel in Triton, or without Triton two batched products and
    a softmax between them; operations count the pairs that a token attends to."""
    # The check of the 70B model takes longer than its samples.
    is_representative = tokens == _PROMPT and model != "llama-3-70b"
    return prefill_task(bench, MODELS[model], weights, tokens, _effort(bench, is_representative, _PREFILL_S))


class _FirstMemory:
    """The bytes given out since the device had the bytes free that it has now, as the first check finds them."""

    def __init__(self, bench: gb.Bench) -> None:
        self._device, self._free_bytes = bench.device, bench.device.free_bytes()
        self.observed: dict[str, gb.Observed] = {}

    def observe(self) -> bool:
        """Observe the memory unless a check has done so, and return whether this is the first check."""
        is_first = not self.observed  # later checks would also count the arrays of the first check
        given_out = float(max(0, self._free_bytes - self._device.free_bytes()))
        self.observed.setdefault("peak_memory", gb.Observed(given_out, "B"))
        return is_first


def decode_step(bench: gb.Bench, model: Model, kind: str, batch: int, context: int, chunk: int = 0) -> DecodeChain:
    """Return one step of `batch` sequences, which have `context` tokens after it, and of a `chunk` of another prompt.

    `kind` is the type of the weights, a key of MODEL_KINDS. Raises Skip if the model does not fit into memory."""
    cached = float(batch) * context * model.cache_bytes()
    further = cached + (prefill_bytes(model, chunk) if chunk else 0.0)
    weights = ModelWeights(bench, model, kind, further, batch + chunk)
    return DecodeChain(bench, weights, CacheMemory.drawn(weights, batch, context), batch, chunk)


def _learn_both(chain: DecodeChain | PrefillChain) -> None:
    """Check the other input and the present one, so that later checks know both exact answers."""
    for _ in range(2):
        chain.chain.redraw()
        in_turn(*chain.calls)()
        chain.check()


def step_task(
    bench: gb.Bench, model: Model, kind: str, batch: int, context: int, effort: gb.Effort = gb.POINT, chunk: int = 0
) -> gb.Task:
    """Return one step, as `decode_step` makes it, as a task judged by its tokens."""
    memory = _FirstMemory(bench)
    step = decode_step(bench, model, kind, batch, context, chunk)
    # The products of weights of eight bits take no single token.
    is_comparable = batch > 1 and not chunk and kind not in EIGHT_KINDS
    alone = DecodeChain(bench, step.chain.weights, step.memory, 1) if is_comparable else None

    def check() -> gb.Observation:
        """Compare the step; the first check also observes peak memory and tokens that differ in a batch of one."""
        is_first, observed = memory.observe(), step.check()
        if alone and is_first:
            memory.observed["differing"] = gb.Observed(step.differing(alone))
        if is_first:
            _learn_both(step)
        return {**memory.observed, **observed}

    work, added = model.step(batch, context, step.weight_bytes()), model.prefill(chunk, 0) if chunk else gb.Work()
    stage = gb.Stage(
        in_turn(*step.calls),
        gb.Work(moved=work.moved + added.moved, flops=work.flops + added.flops, items=batch + chunk),
        "items",
        "dram",
        modes=("graph",),
        max_calls=2,
        effort=effort,
        item="token",
        outputs=step.outputs,
        inputs=step.chain.redraw,
    )
    files = f"{step.chain.weights.product_files(batch + chunk)}, attention.cu, chain.cu" + (
        ", experts.cu" if model.experts > 1 else ""
    )
    launches = "early" if "early_launch" in bench.traits.features else "in turn"
    notes = step.chain.notes(f"{len(step.calls)} calls in a graph, launched {launches}: {files}")
    return gb.Task.of(stage, check=check, notes=notes)


def prefill_task(bench: gb.Bench, model: Model, kind: str, tokens: int, effort: gb.Effort = gb.POINT) -> gb.Task:
    """Return the prefill of a prompt of `tokens` tokens as a task judged by its tokens.

    `kind` is the type of the weights, a key of MODEL_KINDS. Raises Skip if the model does not fit into memory."""
    memory = _FirstMemory(bench)
    weights = ModelWeights(bench, model, kind, prefill_bytes(model, tokens))
    prefill = PrefillChain(bench, weights, tokens)

    def check() -> gb.Observation:
        is_first, observed = memory.observe(), prefill.check()
        if is_first:
            _learn_both(prefill)
        return {**memory.observed, **observed}

    work, call = model.prefill(tokens, weights.nbytes), in_turn(*prefill.calls)
    rest: dict[str, Any] = {"item": "token", "outputs": prefill.outputs, "inputs": prefill.chain.redraw}
    stage = gb.Stage(call, work, "items", "tensor.float16", max_calls=1, effort=effort, **rest)
    notes = prefill.chain.notes(f"{len(prefill.calls)} calls: the vendor's products, chain.cu, the head by gemv.cu")
    notes = {**notes, "attention": prefill.attention.library}
    return gb.Task.of(stage, check=check, notes=notes)
