"""What a compiler made of an operator, from its code alone: values beside the measured time of a call."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from gpubench.api.suite import Device, Observed

_WORD_BYTES = 4  # of a spilled register
_ISSUED = 4  # instructions per clock and multiprocessor
_MEMORY = ("LDG", "STG", "RED", "ATOMG", "LDGSTS")  # instructions of global memory
_INSTRUCTION = re.compile(r"\S+:\d+\t(?:@!?U?P\w+ )?([A-Z][A-Z0-9]*)")
_LABEL = re.compile(r"(\.L\w+):")
_JUMP = re.compile(r"\tj\w+\t(\.L\w+)$")
_STORE = re.compile(r"\tv?mov\w+\t%([xyz]mm)\d+, -?\w*\((?!%rsp)")
_VECTOR_BYTES = {"xmm": 16, "ymm": 32, "zmm": 64}
_ITEM_BYTES = 4  # of a float
_THROUGHPUT = re.compile(r"Block RThroughput:\s+([\d.]+)")
_LIMIT_S = 10.0


def of_launch(launch: partial[None]) -> Mapping[str, Observed]:
    """Return the resources of a kernel of ours by its launch; none where the backend does not report them."""
    kernel, (_, block, _, *shared) = launch.func, launch.args
    found = kernel.resources(block[0], *shared)  # type: ignore[attr-defined]  # a Kernel
    if found is None:
        return {}
    return {
        "registers": Observed(found.registers),
        "shared": Observed(found.shared_bytes + sum(shared), "B"),
        "spilled": Observed(found.local_bytes, "B"),
        "resident": Observed(found.resident_blocks * block[0], "thread", better="more"),
    }


def of_triton(compiled: Any, programs: int, device: Device) -> Mapping[str, Observed]:
    """Return the resources of a kernel as Triton compiled it, its instructions, and the time that issuing them takes.

    `instructions` are those of one warp, each counted once, `memory` and `special` of them those of global memory and
    of the unit for exponentials and roots. `issue` is the time of all warps at four instructions per clock and
    multiprocessor, at the highest clock. Our kernels in Triton have no loops, so a warp executes what is counted.
    """
    found = {
        "registers": Observed(compiled.n_regs),
        "shared": Observed(compiled.metadata.shared, "B"),
        "spilled": Observed(_WORD_BYTES * compiled.n_spills, "B"),
    }
    try:
        mix = instructions(compiled.asm["sass"])  # by the disassembler that comes with Triton
    except (OSError, RuntimeError, subprocess.SubprocessError):
        return found  # it is missing
    found["instructions"] = Observed(mix.total())
    found["memory"] = Observed(sum(mix[name] for name in _MEMORY))
    found["special"] = Observed(mix["MUFU"])
    clock_hz = float(dict(device.details).get("clock.sm_most_hz", 0))
    if clock_hz:
        warps = programs * compiled.metadata.num_warps
        found["issue"] = Observed(mix.total() * warps / (_ISSUED * device.units * clock_hz), "s")
    return found


def instructions(sass: str) -> Counter[str]:
    """Count the instructions of a disassembly by Triton by their names, up to the last one that ends a thread."""
    names = [found[1] for line in sass.splitlines() if (found := _INSTRUCTION.match(line))]
    ends = [place for place, name in enumerate(names) if name == "EXIT"]
    return Counter(names[: ends[-1] + 1 if ends else None])


def of_assembly(text: str) -> Mapping[str, Observed]:
    """Return the cycles that llvm-mca expects for an element in the loop that stores the most elements at once.

    It is the bound by the units of one core, with all operands in its first cache. There is none without llvm-mca, or
    where that loop calls a function, which llvm-mca does not know.
    """
    program = shutil.which("llvm-mca")
    loops = sorted(_loops(text), key=_stored_bytes)
    if not program or not loops or not _stored_bytes(loops[-1]) or "\tcall" in loops[-1]:
        return {}
    done = subprocess.run(
        [program], input=loops[-1], capture_output=True, encoding="utf-8", timeout=_LIMIT_S, check=False
    )
    found = _THROUGHPUT.search(done.stdout)
    if not found:  # a processor that it does not know
        return {}
    return {"mca": Observed(float(found[1]) / (_stored_bytes(loops[-1]) / _ITEM_BYTES), "cycle")}


def _loops(text: str) -> Iterator[str]:
    """Yield the innermost loops of assembly in the AT&T syntax: a label, and instructions to the jump back to it."""
    lines, start, label = text.splitlines(), 0, ""
    for place, line in enumerate(lines):
        if found := _LABEL.match(line):
            start, label = place, found[1]
        elif (jump := _JUMP.match(line)) and jump[1] == label:
            yield "\n".join(lines[start : place + 1]) + "\n"


def _stored_bytes(loop: str) -> int:
    """Return the bytes that a pass of the loop stores from registers of floats."""
    return sum(_width(line, store[1]) for line in loop.splitlines() if (store := _STORE.match(line)))


def _width(line: str, register: str) -> int:
    return _ITEM_BYTES if "ss\t" in line else _VECTOR_BYTES[register]
