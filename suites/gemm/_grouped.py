"""Measure the products of a mixture of experts: each expert's weights with the tokens that were sent to that expert.

The loads of the experts follow Zipf's law: the expert of rank r has a share that is proportional to 1/r^skew. With
skew 0 all have the same load."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.api import suite as gb

from .._checks import flipping, in_turn
from .._graphs import replayed
from .._matrix.data import Maker, Operands, judged
from .._matrix.formats import FORMATS, PRECISIONS, MatrixProduct, Precision, Shape
from .._matrix.freivalds import expect_host_product
from .._matrix.product import on_nvidia, precision_of
from .._matrix.vendor import NEEDS_NVMATH, WORKSPACE_BYTES, vendor
from .._models import MODELS
from ._beside import share_of_dense
from ._host import library

_MODEL = "olmoe-1b-7b"
_HOST_SIDE = 256  # rows and columns of an expert's weights on the host
_QUEUED = 512  # launches per batch, which has to fit into the launch queue
_ROWS = 2  # rows of each expert that are compared
_WHOLE = 3  # number of experts of which all elements are compared
_TRANSPOSED, _AS_IT_IS = 1, 0  # cublasOperation_t
_NOT_SUPPORTED = 15  # CUBLAS_STATUS_NOT_SUPPORTED
_LIBRARY, _LOOP, _PARALLEL = "grouped", "loop", "parallel"
_STREAMS = 8  # CUDA's default number of queues to the device (CUDA_DEVICE_MAX_CONNECTIONS)

Call = Callable[[], object]
Loads = npt.NDArray[np.int64]

topic = gb.Topic(
    views=[gb.View("curve", "Grouped GEMM throughput by load skew", ("grouped",), "skew", by=("experts", "tokens"))]
)


def _experts(target: gb.Target) -> Any:
    return (8,) if target.is_host else gb.points((64,), (8,), (8, 64, 128))


def _tokens(target: gb.Target) -> Any:
    return (1024,) if target.is_host else gb.points((8192,), (1024,), (512, 2048, 8192, 32768))


def _has_products(target: gb.Target) -> bool:
    return target.is_host or on_nvidia(target)


@topic.case(experts=_experts, tokens=_tokens, skew=gb.points((1,), full=(0, 0.5, 1, 1.5)), when=_has_products)
def grouped(bench: gb.Bench, experts: int, tokens: int, skew: float) -> gb.Task:
    """Throughput of Y = X·Wᵀ of each expert with its own tokens: 2·tokens·N·K operations in all.

    The expert of rank r has a share of the tokens proportional to 1/r^`skew`. The weights of experts that have tokens
    are counted as read once. `of dense` is the rate as a share of one product of all tokens with the weights of a
    single expert. Stage `grouped` is one call of the library, `loop` a call for each expert, `parallel` these calls on
    eight streams, as one graph."""
    layout = ExpertLoads.drawn(bench, tokens, experts, skew)
    if not bench.traits.is_gpu:
        return _host_task(bench, layout)
    matrix = MODELS[_MODEL].layer("up")
    rows = matrix.rows // MODELS[_MODEL].experts
    products = GroupedProducts(bench, precision_of(bench, "bfloat16"), layout, rows, matrix.cols)
    stages = {
        _LIBRARY: products.stage(products.by_library(), 1),
        # Measures the host's pace, not the GPU's.
        _LOOP: products.stage(products.by_loop(), layout.active, is_compared=False),
        _PARALLEL: products.stage(replayed(bench, products.by_streams()), layout.active),
    }
    notes = {"model": MODELS[_MODEL].source, **products.notes}
    return gb.Task(stages, products.check, notes=notes)


@dataclass(frozen=True, slots=True)
class ExpertLoads:
    """The number of tokens of each expert (`loads`, int64); the tokens of an expert lie together.

    The experts' tokens lie in the order of the experts."""

    loads: Loads

    @classmethod
    def drawn(cls, bench: gb.Bench, tokens: int, experts: int, skew: float) -> ExpertLoads:
        """Return loads of `tokens` tokens by Zipf's law with the exponent `skew`.

        The case's seed shuffles them among the experts. Raises SuiteError without tokens or experts."""
        if tokens < 1 or experts < 1:
            raise gb.SuiteError(f"{tokens} tokens for {experts} experts: needs one or more of each")
        return cls(zipf_loads(tokens, experts, skew)[bench.rng.permutation(experts)])

    @property
    def active(self) -> int:
        """The number of experts that have a token."""
        return int(np.count_nonzero(self.loads))

    @property
    def parts(self) -> list[tuple[int, int, int]]:
        """The experts that have tokens, and for each its number, its first token and how many tokens it has."""
        starts = np.cumsum(self.loads) - self.loads
        triples = zip(range(len(self.loads)), starts.tolist(), self.loads.tolist(), strict=True)
        return [(expert, start, load) for expert, start, load in triples if load]

    def work(self, n: int, k: int, itemsize: int) -> gb.Work:
        """Return the work of the products with n × k weights in each expert, and `itemsize` bytes in each element.

        The bytes count tokens, results and the weights of experts that have a token."""
        tokens = int(self.loads.sum())
        elements = self.active * n * k + tokens * (n + k)
        return gb.Work(flops=2.0 * tokens * n * k, moved=float(itemsize * elements))

    @property
    def notes(self) -> dict[str, str]:
        low, high = self.loads.min(), self.loads.max()
        return {"tokens of an expert": f"{low} to {high}; {self.active} of {len(self.loads)} experts have tokens"}


def zipf_loads(tokens: int, experts: int, skew: float) -> Loads:
    """Return the tokens of each expert in descending order, each rounded from a share proportional to 1/rank^skew.

    They are int64 and add up to `tokens`; the largest remainders are rounded up."""
    weights = np.arange(1, experts + 1, dtype=float) ** -skew
    exact = tokens * weights / weights.sum()
    loads: Loads = np.floor(exact).astype(np.int64)
    most = np.argsort(loads - exact, kind="stable")[: tokens - int(loads.sum())]
    loads[most] += 1
    return loads


class ExpertOperands(Operands):
    """The operands of one expert: parts of the arrays of all experts, checked like the operands of a single product.

    The expert has `load` tokens from token `start` on."""

    def __init__(self, products: GroupedProducts, expert: int, start: int, load: int) -> None:
        n, k = products.n, products.k
        self.precision, self.shape = products.precision, Shape(load, n, k, "nt")
        self.rng, self.epilogue, self.notes = products.rng, None, {}
        self._make, self._to_host = products.make, products.make.to_host
        self.a = products.x[start * k : (start + load) * k]
        self.b = products.weights[expert * n * k : (expert + 1) * n * k]
        self.c = products.y[start * n : (start + load) * n]

    def compared_rows(self) -> float:
        """Return the relative error of random rows; raises WrongAnswer if it is above its bound."""
        error = judged(self.precision, self.shape.k, *self._rows(0, _ROWS))["error"]
        return error.value if isinstance(error, gb.Observed) else 0.0


class GroupedProducts:
    """Tokens, the weights of all experts (n × k each) and the results on a GPU, flat and row-major.

    Raises Skip if they need more memory than is free, or if the library does not support the dense product."""

    def __init__(self, bench: gb.Bench, precision: Precision, layout: ExpertLoads, n: int, k: int) -> None:
        tokens, experts = int(layout.loads.sum()), len(layout.loads)
        kind_a, kind_b, kind_c = precision.formats
        elements = tokens * (k + 2 * n) + experts * n * k
        bench.need(1.1 * elements * kind_a.itemsize + 4 * 8 * n * k + (2 + _STREAMS) * WORKSPACE_BYTES)
        self.precision, self.n, self.k, self.rng = precision, n, k, bench.rng
        self._bench, self._layout, self.make = bench, layout, Maker(bench)
        seeds = [int(seed) for seed in self.rng.integers(2**63, size=2)]
        self.x = self.make.drawn(kind_a, tokens * k, seeds[0])
        self._redraw = flipping(self.x)
        self.weights = self.make.drawn(kind_b, experts * n * k, seeds[1])
        self.y, self._dense_y = (bench.xp.empty(tokens * n, kind_c.storage) for _ in range(2))
        self._workspace = bench.xp.empty(WORKSPACE_BYTES, "uint8")
        self.notes = {"expert": f"{n} × {k}", "data": "N(0,1)", **layout.notes}
        dense_shape = Shape(tokens, n, k, "nt")
        self._dense = vendor(
            bench, MatrixProduct(precision, dense_shape, self.x, self.weights[: n * k], self._dense_y)
        ).call

    def stage(self, call: Call, launches: int, *, is_compared: bool = True) -> gb.Stage:
        """Return the products of all experts as a stage; `call` queues at least `launches` kernels.

        If `is_compared`, a probe observes the rate as a share of the rate of one dense product."""
        work = self._layout.work(self.n, self.k, self.precision.formats[0].itemsize)
        probe = share_of_dense(self._bench, call, self._dense) if is_compared else None
        most = max(1, min(64, _QUEUED // launches))
        rest: dict[str, Any] = {"effort": gb.POINT, "probe": probe, "outputs": (self.y,), "inputs": self._redraw}
        return gb.Stage(call, work, "flops", self.precision.limit, max_calls=most, **rest)

    def _experts(self) -> list[ExpertOperands]:
        return [ExpertOperands(self, *part) for part in self._layout.parts]

    def by_loop(self) -> Call:
        """Return a call that calls the library once for each expert that has a token."""
        calls = [vendor(self._bench, operands.product, self._workspace).call for operands in self._experts()]

        def call() -> None:
            for product in calls:
                product()

        return call

    def by_streams(self) -> Callable[[], None]:
        """Return a call that queues the products on up to eight streams; experts are dealt by falling load."""
        experts = sorted(self._experts(), key=lambda operands: operands.shape.m, reverse=True)
        dealt = [experts[first::_STREAMS] for first in range(min(_STREAMS, len(experts)))]
        workspaces = [self._bench.xp.empty(WORKSPACE_BYTES, "uint8") for _ in dealt]
        queues: list[list[Call]] = [[] for _ in dealt]

        def make(queue: list[Call], products: Sequence[Operands], workspace: Any) -> None:
            queue += [vendor(self._bench, operands.product, workspace).call for operands in products]

        together = self._bench.device.together
        # Each call belongs to the stream for which it was made.
        together(*map(partial, [make] * len(dealt), queues, dealt, workspaces))
        calls = [in_turn(*queue) for queue in queues]
        return lambda: together(*calls)

    def by_library(self) -> Call:
        """Return a call that computes all products by one call of cuBLAS; raises Skip if cuBLAS is unavailable.

        The version of cuBLAS is added to `notes`."""
        queued = GroupedCall(self._bench, self.precision, self._experts())
        self.notes |= queued.notes
        return queued

    def check(self) -> gb.Observation:
        """Compare rows of every expert, and every element of three experts, with products in double precision.

        Returns the largest relative error of the rows as `error`."""
        missing = self.make.count_unwritten(self.y, self.precision.formats[2])
        gb.expect(missing == 0, f"{missing} elements of Y are not written, NaN or infinite")
        experts = self._experts()
        error = max(expert.compared_rows() for expert in experts)
        for index in self.rng.permutation(len(experts))[:_WHOLE]:
            experts[index].check()
        return {"error": gb.Observed(error)}


@functools.cache
def _cublas(device: str) -> tuple[Any, int]:
    """Return nvmath-python's binding of cuBLAS and a handle for the open device, whose id is `device`."""
    del device  # a cuBLAS handle belongs to the device that is current when it is created
    try:
        from nvmath.bindings import cublas
    except ImportError as error:
        raise gb.Skip(NEEDS_NVMATH) from error
    return cublas, int(cublas.create())


class GroupedCall:
    """One call of cublasGemmGroupedBatchedEx for products of any number of rows, each of which is a group.

    The library is column-major: Yᵀ = W·Xᵀ, where W is stored as its own transpose."""

    def __init__(self, bench: gb.Bench, precision: Precision, products: Sequence[Operands]) -> None:
        self._cublas, handle = _cublas(bench.target.device.id)
        self._cublas.set_stream(handle, bench.device.stream)
        kinds, count = precision.formats, len(products)
        k, n = products[0].shape.k, products[0].shape.n
        columns = (_TRANSPOSED, _AS_IT_IS, n, [operands.shape.m for operands in products], k, k, k, n, 1)
        self._sizes = [np.full(count, column, np.int32) for column in columns]
        scalars = FORMATS[precision.scalars].storage
        self._scalars = [np.full(count, value, scalars) for value in (1, 0)]
        self._matrices = [
            bench.xp.asarray(np.array([array.data.ptr for array in arrays], np.uint64))
            for arrays in zip(*((operands.b, operands.a, operands.c) for operands in products), strict=True)
        ]
        first, second, m, rows, inner, lda, ldb, ldc, ones = (sizes.ctypes.data for sizes in self._sizes)
        alpha, beta = (values.ctypes.data for values in self._scalars)
        w, x, y = (array.data.ptr for array in self._matrices)
        self._args = (
            handle, first, second, m, rows, inner, alpha, w, kinds[1].code, lda, x, kinds[0].code, ldb, beta, y,
            kinds[2].code, ldc, count, ones, precision.compute,
        )  # fmt: skip
        self.notes = {"library": f"cuBLAS {self._cublas.get_version(handle)} gemmGroupedBatchedEx"}
        try:
            self()
        except self._cublas.cuBLASError as error:
            if error.status != _NOT_SUPPORTED:
                raise
            raise gb.Skip(f"cuBLAS does not support grouped products in {precision.a} here") from error

    def __call__(self) -> None:
        """Queue all products."""
        self._cublas.gemm_grouped_batched_ex(*self._args)


def _host_task(bench: gb.Bench, layout: ExpertLoads) -> gb.Task:
    """Return the products by a loop over NumPy's BLAS as a task, in float32, with 256 × 256 weights per expert."""
    precision, side, rng = PRECISIONS["float32"], _HOST_SIDE, bench.rng
    tokens, experts = int(layout.loads.sum()), len(layout.loads)
    bench.need(4.0 * side * (3 * tokens + experts * side))
    x = rng.standard_normal((tokens, side), dtype=np.float32)
    weights = rng.standard_normal((experts, side, side), dtype=np.float32)
    y, dense_y = np.empty_like(x), np.empty_like(x)
    parts = [(slice(start, start + load), expert) for expert, start, load in layout.parts]

    def call() -> None:
        for rows, expert in parts:
            np.matmul(x[rows], weights[expert].T, out=y[rows])

    def check() -> None:
        gb.expect(bool(np.isfinite(y).all()), "Y holds NaN or infinity: elements were not written")
        for rows, expert in parts:
            expect_host_product(precision, x[rows], weights[expert].T, y[rows], rng)

    probe = share_of_dense(bench, call, lambda: np.matmul(x, weights[0].T, out=dense_y))
    work = layout.work(side, side, 4)
    limit, inputs = precision.limit, flipping(x)
    stage = gb.Stage(call, work, "flops", limit, effort=gb.POINT, probe=probe, outputs=(y,), inputs=inputs)
    notes = {"library": library(), "expert": f"{side} × {side}", "data": "N(0,1)", **layout.notes}
    return gb.Task({_LOOP: stage}, check, notes=notes)
