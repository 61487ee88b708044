"""Read static properties from compiled code: registers, memory, instructions and expected cycles."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from gpubench.api import suite as gb

_WORD_BYTES = 4  # of a spilled register
_ISSUED = 4  # instructions per clock and multiprocessor
_MEMORY = ("LDG", "STG", "RED", "ATOMG", "LDGSTS")  # instructions of global memory
_INSTRUCTION = re.compile(r"\S+:\d+\t(?:@!?U?P\w+ )?([A-Z][A-Z0-9]*)")
_LISTED = re.compile(r"\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)")  # by nvdisasm
_BRANCH = re.compile(r"\bBRA\b.*`\((\.L_x_\d+)\)")
_LABEL = re.compile(r"(\.L\w+):")
_JUMP = re.compile(r"\tj\w+\t(\.L\w+)$")
_STORE = re.compile(r"\tv?mov\w+\t%([xyz]mm)\d+, -?\w*\((?!%rsp)")
_VECTOR_BYTES = {"xmm": 16, "ymm": 32, "zmm": 64}
_ITEM_BYTES = 4  # of a float
_THROUGHPUT = re.compile(r"Block RThroughput:\s+([\d.]+)")
_LIMIT_S = 10.0


def of_launch(launch: partial[None]) -> Mapping[str, gb.Observed]:
    """Return the resources of one of our kernels by name: registers, shared and spilled bytes, and resident threads.

    `launch` binds a Kernel to its grid, block, arguments and perhaps its dynamic shared memory."""
    kernel, (_, block, _, *shared) = launch.func, launch.args
    resources = kernel.resources(block[0], *shared)  # type: ignore[attr-defined]  # a Kernel
    if resources is None:
        return {}
    return {
        "registers": gb.Observed(resources.registers),
        "shared": gb.Observed(resources.shared_bytes + sum(shared), "B"),
        "spilled": gb.Observed(resources.local_bytes, "B"),
        "resident": gb.Observed(resources.resident_blocks * block[0], "thread", better="more"),
    }


def of_triton(compiled: Any, programs: int, device: gb.Device) -> Mapping[str, gb.Observed]:
    """Return the resources of a kernel by name, its instructions, and the time that issuing them takes.

    `compiled` is Triton's object of the compiled kernel, and `programs` the size of its grid."""
    observed = {
        "registers": gb.Observed(compiled.n_regs),
        "shared": gb.Observed(compiled.metadata.shared, "B"),
        "spilled": gb.Observed(_WORD_BYTES * compiled.n_spills, "B"),
    }
    try:
        mix = instructions(compiled.asm["sass"])  # by the disassembler that comes with Triton
    except (OSError, RuntimeError, subprocess.SubprocessError):
        return observed  # the disassembler is unavailable
    return observed | _of_mix(mix, programs * compiled.metadata.num_warps, device)


def _of_mix(mix: Counter[str], warps: int | None, device: gb.Device) -> dict[str, gb.Observed]:
    """Return the instruction counts of a kernel without loops by name."""
    observed = {
        "instructions": gb.Observed(mix.total()),
        "memory": gb.Observed(sum(mix[name] for name in _MEMORY)),
        "special": gb.Observed(mix["MUFU"]),
    }
    clock_hz = float(dict(device.details).get("clock.sm_most_hz", 0))
    if clock_hz and warps is not None:
        observed["issue"] = gb.Observed(mix.total() * warps / (_ISSUED * device.units * clock_hz), "s")
    return observed


def of_code(code: bytes, kernel: str, warps: int | None, device: gb.Device) -> Mapping[str, gb.Observed]:
    """Return the instruction counts of a kernel by name, and the time in which `warps` warps issue them.

    `code` is NVIDIA's machine code (a cubin), and `kernel` the name of the kernel in it."""
    program = _disassembler()
    if not program:
        return {}
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        try:
            done = subprocess.run(
                [program, "-c", file.name], capture_output=True, encoding="utf-8", timeout=_LIMIT_S, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return {}
    mix = listed(done.stdout, kernel)
    return _of_mix(mix, warps, device) if mix else {}


def _disassembler() -> str:
    """Return the path of nvdisasm from PATH, from Triton's wheel or from NVIDIA's wheels; empty if there is none."""
    wheels = (
        path
        for pattern in ("triton/backends/nvidia/bin/nvdisasm", "nvidia/*/bin/nvdisasm")
        for folder in sys.path
        if folder
        for path in Path(folder).glob(pattern)
        if os.access(path, os.X_OK)
    )
    return shutil.which("nvdisasm") or str(next(wheels, ""))


def listed(text: str, kernel: str) -> Counter[str]:
    """Count the instructions of `kernel` by name in nvdisasm's listing `text`, up to the last one that ends a thread.

    The result is empty if the kernel has a loop, whose instructions are executed more than once."""
    section = text.partition(f".section\t.text.{kernel},")[2].partition("\n\t.section")[0]
    body = section[: section.rfind("EXIT") + len("EXIT")].splitlines()
    places = {line.strip()[:-1]: place for place, line in enumerate(body) if line.endswith(":")}
    branches = ((place, _BRANCH.search(line)) for place, line in enumerate(body))
    if any(branch and places.get(branch[1], place) < place for place, branch in branches):
        return Counter()
    return Counter(match[1] for line in body if (match := _LISTED.match(line)))


def instructions(sass: str) -> Counter[str]:
    """Count the instructions of Triton's disassembly by name, up to the last one that ends a thread."""
    names = [match[1] for line in sass.splitlines() if (match := _INSTRUCTION.match(line))]
    ends = [place for place, name in enumerate(names) if name == "EXIT"]
    return Counter(names[: ends[-1] + 1 if ends else None])


def of_assembly(text: str) -> Mapping[str, gb.Observed]:
    """Return the cycles per element that llvm-mca expects of one loop, as `mca`.

    `text` is assembly in the AT&T syntax; the loop is the innermost one that stores the most bytes in a pass."""
    program = shutil.which("llvm-mca")
    loops = sorted(_loops(text), key=_stored_bytes)
    if not program or not loops or not _stored_bytes(loops[-1]) or "\tcall" in loops[-1]:
        return {}
    done = subprocess.run(
        [program], input=loops[-1], capture_output=True, encoding="utf-8", timeout=_LIMIT_S, check=False
    )
    match = _THROUGHPUT.search(done.stdout)
    if not match:  # llvm-mca does not know the processor
        return {}
    return {"mca": gb.Observed(float(match[1]) / (_stored_bytes(loops[-1]) / _ITEM_BYTES), "cycle")}


def _loops(text: str) -> Iterator[str]:
    """Yield the innermost loops of assembly in the AT&T syntax: a label, and instructions to the jump back to it."""
    lines, start, label = text.splitlines(), 0, ""
    for place, line in enumerate(lines):
        if match := _LABEL.match(line):
            start, label = place, match[1]
        elif (jump := _JUMP.match(line)) and jump[1] == label:
            yield "\n".join(lines[start : place + 1]) + "\n"


def _stored_bytes(loop: str) -> int:
    """Return the bytes that a pass of the loop stores from registers of floats."""
    return sum(_width(line, store[1]) for line in loop.splitlines() if (store := _STORE.match(line)))


def _width(line: str, register: str) -> int:
    """Return the bytes that a store from this kind of register writes."""
    return _ITEM_BYTES if "ss\t" in line else _VECTOR_BYTES[register]
