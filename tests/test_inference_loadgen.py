"""LoadGen drives a queue of fixed batches: the case without it, and with it real sessions of steps that sleep."""

import sys
import time

import numpy as np
import pytest
from _grid import COMPILER
from _grid_device import bench
from _modules import suite_module
from test_inference import SUITE, ids
from test_inference_chain import chain
from test_inference_gpu import SMALL_MODEL

from gpubench.analysis import serving
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import Unavailable
from gpubench.measuring import inventory
from gpubench.measuring.engine import Engine
from gpubench.measuring.stopping import POLICIES
from gpubench.model import Case

LOADGEN, STEPS = (suite_module("inference", name) for name in ("_loadgen", "_steps"))
STEP_S = 4e-3
POINTS = [("single_stream", 1), ("multi_stream", 3), ("server", 4), ("offline", 16)]


def test_loadgen_is_a_case_of_the_full_tier():
    assert [line for line in ids(tier="quick") + ids(tier="smoke") if line.startswith("loadgen")] == []
    assert [line for line in ids(tier="full") if line.startswith("loadgen")] == [
        f"loadgen[scenario={scenario},model=llama-3-8b,weights=float16,batch={batch},context=2048]"
        for scenario, batch in (
            ("single_stream", 1),
            ("multi_stream", 16),
            *(("server", size) for size in (1, 16)),
            *(("offline", size) for size in (1, 16)),
        )
    ]


def test_without_loadgen_the_case_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlperf_loadgen", None)
    case = {"scenario": "server", "model": "llama-3-8b", "weights": "float16", "batch": 1, "context": 2048}
    with pytest.raises(Unavailable, match=r"LoadGen is not installed; .*pip install 'gpubench-suite\[loadgen\]'"):
        SUITE.definitions["loadgen"].build(bench(SUITE), **case)


def test_a_batch_takes_the_samples_that_wait_in_the_order_of_their_arrival():
    sent = LOADGEN.SimpleQueue()
    batches = LOADGEN._batches(sent, 3)
    sent.put([1, 2, 3, 4])
    assert next(batches) == [1, 2, 3]
    sent.put([5])
    assert next(batches) == [4, 5]
    sent.put([6])
    assert next(batches) == [6]
    sent.put(None)
    assert list(batches) == []


@pytest.fixture
def library():
    return pytest.importorskip("mlperf_loadgen", reason="the extra loadgen is not installed")


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "batch"), POINTS)
def test_latencies_of_loadgen_are_those_of_a_queue_of_steps_of_known_duration(library, scenario, batch):
    """LoadGen's median is the prediction's for the measured steps; no query is faster than the steps that it needs."""
    took = []

    def step():
        begin = time.perf_counter()
        time.sleep(STEP_S)
        took.append(time.perf_counter() - begin)

    session = LOADGEN.Session(library, scenario, step, batch, STEP_S)
    p50 = session()
    arrivals = np.array(session.observed()["arrivals"].values)
    samples = 662 * (8 if scenario == "multi_stream" else 1)
    assert len(session.arrivals) == samples
    assert len(arrivals) == {"single_stream": 1, "multi_stream": 8}.get(scenario, 662)
    if scenario != "server":
        assert len(took) == -(-len(arrivals) // batch) * samples // len(arrivals)
    else:
        assert np.diff(arrivals).mean() == pytest.approx(STEP_S / batch / 0.8, rel=0.15), "661 random gaps"
    latencies = np.sort(serving.fixed_batches(arrivals, batch, float(np.median(took))))
    predicted = latencies[-1] if scenario == "multi_stream" else latencies[len(latencies) // 2]
    assert p50 == pytest.approx(predicted, rel=0.25 if scenario == "server" else 0.1)
    assert STEP_S <= p50 <= session.p99


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "batch"), POINTS)
def test_a_step_that_fails_is_the_failure_of_the_session_and_loadgen_works_on(library, scenario, batch):
    steps = []

    def step():
        steps.append(time.sleep(1e-4))
        if len(steps) == 5:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        LOADGEN.Session(library, scenario, step, batch, 1e-4)()
    assert len(steps) == 5
    assert 0 < LOADGEN.Session(library, scenario, lambda: None, batch, 1e-4)() < 1


@pytest.mark.slow
def test_loadgen_leaves_no_file_and_obeys_none_of_the_current_directory(library, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "audit.config").write_text("*.SingleStream.max_query_count = 3\n*.SingleStream.min_query_count = 3\n")
    session = LOADGEN.Session(library, "single_stream", lambda: None, 1, 1e-5)
    session()
    assert len(session.arrivals) == 662
    assert [path.name for path in tmp_path.iterdir()] == ["audit.config"]


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="needs g++")
def test_the_task_times_sessions_checks_the_step_and_keeps_what_a_prediction_needs(library, monkeypatch):
    """A small model on paper, in batches of two sequences, for fewer queries than LoadGen's percentile needs."""
    step = chain(batch=2)
    monkeypatch.setattr(LOADGEN, "_QUERIES", 64)
    monkeypatch.setattr(LOADGEN, "_SESSIONS", 1)
    task = LOADGEN.session_task(step.chain.bench, library, "offline", 2, step)
    stage = task.stages[""]
    p50 = stage.call()
    observed = task.check()
    assert observed["arrivals"].values == (0.0,) * 64
    assert 0 < observed["error"].value < 5e-3
    assert 0 < p50 < stage.probe()["p99"].value
    assert "not an MLPerf result" in task.notes["scenario"]


@pytest.mark.gpu
@pytest.mark.parametrize(("scenario", "batch"), [(scenario, 16) for scenario, _ in POINTS])
def test_loadgen_sends_queries_to_a_model_on_a_gpu(library, gpu, scenario, batch):
    target = Target(inventory.facts(), gpu.device)
    gpu_bench = Bench(gpu, Case("inference", "loadgen", ()), target, SUITE.package, 1)
    step = STEPS.decode_step(gpu_bench, SMALL_MODEL, "float16", batch, 700)
    task = LOADGEN.session_task(gpu_bench, library, scenario, batch, step)
    measured = {series.name: series.values for series in Engine(gpu, POLICIES["full"]).measure(task).series}
    assert len(measured[""]) == len(measured["p99"]) == 3
    assert all(0 < p50 <= p99 for p50, p99 in zip(measured[""], measured["p99"], strict=True))
    assert 0 < measured["error"][0] < 5e-3
    assert len(measured["arrivals"]) == {"single_stream": 1, "multi_stream": 8}.get(scenario, 662)
