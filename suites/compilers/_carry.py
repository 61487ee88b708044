"""Compile the kernels of the full tier for a GPU that another machine has; this module is a command.

Call it as `python -m gpubench.suites.compilers._carry tvm sm_90 FOLDER`, or with `iree` in place of `tvm`."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from gpubench.api import suite as gb

from . import _iree_cuda, _tvm_cuda, suite
from ._carried import KernelShape, WrittenKernels
from ._cases import SMALL
from ._operators import OPERATORS

_COMPILERS: dict[str, Callable[[KernelShape], WrittenKernels]] = {
    "tvm": _tvm_cuda.compiled,
    "iree": _iree_cuda.compiled,
}


def shapes(by: str, arch: str) -> Iterator[KernelShape]:
    """Yield the shape of every case of the provider `by` in the full tier on a GPU of the architecture `arch`.

    Only cases whose operator is in OPERATORS count; the shape of the case `dispatch` comes last."""
    gpu = gb.Device("cuda:0", "cupy", arch, arch)
    for case in suite.cases(gb.Target(gb.Facts((gpu,)), gpu, "full")):
        params = dict(case.params)
        operator = str(params.get("chain", case.name))
        if params.get("by") == by and operator in OPERATORS:
            yield KernelShape(operator, int(params["rows"]), int(params["cols"]), str(params["dtype"]), arch)
    yield KernelShape("rmsnorm", *SMALL, "float16", arch)  # of the case `dispatch`


def main(by: str, arch: str, folder: str) -> None:
    """Write the kernels of each shape to `folder`, which is created if need be, and say which shapes were left out.

    `by` is tvm or iree, and `arch` an architecture such as sm_90. Prints the path of each file."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for shape in shapes(by, arch):
        try:
            path = _COMPILERS[by](shape).written(Path(folder), by)
        except gb.Skip as reason:
            sys.stderr.write(f"{shape} is left out: {reason}\n")
            continue
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in _COMPILERS:
        sys.exit(__doc__)
    main(*sys.argv[1:])
