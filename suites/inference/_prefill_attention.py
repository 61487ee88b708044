"""Measure causal attention of a whole prompt by several libraries: a token attends to earlier ones and to itself.

Triton compiles a kernel whose scores stay on the chip (FlashAttention), and CuPy loads and launches the binary, because
Triton's own launcher would need torch."""

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.api import suite as gb

from .. import _torch, _triton
from .._checks import flipping, in_turn
from .._matrix.data import Maker
from .._matrix.formats import FORMATS, PRECISIONS, MatrixProduct, Shape
from .._matrix.vendor import vendor
from .._tensor_map import tensor_map

_HALF = FORMATS["float16"]
_THREADS = 256  # threads per block, as in chain.cu
_MOST_VECTORS = 8  # vectors of eight scores that fit into the registers of a thread
_SAMPLED = 6  # tokens of random heads that are compared, besides the first and the last token
# Bound of the relative error: results, and in some implementations scores and shares too, are stored as halves.
_BOUND = 4 * 2.0**-11
_SPARE_BYTES = 2**28
# The kernel in Triton: queries of a program, keys that it takes at once, warps of a program, and loads of keys and
# values in flight. They were the fastest of six plans on an H200, for 2048 tokens.
_ROWS, _COLS, _WARPS, _STAGES = 128, 64, 8, 3
# The kernel in Gluon: keys that it takes at once, loads in flight, and registers of a thread on average.
_HOPPER_COLS, _HOPPER_STAGES, _HOPPER_REGISTERS = 128, 2, 168

tl: Any = None  # triton.language, once a kernel is built

topic = gb.Topic(
    views=[
        gb.View(
            "curve",
            "Prefill attention: throughput by tokens of the prompt",
            ("prefill_attention",),
            x="tokens",
            by=("by",),
            log_x=True,
        )
    ]
)

Call = Callable[[], None]


@dataclass(frozen=True, slots=True)
class PromptShape:
    """A prompt of `tokens` tokens with `heads` heads of queries over `kv_heads` heads of keys and values.

    `heads` is a multiple of `kv_heads`; `dim` is the elements of a head."""

    tokens: int
    heads: int
    kv_heads: int
    dim: int

    @property
    def size(self) -> int:
        """The number of elements of all queries, and of all results."""
        return self.tokens * self.heads * self.dim

    @property
    def scores(self) -> int:
        """The number of scores between all pairs of tokens, in all heads."""
        return self.heads * self.tokens * self.tokens

    @property
    def work(self) -> gb.Work:
        """The work of causal attention: 4 operations for each element of a head and pair of tokens that counts.

        The mask leaves only pairs of a token with itself or an earlier one."""
        pairs = self.tokens * (self.tokens + 1) / 2
        moved = 2 * _HALF.itemsize * self.tokens * self.dim * (self.heads + self.kv_heads)
        return gb.Work(moved=float(moved), flops=4.0 * self.heads * self.dim * pairs)


@dataclass(frozen=True, slots=True)
class Prompt:
    """Queries as (head, token, dim), times log2(e)/√dim; keys and values as (KV head, token, dim).

    They are flat device arrays with the bits of halves (uint16)."""

    queries: Any
    keys: Any
    values: Any


class Unfused:
    """Two batched products of the vendor's library and a softmax between them, over all pairs of tokens.

    The products may share a `workspace`, a device array of WORKSPACE_BYTES; without it each has its own. With `keys`,
    each token attends to all of that number of keys, without a mask."""

    library = "two batched products of the vendor's library, softmax of chain.cu"

    def __init__(self, bench: gb.Bench, shape: PromptShape, workspace: Any = None, keys: int = 0) -> None:
        self._bench, self._shape, self._workspace = bench, shape, workspace
        self._keys = keys or shape.tokens
        self._scores = bench.xp.empty(shape.heads * shape.tokens * self._keys, "uint16")
        self._joined = bench.xp.empty(shape.size, "uint16")  # head after head, the tokens of each head in order
        self.outputs = (self._scores, self._joined)
        vectors = -(-self._keys // (8 * _THREADS))  # vectors of a row of scores that a thread holds
        is_whole = self._keys % 8 == 0 and vectors <= _MOST_VECTORS
        defines = {"VECTORS": vectors if is_whole else 0} | ({"EVERY": 1} if keys else {})
        self._softmax = bench.kernel("chain.cu", "causal_softmax", **defines)
        self._join = bench.kernel("chain.cu", "join_heads")

    def calls(self, prompt: Prompt, out: Any) -> list[Call]:
        """Return the calls, in order, that write the attention of `prompt` to `out`, flat (token, head, dim)."""
        shape = self._shape
        rows = shape.heads // shape.kv_heads * shape.tokens  # rows of all heads that share a KV head
        scored = Shape(rows, self._keys, shape.dim, "nt", shape.kv_heads)
        weighed = Shape(rows, shape.dim, self._keys, "nn", shape.kv_heads)
        lines, joined = (self._scores, np.uint32(self._keys)), (self._joined, out)
        sizes = np.uint32(shape.heads), np.uint32(shape.dim // 8)  # in vectors
        return [
            self._product(scored, prompt.queries, prompt.keys, self._scores),
            partial(self._softmax, (shape.heads * shape.tokens,), (_THREADS,), lines),
            self._product(weighed, self._scores, prompt.values, self._joined),
            partial(self._join, (shape.tokens,), (_THREADS,), (*joined, *sizes)),
        ]

    def _product(self, shape: Shape, a: Any, b: Any, c: Any) -> Call:
        """Return the call of a batched product by the vendor's library."""
        described = MatrixProduct(PRECISIONS["float16"], shape, a, b, c)
        return vendor(self._bench, described, self._workspace).call


def flash(queries, keys, values, out, tokens, heads, group, DIM, ROWS, COLS) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001, N803
    """Write the causal attention of a prompt of `tokens` tokens to `out`.

    A token attends to itself and to all tokens before it. All arrays have halves."""
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # the last tokens attend to the most tokens, so they start first
    head = tl.program_id(1)
    row, col, lane = block * ROWS + tl.arange(0, ROWS), tl.arange(0, COLS), tl.arange(0, DIM)
    lines = (row < tokens)[:, None]
    query = tl.load(queries + (head * tokens + row)[:, None] * DIM + lane[None, :], mask=lines, other=0.0)
    keys += head // group * tokens * DIM
    values += head // group * tokens * DIM
    most = tl.full([ROWS], -1.0e30, tl.float32)
    sums = tl.zeros([ROWS], tl.float32)
    weighted = tl.zeros([ROWS, DIM], tl.float32)
    for is_diagonal in tl.static_range(2):
        # First the columns to which every token of the block attends, then the columns near the diagonal.
        begin = block * ROWS if is_diagonal else 0
        end = tl.minimum((block + 1) * ROWS, tokens) if is_diagonal else block * ROWS
        for first in range(begin, end, COLS):
            place = first + col
            if is_diagonal:
                key = tl.load(keys + place[None, :] * DIM + lane[:, None], mask=(place < tokens)[None, :], other=0.0)
                value = tl.load(
                    values + place[:, None] * DIM + lane[None, :], mask=(place < tokens)[:, None], other=0.0
                )
            else:
                key = tl.load(keys + place[None, :] * DIM + lane[:, None])
                value = tl.load(values + place[:, None] * DIM + lane[None, :])
            score = tl.dot(query, key)
            if is_diagonal:
                score = tl.where(row[:, None] >= place[None, :], score, -1.0e30)
            top = tl.maximum(most, tl.max(score, 1))
            share = tl.exp2(score - top[:, None])
            fade = tl.exp2(most - top)
            sums = sums * fade + tl.sum(share, 1)
            weighted = tl.dot(share.to(tl.float16), value, weighted * fade[:, None])
            most = top
    result = (weighted / sums[:, None]).to(tl.float16)
    tl.store(out + (row[:, None] * heads + head) * DIM + lane[None, :], result, mask=lines)


@dataclass(frozen=True, slots=True)
class Provider:
    """A library's attention of a prompt: the call, its results as flat (token, head, dim) halves, and its outputs.

    `poison` overwrites results in memory that the library allocates."""

    call: Callable[[], None]
    results: Callable[[], Any]
    library: str  # the library and its version
    outputs: tuple[Any, ...] = ()
    poison: Callable[[], None] = lambda: None


class Flash:
    """Our kernel in Triton, on Hopper in Gluon, compiled for this GPU and launched by CuPy on the suite's stream."""

    outputs: tuple[Any, ...] = ()

    def __init__(self, bench: gb.Bench, shape: PromptShape) -> None:
        self._shape, self._units = shape, bench.device.device.units
        triton, numbers = _triton.imported(), dict.fromkeys(("tokens", "heads", "group"), "i32")
        is_nvidia = bench.traits.vendor == "nvidia"  # other vendors' GPUs are refused below
        is_hopper = is_nvidia and gb.Architecture.parse(bench.traits.arch).capability // 10 == 9
        if is_hopper and shape.dim in (64, 128):
            from ._hopper_attention import flash as kernel  # needs Triton

            layout = repr(importlib.import_module("triton.experimental.gluon.language").NVMMASharedLayout(128, 16, 2))
            types = {"queries": f"tensordesc<fp16[{_ROWS // 2}, {shape.dim}],{layout}>"}
            types |= dict.fromkeys(("keys", "values"), f"tensordesc<fp16[{_HOPPER_COLS}, {shape.dim}],{layout}>")
            constants = {"DIM": shape.dim, "ROWS": _ROWS // 2, "COLS": _HOPPER_COLS, "STAGES": _HOPPER_STAGES}
            options, language = (4, 1, _HOPPER_REGISTERS), "Gluon"
        else:
            kernel, types = flash, dict.fromkeys(("queries", "keys", "values"), "*fp16")
            constants, options = {"DIM": shape.dim, "ROWS": _ROWS, "COLS": _COLS}, (_WARPS, _STAGES, 0)
            language = "Triton"
        self._kernel = _triton.BuiltKernel(bench, kernel, {**types, "out": "*fp16", **numbers}, constants, *options)
        self.library = f"our kernel in {language}, Triton {triton.__version__}: blocks of {_ROWS} × {constants['COLS']}"

    def calls(self, prompt: Prompt, out: Any) -> list[Call]:
        """Return the launch that writes the attention of `prompt` to `out`, flat (token, head, dim)."""
        shape, blocks = self._shape, -(-self._shape.tokens // _ROWS)
        numbers = [np.int32(number) for number in (shape.tokens, shape.heads, shape.heads // shape.kv_heads)]
        arrays = (prompt.queries, shape.heads), (prompt.keys, shape.kv_heads), (prompt.values, shape.kv_heads)
        if not self._kernel.boxes:
            return [self._kernel.call((blocks, shape.heads), *(array for array, _ in arrays), out, *numbers)]
        maps: list[Any] = []  # each with the shape and the strides of its array
        for (array, heads), box in zip(arrays, self._kernel.boxes, strict=True):
            rows, width = heads * shape.tokens, shape.dim
            maps += [
                tensor_map(array, rows, width, *box),
                np.int32(rows),
                np.int32(width),
                np.int64(width),
                np.int64(1),
            ]
        return [self._kernel.call((min(self._units, blocks * shape.heads),), *maps, out, *numbers)]


def fastest(bench: gb.Bench, shape: PromptShape, workspace: Any) -> Flash | Unfused:
    """Return the fastest attention of a prompt that needs no other process: Flash where Triton is, else Unfused."""
    try:
        return Flash(bench, shape)
    except (gb.Skip, gb.Unavailable):
        return Unfused(bench, shape, workspace)


def _own(of: Callable[[gb.Bench, PromptShape], Flash | Unfused]) -> Callable[[gb.Bench, PromptShape, Prompt], Provider]:
    """Return the provider of an attention of ours."""

    def build(bench: gb.Bench, shape: PromptShape, prompt: Prompt) -> Provider:
        attention, out = of(bench, shape), bench.xp.empty(shape.size, "uint16")
        outputs = (out, *attention.outputs)
        return Provider(in_turn(*attention.calls(prompt, out)), lambda: out, attention.library, outputs)

    return build


def _torch_attention(bench: gb.Bench, shape: PromptShape, prompt: Prompt, backend: str = "") -> Provider:
    """Return the provider of torch's attention over our memory; `backend` is a name of torch's SDPBackend."""
    torch, xp = _torch.imported(), bench.xp
    choice = importlib.import_module("torch.nn.attention")
    arrays = ((prompt.queries, shape.heads), (prompt.keys, shape.kv_heads), (prompt.values, shape.kv_heads))
    sizes = shape.tokens, shape.dim
    tensors = [torch.from_dlpack(array.view("float16").reshape(1, heads, *sizes)) for array, heads in arrays]
    stream = torch.cuda.ExternalStream(bench.device.stream, device=tensors[0].device)
    # The queries already carry the factor log2(e), and 2^x = e^(x·ln 2).
    attend = partial(torch.nn.functional.scaled_dot_product_attention, is_causal=True, scale=math.log(2))
    attend = partial(attend, *tensors, enable_gqa=shape.heads != shape.kv_heads)
    choose = partial(choice.sdpa_kernel, getattr(choice.SDPBackend, backend)) if backend else torch.no_grad
    outputs: list[Any] = []

    def call() -> None:
        outputs.clear()  # frees the last result first, so that the new one uses the same memory
        with torch.cuda.stream(stream), choose():
            outputs.append(attend())

    def poison() -> None:
        with torch.cuda.stream(stream):
            for output in outputs:
                output.fill_(math.nan)

    def results() -> Any:
        return xp.ascontiguousarray(xp.from_dlpack(outputs[0])[0].swapaxes(0, 1)).view("uint16").ravel()

    library = f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
    return Provider(call, results, library, poison=poison)


def _cudnn(bench: gb.Bench, shape: PromptShape, prompt: Prompt) -> Provider:
    """Return the provider of torch's attention by cuDNN."""
    if bench.traits.vendor != "nvidia":
        raise gb.Skip("cuDNN is a library for NVIDIA GPUs")
    provider = _torch_attention(bench, shape, prompt, "CUDNN_ATTENTION")
    try:
        provider.call()
    except RuntimeError as error:
        raise gb.Skip(f"torch's attention by cuDNN does not take this shape: {error}") from error
    return provider


PROVIDERS: Mapping[str, Callable[[gb.Bench, PromptShape, Prompt], Provider]] = {
    "unfused": _own(Unfused),
    "triton": _own(Flash),
    "torch": _torch_attention,
    "cudnn": _cudnn,
}


class PrefillAttention:
    """A seeded prompt and its attention by one provider, whose results are checked in double precision.

    `by` is a key of PROVIDERS. Raises Skip if the arrays do not fit into the free memory, or as the provider does."""

    def __init__(self, bench: gb.Bench, shape: PromptShape, by: str) -> None:
        rows = 2 * shape.size + 2 * shape.tokens * shape.kv_heads * shape.dim
        bench.need(_HALF.itemsize * (rows + (shape.scores + shape.size) * (by == "unfused")) + _SPARE_BYTES)
        self._shape, self._to_host, self._rng = shape, bench.device.to_host, bench.rng
        self._make = Maker(bench)
        seeds = [int(seed) for seed in self._rng.integers(2**63, size=3)]
        draw, cached = partial(self._make.drawn, _HALF), shape.tokens * shape.kv_heads * shape.dim
        scale = math.log2(math.e) / math.sqrt(shape.dim)
        queries = draw(shape.size, seeds[0], spread=scale)
        self.prompt = Prompt(queries, draw(cached, seeds[1]), draw(cached, seeds[2]))
        self.provider = PROVIDERS[by](bench, shape, self.prompt)

    def check(self) -> gb.Observation:
        """Compare six random tokens of random heads, the first token and the last one with double precision.

        Returns the largest relative error of a token."""
        shape, results = self._shape, self.provider.results()
        missing = self._make.count_unwritten(results, _HALF)
        gb.expect(missing == 0, f"{missing} results are not written, NaN or infinite")
        places = np.append(self._rng.integers(0, shape.tokens, _SAMPLED), (0, shape.tokens - 1))
        heads = self._rng.integers(0, shape.heads, len(places))
        lines = results.reshape(-1, shape.dim)
        errors = []
        for place, head in zip(places.tolist(), heads.tolist(), strict=True):
            row = self._to_host(lines[place * shape.heads + head]).view(np.float16).astype(float)
            exact = self.expected(head, place)
            errors.append(float(np.linalg.norm(row - exact) / np.linalg.norm(exact)))
        gb.expect(max(errors) <= _BOUND, f"the relative error {max(errors):.3g} of a token is above {_BOUND:.3g}")
        return {"error": gb.Observed(max(errors))}

    def expected(self, head: int, place: int) -> npt.NDArray[np.float64]:
        """Return the result of the token at `place` in the head `head` in double precision: NumPy, (dim,)."""
        shape = self._shape
        first = head // (shape.heads // shape.kv_heads) * shape.tokens
        query = self._lines(self.prompt.queries, head * shape.tokens + place, 1)[0]
        keys, values = (self._lines(array, first, place + 1) for array in (self.prompt.keys, self.prompt.values))
        scores = keys @ query
        powers = np.exp2(scores - scores.max())
        return np.asarray(powers @ values / powers.sum())

    def _lines(self, array: Any, first: int, count: int) -> npt.NDArray[np.float64]:
        """Return `count` rows of `dim` halves of a flat device array, from row `first` on, as NumPy doubles."""
        part = array[first * self._shape.dim : (first + count) * self._shape.dim]
        elements = self._to_host(part).view(np.float16).astype(float)
        return np.asarray(elements.reshape(count, self._shape.dim))

    def task(self) -> gb.Task:
        """Return the attention as a task that is judged by the operations that count."""
        call, data = self.provider.call, "seeded, N(0, 1); operations count the pairs that a token attends to"
        work, inputs = self._shape.work, flipping(self.prompt.queries)
        rest: Any = {"max_calls": 16, "effort": gb.POINT, "inputs": inputs, "outputs": self.provider.outputs}
        stage = gb.Stage(call, work, "flops", "tensor.float16", **rest)
        notes = {"library": self.provider.library, "data": data}
        return gb.Task.of(stage, check=self.check, poison=self.provider.poison, notes=notes)


@topic.case(
    tokens=gb.points((2048,), (512,), (512, 2048, 8192)),
    heads=(32,),
    kv_heads=(8,),
    dim=(128,),
    # In the quick tier the two that a prefill takes: loading further libraries takes longer than everything else.
    by=gb.points(("triton", "unfused"), ("unfused",), tuple(PROVIDERS)),
    when=gb.on_gpu,
    runtime=lambda params: "torch" if params["by"] in ("torch", "cudnn") else "",
    headline={"tokens": 2048, "by": "unfused"},
)
def prefill_attention(bench: gb.Bench, tokens: int, heads: int, kv_heads: int, dim: int, by: str) -> gb.Task:
    """Throughput of causal attention of a prompt of `tokens` tokens (float16) by one library.

    Operations count the pairs of tokens that the causal mask leaves. `unfused` computes all pairs by two batched
    products of the vendor's library, with a softmax between them. `triton` is our own kernel, `torch` its
    scaled_dot_product_attention, `cudnn` the same by cuDNN."""
    return PrefillAttention(bench, PromptShape(tokens, heads, kv_heads, dim), by).task()
