"""Run a small transformer on the host by libraries and compilers: its logits, and a step of training."""

import importlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .. import _torch
from .._models import Model, model
from ._by_iree import HOST_DRIVER, HOST_FLAGS, INSTALL_IREE
from ._by_tvm import INSTALL_TVM
from ._cases import in_full, runtime_of
from ._layer import NORMED, decoder_layer
from ._libraries import jax_of

_SMALL = model(256, 1024, 4, 2, 2, 2, 1024, "this module")
_TOKENS, _RATE = 128, 1.0  # tokens of the sequence; gradients that a step subtracts
_MOST_ERROR, _MOST_GRADIENT_ERROR = 1e-4, 1e-2  # of the largest logit; of a typical derivative in a random direction
_STEP, _BIAS = 1e-5, -30000.0  # of difference quotients in double precision; added to the score of a later token

topic = gb.Topic(
    views=[gb.View("bars", "A small transformer: seconds by provider", ("transformer",), by=("work", "by"))]
)

Weights = Sequence[Any]
Call = Callable[[Any, Any, Weights], Any]  # from tokens, targets and weights


def logits_of(form: Model, constants: Sequence[Any], xp: Any, tokens: Any, weights: Weights) -> Any:
    """Return the logits (tokens, vocabulary) of a sequence; `xp` is a library's module.

    `weights` are six arrays per layer, as `decoder_layer` takes them, then the last norm's factors and the embedding,
    which is the head too. `constants` are the cosines, the sines and the mask."""
    *of_layers, factors, embedding = weights
    x = embedding[tokens]
    for layer in range(form.depth):
        x = decoder_layer(form, xp, x, *of_layers[6 * layer : 6 * layer + 6], *constants)
    return xp.matmul(NORMED(xp, x, factors), embedding.T)


def loss_of(form: Model, constants: Sequence[Any], xp: Any, tokens: Any, targets: Any, weights: Weights) -> Any:
    """Return the mean cross-entropy of the logits; row i of `targets` is 1 for the token after token i."""
    logits = logits_of(form, constants, xp, tokens, weights)
    largest = xp.amax(logits, axis=-1, keepdims=True)
    logarithms = xp.log(xp.sum(xp.exp(logits - largest), axis=-1, keepdims=True)) + largest
    return xp.sum((logarithms - logits) * targets) / len(tokens)


class Sequences:
    """A model's weights in float32, and two sequences of tokens, of which one is in use."""

    def __init__(self, bench: gb.Bench, form: Model) -> None:
        rng, hidden = bench.rng, form.head.cols
        matrices: list[tuple[int, ...]] = [(layer.rows, layer.cols) for layer in form.layers]
        shapes = [*matrices, (hidden,), (hidden,)] * form.depth + [(hidden,), (form.head.rows, hidden)]
        self.weights: list[Any] = [np.float32(rng.standard_normal(shape) / shape[-1] ** 0.5) for shape in shapes]
        for factors in (weight for weight in self.weights if weight.ndim == 1):
            factors += 1
        self._drawn = rng.integers(form.head.rows, size=(2, _TOKENS + 1), dtype=np.int32)
        self._turn = 0
        angles = np.outer(np.arange(_TOKENS), 1e4 ** (-np.arange(0, form.dim, 2) / form.dim))
        mask = np.triu(np.full((_TOKENS, _TOKENS), _BIAS), 1)
        self.constants = [np.float32(values) for values in (np.cos(angles), np.sin(angles), mask)]
        self._form, self._rows = form, np.eye(form.head.rows, dtype=np.float32)
        self._known: dict[int, list[tuple[Any, float]]] = {}  # slopes by sequence

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
        return float(loss_of(self._form, self.constants, np, *self.inputs, weights))

    def _slopes(self) -> list[tuple[Any, float]]:
        """Return for each weight array a random direction and the loss's derivative in it, in double precision."""
        wide, slopes = self._wide(), self._known.setdefault(self._turn, [])
        for place, weight in enumerate([] if slopes else wide):
            way = np.random.default_rng(place).standard_normal(weight.shape)
            losses = [self._loss([*wide[:place], weight + h * way, *wide[place + 1 :]]) for h in (_STEP, -_STEP)]
            slopes.append((way, (losses[0] - losses[1]) / (2 * _STEP)))
        return slopes

    def compare_logits(self, logits: Any) -> gb.Observation:
        """Compare every logit with double precision."""
        exact = logits_of(self._form, self.constants, np, self.inputs[0], self._wide())
        error = float(np.abs(logits - exact).max() / np.abs(exact).max())
        gb.expect(error <= _MOST_ERROR, f"a logit is wrong by {error:.2g} of the largest one")
        return {"error": gb.Observed(error)}

    def compare_step(self, loss: float, stepped: Weights) -> gb.Observation:
        """Compare the loss with double precision, and the gradient of each weight array in a random direction."""
        error, gradient_error = abs(loss / self._loss(self._wide()) - 1), 0.0
        for weight, after, (way, slope) in zip(self.weights, stepped, self._slopes(), strict=True):
            gradient = (np.float64(weight) - after) / _RATE
            typical = float(np.linalg.norm(gradient) * np.linalg.norm(way)) / way.size**0.5
            gradient_error = float(np.maximum(gradient_error, abs(np.sum(gradient * way) - slope) / typical))
        gb.expect(error <= _MOST_ERROR, f"the loss is wrong by {error:.2g} of it")
        gb.expect(gradient_error <= _MOST_GRADIENT_ERROR, f"a gradient is wrong by {gradient_error:.2g}")
        return {"error": gb.Observed(error), "gradient error": gb.Observed(gradient_error)}


def _numpy(_: gb.Bench, sequences: Sequences, is_training: bool) -> tuple[Call, Callable[[Any], Any], str]:
    if is_training:
        raise gb.Skip("NumPy does not differentiate")
    return partial(_inference, np, sequences.constants), np.asarray, f"NumPy {np.__version__}"


def _inference(xp: Any, constants: Sequence[Any], tokens: Any, _: Any, weights: Weights) -> Any:
    return logits_of(_SMALL, constants, xp, tokens, weights)


def _stepped(weights: Weights, gradients: Weights, loss: Any, /) -> tuple[Any, ...]:
    return loss, *(weight - _RATE * gradient for weight, gradient in zip(weights, gradients, strict=True))


def _by_torch(
    bench: gb.Bench, sequences: Sequences, is_training: bool, is_compiled: bool = False
) -> tuple[Call, Callable[[Any], Any], str]:
    torch = _torch.with_compiler(bench) if is_compiled else _torch.on_stream(bench)
    constants = [torch.from_numpy(values) for values in sequences.constants]

    def step(tokens: Any, targets: Any, weights: Weights) -> Any:
        loss = partial(loss_of, _SMALL, constants, torch, tokens, targets)
        return _stepped(weights, *torch.func.grad_and_value(loss)(tuple(weights)))

    call = step if is_training else partial(_inference, torch, constants)
    if is_compiled:
        importlib.import_module("torch._inductor.config").force_disable_caches = True  # type: ignore[attr-defined]
        call = torch.compile(call, fullgraph=True, dynamic=False)
    return call, torch.from_numpy, f"torch {torch.__version__}"


def _jax(bench: gb.Bench, sequences: Sequences, is_training: bool) -> tuple[Call, Callable[[Any], Any], str]:
    jax = jax_of(bench)
    xp = jax.numpy

    def step(tokens: Any, targets: Any, weights: Weights) -> Any:
        loss = partial(loss_of, _SMALL, sequences.constants, xp, tokens, targets)
        value, gradients = jax.value_and_grad(loss)(weights)
        return _stepped(weights, gradients, value)

    compiled = jax.jit(step if is_training else partial(_inference, xp, sequences.constants))
    return (lambda *inputs: jax.block_until_ready(compiled(*inputs))), xp.asarray, f"JAX {jax.__version__}"


def _tvm(bench: gb.Bench, sequences: Sequences, is_training: bool) -> tuple[Call, Callable[[Any], Any], str]:
    """Compile the program that torch exports, by Relax's own pipeline for the host."""
    if is_training:
        raise gb.Skip("TVM has no gradient of a whole imported model")
    torch = _torch.on_stream(bench)
    try:
        tvm = importlib.import_module("tvm")
        relax, frontend = (importlib.import_module(f"tvm.relax{name}") for name in ("", ".frontend.torch"))
    except ImportError as error:
        raise gb.Unavailable("TVM is not installed", INSTALL_TVM) from error
    constants = [torch.from_numpy(values) for values in sequences.constants]
    names = ("matmul", "exp", "sum", "mean", "sqrt", "concatenate")
    functions = SimpleNamespace(**{name: getattr(torch, name) for name in names})
    functions.amax = lambda x, axis, keepdims: torch.max(x, axis, keepdims)[0]  # TVM does not import amax

    class Exported(torch.nn.Module):  # type: ignore[misc,name-defined]
        """The model as a module, as torch exports one."""

        def forward(self, tokens: Any, *weights: Any) -> Any:
            return logits_of(_SMALL, constants, functions, tokens, weights)

    arguments = tuple(map(torch.from_numpy, (sequences.inputs[0], *sequences.weights)))
    program = frontend.from_exported_program(torch.export.export(Exported(), arguments), unwrap_unit_return_tuple=True)
    target = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()})
    machine = relax.VirtualMachine(tvm.compile(program, target=target), tvm.cpu())
    return lambda tokens, _, weights: machine["main"](tokens, *weights), tvm.runtime.tensor, f"TVM {tvm.__version__}"


def _iree(bench: gb.Bench, sequences: Sequences, is_training: bool) -> tuple[Call, Callable[[Any], Any], str]:
    """Compile the StableHLO that JAX exports."""
    if is_training:
        raise gb.Skip("IREE does not differentiate")
    try:
        compiler, runtime = (importlib.import_module(f"iree.{name}") for name in ("compiler", "runtime"))
    except ImportError as error:
        raise gb.Unavailable("IREE is not installed", INSTALL_IREE) from error
    jax = jax_of(bench)
    function = jax.jit(lambda tokens, *weights: logits_of(_SMALL, sequences.constants, jax.numpy, tokens, weights))
    tokens, _ = sequences.inputs
    exported = importlib.import_module("jax.export").export(function)(tokens, *sequences.weights)
    binary = compiler.compile_str(
        exported.mlir_module_serialized,
        input_type="stablehlo",
        target_backends=["llvm-cpu"],
        extra_args=list(HOST_FLAGS),
    )
    config = runtime.Config(HOST_DRIVER)
    context = runtime.SystemContext(config=config)
    module = runtime.VmModule.copy_buffer(context.instance, binary)
    context.add_vm_module(module)
    main = context.modules[module.name]["main"]
    to_library = partial(runtime.asdevicearray, config.device)
    return lambda tokens, _, weights: main(tokens, *weights), to_library, f"IREE {version('iree-base-compiler')}"


def _on_host(array: Any) -> Any:
    """Return an array of a library as one of NumPy."""
    return array.numpy() if hasattr(array, "numpy") else np.asarray(array)


_PROVIDERS: dict[str, Callable[..., tuple[Call, Callable[[Any], Any], str]]] = {
    "numpy": _numpy,
    "torch": _by_torch,
    "inductor": partial(_by_torch, is_compiled=True),
    "jax": _jax,
    "tvm": _tvm,
    "iree": _iree,
}


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
    sequences, is_training = Sequences(bench, _SMALL), work == "training"
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
        if is_training:
            loss, *stepped = map(_on_host, state["output"])
            observed = dict(sequences.compare_step(float(loss), stepped))
        else:
            observed = dict(sequences.compare_logits(_on_host(state["output"])))
        return {**observed, "compile": gb.Observed(compile_s, "s")}

    products = 2.0 * _TOKENS * _SMALL.size * (3 if is_training else 1)
    stage = gb.Stage(run, gb.Work(flops=products), "value", clock="host", effort=gb.POINT, inputs=change)
    return gb.Task.of(stage, check=check, poison=lambda: state.pop("output", None), notes={"library": library})
