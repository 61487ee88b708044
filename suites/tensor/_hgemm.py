"""Measure the HGEMM ladder: kernels for C = A·Bᵀ of halves, from one thread per element to Hopper's instructions."""

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._matrix.data import Operands
from .._matrix.formats import PRECISIONS, MatrixProduct, Shape
from .._matrix.vendor import ProductCall, heuristics, vendor
from .._tensor_map import tensor_map
from ._kernels import NEVER_RUN, loadable, resource_notes

Call = Callable[[], None]
Built = tuple[Call, Mapping[str, str]]

_WMMA_HEADER = "mma.h"
_HOW_TO_WMMA = gb.installation.packages("nvidia-cuda-crt nvidia-cuda-runtime (or the CUDA toolkit)")
_BAND = 8  # rows of tiles that are computed column by column
_BULK_K = 64  # inner elements of a part that bulk tensor copies bring: rows of 128 bytes, the width of the swizzle
_ALIGNMENT = 1024  # bytes to which such a part is aligned; dynamic shared memory has no alignment by itself


@dataclass(frozen=True, slots=True)
class Rung:
    """A kernel of the ladder whose blocks, of `threads` threads, each compute a tile of C of `tile` (rows, columns).

    `file` and `kernel` name its source and function, and `defines` are the macros with which it is compiled."""

    file: str
    kernel: str
    tile: tuple[int, int]
    threads: int
    needs: str = ""
    defines: Mapping[str, int] = field(default_factory=dict)
    shared_bytes: int = 0

    def build(self, bench: gb.Bench, product: MatrixProduct) -> Built:
        """Return a call that launches the kernel on the operands of `product`, and notes on the kernel by name.

        The sides of `product` are multiples of the tile's."""
        shape = product.shape
        kernel = self._compile(bench)
        grid = (shape.m // self.tile[0] * (shape.n // self.tile[1]),)
        args: tuple[Any, ...] = (product.a, product.b, product.c, *map(np.uint32, (shape.m, shape.n, shape.k)))
        return lambda: kernel(grid, (self.threads,), args, self.shared_bytes), self._notes(bench, kernel)

    def _compile(self, bench: gb.Bench) -> gb.Kernel:
        if reason := unsupported_reason(bench, self.needs):
            raise gb.Skip(f"{self.kernel} {reason}")
        room = bench.traits.max_shared_bytes or self.shared_bytes
        if self.shared_bytes > room:
            raise gb.Skip(f"{self.kernel} needs {self.shared_bytes} bytes of shared memory per block, not {room}")
        if self.needs == "wmma":
            return self._compile_with_header(bench)
        return bench.kernel(self.file, self.kernel, **self.defines)

    def _compile_with_header(self, bench: gb.Bench) -> gb.Kernel:
        """Return the kernel compiled with CUDA's header mma.h."""
        header = found_header(_WMMA_HEADER)
        if header is None:
            raise gb.Skip(f"{self.kernel} needs the header {_WMMA_HEADER}, which is not found: {_HOW_TO_WMMA}")
        try:
            return bench.kernel(self.file, self.kernel, **self.defines, WMMA_HEADER=f"<{header}>")
        except bench.xp.cuda.compiler.CompileException as error:
            if "could not open source file" not in str(error):
                raise
            raise gb.Skip(f"{header} includes a header that is not found: {_HOW_TO_WMMA}") from error

    def _notes(self, bench: gb.Bench, kernel: gb.Kernel) -> Mapping[str, str]:
        """Return the note `kernel` with the file, tile and macros, and the notes of `resource_notes`."""
        macros = " ".join(f"{name}={value}" for name, value in self.defines.items())
        return {
            "kernel": f"{self.kernel} of {self.file}, tiles of {self.tile[0]} × {self.tile[1]} {macros}".strip(),
            **resource_notes(bench, kernel, self.threads, self.shared_bytes),
            **(NEVER_RUN if self.needs == "tcgen05" else {}),
        }


class BulkRung(Rung):
    """A rung that loads parts of A and B by bulk tensor copies (TMA), with blocks that process tile after tile."""

    def build(self, bench: gb.Bench, product: MatrixProduct) -> Built:
        """Return a call that launches the kernel on the operands of `product`, and notes on the kernel by name.

        The grid has at most one block on each SM, and tensor maps describe A and B."""
        shape, (tile_m, tile_n), cluster = product.shape, self.tile, self.defines.get("CLUSTER", 1)
        kernel = loadable(bench, lambda: self._compile(bench)) if self.needs == "tcgen05" else self._compile(bench)
        tiles = shape.m // tile_m * (shape.n // tile_n)
        blocks = min(tiles, bench.device.device.units) // cluster * cluster
        args = (
            tensor_map(product.a, shape.m, shape.k, tile_m, _BULK_K),
            tensor_map(product.b, shape.n, shape.k, tile_n // cluster, _BULK_K),
            product.c,
            *map(np.uint32, (shape.m, shape.n, shape.k)),
        )
        return lambda: kernel((blocks,), (self.threads,), args, self.shared_bytes), self._notes(bench, kernel)


def found_header(name: str) -> Path | None:
    """Return the path of the header `name` of a CUDA toolkit or of NVIDIA's wheels; None if there is none.

    It looks at the toolkits of CUDA_PATH, CUDA_HOME, the nvcc on the PATH and /usr/local first."""
    toolkits = [Path(os.environ[variable]) for variable in ("CUDA_PATH", "CUDA_HOME") if os.environ.get(variable)]
    if compiler := shutil.which("nvcc"):
        toolkits.append(Path(compiler).resolve().parents[1])
    toolkits += sorted(Path("/usr/local").glob("cuda*"), reverse=True)
    if wheels := find_spec("nvidia"):
        toolkits += [
            part for folder in wheels.submodule_search_locations or () for part in sorted(Path(folder).iterdir())
        ]
    return next((path for toolkit in toolkits if (path := toolkit / "include" / name).is_file()), None)


def unsupported_reason(bench: gb.Bench, needs: str) -> str:
    """Return why the device does not meet `needs`, empty if it does: a text such as `needs …, not sm_80`.

    `needs` is empty, `matrix` or `wmma` (matrix instructions of NVIDIA, sm_80 or newer), `bulk` (bulk copies), `wgmma`,
    `tcgen05` or `mfma` (AMD's matrix instructions, gfx90a or newer)."""
    traits = bench.traits
    has_matrix = "matrix" in traits.features
    if needs in ("matrix", "wmma") and not (traits.vendor == "nvidia" and has_matrix):
        return f"needs the matrix instructions of sm_80 or newer, not {traits.arch}"
    if needs == "bulk" and "bulk_copy" not in traits.features:
        return f"needs the bulk copies of sm_90 or newer, not {traits.arch}"
    if needs == "wgmma" and "wgmma" not in traits.features:
        return f"needs wgmma, an instruction of sm_90 (Hopper) alone, not of {traits.arch}"
    if needs == "tcgen05" and "tcgen05" not in traits.features:
        return f"needs tcgen05, instructions of sm_100 to sm_110, not of {traits.arch}"
    if needs == "mfma" and not (traits.vendor == "amd" and has_matrix):
        return f"needs the matrix instructions of gfx90a or newer, not {traits.arch}"
    return ""


def mma_rung(
    tile: tuple[int, int, int], warps: tuple[int, int], swizzled: bool, stages: int, resident: int, band: int = _BAND
) -> Rung:
    """Return a rung of hgemm_mma.cu with tiles of `tile` (rows, columns, inner elements of a part in shared memory).

    `warps` are the warps of a block (down, across), and `resident` the blocks on an SM."""
    defines = {
        "TILE_M": tile[0], "TILE_N": tile[1], "TILE_K": tile[2], "DOWN": warps[0], "ACROSS": warps[1],
        "SWIZZLED": int(swizzled), "STAGES": stages, "RESIDENT": resident, "BAND": band, "BULK": 0,
    }  # fmt: skip
    shared_bytes = stages * (tile[0] + tile[1]) * tile[2] * 2
    return Rung("hgemm_mma.cu", "mma", tile[:2], 32 * warps[0] * warps[1], "matrix", defines, shared_bytes)


def bulk_rung(tile: tuple[int, int], warps: tuple[int, int], stages: int, band: int = _BAND) -> BulkRung:
    """Return a rung of hgemm_mma.cu that loads parts of 64 inner elements by bulk tensor copies (TMA).

    A separate warpgroup starts the copies."""
    of_warps = mma_rung((*tile, _BULK_K), warps, swizzled=True, stages=stages, resident=1, band=band)
    shared_bytes = of_warps.shared_bytes + _ALIGNMENT
    defines = {**of_warps.defines, "BULK": 1}
    return BulkRung("hgemm_mma.cu", "bulk", tile, of_warps.threads + 128, "bulk", defines, shared_bytes)


def wgmma_rung(columns: int, stages: int, cluster: int, band: int = _BAND) -> BulkRung:
    """Return a rung of hgemm_wgmma.cu with tiles of 128 rows and `columns` columns.

    `stages` is the number of parts of 64 inner elements in shared memory."""
    defines = {"TILE_N": columns, "STAGES": stages, "CLUSTER": cluster, "BAND": band}
    boxes = 8 * 2 * 16 * 64 * 2  # two boxes per warp
    shared_bytes = stages * (128 + columns) * _BULK_K * 2 + boxes + _ALIGNMENT
    return BulkRung("hgemm_wgmma.cu", "wgmma", (128, columns), 384, "wgmma", defines, shared_bytes)


def tcgen05_rung(stages: int, band: int = _BAND) -> BulkRung:
    """Return the rung of hgemm_tcgen05.cu with tiles of 128 × 256, which was compiled and never run."""
    shared_bytes = stages * (128 + 256) * _BULK_K * 2 + _ALIGNMENT
    defines = {"STAGES": stages, "BAND": band}
    return BulkRung("hgemm_tcgen05.cu", "tcgen05", (128, 256), 192, "tcgen05", defines, shared_bytes)


RUNGS: Mapping[str, Rung] = {
    "naive": Rung("hgemm.cu", "naive", (16, 16), 256),
    "tile": Rung("hgemm.cu", "tile", (128, 128), 256),
    "wmma": Rung("hgemm_wmma.cu", "wmma", (128, 128), 256, "wmma"),
    "mma": mma_rung((128, 128, 32), (2, 4), swizzled=False, stages=1, resident=2),
    "swizzled": mma_rung((128, 128, 32), (2, 4), swizzled=True, stages=1, resident=2),
    "async": mma_rung((128, 256, 32), (2, 4), swizzled=True, stages=4, resident=1),
    "bulk": bulk_rung((128, 256), (2, 4), stages=4),
    "wgmma": wgmma_rung(256, 4, 2),
    "tcgen05": tcgen05_rung(4),
    "mfma": Rung("hgemm_mfma.cu", "mfma", (128, 128), 256, "mfma"),
}


_SLOW = ("naive",)  # takes half a second for 8192³
_MOST_SLOW = 4096
_PROPOSALS = 8  # algorithms of the vendor's heuristics, of which the fastest is the vendor's product
_ROUNDS = 3
_MOST_UNCAPPED = 4096  # up to this size each sample follows a rest, so that the power cap lowers no clock
_REST_S = 0.01
_QUICK = ("mma", "async", "bulk", "wgmma", "tcgen05", "mfma", "vendor")


topic = gb.Topic(
    views=[
        gb.View("bars", "HGEMM ladder: throughput of each kernel", ("hgemm",), by=("n",)),
        gb.View(
            "bars",
            "HGEMM ladder: share of the vendor's best rate, timed in turn",
            ("hgemm",),
            by=("n",),
            series="of_best",
        ),
        gb.View("curve", "HGEMM ladder: throughput by size", ("hgemm",), x="n", by=("rung",), log_x=True),
    ],
)


def _rungs(target: gb.Target) -> Any:
    """Return the axis of rungs for the target's vendor by name; `vendor`, the vendor library's product, is the last."""
    nvidia, amd = ("wmma", "mma", "swizzled", "async", "bulk", "wgmma"), ("mfma",)
    architecture = target.device.architecture
    foreign = [*(amd if architecture.vendor == "nvidia" else nvidia)]
    foreign += [] if "tcgen05" in architecture.features else ["tcgen05"]
    full = tuple(rung for rung in (*RUNGS, "vendor") if rung not in foreign)
    quick = tuple(rung for rung in full if rung in _QUICK)
    return gb.points(quick, full[:-1], full)


def _in_time(target: gb.Target, params: Mapping[str, Any]) -> bool:
    """Return whether a point is measured: the slowest rung, `naive`, has no matrices of more than 4096 rows."""
    del target
    return params["rung"] not in _SLOW or params["n"] <= _MOST_SLOW


def best_by_vendor(bench: gb.Bench, product: MatrixProduct) -> ProductCall:
    """Return the fastest of at most eight algorithms that the vendor proposes, or the only one where it proposes none.

    Each is timed three times, in turn with the others: too briefly for a power cap to act."""
    try:
        proposals = heuristics(bench, product, _PROPOSALS)
    except gb.Skip:
        return vendor(bench, product)
    rounds = [
        [bench.device.time(proposal.call, 1, gated=False, lead=proposal.call).device[0] for proposal in proposals]
        for _ in range(_ROUNDS)
    ]
    fastest = min(range(len(proposals)), key=lambda place: min(seconds[place] for seconds in rounds))
    chosen = f"number {fastest + 1} of {len(proposals)}, the fastest"
    return replace(proposals[fastest], notes={**proposals[fastest].notes, "proposal": chosen})


def paired(bench: gb.Bench, call: Callable[[], None], by_vendor: Callable[[], None]) -> Callable[[], gb.Observation]:
    """Return a probe that times `call` and `by_vendor` in turn and observes `of_best`, a share in percent.

    It is the share of the rate of `call` in the rate of `by_vendor`."""
    by_vendor()  # the library's first call waits for the device
    bench.device.synchronize()

    def seconds(timed: Callable[[], None], lead: Callable[[], None]) -> float:
        return bench.device.time(timed, 1, gated=False, lead=lead).device[0]

    def probe() -> gb.Observation:
        return {"of_best": gb.Observed(100 * seconds(by_vendor, call) / seconds(call, by_vendor), "%", "more")}

    return probe


@topic.case(
    version=2,
    rung=_rungs,
    n=gb.points((4096,), (1024,), (1024, 2048, 4096, 8192, 16384)),
    when=gb.on_gpu,
    where=_in_time,
    headline={"rung": "vendor", "n": 4096},
)
def hgemm(bench: gb.Bench, rung: str, n: int) -> gb.Task:
    """Throughput of one kernel of the HGEMM ladder, `rung`: C = A·Bᵀ of n × n float16 matrices, sums in float32.

    It counts 2·n³ operations. The rung `vendor` is the fastest of eight algorithms that the vendor's library proposes,
    and `of_best` the rate as a share of its rate, timed in turn. Up to n = 4096 a sample follows a rest of 10 ms, so
    that the power cap, which makes all fast kernels alike, lowers no clock."""
    operands = Operands(bench, PRECISIONS["float16"], Shape(n, n, n, "nt"))
    rest_s = _REST_S if n <= _MOST_UNCAPPED else 0.0
    effort = gb.TIER if rest_s or bench.target.tier == "full" else gb.POINT
    if rung == "vendor":
        by_vendor = best_by_vendor(bench, operands.product)
        call, notes, probe = by_vendor.call, by_vendor.notes, None
    else:
        call, notes = RUNGS[rung].build(bench, operands.product)
        # The vendor's product writes to a separate C, so that the check sees the results of this kernel only.
        by_vendor = best_by_vendor(bench, replace(operands.product, c=bench.xp.empty_like(operands.c)))
        probe = paired(bench, call, by_vendor.call)
    stage = replace(operands.stage(call, effort), probe=probe, rest_s=rest_s)
    return gb.Task.of(stage, check=operands.check, notes={**notes, **operands.notes})
