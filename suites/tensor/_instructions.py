"""Measure scalar instructions one by one: multiply-adds, integers and special functions, in one chain or in many."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._checks import expect_equal
from .._matrix.product import on_nvidia
from ..latency._near import chained
from ._chains import ONE_WARP, SCHEDULERS, Chains, chains_and_warps, cycle_words, on_nvidia_gpu, rounds_for
from ._kernels import resource_notes

BODY = 512  # steps per round, as in instructions.cu
_FULL = 32  # chains per scheduler: four warps with eight each
_CHAINS_A_WARP = 8
_MOST_THREADS = 1024  # threads per block at most
_WORD = 2**32
_NEAR = 1e-5  # distance from the fixed point; the functions are exact to about 2^-20 (PTX ISA, ex2, rcp, rsqrt, cos)


topic = gb.Topic(
    views=[
        gb.View(
            "curve",
            "Multiply-adds: throughput by independent chains",
            ("fma",),
            x="independent",
            by=("dtype",),
            log_x=True,
        ),
        gb.View(
            "curve",
            "Multiply-adds: cycles per instruction by independent chains",
            ("fma",),
            x="independent",
            by=("dtype",),
            series="cycles",
            log_x=True,
        ),
        gb.View(
            "curve",
            "Integer instructions: operations per clock and SM",
            ("integer",),
            x="independent",
            by=("operation",),
            series="per_clock",
            log_x=True,
        ),
        gb.View(
            "curve",
            "Special functions: operations per clock and SM",
            ("special",),
            x="independent",
            by=("function",),
            series="per_clock",
            log_x=True,
        ),
    ],
)


@dataclass(frozen=True, slots=True)
class ScalarInstruction:
    """A scalar instruction of instructions.cu; `operation` is the name of its struct there.

    `storage` is the format of its values and `work` the work of one lane."""

    operation: str
    storage: str
    work: gb.Work
    limit: str = ""
    issue: float = 2
    latency: float = 5


FMA = {
    "float64": ScalarInstruction("fma_float64", "float64", gb.Work(flops=2), "float64", 2, 8),
    "float32": ScalarInstruction("fma_float32", "float32", gb.Work(flops=2), "float32", 1, 4),
    "float16x2": ScalarInstruction("fma_float16x2", "float16", gb.Work(flops=4), "float16", 1),
    "bfloat16x2": ScalarInstruction("fma_bfloat16x2", "bfloat16", gb.Work(flops=4), "", 1),
}
INTEGER = {
    "multiply_add": ScalarInstruction("multiply_add", "uint32", gb.Work(flops=2), "int32"),
    "logic": ScalarInstruction("logic", "uint32", gb.Work(items=1)),
    "shift": ScalarInstruction("shift", "uint32", gb.Work(items=1)),
}
FIXED_POINTS = {"ex2": 0.6411857445, "rcp": 1.6180339887, "rsqrt": 1.0, "cosine": 0.7390851332}
SPECIAL = {name: ScalarInstruction(name, "float32", gb.Work(items=1), issue=8, latency=30) for name in FIXED_POINTS}


def packed(numbers: Any, storage: str) -> Any:
    """Return `numbers`, a NumPy array, as the kernel takes values of the format `storage`, in the same shape.

    `float16` and `bfloat16` give each number twice in a word of 32 bits (uint32); other formats are dtypes of NumPy."""
    if storage == "bfloat16":
        halves = numbers.astype(np.float32).view(np.uint32) >> 16
        return halves << 16 | halves
    if storage == "float16":
        return np.repeat(numbers.astype(np.float16), 2).view(np.uint32).reshape(numbers.shape)
    return numbers.astype(storage)


def folded(values: Any) -> Any:
    """Return the word that the kernel leaves for each lane: uint32 of shape (lanes,).

    `values` are the last values of the chains, of shape (chains, lanes) and of 4 or 8 bytes each."""
    bits = values.view(np.uint32).reshape(*values.shape, -1)
    word = np.zeros(values.shape[1], np.uint32)
    for chain in bits:
        for part in chain.T:
            word = (word << 5 | word >> 27) ^ part
    return word


def results_of(operation: str, storage: str, begin: Any, k: Any, steps: int) -> Any:
    """Return the values of all chains after `steps` + 1 steps, bit for bit as the kernel leaves them; `steps` is even.

    The result is an array of the same shape, packed as the format `storage`."""
    if operation == "multiply_add":
        a, plus, constant = (int(number) for number in k)
        x = chained(begin.astype(np.uint64), a * a % _WORD, (a * plus + constant) % _WORD, steps // 2, _WORD)
        return np.asarray((a * x + plus) % _WORD, np.uint32)
    if operation == "logic":
        pair = k[0] & k[1] ^ k[1] & k[2]
        return begin ^ (pair if steps // 2 % 2 else np.uint32(0)) ^ (k[0] & k[1])
    if operation == "shift":
        by = np.uint32((steps // 2 * (int(k[0]) + int(k[1])) + int(k[0])) % 32)
        return begin << by | begin >> (np.uint32(32) - by) % np.uint32(32)
    return packed(k[0] * begin + k[0], storage)


def _drawn(instruction: ScalarInstruction, rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Any, Any]:
    """Return random first values of chains of an instruction, of `shape` (chains, lanes), and the three operands."""
    if instruction.operation in INTEGER:
        return rng.integers(_WORD, size=shape, dtype=np.uint32), rng.integers(1, _WORD, size=3, dtype=np.uint32)
    return rng.integers(1, 8, size=shape), np.full(3, -1)


def _chains_task(bench: gb.Bench, instruction: ScalarInstruction, chains_a_scheduler: int) -> gb.Task:
    """Return the task of chains of `instruction` on all SMs or CUs, with `chains_a_scheduler` chains per scheduler."""
    xp, lanes = bench.xp, bench.traits.warp
    independent, warps = chains_and_warps(chains_a_scheduler, _CHAINS_A_WARP)
    threads = min(_MOST_THREADS, SCHEDULERS * warps * lanes)
    rounds = rounds_for(BODY, max(instruction.issue * warps, instruction.latency / independent))
    begin, k = _drawn(instruction, bench.rng, (independent, lanes))
    is_special = instruction.operation in FIXED_POINTS
    storage, cycles = instruction.storage, cycle_words(bench)
    blocks = len(cycles) // 2
    results = xp.empty(blocks * threads, "float32" if is_special else "uint32")
    operands, first = xp.asarray(packed(k, storage)), xp.asarray(packed(begin, storage))
    kernel = bench.kernel("instructions.cu", "chains", OPERATION=instruction.operation, INDEPENDENT=independent)

    def launch(rounds: int) -> None:
        kernel((blocks,), (threads,), (operands, first, np.uint32(rounds), results, cycles))

    def redraw() -> None:
        """Begin the chains of each lane with the values of the opposite lane."""
        begin[...] = begin[:, ::-1]
        first[...] = xp.asarray(packed(begin, storage))

    def check() -> None:
        """Raise WrongAnswer if a thread's word differs from the host's, or special functions miss their fixed point."""
        values = bench.device.to_host(results).reshape(-1, lanes)
        if is_special:
            off = float(np.abs(values / independent - FIXED_POINTS[instruction.operation]).max())
            gb.expect(off <= _NEAR, f"values of the chains are {off:.3g} away from their fixed point")
            return
        steps = rounds * BODY // independent
        expected = folded(results_of(instruction.operation, storage, begin, k, steps))
        expect_equal(values, np.broadcast_to(expected, values.shape), "threads' values")

    issuers = threads // lanes
    work = gb.Work(flops=instruction.work.flops * lanes, items=instruction.work.items * lanes)
    chains = Chains(bench, launch, cycles, rounds, rounds * BODY, issuers, work)
    notes = {"chains": f"{rounds * BODY} steps of a warp", **resource_notes(bench, kernel, threads)}
    inputs = None if is_special else redraw  # special functions end at their fixed point, wherever they begin
    return chains.task(instruction.limit, check, results, notes, inputs)


def _in_tier(target: gb.Target, params: Mapping[str, Any]) -> bool:
    """Return whether the tier has the point: outside of `full`, only float32 is measured with a single chain."""
    return target.tier == "full" or params["independent"] != 1 or params["dtype"] == "float32"


@topic.case(
    dtype=lambda target: gb.points(_dtypes(target)[:3], ("float32",), _dtypes(target)),
    independent=gb.points((1, _FULL), (1,), (*ONE_WARP, _FULL)),
    when=gb.on_gpu,
    where=_in_tier,
)
def fma(bench: gb.Bench, dtype: str, independent: int) -> gb.Task:
    """Throughput of multiply-adds x = a·x + b of the format `dtype` in registers: two operations for each number.

    Each scheduler has `independent` chains, in each of which a step needs the result of the step before. The formats
    `float16x2` and `bfloat16x2` have two numbers in a register."""
    return _chains_task(bench, FMA[dtype], independent)


def _dtypes(target: gb.Target) -> tuple[str, ...]:
    return tuple(FMA) if on_nvidia(target) else tuple(FMA)[:3]


@topic.case(
    operation=gb.points((), full=tuple(INTEGER)),
    independent=gb.points((), full=(*ONE_WARP, _FULL)),
    when=on_nvidia_gpu,
)
def integer(bench: gb.Bench, operation: str, independent: int) -> gb.Task:
    """Throughput of 32-bit integers: multiply-add (two operations), three-operand logic, rotation (one each).

    Each scheduler has `independent` chains, in each of which a step needs the result of the step before."""
    return _chains_task(bench, INTEGER[operation], independent)


@topic.case(
    function=gb.points((), full=tuple(SPECIAL)),
    independent=gb.points((), full=(*ONE_WARP, _FULL)),
    when=on_nvidia_gpu,
)
def special(bench: gb.Bench, function: str, independent: int) -> gb.Task:
    """Throughput of special functions in float32, one operation each; rcp and cosine take one addition more.

    Each scheduler has `independent` chains, in each of which a step needs the result of the step before."""
    return _chains_task(bench, SPECIAL[function], independent)
