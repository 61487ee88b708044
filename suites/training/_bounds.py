"""Measure what bounds a training step: its matrix products alone, and the bytes of its optimiser."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from gpubench.api import suite as gb

from .._matrix.data import Operands
from .._matrix.formats import PRECISIONS, Shape
from .._matrix.vendor import WORKSPACE_BYTES, vendor
from .._models import Model
from .._torch import on_stream
from ._decoder import BETAS, LEAST_TORCH, UPDATE_VALUES, Decoder, Name, StepShape
from ._steps import DECODERS, expect_update, is_measured, library, models, relative_error, runtime, sizes

_CHECKED = 32  # rows of each result that are compared
# The largest relative errors: of sums of thousands of products, and of a number that is rounded once.
_OF_SUMS, _OF_ROUNDING = {"float32": 1e-4, "bfloat16": 2.0**-6}, {"float32": 1e-5, "bfloat16": 2.0**-7}

topic = gb.Topic()


def _format(bench: gb.Bench) -> str:
    return "bfloat16" if bench.traits.is_gpu else "float32"


def _products_runtime(params: Mapping[str, Any]) -> str:
    return "torch" if params["by"] == "torch" else ""


@topic.case(
    version=2,
    model=models,
    tokens=sizes(8192, 128),
    by=lambda target: ("torch",) if target.is_host else gb.points(("vendor",), full=("vendor", "torch")),
    runtime=_products_runtime,
)
def products(bench: gb.Bench, model: str, tokens: int, by: str) -> gb.Task:
    """Throughput of the twelve matrix products of a layer's training step, and nothing between them.

    For each matrix W of the layer they are X·Wᵀ, dY·W and dYᵀ·X. A step cannot be faster: what it takes longer are
    attention, the operations between products, and the optimiser. `by` is the vendor's library, called directly by its
    own proposal for each shape, or torch."""
    return _by_vendor(bench, DECODERS[model], tokens) if by == "vendor" else _by_torch(bench, DECODERS[model], tokens)


def _by_vendor(bench: gb.Bench, model: Model, tokens: int) -> gb.Task:
    shapes = [
        shape
        for layer in model.layers
        for shape in (
            Shape(tokens, layer.rows, layer.cols, "nt"),
            Shape(tokens, layer.cols, layer.rows),
            Shape(layer.rows, layer.cols, tokens, "tn"),
        )
    ]
    operands = [Operands(bench, PRECISIONS["bfloat16"], shape) for shape in shapes]
    workspace = bench.xp.empty(WORKSPACE_BYTES, "uint8")
    calls = [vendor(bench, factors.product, workspace) for factors in operands]

    def call() -> None:
        for product in calls:
            product.call()

    def change() -> None:
        for factors in operands:
            factors.redraw()

    def check() -> gb.Observation:
        """Check every element of each product; return the largest relative error."""
        errors = [cast(gb.Observed, factors.check()["error"]) for factors in operands]
        return {"error": max(errors, key=lambda error: error.value)}

    stage = gb.Stage(
        call,
        gb.Work(flops=sum(shape.flops for shape in shapes)),
        "flops",
        "tensor.bfloat16",
        max_calls=1,
        effort=gb.POINT,
        outputs=tuple(factors.c for factors in operands),
        inputs=change,
    )
    return gb.Task.of(stage, check=check, notes={"library": calls[0].notes["library"], "data": "N(0,1)"})


def _by_torch(bench: gb.Bench, model: Model, tokens: int) -> gb.Task:
    torch, precision = on_stream(bench, LEAST_TORCH), _format(bench)
    layers = model.layers
    itemsize = 2 if precision == "bfloat16" else 4
    bench.need(1.1 * itemsize * sum(2 * layer.size + 2 * tokens * (layer.rows + layer.cols) for layer in layers))
    kind: dict[str, Any] = {"dtype": getattr(torch, precision), "device": "cuda" if bench.traits.is_gpu else "cpu"}
    torch.manual_seed(int(bench.rng.integers(2**62)))
    factors: list[tuple[Any, Any, Any]] = []  # of each product: A, B, and the result A·B
    inputs: list[tuple[Any, Any]] = []
    for layer in layers:
        x, gradient = torch.randn(tokens, layer.cols, **kind), torch.randn(tokens, layer.rows, **kind)
        weights = torch.randn(layer.rows, layer.cols, **kind)
        pairs = (x, weights.t()), (gradient, weights), (gradient.t(), x)
        factors += [(a, b, torch.empty(a.shape[0], b.shape[1], **kind)) for a, b in pairs]
        inputs.append((x, gradient))
    scale = 2.0

    def call() -> None:
        for a, b, out in factors:
            torch.matmul(a, b, out=out)

    def change() -> None:
        """Negate every X, and double or halve every dY, so that each result changes."""
        nonlocal scale
        for x, gradient in inputs:
            x.neg_()
            gradient.mul_(scale)
        scale = 1 / scale

    def check() -> gb.Observation:
        """Compare random rows of each result with double precision; return the largest relative error."""
        errors = []
        for a, b, out in factors:
            gb.expect(bool(out.isfinite().all()), "a product holds NaN or infinity: elements were not written")
            rows = torch.randint(len(out), (_CHECKED,), device=out.device)
            errors.append(relative_error(out[rows].double(), a[rows].double() @ b.double()))
        gb.expect(max(errors) <= _OF_SUMS[precision], f"the relative error {max(errors):.3g} of a product is too large")
        return {"error": gb.Observed(max(errors))}

    bits = torch.int16 if itemsize == 2 else torch.int32
    stage = gb.Stage(
        call,
        gb.Work(flops=6.0 * tokens * sum(layer.size for layer in layers)),
        "flops",
        f"tensor.{precision}" if bench.traits.is_gpu else "",
        max_calls=1,
        effort=gb.POINT,
        outputs=tuple(bench.xp.asarray(out.view(bits)) for _, _, out in factors),
        inputs=change,
    )
    return gb.Task.of(stage, check=check, notes={"library": library(torch), "data": "N(0,1)"})


@topic.case(model=models, layers=(1,), runtime=runtime, when=is_measured)
def optimizer(bench: gb.Bench, model: str, layers: int) -> gb.Task:
    """Bandwidth of fused AdamW: it reads weight, gradient and two moments, and writes weight and moments.

    All have 2 bytes, on the host 4."""
    decoder = Decoder(bench, replace(DECODERS[model], depth=layers), StepShape(1, 16, _format(bench)))
    before: dict[Name, Any] = {}

    def poison() -> None:
        """Draw the first weights and a gradient again, and clear the moments, so that a first step follows."""
        decoder.reset()
        decoder.draw_gradients()
        before.update({name: decoder.compared(name, weights) for name, weights in decoder.parameters.items()})

    def check() -> None:
        """Compare the weights and the moments after a first step with AdamW's, in double precision."""
        expect_update(decoder, before)
        for name, weights in decoder.parameters.items():
            gradient, state = decoder.compared(name, weights.grad), decoder.optimizer.state[weights]
            moments = {"exp_avg": (1 - BETAS[0]) * gradient, "exp_avg_sq": (1 - BETAS[1]) * gradient**2}
            for moment, expected in moments.items():
                error = relative_error(decoder.compared(name, state[moment]), expected)
                gb.expect(error <= _OF_ROUNDING[_format(bench)], f"{moment} of {name} differs by {error:.3g}")

    def change() -> None:
        decoder.swap()
        decoder.draw_gradients()

    poison()
    work = gb.Work(moved=float(UPDATE_VALUES * sum(weights.nbytes for weights in decoder.parameters.values())))
    stage = gb.Stage(decoder.optimizer.step, work, "moved", "dram", waits=True, effort=gb.POINT, inputs=change)
    return gb.Task.of(stage, check=check, poison=poison, notes={"library": library(decoder.torch)})
