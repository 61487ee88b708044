"""Count the instructions in the main loop of each rung of the HGEMM ladder and compute their bounds: no GPU needed.

    bash ci/study.sh instruction_mix        needs nvidia-cuda-nvrtc and nvidia-cuda-nvdisasm (pip)

Compiles the rungs for sm_90a, disassembles them, and counts the loop that multiplies. The bounds are of an SM of an
H200: matrix instructions at the rates that the suite's own cases measured (4096 FLOP per clock for wgmma, 2723 for
mma.sync), 128 bytes of shared memory per clock, four instructions issued per clock. Bank conflicts are not counted.
"""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import _grid
import _nvrtc
from _modules import suite_module

RUNGS = suite_module("tensor", "_hgemm")
PEAK = 4096  # FLOP per clock and SM: the tensor cores' dense rate with float16
MATRIX = {"HGMMA": 4096.0, "HMMA": 2723.0, "FFMA": 256.0}  # FLOP per clock and SM
# bytes per instruction of a warp
SHARED = {"LDSM": 512, "LDGSTS": 512, "LDS.128": 512, "STS.128": 512, "LDS": 128, "STS": 128}
_ISSUED = 4  # instructions per clock and SM
_SHARED_BYTES = 128  # bytes of shared memory per clock and SM


def loop_of(text: str) -> Counter[str]:
    """Return the instructions of the smallest loop of a disassembly that has the most matrix instructions."""
    lines = [line.strip() for line in text.splitlines()]
    labels = {line[:-1]: place for place, line in enumerate(lines) if re.fullmatch(r"\.L_x_\d+:", line)}
    loops = []
    for place, line in enumerate(lines):
        branch = re.search(r"\bBRA\b.*`\((\.L_x_\d+)\)", line)
        if branch and labels[branch[1]] < place:
            loops.append(opcodes(lines[labels[branch[1]] : place + 1]))
    return max(loops, key=lambda loop: (sum(loop[name] for name in MATRIX), -loop.total()))


def opcodes(lines: list[str]) -> Counter[str]:
    """Count instructions by their names: the first part, with the width of a shared access."""
    matches = (re.match(r"/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\w*)(\.128)?", line) for line in lines)
    return Counter("".join(part or "" for part in match.groups()) for match in matches if match and match[1] != "NOP")


@dataclass(frozen=True)
class LoopBound:
    """The main loop of a rung: its instructions, and the share of the peak to which each unit limits it."""

    loop: Counter[str]
    matrix: float
    shared: float
    issue: float

    @classmethod
    def of(cls, rung: Any, loop: Counter[str]) -> "LoopBound":
        """Return the bounds of a loop that all multiplying warps of a block execute."""
        unit = next(name for name in MATRIX if loop[name])
        columns = rung.tile[1] if unit == "HGMMA" else 8
        of_one = {"HGMMA": 2 * 64 * 16 * columns / 4, "HMMA": 2 * 16 * 8 * 16, "FFMA": 64}[unit]
        flops = loop[unit] * of_one  # operations of one warp
        moved = sum(loop[name] * size for name, size in SHARED.items())
        inner = flops * 8 / (2 * rung.tile[0] * rung.tile[1])  # elements of the inner side in a pass of eight warps
        # the copy engine writes and wgmma reads shared memory without an instruction of these warps
        if rung.needs in ("bulk", "wgmma"):
            moved += (rung.tile[0] + rung.tile[1]) * inner * 2 / 8
        if unit == "HGMMA":
            moved += loop[unit] * (64 + columns) * 16 * 2 / 4
        issue = loop.total() / _ISSUED
        return cls(loop, MATRIX[unit] / PEAK, flops / PEAK / (moved / _SHARED_BYTES), flops / PEAK / issue)


def bound_of(name: str) -> LoopBound:
    """Compile one rung and return its bounds."""
    rung = RUNGS.RUNGS[name]
    defines = [f"-D{key}={value}" for key, value in rung.defines.items()]
    status, log, code = _nvrtc.built(
        _grid.source(f"tensor/{rung.file}"), ["--gpu-architecture=sm_90a", "--ftz=true", "-w", *defines]
    )
    if status:
        raise SystemExit(log)
    return LoopBound.of(rung, loop_of(_nvrtc.disassembled(code, rung.kernel)))


def main() -> None:
    """Print a line for each rung that compiles without further headers."""
    for name in ("tile", "mma", "swizzled", "async", "bulk", "wgmma"):
        bound = bound_of(name)
        mix = ", ".join(f"{count} {opcode}" for opcode, count in bound.loop.most_common(7))
        limits = f"matrix {bound.matrix:4.0%}  shared memory {bound.shared:4.0%}  issue {bound.issue:4.0%}"
        print(f"{name:9} {limits}  of {bound.loop.total()}: {mix}")  # noqa: T201


if __name__ == "__main__":
    main()
