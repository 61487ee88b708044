"""Measure the multiply-add rate of the host's vector units, by width and cores, beside the clock that cores run at."""

import ctypes
import functools
import math
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._checks import expect_equal
from .._stream import NEEDS_NUMBA

_CHAINS = 12  # more than latency (4 or 5 cycles) × pipes (2) of a core, and with both operands at most 16 registers
_ROUNDS = 2**19 + 1  # a few milliseconds; odd, so that the chains do not end where they began
_ADDITIONS = 64  # per turn of the loop that shows the clock
_TURNS, _LOOKS = 2**12, 8
# Features of LLVM that a width needs, and a register of its multiply-adds in assembly.
_X86 = {128: ("fma", "xmm"), 256: ("fma", "ymm"), 512: ("avx512f", "zmm")}
_TYPES = {"float32": "float", "float64": "double"}

topic = gb.Topic(
    views=[
        gb.View(
            "bars", "Multiply-add throughput of the host's vector units", ("vector_fma",), by=("bits",), series="hot"
        )
    ]
)


@dataclass(frozen=True, slots=True)
class Assembly:
    """The machine code of a module of LLVM: its text, and the number of its multiply-adds of the width asked for."""

    text: str
    multiply_adds: int


def vector_code(dtype: str, bits: int) -> str:
    """Return LLVM's text of `fma(state, operands, rounds)`: in each round x = a·x + b for 12 independent vectors."""
    scalar = _TYPES[dtype]
    kind = f"<{bits // (8 * np.dtype(dtype).itemsize)} x {scalar}>"
    suffix = f"v{bits // (8 * np.dtype(dtype).itemsize)}f{8 * np.dtype(dtype).itemsize}"
    size, chains = bits // 8, range(_CHAINS)
    places = [f"%p{i} = getelementptr i8, ptr %state, i64 {i * size}" for i in chains]
    loads = [f"%x{i} = load {kind}, ptr %p{i}, align 4" for i in chains]
    merged = [f"%s{i} = phi {kind} [ %x{i}, %entry ], [ %y{i}, %again ]" for i in chains]
    steps = [f"%y{i} = call {kind} @llvm.fma.{suffix}({kind} %a, {kind} %s{i}, {kind} %b)" for i in chains]
    stores = [f"store {kind} %y{i}, ptr %p{i}, align 4" for i in chains]
    lines = [
        f"declare {kind} @llvm.fma.{suffix}({kind}, {kind}, {kind})",
        "define void @fma(ptr %state, ptr %operands, i64 %rounds) #0 {",
        "entry:",
        f"%second = getelementptr i8, ptr %operands, i64 {size}",
        f"%a = load {kind}, ptr %operands, align 4",
        f"%b = load {kind}, ptr %second, align 4",
        *places,
        *loads,
        "br label %again",
        "again:",
        "%i = phi i64 [ 0, %entry ], [ %next, %again ]",
        *merged,
        *steps,
        "%next = add i64 %i, 1",
        "%more = icmp ult i64 %next, %rounds",
        "br i1 %more, label %again, label %done",
        "done:",
        *stores,
        "ret void",
        "}",
        f'attributes #0 = {{ "min-legal-vector-width"="{bits}" "prefer-vector-width"="{bits}" }}',
    ]
    return "\n".join(lines)


def clock_code(addition: str) -> str:
    """Return LLVM's text of `add(x, y, turns)`: chains of 64 dependent additions, each of which takes one cycle."""
    chain = [
        f'%y{i + 1} = call i64 asm sideeffect "{addition}", "=r,0,r"(i64 %y{i}, i64 %by)' for i in range(_ADDITIONS)
    ]
    lines = [
        "define i64 @add(i64 %x, i64 %by, i64 %turns) {",
        "entry:",
        "br label %again",
        "again:",
        "%i = phi i64 [ 0, %entry ], [ %next, %again ]",
        f"%y0 = phi i64 [ %x, %entry ], [ %y{_ADDITIONS}, %again ]",
        *chain,
        "%next = add i64 %i, 1",
        "%more = icmp ult i64 %next, %turns",
        "br i1 %more, label %again, label %done",
        "done:",
        f"ret i64 %y{_ADDITIONS}",
        "}",
    ]
    return "\n".join(lines)


def assembled(code: str, triple: str, cpu: str, features: str, register: str) -> Assembly:
    """Compile LLVM's text for any processor, and count multiply-adds with operands in `register`s, such as `zmm`."""
    from llvmlite import binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features, opt=2)
    text = machine.emit_assembly(llvm.parse_assembly(code, llvm.create_context()))
    return Assembly(text, len(re.findall(rf"^\s+(?:vfmadd|vfnmadd|fmla)\S*\s.*{register}", text, re.MULTILINE)))


@functools.cache
def _host() -> Any:
    """Return LLVM's binding, ready for this processor; raises Skip without llvmlite, which numba brings."""
    try:
        from llvmlite import binding as llvm
    except ImportError as error:
        raise gb.Skip(NEEDS_NUMBA) from error
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()  # the chain of additions is inline assembly
    return llvm


@functools.cache
def _engine(code: str) -> Any:
    """Return the engine that holds the machine code of LLVM's text for this processor."""
    llvm = _host()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2, jit=True
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(code), machine)
    engine.finalize_object()
    return engine


def _function(code: str, name: str, result: Any, arguments: tuple[Any, ...]) -> Callable[..., Any]:
    return ctypes.CFUNCTYPE(result, *arguments)(_engine(code).get_function_address(name))


def _register(bits: int) -> str:
    """Return the register of vectors of `bits` bits; raises Skip if the host has no multiply-adds of that width."""
    llvm = _host()
    triple = llvm.get_default_triple()
    if triple.startswith("aarch64"):
        if bits == 128:
            return "v"
        raise gb.Skip("NEON has vectors of 128 bits")
    if not triple.startswith("x86_64"):
        raise gb.Skip(f"multiply-adds of {triple} are unknown here")
    feature, register = _X86[bits]
    if not llvm.get_host_cpu_features().get(feature):
        raise gb.Skip(f"the host has no {feature}, which multiply-adds of {bits} bits need")
    return register


def _cores(target: gb.Target) -> Any:
    every = max(1, target.device.units)
    return gb.points(tuple(sorted({1, every})), (1,), tuple(sorted({1, max(1, every // 2), every})))


class _Team:
    """Threads that stay on one core each and run a function at the same time, without Python's lock."""

    def __init__(self, count: int) -> None:
        places = sorted(os.sched_getaffinity(0))
        if count > len(places):
            raise gb.Skip(f"needs {count} cores, this process may use {len(places)}")
        self._pool, self.count = ThreadPoolExecutor(count), count
        met = threading.Barrier(count)

        def settle(place: int) -> None:
            met.wait()  # so that each thread of the pool takes one place
            os.sched_setaffinity(0, {place})

        list(self._pool.map(settle, places[:count]))
        self._met = met

    def run(self, function: Callable[[int], object]) -> None:
        """Call `function` with the number of each thread, and wait for all."""

        def begin(number: int) -> None:
            self._met.wait()
            function(number)

        list(self._pool.map(begin, range(self.count)))

    def close(self) -> None:
        self._pool.shutdown()


@topic.case(
    when=gb.on_host,
    dtype=gb.points(("float64", "float32"), ("float64",)),
    bits=gb.points((128, 256, 512), (128,)),
    cores=_cores,
)
def vector_fma(bench: gb.Bench, dtype: str, bits: int, cores: int) -> gb.Task:
    """Multiply-adds of vectors of `bits` bits in registers, on `cores` cores: two operations for each number.

    `clock` is the core's frequency by a chain of additions of one cycle each, right after a sample. `pipes` is the rate
    over frequency × numbers per vector × 2 × cores: how many vectors a core completes per clock. Every number of every
    thread is compared exactly."""
    register = _register(bits)
    llvm = _host()
    code = vector_code(dtype, bits)
    features, triple = llvm.get_host_cpu_features().flatten(), llvm.get_default_triple()
    made = assembled(code, triple, llvm.get_host_cpu_name(), features, register).multiply_adds
    gb.expect(made >= _CHAINS, f"the compiler made {made} multiply-adds of {bits} bits, not {_CHAINS}")
    numbers = bits // (8 * np.dtype(dtype).itemsize)
    begin = bench.rng.integers(1, 2**20, (cores, _CHAINS, numbers)).astype(dtype)
    plus = bench.rng.integers(1, 2**20, numbers).astype(dtype)
    operands, state = np.stack([np.full(numbers, -1, dtype), plus]), begin.copy()
    pointer = ctypes.c_void_p
    run = _function(code, "fma", None, (pointer, pointer, ctypes.c_int64))
    addition = "addq $2, $0" if register != "v" else "add $0, $0, $2"
    add = _function(clock_code(addition), "add", ctypes.c_int64, (ctypes.c_int64,) * 3)
    team, last = _Team(cores), [0.0]

    def call(rounds: int = _ROUNDS) -> None:
        state[:] = begin
        start = perf_counter()
        team.run(lambda number: run(state[number].ctypes.data, operands.ctypes.data, rounds))
        last[0] = perf_counter() - start

    def clock() -> gb.Observation:
        """Return the frequency of a core and the vectors that each core completed per clock in the last call."""
        shortest_s = math.inf
        for _ in range(_LOOKS):  # the shortest, since other programs may take the core
            start = perf_counter()
            gb.expect(add(3, 7, _TURNS) == 3 + 7 * _ADDITIONS * _TURNS, "a chain of additions has a wrong sum")
            shortest_s = min(shortest_s, perf_counter() - start)
        hertz = _ADDITIONS * _TURNS / shortest_s
        pipes = _CHAINS * _ROUNDS / last[0] / hertz
        return {"clock": gb.Observed(hertz, "Hz", "more"), "pipes": gb.Observed(pipes, "vectors/clock", "more")}

    def check() -> None:
        expect_equal(state, plus - begin, "numbers")

    def redraw() -> None:
        """Begin with the numbers in reverse order."""
        begin[:] = begin[::-1, ::-1, ::-1].copy()

    work = gb.Work(flops=2.0 * numbers * _CHAINS * _ROUNDS * cores)
    stage = gb.Stage(
        call, work, "flops", dtype, effort=gb.POINT, outputs=(state,), inputs=redraw, max_calls=1, probe=clock
    )
    return gb.Task.of(stage, check=check, notes={"instructions": f"{made} of {bits} bits"}, close=team.close)
