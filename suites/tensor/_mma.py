"""Measure the matrix instructions of a warp one by one, by shape and format: mma.sync, and MFMA on AMD."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._checks import expect_equal, shifting
from .._matrix.product import on_nvidia
from ._chains import ONE_WARP, REST_S, SCHEDULERS, Chains, chains_and_warps, cycle_words, matrix_limit, rounds_for
from ._fragments import drawn, encoded, operand_words, sum_words
from ._kernels import resource_notes

BODY = 64  # steps per round, as in instructions_mma.cu
_FULL = 16  # chains per scheduler: four warps with four each
_CHAINS_A_WARP = 4
_CYCLES = 32  # assumed cycles per step of a dependent chain, unless the instruction takes longer
_MOST_SUMS = 64  # registers of a lane for sums on AMD, which has 128 with four waves on each SIMD unit
_A, _B = 3, 4  # on AMD, whose layouts differ by instruction, all elements of A and of B have these values

topic = gb.Topic(
    views=[
        gb.View(
            "curve",
            f"Matrix instructions of a warp: {what} by independent chains",
            ("mma",),
            x="independent",
            by=("shape", "dtype", "sums"),
            series=series,
            log_x=True,
        )
        for what, series in (("throughput", ""), ("cycles per instruction", "cycles"))
    ]
)


_TURING, _AMPERE, _ADA, _HOPPER = (gb.Architecture.parse(name) for name in ("sm_75", "sm_80", "sm_89", "sm_90"))


@dataclass(frozen=True, slots=True)
class MatrixInstruction:
    """A matrix instruction of a warp: it adds a product of m × k and k × n to m × n sums; `shape` is (m, n, k).

    `dtype` is the format of A and B. Compilers accept it since the architecture `since`. If `own` names a feature,
    only an architecture with the feature has the instruction; elsewhere the compiler makes it of others."""

    shape: tuple[int, int, int]
    dtype: str
    inputs: str
    sums: str = "f32"
    rate: float = 640
    since: gb.Architecture = _AMPERE
    own: str = ""

    @property
    def flops(self) -> float:
        """Operations of one instruction."""
        m, n, k = self.shape
        return 2.0 * m * n * k

    @property
    def is_narrow(self) -> bool:
        """Whether this is an instruction of gfx950 for formats of 8, 6 and 4 bits, of which A and B have one each."""
        return self.inputs == "_f8f6f4"

    @property
    def word_bytes(self) -> int:
        """Bytes of a register that holds elements of A or B."""
        return 8 if self.dtype == "float64" else 4

    @property
    def sum_dtype(self) -> str:
        """The format of the sums, as `encoded` knows it."""
        return {"f32": "float32", "f16": "float16", "f64": "float64", "s32": "int32"}[self.sums]


def _forms(dtype: str, inputs: str, shapes: str, **more: Any) -> dict[tuple[str, str, str], MatrixInstruction]:
    """Return the instructions of one input format by (name of the shape, `dtype`, format of the sums)."""
    forms = {}
    for shape in shapes.split():
        m, n, k = (int(side) for side in shape[1:].replace("n", " ").replace("k", " ").split())
        form = MatrixInstruction((m, n, k), dtype, inputs, **more)
        forms[shape, dtype, form.sum_dtype] = form
    return forms


_WIDE = "m16n8k4 m16n8k8 m16n8k16"
MMA = {
    **_forms("float16", "f16", "m16n8k8", since=_TURING),
    **_forms("float16", "f16", "m16n8k16"),
    **_forms("float16", "f16", "m16n8k8", sums="f16", since=_TURING),
    **_forms("float16", "f16", "m16n8k16", sums="f16"),
    **_forms("bfloat16", "bf16", "m16n8k8 m16n8k16"),
    **_forms("tf32", "tf32", "m16n8k4 m16n8k8", rate=320),
    **_forms("float8_e4m3", "e4m3", "m16n8k32", since=_ADA, own="float8_mma"),
    **_forms("int8", "s8", "m16n8k16 m16n8k32", sums="s32", rate=1280),
    **_forms("float64", "f64", "m8n8k4", sums="f64", rate=64),
    **_forms("float64", "f64", _WIDE, sums="f64", rate=64, since=_HOPPER, own="float64_wide"),
}
_CDNA2, _CDNA3, _CDNA4 = (gb.Architecture.parse(name) for name in ("gfx90a", "gfx942", "gfx950"))
# The last word of the function's name is the shape and the format (LLVM, BuiltinsAMDGPU.def).
MFMA = {
    **_forms("float16", "f16", "m32n32k8 m16n16k16", rate=512, since=_CDNA2),
    **_forms("bfloat16", "bf16_1k", "m32n32k8 m16n16k16", rate=512, since=_CDNA2),
    **_forms("float64", "f64", "m16n16k4", sums="f64", rate=64, since=_CDNA2),
    **_forms("int8", "i8", "m32n32k8 m16n16k16", sums="s32", rate=512, since=_CDNA2, own="narrow_int8"),
    **_forms("int8", "_i8", "m32n32k16 m16n16k32", sums="s32", rate=1024, since=_CDNA3),
    **_forms("float8_e4m3", "_fp8_fp8", "m32n32k16 m16n16k32", rate=1024, since=_CDNA3),
    **_forms("float16", "_f16", "m32n32k16 m16n16k32", rate=1024, since=_CDNA4),
    **_forms("bfloat16", "_bf16", "m32n32k16 m16n16k32", rate=1024, since=_CDNA4),
    **_forms("int8", "_i8", "m32n32k32 m16n16k64", sums="s32", rate=2048, since=_CDNA4),
    **_forms("float8_e4m3", "_f8f6f4", "m32n32k64 m16n16k128", rate=2048, since=_CDNA4),
    **_forms("float6_e2m3", "_f8f6f4", "m32n32k64 m16n16k128", rate=4096, since=_CDNA4),
    **_forms("float4_e2m1", "_f8f6f4", "m32n32k64 m16n16k128", rate=4096, since=_CDNA4),
}
_AMD_INPUTS = {  # by format and elements of a lane: the type of an element, and of their vector
    ("float16", 4): ("_Float16", "gb_half4"),
    ("float16", 8): ("_Float16", "gb_half8"),
    ("bfloat16", 4): ("short", "gb_short4"),
    ("bfloat16", 8): ("short", "gb_brain8"),
    ("float64", 1): ("double", "double"),
    ("float8_e4m3", 8): ("u8", "long"),
    ("int8", 4): ("u8", "int"),
    ("int8", 8): ("u8", "long"),
    ("int8", 16): ("u8", "gb_int4"),
    **{(dtype, 32): ("u32", "gb_int8") for dtype in ("float8_e4m3", "float6_e2m3", "float4_e2m1")},
}
# The number of a format in instructions of f8f6f4, its bits, and its codes of 3, 4 and −4 (CDNA 4 ISA, "MFMA").
_NARROW = {
    "float8_e4m3": (0, 8, (0x44, 0x48, 0xC8)),
    "float6_e2m3": (2, 6, (0x14, 0x18, 0x38)),
    "float4_e2m1": (4, 4, (0x5, 0x6, 0xE)),
}
_NARROW_WORDS = 8  # registers of 32 bits for 32 elements of a lane; formats of fewer bits use the first ones
_SUM_VECTORS = {
    ("f32", 4): "gb_float4",
    ("f32", 16): "gb_float16",
    ("f64", 4): "gb_double4",
    ("s32", 4): "gb_int4",
    ("s32", 16): "gb_int16",
}
# The codes of 3, 4 and −4 in E4M3: of the OCP with the bias 7, and of CDNA 3 with the bias 8.
_OCP_FLOAT8, _CDNA3_FLOAT8 = {3: 0x44, 4: 0x48, -4: 0xC8}, {3: 0x4C, 4: 0x50, -4: 0xD0}
_WORDS = {"f32": "float", "f64": "double", "f16": "u32", "s32": "u32"}


def nvidia_defines(form: MatrixInstruction) -> dict[str, str | int]:
    """Return the macros with which instructions_mma.cu is compiled for an instruction of NVIDIA, by name."""
    m, n, k = form.shape
    bits = {"float16": 16, "bfloat16": 16, "float8_e4m3": 8, "int8": 8, "tf32": 32, "float64": 64}[form.dtype]
    lanes_bits = 32 * 8 * form.word_bytes
    return {
        "SHAPE": f"m{m}n{n}k{k}",
        "INPUTS": form.inputs,
        "SUMS": form.sums,
        "INPUT_WORD": "double" if form.dtype == "float64" else "u32",
        "SUM_WORD": _WORDS[form.sums],
        "A_WORDS": m * k * bits // lanes_bits,
        "B_WORDS": k * n * bits // lanes_bits,
        "C_WORDS": m * n // 32 // (2 if form.sums == "f16" else 1),
    }


def amd_defines(form: MatrixInstruction) -> dict[str, str | int]:
    """Return the macros with which instructions_mma.cu is compiled for an instruction of AMD, by name."""
    m, n, k = form.shape
    count = m * k // 64
    element, vector = _AMD_INPUTS[form.dtype, count]
    sums = _SUM_VECTORS[form.sums, m * n // 64]
    narrow = {"FORMAT": _NARROW[form.dtype][0]} if form.is_narrow else {}
    count = _NARROW_WORDS if narrow else count
    return {
        **narrow,
        "INSTRUCTION": f"mfma_{'scale_' if narrow else ''}{form.sums.replace('s32', 'i32')}_{m}x{n}x{k}{form.inputs}",
        "INPUT_WORD": element,
        "INPUT_VECTOR": vector,
        "SUM_WORD": _WORDS[form.sums],
        "SUM_VECTOR": sums,
        "A_WORDS": count,
        "B_WORDS": count,
        "C_WORDS": m * n // 64,
    }


@dataclass(frozen=True, slots=True)
class MatrixData:
    """The inputs of a kernel of matrix chains and its expected results: NumPy arrays of shape (registers, lanes).

    `operands` has the registers of A, of B and of −B in this order; `begin` and `end` have the sums with which a
    chain begins and ends."""

    operands: Any
    begin: Any
    end: Any


def nvidia_data(form: MatrixInstruction, rng: np.random.Generator) -> MatrixData:
    """Return random matrices of small whole numbers for an instruction of NVIDIA, as the registers of a warp hold them.

    The steps of a chain add A·B and −A·B in turn, an even number of times."""
    m, n, k = form.shape
    a, b, c = drawn(rng, m, k), drawn(rng, n, k), drawn(rng, m, n)
    parts = [operand_words(encoded(matrix, form.dtype), form.word_bytes) for matrix in (a, b, -b)]
    begin, end = (sum_words(encoded(sums, form.sum_dtype)) for sums in (c, c + a @ b.T))
    return MatrixData(np.concatenate(parts).view(f"u{form.word_bytes}"), begin, end)


def amd_data(form: MatrixInstruction, rng: np.random.Generator, has_ocp: bool = True) -> MatrixData:
    """Return the data for an instruction of AMD: all elements of A are 3 and all of B are 4, so that no layout matters.

    The sums in `begin` are random, and each in `end` is larger by 12·k. `has_ocp` selects the bias of FP8."""
    m, n, k = form.shape
    codes = _OCP_FLOAT8 if has_ocp else _CDNA3_FLOAT8
    lanes = (m * k // 64, 64)
    if form.is_narrow:
        parts = [_narrow_words(form.dtype, code) for code in _NARROW[form.dtype][2]]
    elif form.dtype == "float8_e4m3":
        parts = [np.full(lanes, codes[value], np.uint8) for value in (_A, _B, -_B)]
    else:
        parts = [encoded(np.full(lanes, value), form.dtype) for value in (_A, _B, -_B)]
    begin = encoded(rng.integers(1, 8, (m * n // 64, 64)), form.sum_dtype)
    return MatrixData(np.concatenate(parts), begin, begin + begin.dtype.type(k * _A * _B))


def _narrow_words(dtype: str, code: int) -> Any:
    """Return the registers of 64 lanes that hold 32 elements of one code each: uint32, shape (registers, lanes)."""
    bits = _NARROW[dtype][1]
    packed = sum(code << bits * place for place in range(32)).to_bytes(4 * _NARROW_WORDS, "little")
    return np.repeat(np.frombuffer(packed, "<u4")[:, None], 64, axis=1)


def _instructions(target: gb.Target) -> Mapping[tuple[str, str, str], MatrixInstruction]:
    """Return the instructions of the target's vendor by (name of the shape, input format, format of the sums)."""
    return MMA if on_nvidia(target) else MFMA


def _axis(place: int) -> Any:
    """Return the function that gives the values of an axis for a target: of shape, dtype or sums."""

    def values(target: gb.Target) -> Any:
        forms = list(_instructions(target))
        quick = ("m16n8k16" if on_nvidia(target) else "m32n32k8", "float16", "float32")
        every = tuple(dict.fromkeys(form[place] for form in forms))
        return gb.points((quick[place],), full=every)

    return values


def _is_instruction(target: gb.Target, params: Mapping[str, Any]) -> bool:
    """Return whether the vendor has the instruction; on AMD also its sums must fit the registers of a lane."""
    form = _instructions(target).get((params["shape"], params["dtype"], params["sums"]))
    if form is None or on_nvidia(target):
        return form is not None
    m, n, _ = form.shape
    words_a_sum = 2 if form.sums == "f64" else 1
    return bool(words_a_sum * m * n // 64 * chains_and_warps(params["independent"], _CHAINS_A_WARP)[0] <= _MOST_SUMS)


@topic.case(
    shape=_axis(0),
    dtype=_axis(1),
    sums=_axis(2),
    independent=gb.points((1, _FULL), (1,), (*ONE_WARP, _FULL)),
    when=gb.on_gpu,
    where=_is_instruction,
)
def mma(bench: gb.Bench, shape: str, dtype: str, sums: str, independent: int) -> gb.Task:
    """Throughput of D = A·B + C of one warp in registers (mma.sync; AMD: MFMA): 2·M·N·K operations an instruction.

    `shape` names M, N and K. Each scheduler has `independent` chains, in each of which an instruction adds to the sums
    of the one before. `dtype` is the format of A and B, `sums` the format of C and D."""
    is_nvidia, lanes = bench.traits.vendor == "nvidia", bench.traits.warp
    chains_a_warp, warps = chains_and_warps(independent, _CHAINS_A_WARP)
    form = _instructions(bench.target)[shape, dtype, sums]
    has_units = is_nvidia or "matrix" in bench.traits.features
    if not has_units or bench.traits.architecture < form.since:
        raise gb.Skip(f"the instruction needs {form.since} or newer, not {bench.traits.arch}")
    if form.own and form.own not in bench.traits.features:
        reason = f"{bench.traits.arch} has no warp instruction for {dtype} products of this shape"
        has_wgmma = "wgmma" in bench.traits.features
        raise gb.Skip(f"{reason}; the case wgmma has that of a warpgroup" if has_wgmma else reason)
    threads = SCHEDULERS * warps * lanes
    issue = form.flops / form.rate
    rounds = rounds_for(BODY, max(issue * warps, max(issue, _CYCLES) / chains_a_warp))
    has_ocp = "ocp_float8" in bench.traits.features
    data = nvidia_data(form, bench.rng) if is_nvidia else amd_data(form, bench.rng, has_ocp)
    defines = nvidia_defines(form) if is_nvidia else amd_defines(form)
    kernel = bench.kernel("instructions_mma.cu", "matrix_chains", INDEPENDENT=chains_a_warp, THREADS=threads, **defines)
    cycles = cycle_words(bench)
    blocks, issuers = len(cycles) // 2, threads // lanes
    device_sums = bench.xp.empty((blocks * issuers * chains_a_warp, *data.end.shape), data.end.dtype)
    operands, begin = bench.xp.asarray(data.operands), bench.xp.array(data.begin)

    def launch(rounds: int) -> None:
        kernel((blocks,), (threads,), (operands, begin, np.uint32(rounds), device_sums, cycles))

    def check() -> None:
        host_sums = bench.device.to_host(device_sums)
        expect_equal(host_sums, np.broadcast_to(data.end, host_sums.shape), "words of sums")

    chains = Chains(bench, launch, cycles, rounds, rounds * BODY, issuers, gb.Work(flops=form.flops))
    notes = {"chains": f"{rounds * BODY} steps of a warp", **resource_notes(bench, kernel, threads)}
    redraw = shifting(form.sum_dtype, begin, data.end)
    return chains.task(matrix_limit(dtype), check, device_sums, notes, redraw, REST_S)
