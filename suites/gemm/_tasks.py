"""Tasks of the vendor's products: one product, a burst of them, one with an epilogue, the library's proposals."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from gpubench.api.suite import POINT, TIER, Bench, Effort, Stage, Task, Work

from ._data import WORDS, Maker, Operands
from ._formats import Precision, Shape
from ._vendor import Activation, Arrays, Call, Vendor, heuristics, vendor

_BURST = 8  # products in a row: some 5 ms of 8192³, a fraction of what a power cap needs to act
_REST_S = 0.03
_BURSTS_S = 0.4  # ten bursts and their rests
_PROPOSALS = 8
_NUMBERS = npt.NDArray[np.float64]


def product(
    bench: Bench,
    precision: Precision,
    shape: Shape,
    *,
    data: str = "normal",
    effort: Effort = TIER,
    notes: Mapping[str, str] | None = None,
) -> Task:
    """One product by the vendor's library."""
    operands = Operands(bench, precision, shape, data)
    found = vendor(bench, precision, shape, Arrays(operands.a, operands.b, operands.c))
    stage = _stage(found.call, precision, shape, effort=effort)
    return _task(bench, operands, stage, {**found.notes, **(notes or {})}, data)


def _stage(call: Call, precision: Precision, shape: Shape, times: int = 1, effort: Effort = TIER) -> Stage:
    work = Work(flops=times * shape.flops, moved=times * shape.moved(precision))
    return Stage(call, work, "flops", precision.limit, max_calls=64, effort=effort)


def _task(bench: Bench, operands: Operands, stage: Stage, notes: Mapping[str, str], data: str = "normal") -> Task:
    words = {"shape": operands.shape.words, "data": WORDS[data], "seed": str(bench.seed)}
    return Task.of(stage, check=operands.check, poison=operands.poison, notes={**notes, **words})


def bursting(bench: Bench, precision: Precision, shape: Shape) -> Task:
    """A few products after a rest: what the device does before its power cap acts."""
    operands = Operands(bench, precision, shape)
    found = vendor(bench, precision, shape, Arrays(operands.a, operands.b, operands.c))

    def several() -> None:
        for _ in range(_BURST):
            found.call()

    work = Work(flops=_BURST * shape.flops, moved=_BURST * shape.moved(precision))
    stage = Stage(
        several, work, "flops", precision.limit, max_calls=1, effort=Effort.sustained(_BURSTS_S), rest_s=_REST_S
    )
    return _task(bench, operands, stage, {**found.notes, "burst": f"{_BURST} products after {_REST_S} s of rest"})


def activated(bench: Bench, precision: Precision, shape: Shape, activation: Activation) -> Task:
    """A product, a bias for each column and an activation, fused by the library."""
    operands = Operands(bench, precision, shape)
    make, kind = Maker(bench), precision.formats[2]
    bias = make.drawn(kind, shape.n, int(operands.rng.integers(2**63)))
    if activation != "none":
        added = bench.device.to_host(make.widened(bias, kind, 1, shape.n, (shape.n, 1)))
        operands.epilogue = lambda rows: ACTIVATIONS[activation](rows + added)
    found = vendor(bench, precision, shape, Arrays(operands.a, operands.b, operands.c, bias), activation)
    return _task(
        bench, operands, _stage(found.call, precision, shape, effort=POINT), {**found.notes, "epilogue": activation}
    )


def _gelu(x: _NUMBERS) -> _NUMBERS:
    """The approximation by tanh that the library computes (Hendrycks & Gimpel 2016, arXiv:1606.08415)."""
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


ACTIVATIONS = {"bias": lambda x: x, "relu": lambda x: np.maximum(x, 0), "gelu": _gelu}


def ranking(bench: Bench, precision: Precision, shape: Shape) -> Task:
    """Every proposal of the heuristics as a stage of its own, the first choice first."""
    operands = Operands(bench, precision, shape)
    found = heuristics(bench, precision, shape, Arrays(operands.a, operands.b, operands.c), "none", _PROPOSALS)
    stages = {f"proposal{place}": _stage(each.call, precision, shape) for place, each in enumerate(found, 1)}
    notes = {f"proposal{place}": each.notes["algorithm"] for place, each in enumerate(found, 1)}
    return Task(stages, operands.check, operands.poison, notes={**found[0].notes, **notes})


__all__ = ["Vendor", "activated", "bursting", "product", "ranking"]
