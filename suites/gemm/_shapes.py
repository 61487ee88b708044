"""Measure the vendor's products by shape, layout and epilogue, and the algorithms that its heuristics propose."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from gpubench.api import suite as gb

from .._matrix.data import Maker, Operands
from .._matrix.formats import Activation, Shape
from .._matrix.product import HALVES, on_nvidia, precision_of, product
from .._matrix.vendor import heuristics, vendor

_PROPOSALS = 8
_TALL = ("131072x64x4096", "64x131072x4096", "4096x64x131072", "131072x128x128", "1024x1024x65536")
_SIDES = gb.points((), full=(512, 1024, 1536, 2048, 3072, 4096, 6144, 8192))

topic = gb.Topic(
    views=[
        gb.View(
            "bars", "GEMM throughput by shape and layout", ("tall", "batched", "transposed", "aligned", "epilogue")
        ),
        gb.View("matrix", "GEMM throughput by M, N and K", ("shape",), x="n", y="m", by=("k",)),
        gb.View("curve", "GEMM throughput by rows (wave quantisation)", ("wave",), x="m"),
        gb.View("bars", "GEMM throughput by proposed algorithm", ("ranked",), by=("dtype",)),
    ]
)


@topic.case(
    shape=gb.points(_TALL[:1], full=_TALL),
    dtype=gb.points(("bfloat16",), full=("float32", "tf32", *HALVES)),
    when=on_nvidia,
)
def tall(bench: gb.Bench, shape: str, dtype: str) -> gb.Task:
    """Throughput of tall and skinny products, named M×N×K: 2·M·N·K operations."""
    return product(bench, precision_of(bench, dtype), Shape.parsed(shape), effort=gb.POINT)


@topic.case(
    batch=gb.points((256,), full=(16, 256, 4096)),
    n=gb.points((512,), (128,), (64, 128, 512)),
    dtype=gb.points(("bfloat16",), full=("float64", "float32", "tf32", *HALVES)),
    when=on_nvidia,
)
def batched(bench: gb.Bench, batch: int, n: int, dtype: str) -> gb.Task:
    """Throughput of `batch` products of N×N matrices in one call, at equal strides: 2·N³ operations each."""
    return product(bench, precision_of(bench, dtype), Shape(n, n, n, "nn", batch), effort=gb.POINT)


@topic.case(
    order=gb.points((), ("nn",), full=("nn", "nt", "tn", "tt")),
    n=gb.points((4096,), (1024,)),
    dtype=gb.points(("float8_e4m3",), ("float16",), ("float32", "tf32", *HALVES, "float8_e4m3", "int8")),
    when=on_nvidia,
)
def transposed(bench: gb.Bench, order: str, n: int, dtype: str) -> gb.Task:
    """Throughput by which of A and B is transposed (t): 2·N³ operations; 8-bit formats support `nt` alone."""
    return product(bench, precision_of(bench, dtype), Shape(n, n, n, order), effort=gb.POINT)


@topic.case(
    n=gb.points((4097,), (1023,), (4095, 4096, 4097)),
    dtype=gb.points(("bfloat16", "float8_e4m3"), ("float16",), ("float32", "tf32", *HALVES, "float8_e4m3", "int8")),
    when=on_nvidia,
)
def aligned(bench: gb.Bench, n: int, dtype: str) -> gb.Task:
    """Throughput of products with misaligned rows (N of 4096 ± 1): 2·N³ operations; unsupported sizes are skipped.

    Rows of N = 4097 are no multiple of 16 bytes. In the full tier N = 4096 is the aligned product beside it."""
    precision = precision_of(bench, dtype)
    return product(bench, precision, Shape(n, n, n, precision.order), effort=gb.POINT)


def _gelu(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the approximation by tanh that the library computes (Hendrycks & Gimpel 2016, arXiv:1606.08415)."""
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


ACTIVATIONS = {"bias": lambda x: x, "relu": lambda x: np.maximum(x, 0), "gelu": _gelu}


@topic.case(
    activation=gb.points((), ("gelu",), ("none", "bias", "relu", "gelu")),
    n=gb.points((4096,), (1024,)),
    dtype=gb.points(("bfloat16",), full=("float32", *HALVES)),
    when=on_nvidia,
)
def epilogue(bench: gb.Bench, activation: Activation, n: int, dtype: str) -> gb.Task:
    """Throughput of a product with bias and activation fused by cuBLASLt: 2·N³ operations, the epilogue not counted.

    `bias` adds a bias alone, `relu` and `gelu` add it before the activation, and `none` is the plain product."""
    operands = Operands(bench, precision_of(bench, dtype), Shape(n, n, n, "nt"))
    make, kind = Maker(bench), operands.precision.formats[2]
    bias = make.drawn(kind, n, int(operands.rng.integers(2**63)))
    if activation != "none":
        added = bench.device.to_host(make.widened(bias, kind, 1, n, (n, 1)))
        operands.epilogue = lambda rows: ACTIVATIONS[activation](rows + added)
    by_vendor = vendor(bench, replace(operands.product, bias=bias, activation=activation))
    notes = {**by_vendor.notes, "epilogue": activation, **operands.notes}
    stage = operands.stage(by_vendor.call, gb.POINT)
    return gb.Task.of(stage, check=operands.check, notes=notes)


@topic.case(m=_SIDES, n=_SIDES, k=(1024, 8192), when=on_nvidia)
def shape(bench: gb.Bench, m: int, n: int, k: int) -> gb.Task:
    """Throughput at one point of the map over M, N and K, in bfloat16 with B transposed: 2·M·N·K operations."""
    return product(bench, precision_of(bench, "bfloat16"), Shape(m, n, k, "nt"), effort=gb.POINT)


@topic.case(m=gb.points((), full=tuple(range(128, 6272, 128))), when=on_nvidia)
def wave(bench: gb.Bench, m: int) -> gb.Task:
    """Throughput of M rows of bfloat16 times 4096 × 4096 weights: it falls where one more wave of tiles begins."""
    return product(bench, precision_of(bench, "bfloat16"), Shape(m, 4096, 4096, "nt"), effort=gb.POINT)


@topic.case(dtype=("bfloat16", "float8_e4m3"), n=gb.points((), full=(4096,)), when=on_nvidia)
def ranked(bench: gb.Bench, dtype: str, n: int) -> gb.Task:
    """Throughput of each algorithm that cuBLASLt's heuristics propose, their first choice first: 2·N³ operations.

    The stages are `proposal1`, `proposal2`, …, eight at most."""
    precision = precision_of(bench, dtype)
    operands = Operands(bench, precision, Shape(n, n, n, precision.order))
    proposals = {
        f"proposal{place}": proposal
        for place, proposal in enumerate(heuristics(bench, operands.product, _PROPOSALS), 1)
    }
    stages = {name: operands.stage(proposal.call) for name, proposal in proposals.items()}
    algorithms = {name: proposal.notes["algorithm"] for name, proposal in proposals.items()}
    notes = {**proposals["proposal1"].notes, **algorithms}
    return gb.Task(stages, operands.check, notes=notes)
