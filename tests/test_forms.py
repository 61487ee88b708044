"""Forms of a run for other programs: flat lines as CSV, Parquet and frames, gauges, traces; and a comment that fits."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import _make as make
import pytest

from gpubench import plugins
from gpubench.analysis import frame
from gpubench.analysis.summary import Summary
from gpubench.api.notebook import NotebookRun
from gpubench.base.errors import Unavailable
from gpubench.model import store
from gpubench.tools import rendering

RECORDINGS = sorted((Path(__file__).parent / "recordings").glob("h200*-[hq]*.jsonl.gz"))
DOCUMENT = (Path(__file__).parents[1] / "docs" / "reports.md").read_text()


@pytest.fixture(scope="module")
def recorded():
    return store.read_run(RECORDINGS[0])


def render(kind, run):
    return rendering.report(kind).render(run)


def test_the_document_lists_every_column_and_form():
    rows = re.findall(r"^    (\w+) +(text|whole|number)  +(.+)$", DOCUMENT, re.MULTILINE)
    assert rows == [(column.name, column.kind, column.meaning) for column in frame.COLUMNS]
    cells = re.findall(r"^\| (`\.\w+`(?:, `\.\w+`)*) \|", DOCUMENT, re.MULTILINE)
    assert set(re.findall(r"\w+", " ".join(cells))) == set(plugins.names("reports"))


def test_no_form_imports_pandas_before_it_is_asked_for():
    program = "import sys, gpubench.api.notebook, gpubench.api.report; print('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"


def test_a_frame_has_a_line_a_series_with_types_and_axes(recorded):
    rows = NotebookRun(recorded).to_frame()
    assert len(rows) == sum(max(len(result.series), 1) for result in recorded.results)
    assert [column.name for column in frame.COLUMNS] == list(rows.columns[: len(frame.COLUMNS)])
    assert (rows["median"].dtype, str(rows["samples"].dtype)) == ("float64", "Int64")
    line = rows[(rows["case"] == "bandwidth/triad[size=1GiB,dtype=float32]") & (rows["series"] == "hot")].iloc[0]
    spreads = Summary(recorded).spreads()
    (figure,) = (spread.figure for spread in spreads if spread.case.id == line["case"])
    assert (line["median"], line["unit"]) == (figure.interval.centre, "B/s")
    assert (line["axis.size_bytes"], line["axis.dtype"]) == (2**30, "float32")


def test_a_frame_of_samples_has_a_line_a_sample_in_the_judged_unit(recorded):
    frame = NotebookRun(recorded).to_frame(samples=True)
    assert len(frame) == sum(len(series.values) for result in recorded.results for series in result.series)
    triad = frame[(frame["case"] == "bandwidth/triad[size=1GiB,dtype=float32]") & (frame["series"] == "hot")]
    assert triad["value"].median() == pytest.approx(4.365e12, rel=1e-3)
    assert set(triad["unit"]) == {"B/s"}


def test_a_run_without_results_is_a_frame_too():
    assert len(NotebookRun(make.run()).to_frame()) == 0
    assert len(NotebookRun(make.run()).to_frame(samples=True)) == 0
    assert "no results" in NotebookRun(make.run())._repr_html_()


def test_a_notebook_shows_cases_and_nothing_that_says_where_they_were_measured(recorded):
    html = NotebookRun(recorded)._repr_html_()
    assert "bandwidth/triad[size=1GiB,dtype=float32]" in html
    facts = recorded.manifest.facts
    assert not [device.uuid for device in facts.devices if device.uuid and device.uuid in html]
    assert "more cases: to_frame() has them all" in html


def test_parquet_has_the_columns_of_the_document_and_every_sample(recorded):
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra parquet is not installed")
    table = parquet.read_table(io.BytesIO(render("parquet", recorded)))
    assert table.column_names == [*(column.name for column in frame.COLUMNS), "values"]
    kinds = {"string": "text", "double": "number", "int64": "whole"}
    assert [kinds[str(table.schema.field(column.name).type)] for column in frame.COLUMNS] == [
        column.kind for column in frame.COLUMNS
    ]
    rows = table.to_pylist()
    measured = [row for row in rows if row["quantity"] not in ("derived", None)]
    assert sum(len(row["values"]) for row in measured) == len(NotebookRun(recorded).to_frame(samples=True))
    assert table.schema.metadata[b"gpubench"] == recorded.manifest.gpubench.encode()


def test_without_pyarrow_parquet_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(Unavailable, match=r"pip install 'gpubench-suite\[parquet\]'"):
        render("parquet", make.run())


SAMPLE = re.compile(r'(gpubench_\w+)(\{(?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)*\})? (\S+)')


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_every_line_for_prometheus_follows_its_grammar_and_every_metric_is_declared_once(path):
    written = render("prom", store.read_run(path))
    declared = re.findall(r"^# TYPE (\S+) gauge$", written, re.MULTILINE)
    assert len(declared) == len(set(declared))
    samples = [SAMPLE.fullmatch(line) for line in written.splitlines() if not line.startswith("#")]
    assert all(samples)
    assert {sample[1] for sample in samples} == set(declared)
    assert all(float(sample[3]) == float(sample[3]) for sample in samples)
    series = [(sample[1], sample[2]) for sample in samples]
    assert len(series) == len(set(series)), "a series stands twice"


def test_bencher_and_github_action_benchmark_get_each_headline_in_their_form(recorded):
    figures = {
        f"{spread.case.id} on {'+'.join(spread.devices)}": spread.figure
        for spread in Summary(recorded).spreads()
        if spread.figure
    }
    metrics = json.loads(render("bencher", recorded))
    assert metrics.keys() == {f"{name} (NVIDIA H200)" for name in figures}, "the card is in the name"
    for full_name, measures in metrics.items():
        name = full_name.removesuffix(" (NVIDIA H200)")
        ((slug, values),) = measures.items()
        assert set(values) == {"value", "lower_value", "upper_value"}
        factor = 1e9 if slug == "latency" else 1.0
        assert values["value"] == figures[name].interval.centre * factor
        assert (slug == "latency") == (figures[name].unit == "s")
    bigger, smaller = (json.loads(render(f"github_{way}", recorded)) for way in ("bigger", "smaller"))
    directions = {entry["name"]: way for way, entries in (("more", bigger), ("less", smaller)) for entry in entries}
    assert directions == {name: figure.better for name, figure in figures.items()}
    assert all(set(entry) == {"name", "unit", "value", "range", "extra"} for entry in bigger + smaller)


def test_labels_for_prometheus_are_escaped_and_an_imported_run_has_no_start():
    written = render("prom", make.run(make.result(of=make.case(name='a"b\\c'))))
    assert 'case="bandwidth/a\\"b\\\\c"' in written
    assert all(SAMPLE.fullmatch(line) for line in written.splitlines() if not line.startswith("#"))
    assert "started" not in render("prom", make.run(make.result(), started=""))


def test_a_trace_has_a_slice_a_case_and_every_sample_of_every_counter(recorded):
    trace = json.loads(render("trace", recorded))
    events = {phase: [event for event in trace["traceEvents"] if event["ph"] == phase] for phase in "MXC"}
    timed = [result for result in recorded.results if result.window[1] > result.window[0]]
    assert [event["name"] for event in events["X"]] == [result.case.id for result in timed]
    first = events["X"][0]
    assert first["dur"] == pytest.approx((timed[0].window[1] - timed[0].window[0]) * 1e6)
    declared = {counter.name for counter in recorded.manifest.counters}
    columns = [column for chunk in recorded.samples for name, column in chunk.columns if name in declared]
    assert len(events["C"]) == sum(value is not None for column in columns for value in column)
    threads = [(event.get("pid"), event.get("tid")) for event in events["M"]]
    assert len(threads) == len(set(threads))


def many(count, status="ok", reason="", **more):
    """Return `count` results of different cases with one status and reason."""
    cases = [make.case(name="triad", n=index) for index in range(count)]
    made = {"status": status, "reason": reason}
    return [make.result(*([make.timing(1e-3, moved=1e9)] if status == "ok" else []), of=case, **made) for case in cases]


def test_a_comment_fits_its_limit_and_keeps_the_failures():
    wrong = make.result(of=make.case(name="last"), status="failed", cause="crash", reason="it ended")
    written = render("md", make.run(*many(2000), wrong))
    assert 60_000 < len(written.encode()) <= 65_536
    assert "| `last` |" in written
    out = int(re.search(r"(\d+) of 2001 cases are left out", written)[1])
    assert written.count("| `triad[n=") + 1 + out == 2001


@pytest.mark.parametrize(
    "results",
    [
        many(5000, "failed", "x" * 300),
        [make.result(of=make.case(name=f"c{i}"), status="failed", reason=f"{i}" * 5000) for i in range(200)],
        many(2000, "skipped", "é" * 300),
        [make.result(of=make.case(name="long" * 20_000), status="failed", reason="y" * 200_000)],
    ],
    ids=["failures", "reasons", "skipped", "one"],
)
def test_a_comment_on_any_run_fits_its_limit(results):
    written = render("md", make.run(*results))
    assert len(written.encode()) <= 65_536
    assert written.startswith("# gpubench: NVIDIA H200")


def test_a_short_comment_lists_every_case_with_the_worst_of_each_suite_first():
    run = make.run(*many(3), make.result(of=make.case(name="bad"), status="failed", reason="wrong"))
    rows = re.findall(r"^\| `(\w+)", render("md", run), re.MULTILINE)
    cases = [row for row in rows if row in ("bad", "triad")]
    assert cases[-4:] == ["bad", "triad", "triad", "triad"]


def test_a_single_value_is_shown_without_interval_and_noise():
    run = make.run(make.result(make.timing(1e-3, moved=1e9)))
    row = next(line for line in render("md", run).splitlines() if line.startswith("| `triad`"))
    cells = [cell.strip() for cell in row.split("|")]
    assert (cells[2], cells[3], cells[5], cells[6]) == ("1000 GB/s", "–", "–", "–")


def test_a_report_of_a_run_without_any_figure_is_valid_too():
    cases = [make.case(status) for status in ("failed", "invalid", "skipped")]
    run = make.run(*(make.result(of=case, status=case.name, reason="no figure") for case in cases))
    for kind in plugins.names("reports"):
        assert render(kind, run)
    assert "nan" not in render("prom", run).lower()
