"""Write and read kernels that a compiler wrote in CUDA C++ or PTX, perhaps on another machine, and launch them.

A compiler that is too large for a machine with a GPU can write its kernels elsewhere, each operator to a file of a
folder (`_carry.py`). The variable `GPUBENCH_CARRIED_KERNELS` names that folder."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gpubench.api import suite as gb

from ._operators import ITEM_BYTES, Problem
from ._providers import Built, Outputs
from ._static import of_launch

VARIABLE = "GPUBENCH_CARRIED_KERNELS"
OUTPUTS = "outputs"  # the name of the array with all outputs
_DIGEST, _LAUNCHES = "// SHA-256 of the lines below: ", "// "
_SHOWN = 16  # digits of a digest in the notes
_AGAIN = "write the folder again (docs/compilers.md)"


class KernelShape(NamedTuple):
    """An operator, its shape and type, and the architecture that its kernels are compiled for."""

    operator: str
    rows: int
    cols: int
    dtype: str
    arch: str

    @classmethod
    def of(cls, problem: Problem, arch: str) -> KernelShape:
        """Return the operator, shape and dtype of a problem, together with the architecture `arch`, such as sm_90."""
        return cls(problem.operator.name, problem.rows, problem.cols, problem.dtype, arch)

    @property
    def output_bytes(self) -> int:
        return self.rows * self.cols * ITEM_BYTES[self.dtype]

    def __str__(self) -> str:
        return f"{self.operator}-{self.rows}x{self.cols}-{self.dtype}-{self.arch}"


class WrittenLaunch(NamedTuple):
    """The launch of one function; blocks and threads are counted along x, and y and z have one of each.

    `arguments` are arrays: inputs of the operator by their names, `output0`, `output1`, `outputs` for both in one,
    and `scratch0`, …."""

    function: str
    blocks: int
    threads: int
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WrittenKernels:
    """The kernels of one operator at one shape, computed in float32, and their launches in order.

    `library` is the compiler with its version. `language` is `cu` for CUDA C++, or `ptx`."""

    library: str
    language: str
    shape: KernelShape
    launches: tuple[WrittenLaunch, ...]
    scratch: tuple[int, ...]
    order: tuple[int, ...]
    source: str

    def written(self, folder: Path, by: str) -> Path:
        """Write these kernels to a file in `folder`, which exists, and return its path; `by` is the provider."""
        described = asdict(self)
        source = described.pop("source")
        below = f"{_LAUNCHES}{json.dumps(described)}\n{source}"
        path = folder / f"{by}-{self.shape}.{self.language}"
        path.write_text(f"{_DIGEST}{_digest(below)}\n{below}", encoding="utf-8")
        return path

    def built(self, bench: gb.Bench, problem: Problem) -> Built:
        """Return `problem`'s operator as these kernels, launched in order on the stream that is timed.

        `problem` has the shape of these kernels; its outputs are preallocated."""
        bench.need(problem.moved + sum(self.scratch))
        outputs = AdjoiningOutputs(bench, problem, self.order)
        arrays = problem.inputs | {f"output{place}": array for place, array in enumerate(outputs.arrays)}
        arrays[OUTPUTS] = outputs.whole
        arrays |= {f"scratch{place}": bench.xp.empty(size, "uint8") for place, size in enumerate(self.scratch)}
        functions = (_from_ptx if self.language == "ptx" else _from_cuda)(bench, self)
        launches = [
            partial(
                functions[one.function], (one.blocks,), (one.threads,), tuple(arrays[name] for name in one.arguments)
            )
            for one in self.launches
        ]
        notes = {"library": self.library, "precision": "computed in float32", "kernels": str(len(launches))}
        call = launches[0] if len(launches) == 1 else partial(_in_order, launches)
        return Built(call, outputs.rows, outputs.poison, notes, static=self._static(launches))

    def _static(self, launches: list[partial[None]]) -> Callable[[], Mapping[str, gb.Observed]] | None:
        """Return the function that reads a single kernel's resources; None for PTX and for several kernels."""
        return partial(of_launch, launches[0]) if self.language == "cu" and len(launches) == 1 else None


class AdjoiningOutputs(Outputs):
    """Preallocated outputs in one array, `whole`; `order` has the number of the output at each place."""

    def __init__(self, bench: gb.Bench, problem: Problem, order: Sequence[int]) -> None:
        self._problem = problem
        self.whole = bench.xp.empty((problem.operator.outputs, *problem.output_shape), problem.dtype)
        self.arrays = tuple(self.whole[order.index(output)] for output in range(len(order)))
        self.poison = partial(bench.poison, self.whole)


def _in_order(launches: list[partial[None]]) -> None:
    """Queue the launches, each of which starts after the one before has ended."""
    for launch in launches:
        launch()


def _from_cuda(bench: gb.Bench, kernels: WrittenKernels) -> dict[str, Any]:
    """Return the functions of kernels in CUDA C++ by name, as the device's own compiler compiles them."""
    names = {launch.function for launch in kernels.launches}
    return {name: bench.device.kernel(kernels.source, name, {}) for name in names}


def _from_ptx(bench: gb.Bench, kernels: WrittenKernels) -> dict[str, Any]:
    """Return the functions of kernels in PTX by name (CuPy's), as the driver loads them."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx", encoding="utf-8") as file:
        file.write(kernels.source)
        file.flush()
        module = bench.xp.RawModule(path=file.name)
        functions = {launch.function: module.get_function(launch.function) for launch in kernels.launches}
        for function in functions.values():
            function.compile()
    return functions


def carried(by: str, language: str, shape: KernelShape) -> WrittenKernels | None:
    """Return the kernels of the provider `by` from the folder of carried kernels, or None without such a folder.

    GPUBENCH_CARRIED_KERNELS names the folder. `language` is `cu` or `ptx`."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    path = Path(folder) / f"{by}-{shape}.{language}"
    try:
        head, _, below = path.read_text(encoding="utf-8").partition("\n")
    except FileNotFoundError as error:
        raise gb.Skip(f"no kernel was carried for this shape: {path} is missing") from error
    except (OSError, UnicodeDecodeError) as error:
        raise gb.FileError(f"{path} cannot be read: {error}; {_AGAIN}") from error
    digest = _digest(below)
    if head != _DIGEST + digest:
        raise gb.FileError(f"{path} is not as it was written: its SHA-256 is another; {_AGAIN}")
    kernels = _kernels(*below.split("\n", 1))
    if kernels.shape != shape:
        raise gb.FileError(f"{path} has the kernels of {kernels.shape}; {_AGAIN}")
    return replace(kernels, library=f"compiled elsewhere by {kernels.library}, SHA-256 {digest[:_SHOWN]}")


def carried_or_compiled(
    bench: gb.Bench, problem: Problem, by: str, language: str, compiled: Callable[[KernelShape], WrittenKernels]
) -> Built:
    """Return `problem`'s operator as kernels that another machine compiled, or else as `compiled` compiles them here.

    `by` is the provider and `language` the language of its kernels, `cu` or `ptx`."""
    if bench.traits.vendor != "nvidia":
        raise gb.Skip(f"gpubench has not tried {by} on {bench.traits.vendor} GPUs")
    shape = KernelShape.of(problem, bench.traits.arch)
    return (carried(by, language, shape) or compiled(shape)).built(bench, problem)


def _kernels(described: str, source: str) -> WrittenKernels:
    """Return the kernels of a file whose digest is right."""
    fields = json.loads(described.removeprefix(_LAUNCHES))
    shape, scratch, order = KernelShape(*fields.pop("shape")), tuple(fields.pop("scratch")), tuple(fields.pop("order"))
    launches = tuple(
        WrittenLaunch(function, blocks, threads, tuple(arguments))
        for function, blocks, threads, arguments in fields.pop("launches")
    )
    return WrittenKernels(**fields, shape=shape, launches=launches, scratch=scratch, order=order, source=source)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
