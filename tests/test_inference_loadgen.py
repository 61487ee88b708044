"""LoadGen as a cross-check: the case without it, and with it real runs of the toy model."""

import json
import sys

import numpy as np
import pytest
from _command import gpubench
from _modules import suite_modules
from test_inference import SUITE, host_bench, ids
from test_inference_gpu import SMALL_MODEL

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import Unavailable, WrongAnswer
from gpubench.measuring import inventory
from gpubench.model import Case

LOADGEN, MACHINE = suite_modules("inference", "_loadgen", "_machine")
CASE = {"model": "toy", "weights": "float32", "prompt": 8, "output": 3}


def test_loadgen_is_a_case_of_the_full_tier_on_the_host():
    host = plugins.load("backends", "host").devices()[0]
    assert [line for line in ids(host, "quick") + ids(host, "smoke") if line.startswith("loadgen")] == []
    assert [line for line in ids(host, "full") if line.startswith("loadgen")] == [
        f"loadgen[scenario={scenario},model=toy,weights=float32,prompt=32,output=8]" for scenario in LOADGEN.PATTERNS
    ]


def test_without_loadgen_the_case_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlperf_loadgen", None)
    build = SUITE.definitions["loadgen"].build
    with pytest.raises(Unavailable, match=r"LoadGen is not installed; pip install 'gpubench-suite\[loadgen\]'"):
        build(host_bench(), scenario="single_stream", **CASE)


def cross_check(library, name, prompt, output):
    """Serve the scenario by LoadGen and by our own generator and return both figures."""
    pattern = LOADGEN.PATTERNS[name]
    scenario = LOADGEN.open_scenario(host_bench(), "toy", "float32", prompt, output, pattern.queries)
    return LOADGEN.cross_check(library, pattern, scenario)


@pytest.fixture
def library():
    return pytest.importorskip("mlperf_loadgen", reason="the extra loadgen is not installed")


@pytest.mark.slow
@pytest.mark.parametrize("scenario", sorted(LOADGEN.PATTERNS.keys() - {"server"}))
def test_loadgens_figure_is_that_of_our_own_times_of_the_same_queries(library, scenario):
    """Within 10 % in the best of three attempts: LoadGen's times include the transfer between threads."""
    measured = cross_check(library, scenario, 32, 8)
    samples = 24 if scenario == "offline" else LOADGEN.PATTERNS[scenario].samples
    ratios = []
    for _ in range(3):
        loadgen_figure, lasts = measured(), [answer.last for answer in measured._answers]
        ours = sorted(max(lasts[start : start + samples]) for start in range(0, len(lasts), samples))
        ratios.append(loadgen_figure / ours[int(0.9 * len(ours))])
    assert 1 <= min(ratios) < 1.1
    assert 0 < measured.check()["floor"].value < loadgen_figure / 4


@pytest.mark.slow
def test_at_server_our_generator_follows_the_schedule_of_loadgen(library):
    measured = cross_check(library, "server", 32, 8)
    loadgen_figure = measured()
    served = sorted(answer.last - answer.first for answer in measured._answers)
    assert served[57] < loadgen_figure, "a latency counts from the schedule"
    measured.check()
    measured.ours_s()
    gaps = np.diff([answer.scheduled for answer in measured._scenario.session.answers])
    assert len(gaps) == 63
    assert gaps.mean() == pytest.approx(measured._loadgen.expected_s, rel=0.5), "63 random gaps"


@pytest.mark.gpu
@pytest.mark.parametrize("scenario", LOADGEN.PATTERNS)
def test_loadgen_sends_queries_to_a_model_on_a_gpu(library, scenario):
    device = inventory.facts().devices[0]
    opened = plugins.load("backends", device.backend).open(device)
    bench = Bench(opened, Case("inference", "loadgen", ()), Target(inventory.facts(), device), SUITE.package, 1)
    pattern = LOADGEN.PATTERNS[scenario]
    machine = MACHINE.GpuMachine(bench, SMALL_MODEL, "int4", 100, 6)
    queries = LOADGEN.Scenario(machine, np.random.default_rng(4), 100, 6, pattern.queries)
    measured = LOADGEN.cross_check(library, pattern, queries)
    loadgen_figure = measured()
    assert 0 < measured.check()["floor"].value < loadgen_figure
    assert measured.ours_s() > 0


@pytest.mark.slow
def test_the_check_sees_a_sample_without_answer_and_a_wrong_token(library):
    measured = cross_check(library, "offline", 8, 3)
    measured()
    for answer in measured._answers:
        answer.tokens[0] = (answer.tokens[0] + 1) % 512
    with pytest.raises(WrongAnswer, match="the logit of a token"):
        measured.check()
    measured()
    measured._answers.pop()
    with pytest.raises(WrongAnswer, match="23 of 24 samples are answered"):
        measured.check()
    measured.poison()
    with pytest.raises(WrongAnswer, match="0 of 24"):
        measured.check()


@pytest.mark.slow
def test_a_failure_while_a_query_is_answered_is_the_failure_of_the_call_and_loadgen_works_on(library):
    loadgen = LOADGEN.LoadGen(library, LOADGEN.PATTERNS["multi_stream"], 1e-3)
    seen = []

    def serve(issued):
        while (query := issued.take()) is not None:
            seen.append(query)
            if len(seen) == 3:
                raise ZeroDivisionError
            issued.complete(query)

    with pytest.raises(ZeroDivisionError):
        loadgen.figure_s(serve)
    assert [len(query) for query in seen] == [8, 8, 8]
    assert 0 < loadgen.figure_s(LOADGEN._complete_all) < 1


@pytest.mark.slow
def test_loadgen_leaves_no_file_and_obeys_none_of_the_current_directory(library, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "audit.config").write_text("*.SingleStream.max_query_count = 3\n*.SingleStream.min_query_count = 3\n")
    moments = []
    loadgen = LOADGEN.LoadGen(library, LOADGEN.PATTERNS["single_stream"], 1e-5)
    loadgen.figure_s(lambda issued: moments.extend(LOADGEN._complete_all(issued)))
    assert len(moments) == 64
    assert [path.name for path in tmp_path.iterdir()] == ["audit.config"]


@pytest.mark.slow
def test_a_run_has_loadgens_figure_ours_and_the_floor(library, tmp_path):
    arguments = (
        "run",
        "inference",
        "--device",
        "host",
        "--tier",
        "full",
        "--filter",
        "loadgen*single*",
        "-o",
        "run.jsonl",
    )
    done = gpubench(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    (result,) = [record for record in records if record["kind"] == "result"]
    assert result["status"] == "ok"
    assert dict(result["notes"])["scenario"] == "LoadGen scenario, not an MLPerf result"
    figures = {series["name"]: min(series["values"]) for series in result["series"]}
    assert figures.keys() == {"", "ours", "floor"}
    assert 0 < figures["floor"] < figures["ours"]
