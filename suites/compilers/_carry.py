"""The command that compiles the kernels of the full tier for a GPU that another machine has.

Call it as `python -m gpubench.suites.compilers._carry sm_90 FOLDER`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from gpubench.api.suite import Device, Facts, Target

from . import suite
from ._carried import KernelShape
from ._cases import SMALL
from ._operators import OPERATORS
from ._tvm_cuda import compiled

BY = "tvm"


def shapes(arch: str) -> Iterator[KernelShape]:
    """Yield the shapes of the cases of TVM in the full tier on a GPU of an architecture."""
    gpu = Device("cuda:0", "cupy", arch, arch)
    for case in suite.cases(Target(Facts((gpu,)), gpu, "full")):
        params = dict(case.params)
        operator = str(params.get("chain", case.name))
        if params.get("by") == BY and operator in OPERATORS:
            yield KernelShape(operator, int(params["rows"]), int(params["cols"]), str(params["dtype"]), arch)
    yield KernelShape("rmsnorm", *SMALL, "float16", arch)  # of the case `dispatch`


def main(arch: str, folder: str) -> None:
    """Write a kernel for each shape to the folder, which is created if need be; raises Unavailable without TVM."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for shape in shapes(arch):
        sys.stdout.write(f"{compiled(shape).written(Path(folder), BY)}\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
