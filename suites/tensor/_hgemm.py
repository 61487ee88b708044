"""The HGEMM ladder: C = A·Bᵀ of halves with sums in float, from one thread per element to Hopper's own instructions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpubench.api.suite import Bench, KeyFigure, Target, Task, Topic, View, on_gpu, points

from ..gemm import _data
from ..gemm._formats import PRECISIONS, MatrixProduct, Shape
from ..gemm._vendor import vendor
from ._kernels import resource_notes

Call = Callable[[], None]

topic = Topic(
    views=[
        View("bars", "HGEMM ladder: throughput of each kernel", ("hgemm",), by=("n",)),
        View("curve", "HGEMM ladder by size", ("hgemm",), x="n", by=("rung",), log_x=True),
    ],
    key_figures=[KeyFigure("HGEMM, own kernel", "hgemm", (("rung", "naive"), ("n", 8192)))],
)


@dataclass(frozen=True, slots=True)
class Rung:
    """A kernel of the ladder: blocks of `threads` compute tiles of `tile` rows × columns of C."""

    file: str
    kernel: str
    tile: tuple[int, int]
    threads: int
    shared_bytes: int = 0

    def build(self, bench: Bench, product: MatrixProduct) -> tuple[Call, Mapping[str, str]]:
        """Return the call of the kernel on these operands, and notes on it."""
        shape = product.shape
        kernel = bench.kernel(self.file, self.kernel)
        grid = shape.n // self.tile[1], shape.m // self.tile[0]
        args: tuple[Any, ...] = (product.a, product.b, product.c, *map(np.uint32, (shape.m, shape.n, shape.k)))
        notes = {
            "kernel": f"{self.kernel} of {self.file}, tiles of {self.tile[0]} × {self.tile[1]}",
            **resource_notes(bench, kernel, self.threads, self.shared_bytes),
        }
        return lambda: kernel(grid, (self.threads,), args, self.shared_bytes), notes


RUNGS = {"naive": Rung("hgemm.cu", "naive", (16, 16), 256)}


def _rungs(target: Target) -> tuple[str, ...]:
    del target
    return (*RUNGS, "vendor")


@topic.case(
    rung=_rungs,
    n=points((8192,), (1024,), (1024, 2048, 4096, 8192, 16384)),
    when=on_gpu,
    headline={"rung": "naive", "n": 8192},
)
def hgemm(bench: Bench, rung: str, n: int) -> Task:
    """C = A·Bᵀ of N×N matrices of float16 with sums in float32: 2·N³ operations, at least 3·N² elements moved."""
    operands = _data.Operands(replace(bench, package=_data.__package__), PRECISIONS["float16"], Shape(n, n, n, "nt"))
    by_vendor = vendor(bench, operands.product)
    call, notes = (by_vendor.call, by_vendor.notes) if rung == "vendor" else RUNGS[rung].build(bench, operands.product)
    stage = operands.stage(call)
    return Task.of(stage, check=operands.check, poison=operands.poison, notes={**notes, **operands.notes})
