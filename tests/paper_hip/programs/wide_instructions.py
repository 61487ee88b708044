"""The kernel of matrix chains with the instructions of CDNA 3 and 4 on the paper GPU: each sum as the suite expects."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import cupy
import numpy as np

from gpubench import plugins

PACKAGE = plugins.load("suites", "tensor").package
SUITE = importlib.import_module("._mma", PACKAGE)
FOLDER = Path(SUITE.__file__).parent


def main() -> None:
    """Print each instruction and the number of its wrong sums; CDNA 3 has another bias of FP8 than CDNA 4."""
    source = "".join((FOLDER / file).read_text() for file in ("../prelude.cuh", "instructions_mma.cu"))
    for name, form in SUITE.MFMA.items():
        if form.since.name == "gfx90a" or form.dtype == "bfloat16":
            continue
        is_newer = form.since.name == "gfx950"
        data = SUITE.amd_data(form, np.random.default_rng(0), is_newer)
        defines = {**SUITE.amd_defines(form), "INDEPENDENT": 2, "THREADS": 64, "PAPER_BIAS": 7 if is_newer else 8}
        options = tuple(f"-D{key}={value}" for key, value in defines.items())
        kernel = cupy.RawModule(code=source, options=options).get_function("matrix_chains")
        sums, cycles = cupy.zeros((2, *data.end.shape), data.end.dtype), cupy.zeros(2, "uint64")
        kernel((1,), (64,), (cupy.asarray(data.operands), cupy.asarray(data.begin), np.uint32(2), sums, cycles))
        sys.stdout.write(f"{' '.join(name)} {np.count_nonzero(cupy.asnumpy(sums) != data.end)}\n")


if __name__ == "__main__":
    main()
