"""Compile a Triton kernel for causal attention of a whole prompt, whose scores stay on the chip (FlashAttention).

Triton compiles the kernel, and CuPy loads and launches the binary, because Triton's own launcher would need torch."""

import importlib
from dataclasses import dataclass
from typing import Any

from gpubench.api import suite as gb

from .._triton import imported

tl: Any = None  # triton.language, once `binary` has imported it


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
class FlashPlan:
    """Queries of a program, keys that it takes at once, warps of a program, and loads of keys and values in flight.

    The defaults were the fastest of six plans on an H200, for 2048 tokens."""

    rows: int = 128
    cols: int = 64
    warps: int = 8
    stages: int = 3


@dataclass(frozen=True, slots=True)
class Binary:
    """The compiled kernel, its name in the binary, the shared memory of a program, and Triton's version."""

    code: bytes
    name: str
    shared_bytes: int
    version: str


_POINTERS = ("queries", "keys", "values", "out")
_NUMBERS = ("tokens", "heads", "group")


def binary(arch: str, dim: int, plan: FlashPlan) -> Binary:
    """Compile the kernel for heads of `dim` elements on the NVIDIA GPU `arch`, such as sm_90.

    Raises Unavailable without Triton."""
    triton = imported()
    globals()["tl"] = triton.language
    constants = {"DIM": dim, "ROWS": plan.rows, "COLS": plan.cols}
    types = dict.fromkeys(_POINTERS, "*fp16") | dict.fromkeys(_NUMBERS, "i32") | dict.fromkeys(constants, "constexpr")
    aligned = {(place,): [["tt.divisibility", 16]] for place in range(len(_POINTERS))}
    source = triton.compiler.ASTSource(triton.jit(flash), types, constants, aligned)
    number = gb.Architecture.parse(arch).capability
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", number, 32)
    compiled = triton.compile(source, target=target, options={"num_warps": plan.warps, "num_stages": plan.stages})
    return Binary(compiled.asm["cubin"], compiled.metadata.name, compiled.metadata.shared, str(triton.__version__))
