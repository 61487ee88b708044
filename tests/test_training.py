"""Training steps: their counted work, what they refuse, and with torch small steps on the host, sound and broken."""

import dataclasses
import importlib.util
import math
import sys
import types

import _make as make
import numpy as np
import pytest
from _modules import shared_modules, suite_modules

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import Skip, Unavailable, WrongAnswer
from gpubench.measuring.engine import Engine
from gpubench.measuring.stopping import POLICIES
from gpubench.model import Facts

SUITE = plugins.load("suites", "training")
DECODER, STEPS, BOUNDS = suite_modules("training", "_decoder", "_steps", "_bounds")
(TORCH,) = shared_modules("_torch")
HOST = plugins.load("backends", "host")
FACTS = Facts(tuple(HOST.devices()))
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
quiet = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def host():
    return HOST.open(FACTS.devices[0])


def bench(host, case):
    return Bench(host, case, Target(FACTS, host.device, "full"), SUITE.package, 1)


def built(host, name, **params):
    cases = [case for case in SUITE.cases(Target(FACTS, host.device, "full")) if case.name == name]
    case = next(case for case in cases if params.items() <= dict(case.params).items())
    return SUITE.build(bench(host, case))


@pytest.mark.parametrize("tier", ["smoke", "quick", "full"])
def test_without_torch_every_case_says_how_to_install_it(tier, host, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    cases = list(SUITE.cases(Target(FACTS, host.device, tier)))
    assert {case.name for case in cases} >= {"layer", "products", "optimizer"}
    for case in cases:
        with pytest.raises(Unavailable, match=r"torch is not installed; .*\[torch\]"):
            SUITE.build(bench(host, case))


def test_an_older_torch_is_unavailable(host, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__="2.5.1+cu124"))
    with pytest.raises(Unavailable, match=r"torch 2\.5\.1\+cu124 is older than 2\.6; .*--upgrade"):
        built(host, "layer")


def test_a_gpu_without_products_of_8_bit_floats_skips_them():
    capability = types.SimpleNamespace(get_device_capability=lambda: (8, 0))
    torch = types.SimpleNamespace(_scaled_mm=..., float8_e5m2=..., cuda=capability, __version__="2.6")
    torch.version = types.SimpleNamespace(hip=None)
    with pytest.raises(Skip, match=r"compute capability 8\.9"):
        DECODER.expect_float8(torch, True)
    with pytest.raises(Skip, match=r"torch 2\.1 has no products"):
        DECODER.expect_float8(types.SimpleNamespace(__version__="2.1"), True)


def test_a_step_counts_6_operations_per_weight_and_12_per_pair_and_recomputation_counts_none():
    llama = STEPS.DECODERS["llama-3-8b"]
    shape = DECODER.StepShape(4, 2048, "bfloat16")
    matrices = 4096 * 6144 + 4096**2 + 3 * 4096 * 14336
    layer = 6 * matrices * 8192 + 12 * 32 * 128 * 4 * 2048 * 2049 / 2
    one, whole = dataclasses.replace(llama, depth=1), dataclasses.replace(shape, has_head=True)
    assert DECODER.work_of(one, shape).flops == pytest.approx(layer)
    assert DECODER.work_of(llama, whole).flops == pytest.approx(32 * layer + 6 * 128256 * 4096 * 8192)
    recomputed = dataclasses.replace(whole, is_recomputed=True)
    assert DECODER.work_of(llama, recomputed) == DECODER.work_of(llama, whole)
    kept, dropped = (DECODER.step_bytes(llama, of) for of in (whole, recomputed))
    assert 8 * llama.parameters < dropped < 90e9 < kept < 180e9


def test_on_a_gpu_the_full_tier_alone_has_steps_with_stacks_recomputation_float8_and_the_compiler():
    gpu = make.device(memory_bytes=2**37, cache_bytes=60 * 2**20)
    quick, full = (
        [case.id for case in SUITE.cases(Target(Facts((gpu,)), gpu, tier)) if case.name in ("layer", "stack")]
        for tier in ("quick", "full")
    )
    shape = "model=llama-3-8b,batch=4,length=2048"
    assert quick == []
    assert f"training/layer[{shape},precision=bfloat16,recompute=off,by=torch]" in full
    layers = {case.partition("length=2048,")[2].rstrip("]") for case in full if "/layer" in case}
    of = "precision={},recompute={},by={}".format
    assert layers == {
        *(of("bfloat16", recompute, "torch") for recompute in ("off", "on")),
        *(of(precision, "off", by) for precision, by in (("bfloat16", "inductor"), ("float8", "torch"))),
        of("float8", "off", "inductor"),
    }
    assert sum("/stack" in case for case in full) == 4


@needs_torch
@quiet
class TestWithTorch:
    @pytest.mark.parametrize(
        ("name", "params"),
        [
            *(
                ("layer", {"precision": precision, "recompute": "off"})
                for precision in ("float32", "bfloat16", "float8")
            ),
            ("layer", {"precision": "float32", "recompute": "on"}),
            ("stack", {"recompute": "off"}),
            ("stack", {"recompute": "on"}),
            ("products", {}),
            ("optimizer", {}),
        ],
        ids=str,
    )
    def test_a_sound_step_passes_its_check_and_its_parts_sum_to_it(self, host, name, params):
        measured = Engine(host, POLICIES["smoke"]).measure(built(host, name, **params))
        assert measured.labels == ()
        values = {series.label: np.array(series.values) for series in measured.series}
        if name in ("layer", "stack"):
            bound = {"bfloat16": 0.05, "float8": 0.4}.get(params.get("precision"), 1e-5)
            assert 0 < values["error"][0] < bound
            assert 0 < values["fall"][0] < 1
            parts = sum(values[part] for part in DECODER.PARTS)
            assert np.median(parts / values["hot"]) == pytest.approx(1, abs=0.02)

    @pytest.mark.parametrize(
        ("fault", "message"),
        [
            ("loss", "the loss is NaN or infinite"),
            ("gradient", r"the gradient of \('down', 0\) has the relative error"),
            ("half", r"the gradient of \('qkv', 0\) has the relative error 0.5"),
            ("missing", r"there are no gradients of \[\('first', 0\)\]"),
            ("update", r"the update of \('qkv', 0\) differs by 1 "),
            ("other input", "the loss is|relative error"),
        ],
    )
    def test_a_broken_step_is_refused(self, host, fault, message):
        task = built(host, "layer", precision="bfloat16", recompute="off")
        (stage,) = task.stages.values()
        decoder = stage.inputs.__self__
        parameters = decoder.parameters
        task.poison()
        if fault == "update":
            decoder.optimizer.step = lambda: None
        stage.call()
        if fault == "loss":
            decoder.loss.fill_(math.nan)
        elif fault == "gradient":
            parameters["down", 0].grad.neg_()
        elif fault == "half":
            parameters["qkv", 0].grad.mul_(0.5)
        elif fault == "missing":
            parameters["first", 0].grad = None
        elif fault == "other input":
            stage.inputs()
        with pytest.raises(WrongAnswer, match=message):
            task.check()

    def test_a_loss_that_is_not_finite_or_does_not_fall_ends_the_case(self, host, monkeypatch):
        for rate, message in ((1e30, "not finite"), (0.0, "does not fall")):
            monkeypatch.setattr(DECODER, "RATE", rate)
            with pytest.raises(WrongAnswer, match=message):
                built(host, "layer", precision="float32", recompute="off")

    @pytest.mark.parametrize("moment", ["exp_avg", "exp_avg_sq"])
    def test_an_optimizer_that_leaves_out_a_moment_is_refused(self, host, moment):
        task = built(host, "optimizer")
        (stage,) = task.stages.values()
        task.poison()
        stage.call()
        task.check()
        optimizer = stage.call.__self__
        for state in optimizer.state.values():
            state[moment].zero_()
        with pytest.raises(WrongAnswer, match=f"{moment} of .* differs by 1"):
            task.check()

    def test_a_stack_beyond_the_memory_is_skipped(self, host, monkeypatch):
        monkeypatch.setattr(type(host), "free_bytes", lambda self: 2**20)
        with pytest.raises(Skip, match=r"needs .* of memory, 1.000 MiB are free"):
            built(host, "stack")
