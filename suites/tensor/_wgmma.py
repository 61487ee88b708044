"""Hopper's wgmma one by one: a warpgroup's product by columns, with A in shared memory or in registers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpubench.api.suite import Bench, KeyFigure, Skip, Target, Task, Topic, View, Work, points

from .._checks import expect_equal
from ._chains import REST_S, Chains, cycle_words, matrix_limit, on_nvidia_gpu, rounds_for
from ._fragments import ROW_BYTES, drawn, encoded, operand_words, sum_words, swizzled
from ._kernels import resource_notes

_WIDE = 128  # from this number of columns on, a round has fewer steps, because many operands take the compiler long
_ROWS, _STEP_BYTES = 64, 32  # rows of A; bytes of a row that one instruction reads
_STEPS_A_ROW = ROW_BYTES // _STEP_BYTES
_GROUP_THREADS = 128  # threads of a warpgroup
_ALIGNED = 1024  # bytes to which a swizzled matrix is aligned
_IN_FLIGHT = 16  # steps between two waits, if more than one instruction is in flight
_LATENCY = 64  # cycles, approximately, that an instruction takes besides its products
# Products per clock and SM.
_PRODUCTS = {"float16": 4096, "bfloat16": 4096, "tf32": 2048, "float8_e4m3": 8192, "int8": 8192}

_LINES = ("dtype", "sums", "a", "wait")

topic = Topic(
    views=[
        View("curve", "wgmma: throughput by columns", ("wgmma",), x="columns", by=_LINES, log_x=True),
        View(
            "curve",
            "wgmma: cycles per instruction by columns",
            ("wgmma",),
            x="columns",
            by=_LINES,
            series="cycles",
            log_x=True,
        ),
    ],
    key_figures=[KeyFigure("wgmma, 256 columns", "wgmma", (("columns", 256), ("dtype", "float16"), ("wait", "late")))],
)


@dataclass(frozen=True, slots=True)
class WarpgroupFormat:
    """A format of wgmma.

    `inputs` and `sums` are its names in PTX, and `inner` the products in a sum of one instruction. If it is signed, an
    instruction can negate B; if it `has_orders`, PTX lets it transpose its operands.
    """

    dtype: str
    inputs: str
    sums: str
    inner: int
    is_signed: bool = True
    has_orders: bool = False

    @property
    def sum_dtype(self) -> str:
        """The format of the sums, as `encoded` knows it."""
        return {"f32": "float32", "f16": "float16", "s32": "int32"}[self.sums]


FORMATS = {
    ("float16", "float32"): WarpgroupFormat("float16", "f16", "f32", 16, has_orders=True),
    ("float16", "float16"): WarpgroupFormat("float16", "f16", "f16", 16, has_orders=True),
    ("bfloat16", "float32"): WarpgroupFormat("bfloat16", "bf16", "f32", 16, has_orders=True),
    ("tf32", "float32"): WarpgroupFormat("tf32", "tf32", "f32", 8),
    ("float8_e4m3", "float32"): WarpgroupFormat("float8_e4m3", "e4m3", "f32", 32),
    ("int8", "int32"): WarpgroupFormat("int8", "s8", "s32", 32, is_signed=False),
}


@dataclass(frozen=True, slots=True)
class WarpgroupData:
    """A and B as they lie in shared memory, A as registers hold it, and the sums before and after."""

    images: Any
    fragments: Any
    begin: Any
    end: Any


def warpgroup_words(elements: Any, warp_words: Any) -> Any:
    """Return the words of a matrix of 64 rows, of which each warp of a warpgroup has 16: (registers, 128)."""
    return np.concatenate([warp_words(elements[first : first + 16]) for first in range(0, _ROWS, 16)], axis=1)


def warpgroup_data(form: WarpgroupFormat, rng: np.random.Generator, columns: int, rounds: int) -> WarpgroupData:
    """Return random matrices of whole numbers. Four further steps, one for each part of a row, add the whole A·B.

    Signed steps cancel each other. Integers wrap round: each round adds each part as often.
    """
    k = form.inner * _STEPS_A_ROW
    a, b, c = drawn(rng, _ROWS, k), drawn(rng, columns, k), drawn(rng, _ROWS, columns)
    times = 1 if form.is_signed else 1 + rounds * (body_of(columns) // _STEPS_A_ROW)
    total = c + times * (a @ b.T)
    if not form.is_signed:
        total = total.astype(np.int64).astype(np.int32)
    stored = encoded(a, form.dtype)
    fragments = warpgroup_words(stored, lambda part: operand_words(part, 4).view(np.uint32))
    begin, end = (warpgroup_words(encoded(sums, form.sum_dtype), sum_words) for sums in (c, total))
    images = np.concatenate([swizzled(stored), swizzled(encoded(b, form.dtype))])
    return WarpgroupData(images, fragments, begin, end)


def body_of(columns: int) -> int:
    """Return the steps of a round: fewer for long steps, since the compiler needs a second for 64 of them."""
    return 32 if columns >= _WIDE else 64


def wgmma_defines(form: WarpgroupFormat, columns: int, a: str) -> dict[str, str | int]:
    """Return the macros of instructions_wgmma.cu that follow from formats, columns and where A is."""
    return {
        "BODY": body_of(columns),
        "COLUMNS": columns,
        "INNER": form.inner,
        "INPUTS": form.inputs,
        "SUMS": form.sums,
        "SUM_WORD": "float" if form.sums == "f32" else "u32",
        "SUM_WORDS": sum_registers(form, columns),
        "SIGNED": int(form.is_signed),
        "TRANSPOSES": int(form.has_orders),
        "A_IN_REGISTERS": int(a == "registers"),
    }


def sum_registers(form: WarpgroupFormat, columns: int) -> int:
    """Return the registers of a thread for the sums of one chain."""
    return columns // (4 if form.sums == "f16" else 2)


def _has_point(target: Target, params: Mapping[str, Any]) -> bool:
    """Return whether the formats exist; other formats than float16 have two column counts, with A in shared memory."""
    del target
    formats = params["dtype"], params["sums"]
    is_curve = formats == ("float16", "float32")
    return formats in FORMATS and (is_curve or (params["columns"] in (64, 256) and params["a"] == "shared"))


@topic.case(
    dtype=points(("float16",), full=tuple(dict.fromkeys(dtype for dtype, _ in FORMATS))),
    sums=points(("float32",), full=tuple(dict.fromkeys(sums for _, sums in FORMATS))),
    columns=points((256,), full=(8, 16, 32, 64, 128, 256)),
    a=points(("shared",), full=("shared", "registers")),
    wait=points(("late",), full=("each", "late")),
    when=on_nvidia_gpu,
    where=_has_point,
)
def wgmma(bench: Bench, dtype: str, sums: str, columns: int, a: str, wait: str) -> Task:
    """Throughput of D = A·B + C of 64 rows by a warpgroup, B in shared memory: 2·M·N·K operations per instruction.

    `a` is where A lies. With `wait` of `each` the warpgroup waits for each instruction before the next; with `late` 16
    more are in flight.
    """
    if bench.traits.arch != "sm_90":
        raise Skip(f"wgmma is an instruction of sm_90 alone, not of {bench.traits.arch}")
    form = FORMATS[dtype, sums]
    flops = 2.0 * _ROWS * columns * form.inner
    issue = flops / _PRODUCTS[dtype]
    body = body_of(columns)
    rounds = rounds_for(body, issue + _LATENCY if wait == "each" else max(issue, _LATENCY / 2))
    data = warpgroup_data(form, bench.rng, columns, rounds)
    shared_bytes = (_ROWS + columns) * ROW_BYTES + _ALIGNED
    defines = {**wgmma_defines(form, columns, a), "IN_FLIGHT": 1 if wait == "each" else _IN_FLIGHT}
    kernel = bench.kernel("instructions_wgmma.cu", "wgmma_chains", **defines)
    cycles, xp = cycle_words(bench), bench.xp
    blocks = len(cycles) // 2
    device_sums = xp.empty((blocks, *data.end.shape), data.end.dtype)
    inputs = tuple(xp.asarray(array) for array in (data.images, data.fragments, data.begin))

    def launch(rounds: int) -> None:
        kernel((blocks,), (_GROUP_THREADS,), (*inputs, np.uint32(rounds), device_sums, cycles), shared_bytes)

    def check() -> None:
        host_sums = bench.device.to_host(device_sums)
        expect_equal(host_sums, np.broadcast_to(data.end, host_sums.shape), "words of sums")

    chains = Chains(bench, launch, cycles, rounds, rounds * body, 1, Work(flops=flops))
    notes = {
        "chains": f"{rounds * body} steps of a warpgroup",
        **resource_notes(bench, kernel, _GROUP_THREADS, shared_bytes),
    }
    return chains.task(matrix_limit(dtype), check, lambda: device_sums.view("uint8").fill(0xFF), notes, REST_S)
