"""Replays of real GPU runs: the store, the summary and the reports on what a GPU really gave, with no GPU."""

import base64
import re
from pathlib import Path

import pytest

from gpubench import plugins
from gpubench.analysis.counters import CounterTable
from gpubench.analysis.figure import Figure
from gpubench.analysis.summary import Summary
from gpubench.measuring.plan import Job, Plan
from gpubench.model import store
from gpubench.tools import enclosing, rendering

RECORDINGS = Path(__file__).parent / "recordings"


@pytest.fixture(scope="module", params=["h200-quick", "h200x2-quick"])
def run(request):
    """Return `run all` in the tier quick on one H200, then on two."""
    return store.read_run(RECORDINGS / f"{request.param}.jsonl.gz")


def figures(run) -> dict[str, Figure]:
    return {row.result.case.id: row.figure for row in Summary(run).rows() if row.figure}


@pytest.fixture
def one_gpu():
    return store.read_run(RECORDINGS / "h200-quick.jsonl.gz")


@pytest.fixture
def two_gpus():
    return store.read_run(RECORDINGS / "h200x2-quick.jsonl.gz")


def test_the_recording_is_a_whole_run_of_every_built_in_suite(run):
    assert run.complete
    assert not run.warnings
    assert {result.case.suite for result in run.results} == {"bandwidth", "compression", "gemm", "ipc", "latency"}
    assert {result.status for result in run.results} <= {"ok", "skipped"}
    assert {result.cause for result in run.results} <= {"", "devices"}


def test_no_recording_identifies_its_machine(run):
    facts = run.manifest.facts
    assert dict(facts.host)["hostname"] == "redacted"
    assert all(re.fullmatch(r"(GPU-0{8}-0{4}-0{4}-0{4}-\d{12})?", device.uuid) for device in facts.devices)
    assert "/" not in "".join(run.manifest.argv)


def test_the_figures_of_the_recording_are_those_expected_and_below_their_peaks(one_gpu, two_gpus, run):
    # A figure outside these means that the method is wrong.
    medians = figures(one_gpu)
    assert medians["bandwidth/read[size=4GiB,dtype=float32]"].share > 0.90
    assert medians["bandwidth/copy[size=4GiB,dtype=float32]"].share > 0.85
    assert max(figure.share for figure in medians.values() if figure.limit == "tensor.float16") > 0.70
    assert 300e-9 < medians["latency/chase[size=1GiB]"].interval.centre < 450e-9
    assert medians["bandwidth/h2d[memory=pinned,size=256MiB]"].interval.centre > 50e9
    figure = figures(two_gpus)["ipc/pull[path=peer,size=1GiB]"]
    assert (figure.limit, figure.basis) == ("link.peer", "spec")
    assert figure.interval.centre > 390e9
    assert {name for name, figure in figures(run).items() if (figure.share or 0) > 1} == set()


def test_every_case_has_counters_of_its_own_devices(run):
    table = CounterTable.of_run(run)
    for result in run.results:
        if result.status == "skipped":
            continue
        counters = {(figure.counter.name, figure.device) for figure in table.during(result)}
        for device in result.devices:
            assert ("nvml.power", device) in counters, result.case.id
            assert ("nvml.clock.sm", device) in counters, result.case.id


@pytest.mark.parametrize("name", plugins.names("reports"))
def test_every_report_renders_the_recording_with_its_figures(run, name):
    written = rendering.report(name).render(run)
    data = written.encode() if isinstance(written, str) else written
    assert b"NVIDIA H200" in data or name in ("csv", "parquet")
    assert b"square" in data or name in ("parquet", "github_smaller"), "compressed columns, and times alone"
    assert len(data) < 1_500_000


def test_the_page_of_five_suites_with_the_results_inside_has_less_than_a_megabyte(tmp_path):
    path = RECORDINGS / "whole/h200-five-suites.jsonl.gz"
    run = store.read_run(path)
    page = rendering.report("html").enclose(run, enclosing.enclosure(run, path))
    assert len(page.encode()) < 1e6
    packed = base64.b64decode(
        re.search(r'download="run.jsonl.gz" href="data:application/gzip;base64,([^"]+)"', page)[1]
    )
    (tmp_path / "run.jsonl.gz").write_bytes(packed)
    inside = {case: figure.text for case, figure in figures(store.read_run(tmp_path / "run.jsonl.gz")).items()}
    assert inside == {case: figure.text for case, figure in figures(run).items()}


def test_the_gallery_shows_every_picture_that_was_drawn():
    docs = Path(__file__).parents[1] / "docs"
    pictures = re.findall(r"\(gallery/([\w-]+\.svg)\)", (docs / "gallery.md").read_text())
    assert sorted(pictures) == sorted(path.name for path in (docs / "gallery").glob("*.svg"))


@pytest.mark.parametrize("name", ["whole/h200", "h200x2-headline", "headline/1"])
def test_the_duration_that_plan_forecasts_is_within_half_and_twice_the_recorded_one(name):
    """These runs had compiled kernels; a run with a cold cache, as `h200-quick`, takes longer."""
    run = store.read_run(RECORDINGS / f"{name}.jsonl.gz")
    devices = {device.id: device for device in run.manifest.facts.devices}
    jobs = (
        Job(result.case, tuple(devices[device_id] for device_id in result.devices), result.replicate)
        for result in run.results
    )
    said_s = Plan(run.manifest.facts, run.manifest.settings, (), tuple(jobs)).seconds
    took_s = max(result.window[1] for result in run.results)
    assert took_s / 2 <= said_s <= 2 * took_s
