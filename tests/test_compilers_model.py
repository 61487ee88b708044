"""A small transformer by libraries and compilers: its checks find wrong logits, losses and gradients."""

from typing import Any

import numpy as np
import pytest
from _modules import suite_module

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import Skip, Unavailable, WrongAnswer
from gpubench.model import Case, Facts

SUITE, AT = plugins.load("suites", "compilers"), suite_module("compilers", "_model")
MODELS = suite_module("compilers", "_layer").MODELS


def bench_of(host: Any, work: str = "inference", by: str = "numpy") -> Bench:
    target = Target(Facts((host.device,)), host.device, "full")
    return Bench(host, Case("compilers", "transformer", (("work", work), ("by", by))), target, SUITE.package)


def test_logits_of_other_tokens_are_found(host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AT, "_SMALL", AT.model(16, 32, 4, 2, 2, 2, 64, "this test"))
    monkeypatch.setattr(AT, "_TOKENS", 8)
    task = SUITE.build(bench_of(host))
    stage = task.stages[""]
    assert task.check()["error"].value < 1e-5  # type: ignore[index, union-attr]
    stage.inputs()
    with pytest.raises(WrongAnswer, match="a logit is wrong"):
        task.check()
    stage.call()
    task.check()
    task.poison()
    with pytest.raises(WrongAnswer, match="nothing was computed"):
        task.check()


def test_a_step_s_gradients_are_compared_with_difference_quotients(host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AT, "_TOKENS", 4)
    monkeypatch.setattr(AT, "_SMALL", AT.model(8, 8, 2, 1, 2, 1, 16, "this test"))
    sequences = AT.Sequences(bench_of(host))
    wide = [np.float64(weight) for weight in sequences.weights]
    loss, stepped = sequences._loss(wide), []
    for weight in wide:
        gradient = np.zeros_like(weight)
        for place in np.ndindex(weight.shape):
            kept, losses = weight[place], []
            for weight[place] in (kept + 1e-5, kept - 1e-5):
                losses.append(sequences._loss(wide))
            weight[place], gradient[place] = kept, (losses[0] - losses[1]) / 2e-5
        stepped.append(weight - gradient)
    assert sequences.compare_step(loss, *stepped)["gradient error"].value < 1e-6
    with pytest.raises(WrongAnswer, match="the loss is wrong"):
        sequences.compare_step(1.001 * loss, *stepped)
    for place, weight in enumerate(wide):
        with pytest.raises(WrongAnswer, match="a gradient is wrong"):
            sequences.compare_step(loss, *stepped[:place], 0.5 * (stepped[place] + weight), *stepped[place + 1 :])


@pytest.mark.parametrize(("by", "reason"), [("numpy", "NumPy"), ("tvm", "TVM"), ("iree", "IREE")])
def test_training_is_skipped_by_tools_that_do_not_differentiate(host: Any, by: str, reason: str) -> None:
    with pytest.raises(Skip, match=reason):
        SUITE.build(bench_of(host, "training", by))


@pytest.mark.parametrize("by", ["torch", "inductor", "jax", "tvm", "iree"])
def test_a_missing_library_is_named_with_its_installation(host: Any, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "jax", "tvm", "iree.compiler"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(Unavailable, match="not installed"):
        SUITE.build(bench_of(host, "inference", by))
