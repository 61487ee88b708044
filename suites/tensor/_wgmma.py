"""Measure Hopper's wgmma instructions one by one: a warpgroup's product by the number of columns and the place of A."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._checks import expect_equal, shifting
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

topic = gb.Topic(
    views=[
        gb.View("curve", "wgmma: throughput by columns", ("wgmma",), x="columns", by=_LINES, log_x=True),
        gb.View(
            "curve",
            "wgmma: cycles per instruction by columns",
            ("wgmma",),
            x="columns",
            by=_LINES,
            series="cycles",
            log_x=True,
        ),
    ],
)


@dataclass(frozen=True, slots=True)
class WarpgroupFormat:
    """A combination of formats that wgmma supports.

    `dtype` is the format of A and B."""

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
    """The inputs of a kernel of wgmma chains and its expected results, as NumPy arrays.

    `images` are A and below it B as they lie in shared memory: uint8, shape (64 + columns, 128)."""

    images: Any
    fragments: Any
    begin: Any
    end: Any


def warpgroup_words(elements: Any, warp_words: Any) -> Any:
    """Return `elements`, a matrix of 64 rows, as the registers of a warpgroup hold it, of shape (registers, 128).

    Each of four warps has 16 rows."""
    return np.concatenate([warp_words(elements[first : first + 16]) for first in range(0, _ROWS, 16)], axis=1)


def warpgroup_data(form: WarpgroupFormat, rng: np.random.Generator, columns: int, rounds: int) -> WarpgroupData:
    """Return random A (64 × K) and B (`columns` × K) of whole numbers, and the sums after `rounds` rounds of steps.

    K is four times the products in a sum of one instruction."""
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
    """Return the number of steps in a round: 32 from 128 columns on, else 64.

    With many columns an instruction has many operands, which make the compiler slow."""
    return 32 if columns >= _WIDE else 64


def wgmma_defines(form: WarpgroupFormat, columns: int, a: str) -> dict[str, str | int]:
    """Return by name the macros of instructions_wgmma.cu that follow from the format, the number of columns and `a`.

    `a` is where A lies: `shared` or `registers`."""
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
    """Return the number of 32-bit registers in which a thread keeps the sums of one chain."""
    return columns // (4 if form.sums == "f16" else 2)


def _has_point(target: gb.Target, params: Mapping[str, Any]) -> bool:
    """Return whether the formats exist and the point is measured."""
    del target
    formats = params["dtype"], params["sums"]
    is_curve = formats == ("float16", "float32")
    return formats in FORMATS and (is_curve or (params["columns"] in (64, 256) and params["a"] == "shared"))


@topic.case(
    dtype=gb.points(("float16", "float8_e4m3"), ("float16",), tuple(dict.fromkeys(dtype for dtype, _ in FORMATS))),
    sums=gb.points(("float32",), full=tuple(dict.fromkeys(sums for _, sums in FORMATS))),
    columns=gb.points((256,), full=(8, 16, 32, 64, 128, 256)),
    a=gb.points(("shared",), full=("shared", "registers")),
    wait=gb.points(("late",), full=("each", "late")),
    when=on_nvidia_gpu,
    where=_has_point,
)
def wgmma(bench: gb.Bench, dtype: str, sums: str, columns: int, a: str, wait: str) -> gb.Task:
    """Throughput of D = A·B + C of 64 rows by a warpgroup, B in shared memory: 2·M·N·K operations per instruction.

    `a` is where A lies, `columns` is N, `dtype` the format of A and B, and `sums` the format of C and D. With `wait` of
    `each` the warpgroup waits for each instruction before the next; with `late` it waits after every 16 instructions,
    for all but the last 16."""
    if "wgmma" not in bench.traits.features:
        raise gb.Skip(f"wgmma is an instruction of sm_90 alone, not of {bench.traits.arch}")
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
    inputs = tuple(xp.array(array) for array in (data.images, data.fragments, data.begin))

    def launch(rounds: int) -> None:
        kernel((blocks,), (_GROUP_THREADS,), (*inputs, np.uint32(rounds), device_sums, cycles), shared_bytes)

    def check() -> None:
        host_sums = bench.device.to_host(device_sums)
        expect_equal(host_sums, np.broadcast_to(data.end, host_sums.shape), "words of sums")

    chains = Chains(bench, launch, cycles, rounds, rounds * body, 1, gb.Work(flops=flops))
    notes = {
        "chains": f"{rounds * body} steps of a warpgroup",
        **resource_notes(bench, kernel, _GROUP_THREADS, shared_bytes),
    }
    redraw = shifting(form.sum_dtype, inputs[2], data.end)
    return chains.task(matrix_limit(dtype), check, device_sums, notes, redraw, REST_S)
