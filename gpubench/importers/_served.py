"""Compare the tokens per second of a served language model with the bytes that a GPU has to read for them.

A step reads all weights once, and the cached keys and values of each sequence of its batch. The means that a client
prints give the number of sequences per step and the number of steps, and so the number of bytes. If the model, the
format of its weights or the number of GPUs that share it is unknown, no bytes are counted, and a note gives the reason.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpubench.api.importer import (
    LANGUAGE_MODELS,
    BadOutput,
    Case,
    Device,
    Imported,
    Model,
    Params,
    Result,
    Series,
    SuiteInfo,
    View,
    Work,
    model_named,
)

from . import _parsing as parsing

_SIXTEEN_BITS = r"none|bf16|fp16|bfloat16|float16"
_EIGHT_BITS = r"fp8|float8|int8|w8a8|w8a16|8bit"
_FOUR_BITS = r"awq|gptq|int4|w4a16|4bit|fp4|bitsandbytes|bnb"
_GROUP = 128  # number of four-bit weights that share a scale of two bytes
_TIMES = re.compile(r"((?:mean|median|max|p[\d.]{1,8})_(?:ttft|tpot|itl|e2el|e2e_latency))_ms")
_MOST_CHARACTERS = 200  # the longest name of a model in a case
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
        """Return the last part of the name, because the rest may be a user's path; `unnamed` if it is empty."""
        return self.name.rstrip("/").rpartition("/")[2][:_MOST_CHARACTERS] or "unnamed"

    def published_model(self) -> Model:
        """Return the published model of this name, with the shapes of its matrices.

        Raises UnstatedError if `unstated` is not empty or the table of language models does not have the name."""
        key = model_named(self.short_name)
        if self.unstated or not key:
            raise UnstatedError(self.unstated or f"the table of language models does not have {self.short_name}")
        return LANGUAGE_MODELS[key]

    def weight_bytes(self) -> tuple[float, str]:
        """Return the bytes of all weights, which each step reads, and a text that names their format.

        The format follows from `quantization` or from the name."""
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
        """Return the mean number of cached tokens of a sequence during its steps."""
        return (self.input_tokens + self.output_tokens / 2) / self.requests

    @property
    def batch(self) -> float:
        """Return the mean number of sequences in a step, at least 1 unless requests arrive at random.

        Little's law gives the mean over the whole period."""
        mean = self.requests * self.decode_s / self.duration_s
        return mean / -math.expm1(-mean) if self.is_open and mean > 0 else max(1.0, mean)

    def work(self, served: ServedModel) -> tuple[Work, str]:
        """Return the minimum work of each GPU in the whole period, and a text that explains its bytes.

        The work has the bytes and the tokens of all answers."""
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
        return Work(moved=moved, items=self.output_tokens), explanation

    def output_rate(self, served: ServedModel) -> tuple[Series, tuple[str, str]]:
        """Return the series of the tokens of all answers per second, and a note (name, text).

        The series has one sample, the duration in s, with the tokens as its work."""
        try:
            work, explanation = self.work(served)
        except UnstatedError as unstated:
            work, limit, note = Work(items=self.output_tokens), "", ("no share", str(unstated))
        else:
            limit, note = "dram", ("bytes", explanation)
        values = (self.duration_s,)
        return Series("output", "s", values, work=work, quantity="items", limit=limit, item="token"), note


def client_load(fields: Mapping[str, Any], tokens_per_step: float) -> ServingLoad:
    """Return the load that the JSON object of a client states, with the names that vLLM and SGLang share.

    `tokens_per_step` is that of `ServingLoad`."""
    keys = ("duration", "completed", "total_input_tokens", "total_output_tokens")
    duration, requests, inputs, outputs = (parsing.measured_number(fields, key) for key in keys)
    rate = parsing.measured_number(fields, "output_throughput")
    if not math.isclose(rate * duration, outputs, rel_tol=_TOLERANCE):
        raise BadOutput(f"output_throughput {rate:g} is not {outputs:g} tokens over {duration:g} s: edited or damaged")
    is_open = math.isfinite(request_rate(fields))
    return ServingLoad(
        duration, requests, inputs, outputs, _decode_s(fields, outputs / requests), is_open, tokens_per_step
    )


def _decode_s(fields: Mapping[str, Any], output: float) -> float:
    """Return the mean seconds from the first to the last token of an answer; 0 if the client does not state them."""
    whole_key = next((key for key in ("mean_e2el_ms", "mean_e2e_latency_ms") if fields.get(key) is not None), "")
    if whole_key and fields.get("mean_ttft_ms") is not None:
        return (
            max(0.0, parsing.measured_number(fields, whole_key) - parsing.measured_number(fields, "mean_ttft_ms")) / 1e3
        )
    if fields.get("mean_tpot_ms") is not None:
        return parsing.measured_number(fields, "mean_tpot_ms") * max(0.0, output - 1) / 1e3
    return 0.0


def request_rate(fields: Mapping[str, Any]) -> float:
    """Return the requested rate in the JSON object of a client, in requests per second.

    It is infinite if all requests were sent at once or at recorded times."""
    rate = fields.get("request_rate")
    return (
        math.inf
        if rate is None or rate == math.inf or isinstance(rate, str)
        else parsing.measured_number(fields, "request_rate")
    )


def request_times(fields: Mapping[str, Any]) -> list[Series]:
    """Return a series in seconds for each time of requests that vLLM or SGLang states, such as `mean_ttft`.

    `fields` is the client's JSON object. Raises BadOutput if one of the times is not a number."""
    named_keys = [(match[1], key) for key in fields if (match := _TIMES.fullmatch(key)) and fields[key] is not None]
    return [
        parsing.time_series(name, parsing.to_si(parsing.measured_number(fields, key), parsing.MILLI))
        for name, key in named_keys
    ]


def is_empty(fields: Mapping[str, Any]) -> bool:
    """Return whether no request of a run was answered with a token.

    `fields` is the client's JSON object. Raises BadOutput if the counts are not numbers."""
    return not (parsing.measured_number(fields, "completed") and parsing.measured_number(fields, "total_output_tokens"))


def failed_result(suite: str, device: Device, served: ServedModel) -> Result:
    """Return the failed result of a run in which no request was answered with a token; `suite` names the tool."""
    case = Case(suite, "open", (("model", served.short_name),))
    return Result(case, (device.id,), "failed", cause="no-result", reason="no request was answered with a token")


def case_axes(load: ServingLoad, served: ServedModel, rate: float, concurrency: object) -> tuple[str, Params]:
    """Return the name (`closed` or `open`) and the axes of the case of a load.

    Otherwise it is `open`, and the number of all requests is an axis."""
    mean = {"input": load.input_tokens, "output": load.output_tokens}
    lengths = tuple((name, round(tokens / load.requests)) for name, tokens in mean.items())
    rate_axis = (("rate", rate),) if math.isfinite(rate) else ()
    if isinstance(concurrency, int) and not isinstance(concurrency, bool) and concurrency > 0:
        return "closed", (("model", served.short_name), *lengths, ("concurrency", concurrency), *rate_axis)
    return "open", (("model", served.short_name), *lengths, ("requests", round(load.requests)), *rate_axis)


def make_imported(
    suite: str, title: str, devices: Sequence[Device], results: Sequence[Result], versions: Sequence[tuple[str, str]]
) -> Imported:
    """Return the results of a client as the content of the suite called `suite`, with the devices, each once.

    The view of `closed` cases is a curve over the requests in flight."""
    curve = View("curve", f"Output tokens per second by requests in flight, {suite}", ("closed",), x="concurrency")
    views = (curve,) if any(result.case.name == "closed" for result in results) else ()
    devices_by_id = {device.id: device for device in devices}
    return Imported(
        SuiteInfo(suite, title, views), tuple(devices_by_id.values()), tuple(results), tuple(dict(versions).items())
    )
