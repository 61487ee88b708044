"""Run a small transformer on the host by libraries and compilers: its logits, and a step of training."""

import importlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .. import _torch
from .._models import model
from ._by_iree import on_host
from ._by_tvm import INSTALL_TVM
from ._cases import in_full, runtime_of
from ._layer import NORMED, decoder_layer
from ._libraries import jax_of
from ._providers import imported

_SMALL = model(256, 1024, 4, 2, 2, 2, 1024, "this module")
_TOKENS = 128
_MOST_ERROR, _MOST_GRADIENT_ERROR = 1e-4, 1e-2  # of the largest logit; of a typical derivative in a random direction
_STEP, _BIAS = 1e-5, -30000.0  # of difference quotients in double precision; added to the score of a later token

topic = gb.Topic(views=[gb.View("bars", "A small transformer by provider", ("transformer",), by=("work", "by"))])

Weights = Sequence[Any]
Made = tuple[Callable[..., Any], Callable[[Any], Any], str]  # of tokens, targets and weights; to the library; its name


def logits_of(xp: Any, constants: Sequence[Any], tokens: Any, weights: Weights) -> Any:
    """Return the logits (tokens, vocabulary) of a sequence; `xp` is a library's module.

    `weights` are six arrays per layer, as `decoder_layer` takes them, then the last norm's factors and the embedding,
    which is the head too. `constants` are the cosines, the sines and the mask."""
    *of_layers, factors, embedding = weights
    x = embedding[tokens]
    for layer in range(_SMALL.depth):
        x = decoder_layer(_SMALL, xp, x, *of_layers[6 * layer : 6 * layer + 6], *constants)
    return xp.matmul(NORMED(xp, x, factors), embedding.T)


def loss_of(xp: Any, constants: Sequence[Any], tokens: Any, targets: Any, weights: Weights) -> Any:
    """Return the mean cross-entropy of the logits; row i of `targets` is 1 for the token after token i."""
    logits = logits_of(xp, constants, tokens, weights)
    largest = xp.amax(logits, axis=-1, keepdims=True)
    logarithms = xp.log(xp.sum(xp.exp(logits - largest), axis=-1, keepdims=True)) + largest
    return xp.sum((logarithms - logits) * targets) / len(tokens)


class Sequences:
    """A model's weights in float32, and two sequences of tokens, of which one is in use."""

    def __init__(self, bench: gb.Bench) -> None:
        rng, hidden, vocabulary = bench.rng, _SMALL.head.cols, _SMALL.head.rows
        matrices: list[tuple[int, ...]] = [(layer.rows, layer.cols) for layer in _SMALL.layers]
        shapes = [*matrices, (hidden,), (hidden,)] * _SMALL.depth + [(hidden,), (vocabulary, hidden)]
        draws = (rng.standard_normal(shape) / shape[-1] ** 0.5 + (len(shape) == 1) for shape in shapes)
        self.weights = [np.float32(drawn) for drawn in draws]
        self._drawn = rng.integers(vocabulary, size=(2, _TOKENS + 1), dtype=np.int32)
        angles = np.outer(np.arange(_TOKENS), 1e4 ** (-np.arange(0, _SMALL.dim, 2) / _SMALL.dim))
        mask = np.triu(np.full((_TOKENS, _TOKENS), _BIAS), 1)
        self.constants = [np.float32(values) for values in (np.cos(angles), np.sin(angles), mask)]
        self._known: dict[int, list[tuple[Any, float]]] = {}  # slopes by sequence
        self._turn, self._rows = 0, np.eye(vocabulary, dtype=np.float32)

    def change(self) -> None:
        self._turn ^= 1

    @property
    def inputs(self) -> tuple[Any, Any]:
        """The tokens, and a row per token, which is 1 for the next one."""
        drawn = self._drawn[self._turn]
        return drawn[:-1], self._rows[drawn[1:]]

    def _wide(self) -> list[Any]:
        return [np.float64(weight) for weight in self.weights]

    def _loss(self, weights: Weights) -> float:
        return float(loss_of(np, self.constants, *self.inputs, weights))

    def _slopes(self) -> list[tuple[Any, float]]:
        """Return for each weight array a random direction and the loss's derivative in it, in double precision."""
        wide, slopes = self._wide(), self._known.setdefault(self._turn, [])
        for place, weight in enumerate([] if slopes else wide):
            way = np.random.default_rng(place).standard_normal(weight.shape)
            losses = [self._loss([*wide[:place], weight + h * way, *wide[place + 1 :]]) for h in (_STEP, -_STEP)]
            slopes.append((way, (losses[0] - losses[1]) / (2 * _STEP)))
        return slopes

    def compare_logits(self, logits: Any) -> dict[str, gb.Observed]:
        """Compare every logit with double precision."""
        exact = logits_of(np, self.constants, self.inputs[0], self._wide())
        error = float(np.abs(logits - exact).max() / np.abs(exact).max())
        gb.expect(error <= _MOST_ERROR, f"a logit is wrong by {error:.2g} of the largest one")
        return {"error": gb.Observed(error)}

    def compare_step(self, loss: Any, *stepped: Any) -> dict[str, gb.Observed]:
        """Compare the loss with double precision, and the gradient of each weight array in a random direction."""
        error, gradient_error = abs(float(loss) / self._loss(self._wide()) - 1), 0.0
        for weight, after, (way, slope) in zip(self.weights, stepped, self._slopes(), strict=True):
            gradient = np.float64(weight) - after
            typical = float(np.linalg.norm(gradient) * np.linalg.norm(way)) / way.size**0.5
            gradient_error = float(np.maximum(gradient_error, abs(np.sum(gradient * way) - slope) / typical))
        gb.expect(error <= _MOST_ERROR, f"the loss is wrong by {error:.2g} of it")
        gb.expect(gradient_error <= _MOST_GRADIENT_ERROR, f"a gradient is wrong by {gradient_error:.2g}")
        return {"error": gb.Observed(error), "gradient error": gb.Observed(gradient_error)}


def _function(xp: Any, constants: Sequence[Any], gradient_of: Any = None) -> Callable[..., Any]:
    """Return the function of the logits, or with `gradient_of` the one of the loss and the weights after a step."""

    def step(tokens: Any, targets: Any, weights: Weights) -> Any:
        loss, gradients = gradient_of(partial(loss_of, xp, constants, tokens, targets))(weights)
        return loss, *(weight - gradient for weight, gradient in zip(weights, gradients, strict=True))

    return step if gradient_of else lambda tokens, _, weights: logits_of(xp, constants, tokens, weights)


def _numpy(_: gb.Bench, sequences: Sequences, is_training: bool) -> Made:
    del is_training
    return _function(np, sequences.constants), np.asarray, f"NumPy {np.__version__}"


def _by_torch(bench: gb.Bench, sequences: Sequences, is_training: bool, is_compiled: bool = False) -> Made:
    torch = _torch.with_compiler(bench) if is_compiled else _torch.on_stream(bench)

    def gradient_of(loss: Callable[..., Any]) -> Callable[..., Any]:
        return lambda weights: torch.func.grad_and_value(loss)(weights)[::-1]

    call = _function(torch, list(map(torch.from_numpy, sequences.constants)), gradient_of if is_training else None)
    if is_compiled:
        importlib.import_module("torch._inductor.config").force_disable_caches = True  # type: ignore[attr-defined]
        call = torch.compile(call, fullgraph=True, dynamic=False)
    return call, torch.from_numpy, f"torch {torch.__version__}"


def _jax(bench: gb.Bench, sequences: Sequences, is_training: bool) -> Made:
    jax = jax_of(bench)
    call = jax.jit(_function(jax.numpy, sequences.constants, jax.value_and_grad if is_training else None))
    return (lambda *inputs: jax.block_until_ready(call(*inputs))), jax.numpy.asarray, f"JAX {jax.__version__}"


def _tvm(bench: gb.Bench, sequences: Sequences, _: bool) -> Made:
    """Compile the program that torch exports, by Relax's own pipeline for the host."""
    torch = _torch.on_stream(bench)
    tvm, relax, frontend = imported("TVM", INSTALL_TVM, "tvm", "tvm.relax", "tvm.relax.frontend.torch")
    constants = list(map(torch.from_numpy, sequences.constants))
    names = ("matmul", "exp", "sum", "mean", "sqrt", "concatenate")
    functions = SimpleNamespace(**{name: getattr(torch, name) for name in names})
    functions.amax = lambda x, axis, keepdims: torch.max(x, axis, keepdims)[0]  # TVM does not import amax

    class Exported(torch.nn.Module):  # type: ignore[misc,name-defined]
        """The model as a module, as torch exports one."""

        def forward(self, tokens: Any, *weights: Any) -> Any:
            return logits_of(functions, constants, tokens, weights)

    arguments = tuple(map(torch.from_numpy, (sequences.inputs[0], *sequences.weights)))
    program = frontend.from_exported_program(torch.export.export(Exported(), arguments), unwrap_unit_return_tuple=True)
    target = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()})
    main = relax.VirtualMachine(tvm.compile(program, target=target), tvm.cpu())["main"]
    return lambda tokens, _, weights: main(tokens, *weights).numpy(), tvm.runtime.tensor, f"TVM {tvm.__version__}"


def _iree(bench: gb.Bench, sequences: Sequences, _: bool) -> Made:
    """Compile the StableHLO that JAX exports."""
    jax = jax_of(bench)
    function = jax.jit(lambda tokens, *weights: logits_of(jax.numpy, sequences.constants, tokens, weights))
    exported = importlib.import_module("jax.export").export(function)(sequences.inputs[0], *sequences.weights)
    main, to_library, library = on_host(exported.mlir_module_serialized, input_type="stablehlo")
    return lambda tokens, _, weights: main(tokens, *weights), to_library, library


_PROVIDERS: dict[str, Callable[..., Made]] = {"numpy": _numpy, "torch": _by_torch, "jax": _jax}
_PROVIDERS |= {"inductor": partial(_by_torch, is_compiled=True), "tvm": _tvm, "iree": _iree}
_WITHOUT_GRADIENTS = {"numpy": "NumPy", "tvm": "TVM's import", "iree": "IREE"}


@topic.case(
    work=("inference", "training"),
    by=tuple(_PROVIDERS),
    runtime=runtime_of,
    when=lambda target: target.is_host and in_full(target),
)
def transformer(bench: gb.Bench, work: str, by: str) -> gb.Task:
    """Seconds of a small transformer (two layers, 2.2 million weights, 128 tokens, float32) on the host.

    `inference` computes all logits, and `training` the loss, its gradients and weights less the gradients. TVM imports
    the program that torch exports, and IREE the StableHLO of JAX. Every logit, the loss, and each array's gradient in
    a random direction are compared with double precision. `compile` is the time until the first result, imports of the
    library included."""
    sequences, is_training = Sequences(bench), work == "training"
    if is_training and by in _WITHOUT_GRADIENTS:
        raise gb.Skip(f"{_WITHOUT_GRADIENTS[by]} does not differentiate")
    begin = time.perf_counter()
    call, to_library, library = _PROVIDERS[by](bench, sequences, is_training)
    weights = tuple(map(to_library, sequences.weights))
    state: dict[str, Any] = {}

    def change() -> None:
        sequences.change()
        state["tokens"], state["targets"] = map(to_library, sequences.inputs)

    def run() -> None:
        state["output"] = call(state["tokens"], state["targets"], weights)

    change()
    run()
    compile_s = time.perf_counter() - begin

    def check() -> gb.Observation:
        gb.expect("output" in state, "nothing was computed")
        compare = sequences.compare_step if is_training else sequences.compare_logits
        output = state["output"] if is_training else [state["output"]]
        return {**compare(*map(np.asarray, output)), "compile": gb.Observed(compile_s, "s")}

    flops = 2.0 * _TOKENS * _SMALL.size * (3 if is_training else 1)
    stage = gb.Stage(run, gb.Work(flops=flops), "value", clock="host", effort=gb.POINT, inputs=change)
    return gb.Task.of(stage, check=check, poison=lambda: state.pop("output", None), notes={"library": library})
