"""Read static properties from compiled code: registers, memory and instructions."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from gpubench.api import suite as gb

_WORD_BYTES = 4  # of a spilled register
_ISSUED = 4  # instructions per clock and multiprocessor
_MEMORY = ("LDG", "STG", "RED", "ATOMG", "LDGSTS")  # instructions of global memory
_LISTED = re.compile(r"\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)")  # by nvdisasm
_BRANCH = re.compile(r"\bBRA\b.*`\((\.L_x_\d+)\)")
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
    warps = programs * compiled.metadata.num_warps
    return {
        "registers": gb.Observed(compiled.n_regs),
        "shared": gb.Observed(compiled.metadata.shared, "B"),
        "spilled": gb.Observed(_WORD_BYTES * compiled.n_spills, "B"),
        **of_code(compiled.asm["cubin"], compiled.metadata.name, warps, device),
    }


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
    if not mix:
        return {}
    memory, special = sum(mix[name] for name in _MEMORY), mix["MUFU"]
    counts = {"instructions": mix.total(), "memory": memory, "special": special}
    clock_hz = float(dict(device.details).get("clock.sm_most_hz", 0))
    observed = {name: gb.Observed(count) for name, count in counts.items()}
    if clock_hz and warps is not None:
        observed["issue"] = gb.Observed(mix.total() * warps / (_ISSUED * device.units * clock_hz), "s")
    return observed


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
