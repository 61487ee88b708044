"""Compare the tokens per second of a served language model with the bytes that a GPU has to read for them.

A step reads all weights once, and the cached keys and values of each sequence of its batch. The means that a client
prints give the number of sequences per step and the number of steps, and so the number of bytes. If the model, the
format of its weights or the number of GPUs that share it is unknown, no bytes are counted, and a note gives the reason.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpubench.api import importer as gb

_SIXTEEN_BITS = r"none|bf16|fp16|bfloat16|float16"
_EIGHT_BITS = r"fp8|float8|int8|w8a8|w8a16|8bit"
_FOUR_BITS = r"awq|gptq|int4|w4a16|4bit|fp4|bitsandbytes|bnb"
_GROUP = 128  # number of four-bit weights that share a scale of two bytes
_TIMES = re.compile(r"((?:mean|median|max|p[\d.]{1,8})_(?:ttft|tpot|itl|e2el|e2e_latency))_ms")
_MOST_CHARACTERS = 200  # the longest name of a model in a case
_MOST_GPUS = 4096
_TOLERANCE = 0.01  # the largest relative difference between a printed rate and the tokens over the duration


class UnstatedError(Exception):
    """The bytes of a step cannot be counted, because a fact is unknown; the message names the fact."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as a server runs it: its published name, the stated format of its weights, and the number of its GPUs.

    An empty `quantization` means that no format is stated."""

    name: str
    quantization: str = ""
    gpus: int = 1
    cache_itemsize: float = 2.0
    unstated: str = ""

    @property
    def short_name(self) -> str:
        """The last part of the name, because the rest may be a user's path; `unnamed` if it is empty."""
        return self.name.rstrip("/").rpartition("/")[2][:_MOST_CHARACTERS] or "unnamed"

    def published_model(self) -> gb.Model:
        """Return the published model of this name; raises UnstatedError if there is none, or a fact is unstated."""
        key = gb.model_named(self.short_name)
        if self.unstated or not key:
            raise UnstatedError(self.unstated or f"the table of language models does not have {self.short_name}")
        return gb.LANGUAGE_MODELS[key]

    def weight_bytes(self) -> tuple[float, str]:
        """Return the bytes of all weights, which each step reads, and a text that names their format."""
        model, formats = self.published_model(), f"{self.quantization} {self.short_name}".lower()
        layers = model.size - model.head.size
        if re.search(_EIGHT_BITS, formats):
            return layers + 2.0 * model.head.size, "8-bit weights"
        if re.search(_FOUR_BITS, formats):
            return layers * (0.5 + 2 / _GROUP) + 2.0 * model.head.size, "4-bit weights"
        if re.fullmatch(_SIXTEEN_BITS, self.quantization.lower()):
            return 2.0 * model.size, "16-bit weights"
        if self.quantization or "gguf" in formats:
            raise UnstatedError(f"how many bits the weights have is not known: {self.quantization or 'GGUF'}")
        return 2.0 * model.size, "16-bit weights, as published"


@dataclass(frozen=True, slots=True)
class ServingLoad:
    """A period in which a server answered `requests`, with the numbers of tokens in all prompts and in all answers.

    `decode_s` is the mean time of a request from its first to its last token in seconds, 0 if it is not stated."""

    duration_s: float
    requests: float
    input_tokens: float
    output_tokens: float
    decode_s: float
    is_open: bool
    tokens_per_step: float = 1.0

    @property
    def context(self) -> float:
        """The mean number of cached tokens of a sequence during its steps."""
        return (self.input_tokens + self.output_tokens / 2) / self.requests

    @property
    def batch(self) -> float:
        """The mean number of sequences in a step by Little's law, at least 1 unless requests arrive at random."""
        mean = self.requests * self.decode_s / self.duration_s
        return mean / -math.expm1(-mean) if self.is_open and mean > 0 else max(1.0, mean)

    def work(self, served: ServedModel) -> tuple[gb.Work, str]:
        """Return the minimum work of each GPU for all answers, and a text that explains its bytes."""
        model, (weights, weight_format) = served.published_model(), served.weight_bytes()
        decoded_tokens = self.output_tokens - self.requests  # the first token of an answer comes from the prefill
        if decoded_tokens <= 0:
            raise UnstatedError("the answers have one token each")
        if not self.decode_s:
            raise UnstatedError("the time from the first to the last token is not stated")
        steps = decoded_tokens / (self.batch * self.tokens_per_step)
        moved = steps * model.step(self.batch, self.context, weights, served.cache_itemsize).moved / served.gpus
        explanation = (
            f"{steps:.0f} steps, each of which reads {weights / 1e9:.2f} GB ({weight_format}) and the keys and values "
            f"of {self.batch:.1f} sequences of {self.context:.0f} tokens; "
            + ("taken as one GPU" if served.gpus == 1 else f"divided among {served.gpus} GPUs")
        )
        return gb.Work(moved=moved, items=self.output_tokens), explanation

    def output_rate(self, served: ServedModel) -> tuple[gb.Series, tuple[str, str]]:
        """Return the series `output`, the duration with the tokens as its work, and a note about the share of peak."""
        try:
            work, explanation = self.work(served)
            limit, note = "dram", ("bytes", explanation)
        except UnstatedError as unstated:
            work, limit, note = gb.Work(items=self.output_tokens), "", ("no share", str(unstated))
        values = (self.duration_s,)
        return gb.Series("output", "s", values, work=work, quantity="items", limit=limit, item="token"), note


def add_run(
    output: gb.Output,
    device: str,
    served: ServedModel,
    load: ServingLoad,
    concurrency: object,
    rate: float,
    series: Iterable[gb.Series],
    notes: tuple[tuple[str, str], ...] = (),
    labels: tuple[str, ...] = (),
) -> None:
    """Add a run on the device with this id: `closed` with the requests in flight as an axis, otherwise `open`.

    `concurrency` is the number of requests in flight, as it is stated, and `rate` the requested number per second."""
    is_closed = isinstance(concurrency, int) and not isinstance(concurrency, bool) and concurrency > 0
    lengths = (("input", load.input_tokens), ("output", load.output_tokens))
    axes = (
        ("model", served.short_name),
        *((name, round(tokens / load.requests)) for name, tokens in lengths),
        ("concurrency", concurrency) if is_closed else ("requests", round(load.requests)),
        *((("rate", rate),) if math.isfinite(rate) else ()),
    )
    rate_series, note = load.output_rate(served)
    case, ids = "closed" if is_closed else "open", (device,)
    output.add(case, axes, (rate_series, *series), ids, notes=(note, *notes), labels=labels)


def add_unanswered(output: gb.Output, device: str, served: ServedModel) -> None:
    """Add the failed result of a run in which no request was answered with a token."""
    params = (("model", served.short_name),)
    output.add_unmeasured("open", params, (device,), "no-result", "no request was answered with a token")


def add_client_run(
    output: gb.Output,
    device: str,
    served: ServedModel,
    fields: Mapping[str, Any],
    accepted: str,
    notes: tuple[tuple[str, str], ...] = (),
    labels: tuple[str, ...] = (),
) -> None:
    """Add a run from the JSON object of vLLM's or SGLang's client, which share most names.

    The key `accepted` has the tokens that a step of speculative decoding adds."""
    keys = ("completed", "total_output_tokens", "total_input_tokens", "duration", "output_throughput")
    requests, outputs, inputs, duration, rate = (gb.measured_number(fields, key) for key in keys)
    if not (requests and outputs):
        add_unanswered(output, device, served)
        return
    if not math.isclose(rate * duration, outputs, rel_tol=_TOLERANCE):
        raise gb.BadOutput(
            f"output_throughput {rate:g} is not {outputs:g} tokens over {duration:g} s: edited or damaged"
        )
    requested = request_rate(fields)
    per_step = max(1.0, _stated(fields, accepted) or 1.0)
    decode_s = _decode_s(fields, outputs / requests)
    load = ServingLoad(duration, requests, inputs, outputs, decode_s, math.isfinite(requested), per_step)
    names = ((match[1], key) for key in fields if (match := _TIMES.fullmatch(key)) and fields[key] is not None)
    times = (gb.quantity(name, "ms", gb.measured_number(fields, key)) for name, key in names)
    series = (gb.quantity("request_throughput", "request/s", gb.measured_number(fields, "request_throughput")), *times)
    add_run(output, device, served, load, fields.get("max_concurrency"), requested, series, notes, labels)


def _stated(fields: Mapping[str, Any], key: str) -> float | None:
    return gb.measured_number(fields, key) if fields.get(key) is not None else None


def _decode_s(fields: Mapping[str, Any], output: float) -> float:
    """Return the mean seconds from the first to the last token of an answer; 0 if the client does not state them."""
    whole_key = next((key for key in ("mean_e2el_ms", "mean_e2e_latency_ms") if fields.get(key) is not None), "")
    whole, first, token = (_stated(fields, key) for key in (whole_key, "mean_ttft_ms", "mean_tpot_ms"))
    if whole is not None and first is not None:
        return max(0.0, whole - first) / 1e3
    return (token or 0.0) * max(0.0, output - 1) / 1e3


def request_rate(fields: Mapping[str, Any]) -> float:
    """Return the requested rate in requests per second; infinite if all requests were sent at once or as recorded."""
    rate = fields.get("request_rate")
    is_unlimited = rate is None or rate == math.inf or isinstance(rate, str)
    return math.inf if is_unlimited else gb.measured_number(fields, "request_rate")


def stated_count(fields: Mapping[str, Any], key: str) -> int:
    """Return a number of GPUs, replicas or stages; 1 if it is not stated."""
    count = gb.json_value(fields, key, int) if key in fields else 1
    if not 0 < count <= _MOST_GPUS:
        raise gb.BadOutput(f"{key} is {count}, which is not a possible number")
    return count


def imported(output: gb.Output) -> gb.Imported:
    """Return the content, with a curve over the requests in flight if there are `closed` cases."""
    title = f"Output tokens per second by requests in flight, {output.suite}"
    curve = gb.View("curve", title, ("closed",), x="concurrency")
    return output.imported(*([curve] if "closed" in output.cases() else []))
