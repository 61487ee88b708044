"""Kernels that a compiler wrote in CUDA C++, which may have been carried here from another machine.

A compiler that is too large for a machine with a GPU can write its kernels elsewhere, each to a file of a folder
(`_carry.py`). The variable `GPUBENCH_CARRIED_KERNELS` names that folder. The name of a file says the provider, the
operator, its shape and the architecture. Its first line has the SHA-256 of the other lines, its second line the launch.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gpubench.api.suite import Bench, FileError, Skip

from ._operators import Problem
from ._providers import Built, Outputs
from ._static import of_launch

VARIABLE = "GPUBENCH_CARRIED_KERNELS"
_DIGEST, _LAUNCH = "// SHA-256 of the lines below: ", "// "
_SHOWN = 16  # digits of a digest in the notes
_AGAIN = "write the folder again (docs/compilers.md)"


class KernelShape(NamedTuple):
    """An operator, its shape and type, and the architecture that a kernel is compiled for."""

    operator: str
    rows: int
    cols: int
    dtype: str
    arch: str

    @classmethod
    def of(cls, problem: Problem, arch: str) -> KernelShape:
        """Return the shape of a problem on an architecture."""
        return cls(problem.operator.name, problem.rows, problem.cols, problem.dtype, arch)

    def __str__(self) -> str:
        return f"{self.operator}-{self.rows}x{self.cols}-{self.dtype}-{self.arch}"


@dataclass(frozen=True, slots=True)
class WrittenKernel:
    """A kernel in CUDA C++ for one operator at one shape, computed in float32, and its launch.

    `library` is the compiler with its version. `name` is the function in the source, and `arguments` are its
    parameters: inputs of the operator by their names, and `output0`, `output1`. `blocks` and `threads` are counted
    along x, and y and z have one of each.
    """

    library: str
    shape: KernelShape
    name: str
    blocks: int
    threads: int
    arguments: tuple[str, ...]
    source: str

    def written(self, folder: Path, by: str) -> Path:
        """Write the kernel of the provider `by` to a folder, which exists, and return the path of its file."""
        launch = dataclasses.asdict(self)
        source = launch.pop("source")
        below = f"{_LAUNCH}{json.dumps(launch)}\n{source}"
        path = folder / _file(by, self.shape)
        path.write_text(f"{_DIGEST}{_digest(below)}\n{below}", encoding="utf-8")
        return path

    def built(self, bench: Bench, problem: Problem) -> Built:
        """Return the operator as this kernel, which NVRTC compiles, launched on the stream that is timed."""
        outputs = Outputs(bench, problem)
        arrays = problem.inputs | {f"output{place}": array for place, array in enumerate(outputs.arrays)}
        function = bench.device.kernel(self.source, self.name, {})
        launch = partial(function, (self.blocks,), (self.threads,), tuple(arrays[name] for name in self.arguments))
        notes = {"library": self.library, "precision": "computed in float32", "kernels": "1"}
        return Built(launch, outputs.rows, outputs.poison, notes, static=partial(of_launch, launch))


def carried(by: str, shape: KernelShape) -> WrittenKernel | None:
    """Return the kernel of the provider `by` in the folder that the variable names, or None without the variable.

    Its `library` says that it was compiled elsewhere, with its digest. Raises Skip if the folder has no kernel for this
    shape, and FileError if the kernel's file is damaged or is the file of another shape.
    """
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    path = Path(folder) / _file(by, shape)
    try:
        head, _, below = path.read_text(encoding="utf-8").partition("\n")
    except FileNotFoundError as error:
        raise Skip(f"no kernel was carried for this shape: {path} is missing") from error
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path} cannot be read: {error}; {_AGAIN}") from error
    digest = _digest(below)
    if head != _DIGEST + digest:
        raise FileError(f"{path} is not as it was written: its SHA-256 is another; {_AGAIN}")
    kernel = _kernel(*below.split("\n", 1))
    if kernel.shape != shape:
        raise FileError(f"{path} has the kernel of {kernel.shape}; {_AGAIN}")
    where = f"compiled elsewhere by {kernel.library}, SHA-256 {digest[:_SHOWN]}"
    return dataclasses.replace(kernel, library=where)


def _kernel(launch: str, source: str) -> WrittenKernel:
    """Return the kernel of a file that is as it was written."""
    fields = json.loads(launch.removeprefix(_LAUNCH))
    shape, arguments = KernelShape(*fields.pop("shape")), tuple(fields.pop("arguments"))
    return WrittenKernel(**fields, shape=shape, arguments=arguments, source=source)


def _file(by: str, shape: KernelShape) -> str:
    return f"{by}-{shape}.cu"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
