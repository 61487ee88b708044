"""Launch kernels that a compiler wrote in CUDA C++ or PTX, on the stream that is timed."""

import tempfile
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from gpubench.api import suite as gb

from .._checks import in_turn
from ._operators import Problem
from ._providers import Built, Outputs
from ._static import of_launch


class GeneratedLaunch(NamedTuple):
    """The launch of one function; blocks and threads are counted along x, and y and z have one of each.

    `arguments` are arrays: inputs of the operator by their names, `output0`, `output1`, `outputs` for both in one,
    and `scratch0`, …."""

    function: str
    blocks: int
    threads: int
    arguments: tuple[str, ...]


class GeneratedKernels(NamedTuple):
    """The kernels of one operator at one shape, computed in float32, and their launches in order.

    `library` is the compiler with its version. `language` is `cu` for CUDA C++, or `ptx`. `scratch` has the bytes of
    each scratch array, and `order` the number of the output at each place of `outputs`."""

    library: str
    language: str
    source: str
    launches: tuple[GeneratedLaunch, ...]
    scratch: Sequence[int] = ()
    order: Sequence[int] = (0, 1)

    def built(self, bench: gb.Bench, problem: Problem) -> Built:
        """Return `problem`'s operator as these kernels, launched in order, with preallocated outputs."""
        bench.need(problem.moved + sum(self.scratch))
        outputs = Outputs(bench, problem)
        outputs.arrays = tuple(outputs.whole[self.order.index(place)] for place in range(problem.operator.outputs))
        arrays = problem.inputs | {f"output{place}": array for place, array in enumerate(outputs.arrays)}
        arrays["outputs"] = outputs.whole
        arrays |= {f"scratch{place}": bench.xp.empty(size, "uint8") for place, size in enumerate(self.scratch)}
        functions = self._functions(bench)
        launches = []
        for name, blocks, threads, arguments in self.launches:
            launches.append(partial(functions[name], (blocks,), (threads,), tuple(arrays[one] for one in arguments)))
        call = launches[0] if len(launches) == 1 else in_turn(*launches)
        static = partial(of_launch, launches[0]) if self.language == "cu" and len(launches) == 1 else None
        count = str(len(launches))
        return outputs.built(call, self.library, "computed in float32", kernels=count, static=static)

    def _functions(self, bench: gb.Bench) -> dict[str, Any]:
        """Return the functions by name, compiled from CUDA C++ by the device's compiler or from PTX by the driver."""
        names = {launch.function for launch in self.launches}
        if self.language == "cu":
            return {name: bench.device.kernel(self.source, name, {}) for name in names}
        with tempfile.NamedTemporaryFile("w", suffix=".ptx", encoding="utf-8") as file:
            file.write(self.source)
            file.flush()
            module = bench.xp.RawModule(path=file.name)
            functions = {name: module.get_function(name) for name in names}
            for function in functions.values():
                function.compile()
        return functions


def expect_nvidia(bench: gb.Bench, by: str) -> str:
    """Return the architecture of the GPU, such as sm_90; raises Skip if it is not NVIDIA's."""
    if bench.traits.vendor != "nvidia":
        raise gb.Skip(f"gpubench has not tried {by} on {bench.traits.vendor} GPUs")
    return bench.traits.arch
