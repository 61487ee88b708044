"""Print the outcome for each suite's kernels and each architecture from `ci/rocm.sh`: `amd_table.py XML`."""

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from pathlib import Path

ARCHS = ("gfx90a", "gfx942", "gfx950")
_SHARED = {
    "stream": "bandwidth, gemm",
    "copies": "ipc, p2p",
    "bulk_copy": "bandwidth, p2p",
    "gate": "(the timing gate)",
}


def suite_of(file: str) -> str:
    """Return the suite of a kernel's file: its folder, or the suite that shares the file."""
    folder, _, name = file.rpartition("/")
    stem = name.removesuffix(".cu")
    return folder or _SHARED.get(stem, stem)


def table(text: str) -> str:
    """Return the table of a JUnit file."""
    outcomes: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for case in ElementTree.fromstring(text).iter("testcase"):
        parameters = re.search(r"\[(.*)\]", case.get("name", ""))
        arch = next((candidate for candidate in ARCHS if parameters and candidate in parameters[1]), "")
        file = re.search(r"[\w/]+\.cu", parameters[1] if parameters else "")
        if arch and file:
            outcome = next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed")
            outcomes[suite_of(file[0]), arch][outcome] += 1
    cells = {place: ", ".join(f"{count} {kind}" for kind, count in kinds.items()) for place, kinds in outcomes.items()}
    suites = sorted({suite for suite, _ in outcomes})
    rows = [("suite", *ARCHS), *((suite, *(cells.get((suite, arch), "") for arch in ARCHS)) for suite in suites)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


if __name__ == "__main__":
    sys.stdout.write(table(Path(sys.argv[1]).read_text(encoding="utf-8")) + "\n")
