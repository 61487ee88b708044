"""Measure a training step: of one layer, and of a stack of layers with embedding and head."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpubench.api import suite as gb

from .._models import MODELS, Model, model
from ._decoder import DECAY, EPSILON, PARTS, RATE, Decoder, Name, StepShape, work_of

TINY = model(256, 512, 4, 2, 2, 2, 1024, "a decoder that a host computes in milliseconds")
DECODERS = {"llama-3-8b": MODELS["llama-3-8b"], "tiny": TINY}
# Units of rounding: of float32, bfloat16 and float8_e4m3 (of values and weights).
_ROUNDING = {"float32": 2.0**-20, "bfloat16": 2.0**-8, "float8": 2.0**-4}
_MOST_ERROR = 0.5  # a gradient that has nothing in common with the exact one differs by 1.4
_MOST_UPDATE = {"float32": 1e-3, "bfloat16": 0.5}  # weights of 16 bits round an update; without one it is 1
_DESCENT = 4  # steps on one batch, after which the loss has fallen
_SMALL = 2, 64  # sequences and tokens of the steps that are compared with double precision
_SUSTAINED_S = 4.0

topic = gb.Topic(
    views=[
        gb.View("bars", "Training step: throughput", ("layer", "stack")),
        *[
            gb.View("bars", f"Training step: time of the part {part}", ("layer", "stack"), series=part)
            for part in PARTS
        ],
    ],
)


def is_measured(target: gb.Target) -> bool:
    """Return whether the tier measures steps: on a GPU, importing torch takes longer than quick has for them."""
    return target.is_host or target.tier != "quick"


def runtime(_params: Mapping[str, Any]) -> str:
    """Return the name of the processes in which torch works."""
    return "torch"


def models(target: gb.Target) -> tuple[str, ...]:
    """Return the model that the device trains: Llama-3-8B's shapes on a GPU, a tiny decoder on the host."""
    return ("tiny",) if target.is_host else ("llama-3-8b",)


def _precisions(target: gb.Target) -> Any:
    if target.is_host:
        return gb.points(("float32",), full=("float32", "bfloat16", "float8"))
    return gb.points(("bfloat16",), full=("bfloat16", "float8"))


def sizes(quick: int, host: int) -> Any:
    """Return an axis with one size on a GPU, an eighth of it in the tier `smoke`, and another on the host."""
    return lambda target: (host,) if target.is_host else gb.points((quick,), (max(1, quick // 8),))


_RECOMPUTE = gb.points(("off",), full=("off", "on"))


@topic.case(
    model=models,
    batch=sizes(4, 2),
    length=sizes(2048, 64),
    precision=_precisions,
    recompute=_RECOMPUTE,
    by=lambda target: ("torch",) if target.is_host else gb.points(("torch",), full=("torch", "inductor")),
    # recomputation only of eager bfloat16 or float32
    where=lambda _, params: (
        params["recompute"] == "off" or (params["by"] == "torch" and params["precision"] != "float8")
    ),
    runtime=runtime,
    when=is_measured,
    headline={"precision": "bfloat16", "recompute": "off", "by": "torch"},
)
def layer(bench: gb.Bench, model: str, batch: int, length: int, precision: str, recompute: str, by: str) -> gb.Task:
    """Tokens per second of a training step of one decoder layer: forward, loss, backward and fused AdamW.

    `batch` sequences have `length` tokens each; the loss is the squared distance from a random target. `recompute`
    says whether the layer keeps its input alone. `by` is torch's eager mode, or its compiler."""
    shape = StepShape(batch, length, precision, recompute == "on", by == "inductor")
    return TrainingStep(bench, replace(DECODERS[model], depth=1), shape).task()


@topic.case(
    model=models,
    layers=lambda target: (2,) if target.is_host else gb.points((4,), (1,), (8, 32)),
    batch=sizes(4, 2),
    length=sizes(2048, 64),
    recompute=_RECOMPUTE,
    runtime=runtime,
    when=is_measured,
)
def stack(bench: gb.Bench, model: str, layers: int, batch: int, length: int, recompute: str) -> gb.Task:
    """Tokens per second of a training step of a model with `layers` layers, its embedding and its head.

    The loss is the cross-entropy of the next token. Weights, gradients and moments are bfloat16, on the host float32.
    """
    precision = "bfloat16" if bench.traits.is_gpu else "float32"
    shape = StepShape(batch, length, precision, recompute == "on", has_head=True)
    return TrainingStep(bench, replace(DECODERS[model], depth=layers), shape).task()


class TrainingStep:
    """A step as a task, with its gradients and its loss in wider formats, which its check expects.

    Creating it trains for some steps. Raises WrongAnswer if the loss does not fall, or if gradients on a small shape
    differ from double precision by more than rounding explains."""

    def __init__(self, bench: gb.Bench, model: Model, shape: StepShape) -> None:
        self._bench, self._shape = bench, shape
        self._decoder = decoder = Decoder(bench, model, shape)
        self._bound = min(_MOST_ERROR, 8 * _ROUNDING[shape.precision] * math.sqrt(model.depth))
        self._before: dict[Name, Any] = {}  # the compared rows of the weights before the step
        wider = "float64" if shape.precision == "float32" else "float32"
        self._references: dict[
            int, tuple[float, Mapping[Name, Any]]
        ] = {}  # loss and gradients by the number of the input
        for _ in range(2):
            self._references[decoder.at] = decoder.reference(wider)
            decoder.swap()
        self._fixed = {"error": gb.Observed(self._small_error()), "fall": gb.Observed(self._fall())}

    def _small_error(self) -> float:
        """Return the largest relative error of a gradient of two small layers, against double precision."""
        batch, length = _SMALL
        small = replace(self._shape, batch=batch, length=length, is_compiled=False, has_head=True)
        decoder = Decoder(self._bench, TINY, small)
        expected = decoder.reference("float64")
        decoder.step()
        return self._compare(decoder, *expected)

    def _fall(self) -> float:
        """Return the loss after some steps on one batch over the loss of the first step."""
        losses = []
        for _ in range(_DESCENT):
            self._decoder.step()
            losses.append(float(self._decoder.loss))
        gb.expect(math.isfinite(sum(losses)), f"the loss of a step is not finite: {losses}")
        gb.expect(losses[-1] < losses[0], f"the loss does not fall in {_DESCENT} steps on one batch: {losses}")
        return losses[-1] / losses[0]

    def task(self) -> gb.Task:
        """Return the step as a task of one stage, judged by its tokens."""
        bench, shape, decoder = self._bench, self._shape, self._decoder
        is_sustained = bench.target.tier == "full" and bench.traits.is_gpu
        stage = gb.Stage(
            decoder.step,
            work_of(decoder.model, shape),
            "items",
            f"tensor.{shape.precision}" if bench.traits.is_gpu else "",
            waits=True,  # torch may allocate, and a stack has more launches than a queue holds
            max_calls=1,
            effort=gb.Effort.sustained(_SUSTAINED_S) if is_sustained else gb.POINT,
            probe=lambda: {name: gb.Observed(seconds, "s") for name, seconds in decoder.marks.seconds().items()},
            item="token",
            outputs=(bench.xp.asarray(decoder.loss),),
            inputs=decoder.swap,
        )
        notes = {
            "library": library(decoder.torch),
            "state": f"weights, gradients and two moments of AdamW (fused) in {shape.weight_format}",
            "data": "seeded weights; two random batches, each trained on for the length of a series",
            "operations": "6 per token and weight, 12 per element of a head and pair; none of recomputation",
        }
        return gb.Task.of(stage, check=self._check, poison=self._poison, notes=notes)

    def _poison(self) -> None:
        """Draw the first weights again, so that the next call is the first step from them."""
        decoder = self._decoder
        decoder.reset()
        self._before = {name: decoder.compared(name, weights) for name, weights in decoder.parameters.items()}
        if self._bench.traits.is_gpu:
            decoder.torch.cuda.reset_peak_memory_stats()

    def _check(self) -> gb.Observation:
        """Compare loss, gradients and new weights of a first step; docs/training.md explains the observed values."""
        decoder, observed = self._decoder, dict(self._fixed)
        if self._bench.traits.is_gpu:
            observed["peak_memory"] = gb.Observed(float(decoder.torch.cuda.max_memory_allocated()), "B")
        observed["difference"] = gb.Observed(self._compare(decoder, *self._references[decoder.at]))
        expect_update(decoder, self._before)
        return observed

    def _compare(self, decoder: Decoder, expected_loss: float, expected: Mapping[Name, Any]) -> float:
        """Return the largest relative error of a gradient; raises WrongAnswer if rounding does not explain it."""
        loss, bound = float(decoder.loss), self._bound
        gb.expect(math.isfinite(loss), "the loss is NaN or infinite, or was not written")
        is_near = abs(loss - expected_loss) <= bound * expected_loss
        gb.expect(is_near, f"the loss is {loss:.6g}, not {expected_loss:.6g}")
        missing = [name for name, weights in decoder.parameters.items() if weights.grad is None]
        gb.expect(not missing, f"there are no gradients of {missing}")
        errors = {
            name: relative_error(decoder.compared(name, decoder.parameters[name].grad), exact)
            for name, exact in expected.items()
        }
        worst = max(errors, key=errors.__getitem__)
        gb.expect(errors[worst] <= bound, f"the gradient of {worst} has the relative error {errors[worst]:.3g}")
        return errors[worst]


def library(torch: Any) -> str:
    """Return the version of torch and of its CUDA or HIP."""
    of_device = f", CUDA {torch.version.cuda}" if torch.version.cuda else ""
    return f"torch {torch.__version__}{of_device}"


def expect_update(decoder: Decoder, before: Mapping[Name, Any]) -> None:
    """Raise WrongAnswer unless the weights follow from AdamW's first step (Loshchilov & Hutter, 2019).

    `before` has the compared rows of the weights before it."""
    most = _MOST_UPDATE[decoder.shape.weight_format]
    for name, old in before.items():
        weights = decoder.parameters[name]
        gradient, new = decoder.compared(name, weights.grad), decoder.compared(name, weights)
        gb.expect(bool(new.isfinite().all()), f"new weights {name} are NaN or infinite")
        if old.ndim > 1:  # the update of a norm's factor is smaller than the rounding of a 16-bit number near 1
            update = -RATE * (DECAY * old + gradient / (gradient.abs() + EPSILON))
            error = relative_error(new - old, update)
            gb.expect(error <= most, f"the update of {name} differs by {error:.3g} from AdamW's")


def relative_error(values: Any, exact: Any) -> float:
    """Return ‖values − exact‖/‖exact‖, or infinity if any value is NaN or infinite."""
    error = float((values - exact).norm() / exact.norm())
    return error if math.isfinite(error) else math.inf
