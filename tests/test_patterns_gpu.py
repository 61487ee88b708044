"""On real GPUs (`pytest -m gpu`): pipelines, topologies and batches, and checks that can fail."""

from functools import partial

import numpy as np
import pytest
from _modules import suite_module
from _poison import overwrite
from _sinks import ResultSink

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import WrongAnswer
from gpubench.measuring import inventory
from gpubench.measuring import plan as planning
from gpubench.measuring.runner import Runner
from gpubench.measuring.sampler import SamplingProcess
from gpubench.model import Case, Settings

pytestmark = pytest.mark.gpu

SUITE = planning.load_suite("patterns")
CASES = ("pipeline", "topology", "incast", "batch")


part = partial(suite_module, "patterns")


@pytest.fixture(scope="module")
def facts():
    return inventory.facts()


@pytest.fixture(scope="module")
def gpu(facts):
    return plugins.load("backends", "cupy").open(facts.devices[0])


def bench_of(facts, gpu, **params):
    gpus = [device for device in facts.devices if device.backend == "cupy"]
    case = Case("patterns", "case", tuple(params.items()))
    return Bench(gpu, case, Target(facts, gpu.device), SUITE.package, 1, devices=tuple(gpus[:2]))


def results_of(facts, tier):
    """Return the results of the cases that this machine can run."""
    plan = planning.make(facts, Settings(("patterns",), (facts.devices[0].id,), tier))
    able = [job for job in plan.jobs if job.case.name in CASES and not planning.missing_devices(job)]
    results = ResultSink()
    with Runner(plan, SamplingProcess((), 0.0), results, 60.0) as runner:
        runner.run(able, 0.0, lambda event: None)
    return results


def test_every_case_passes_its_check(facts):
    results = results_of(facts, "smoke")
    assert [(result.case.id, result.reason) for result in results if result.status != "ok"] == []


def ways_of(facts):
    has_peer = bool(facts.devices[0].peers)
    return [("h2d", "engine"), ("h2d", "kernel"), *([("peer", "engine"), ("peer", "kernel")] if has_peer else [])]


class UnwaitingStream:
    def __init__(self, stream):
        self._stream = stream

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def wait_event(self, event):
        pass


def test_a_pipeline_whose_slots_are_overwritten_too_early_fails_its_check(facts, gpu):
    """Without the waits for free slots a copy overtakes the computation that reads its slot."""
    for path, by in ways_of(facts):
        bench = bench_of(facts, gpu, path=path, by=by)
        message = part("_pipeline").PipelinedMessage(bench, path, by, 2**22, "double", 2)
        line = message._pipeline
        overwrite(line)
        line.together(2)
        message.check()
        line._copying = UnwaitingStream(line._copying)
        overwrite(line)
        gpu.synchronize()
        line.together(2)
        gpu.synchronize()
        with pytest.raises(WrongAnswer, match="digests of chunks are wrong"):
            message.check()


def test_at_the_best_depth_nearly_all_of_the_shorter_part_is_hidden_by_a_computation_that_is_longer(facts, gpu):
    for path, by in ways_of(facts):
        if by == "kernel":
            continue
        chunk_bytes = 2**24 if path == "peer" else 2**22
        shares, ratios = {}, []
        for depth in (1, 2, 4, 8):
            message = part("_pipeline").PipelinedMessage(bench_of(facts, gpu), path, by, chunk_bytes, "double", depth)
            assert message._pipeline.rounds > 1
            efficiencies = []
            for _ in range(7):
                message.sample()
                efficiencies.append(message.observed()["overlap"].value)
                ratios.append(message.observed()["compute_over_transfer"].value)
            shares[depth] = float(np.median(efficiencies))
        assert np.median(ratios) == pytest.approx(2, rel=0.15), (path, ratios)
        assert shares[1] < 30, (path, shares)
        assert max(shares.values()) >= 90, (path, shares)
