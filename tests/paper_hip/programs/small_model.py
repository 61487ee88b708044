"""A step and a prefill of a model with two layers on the paper GPU: the kernels and products of larger models.

The cases of the suite inference have a model of 8 billion weights, whose products take minutes on the host.
"""

from __future__ import annotations

import importlib
import sys

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.measuring import inventory
from gpubench.model import Case

SUITE = plugins.load("suites", "inference")
CHAIN, WEIGHTS = (importlib.import_module(f"{SUITE.package}.{name}") for name in ("_chain", "_weights"))
MODELS = importlib.import_module(".._models", SUITE.package)
SMALL = MODELS.model(128, 128, 2, 1, 2, 2, 150, "nowhere")  # two heads of 64 elements over one KV head, two layers


def error_of(bench: Bench, result) -> float:
    """Return the relative error of the logits of one pass over overwritten outputs."""
    bench.poison(*result.outputs)
    for call in result.calls:
        call()
    return float(result.check()["error"].value)


def main() -> None:
    """Print the kind of weights, what ran, and the relative error of its logits."""
    facts = inventory.facts()
    device = next(device for device in facts.devices if device.id == "rocm:0")
    gpu = plugins.load("backends", device.backend).open(device)
    gpu.enter()
    bench = Bench(gpu, Case(SUITE.name, "case", ()), Target(facts, device), SUITE.package, 1, devices=(device,))
    for kind in ("float16", "int8", "int4"):
        weights = WEIGHTS.ModelWeights(bench, SMALL, kind, 0)
        memory = CHAIN.CacheMemory.drawn(weights, 2, 40)
        step, prefill = CHAIN.DecodeChain(bench, weights, memory, 2), CHAIN.PrefillChain(bench, weights, 20)
        sys.stdout.write(f"{kind} step {error_of(bench, step)}\n{kind} prefill {error_of(bench, prefill)}\n")


if __name__ == "__main__":
    main()
