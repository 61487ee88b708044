"""`gpubench history` as a user calls it."""

import json
import re
from datetime import UTC, datetime, timedelta

import _files as files
import _make as make
import pytest

from gpubench.tools import history
from gpubench.tools.history import recording

CASE = make.case(size_bytes=2**30, dtype="float32")
OTHER = make.case("square", "gemm", n=8192)
QUICKEST = ("gemm", "--tier", "smoke", "--filter", "float64", "--device", "host")


@pytest.fixture
def runs(tmp_path):
    """Return a folder of 20 runs of two cases; from the 12th on the first is slower, and cuBLAS newer."""
    folder = tmp_path / "gpubench-runs"
    folder.mkdir()
    for number in range(20):
        late = number >= 12
        start = (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC) + timedelta(days=number)).isoformat()
        facts = make.facts(
            make.device(units=132), versions=(("cublas", "13.2" if late else "13.1"),), host=(("hostname", "node7"),)
        )
        results = [
            make.result(make.timing(1.1e-3 if late else 1e-3, moved=4e9), of=CASE),
            make.result(make.timing(2e-6, name="hot", items=1), of=OTHER),
        ]
        manifest = make.manifest(started=start, started_at=float(number), facts=facts)
        files.write(folder / f"{number:02}.jsonl", *results, manifest=manifest)
    return folder


@pytest.fixture
def filled(runs):
    with recording.HistoryRecorder(runs / history.FILE) as recorder:
        list(recording.record_files(recorder, recording.run_files([runs])))
    return runs


@pytest.fixture
def imported(call, tmp_path):
    def show(seconds):
        folder = tmp_path / "gpubench-runs"
        folder.mkdir()
        for number, value in enumerate(seconds):
            start = (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC) + timedelta(days=number)).isoformat()
            manifest = make.manifest(started=start, started_at=float(number))
            result = make.result(make.timing(value, moved=4e9), of=CASE)
            files.write(folder / f"{number:02}.jsonl", result, manifest=manifest)
        call("history", "import", folder)
        return call("history", "triad")[1]

    return show


def test_a_run_is_recorded_beside_its_file_in_gpubench_runs_and_nowhere_else(call, tmp_path):
    assert call("run", *QUICKEST)[0] == 0
    assert call("run", *QUICKEST, "--out", "a.jsonl")[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "gpubench-runs"]
    status, output, _ = call("history", "gemm/square")
    assert (status, "1 run, newest" in output) == (0, True)
    assert "too few runs to tell a change: 1 of at least 9" in output


def test_without_a_case_all_are_listed_with_their_newest_change(call, filled):
    status, output, _ = call("history")
    assert status == 0
    where, _, worse, second_line = output.splitlines()
    assert where.strip() == "on cuda:0"
    assert worse.startswith(f"changed    {CASE.id} ")
    assert second_line.startswith(f"no change  {OTHER.id} ")
    assert worse.split()[2:5] == ["20", "3636", "GB/s"]
    assert worse.rstrip().endswith("9.1 % less (worse), 2026-01-14")


def test_a_case_shows_its_runs_as_bars_and_each_change_with_what_else_changed(call, filled):
    status, output, _ = call("history", "triad")
    title, verdict, advice, environment, bars, marks, newest, change = output.splitlines()
    assert status == 0
    assert title == CASE.id
    assert verdict == "changed once in 20 runs; newest: 9.1 % less (worse)"
    assert re.fullmatch(r"next: gpubench compare \S+11\.jsonl \S+12\.jsonl", advice)
    assert environment == "hot, tier quick, on cuda:0: NVIDIA H200, 132 compute units"
    assert bars == f"3636 GB/s {'█' * 12}{'▁' * 8} 4000 GB/s"
    assert marks.index("^") == bars.index("▁")
    assert newest.startswith("20 runs, newest 3636 GB/s (2026-01-21 03:04 UTC, ")
    assert change == "^ 2026-01-14 03:04 UTC: 4000 GB/s → 3636 GB/s, 9.1 % less (worse); cublas 13.1 → 13.2"


def test_too_few_runs_are_reported_with_the_newest_compared_with_the_earlier_ones(call, imported):
    text = "newest 50.0 % less than the median of the 4 runs before"
    assert f"too few runs to tell a change: 5 of at least 9; {text}" in imported([1e-3, 1e-3, 1e-3, 1e-3, 2e-3])
    listed = call("history")[1].splitlines()
    assert listed[2].rstrip().endswith("newest 50.0 % less")
    assert "1 of 1 series have too few runs to tell a change: at least 9 are needed" in listed
    (document,) = json.loads(call("history", "triad", "--json")[1])
    assert (document["state"], document["newest_step"], document["runs_needed"]) == ("too few runs", -0.5, 9)


def test_a_drift_is_marked_below_its_bars_and_reported_with_its_rate(call, imported):
    *_, marks, _, drift = imported([1e-3 * (1 + 0.002 * n + 0.002 * (n % 3)) for n in range(20)]).splitlines()
    assert marks.strip() == "~" * 20
    assert drift.startswith("~ 2026-01-02 03:04 UTC to 2026-01-21 03:04 UTC: 39")
    assert "drift, 3.7 % less over 20 runs (worse); 1.9" in drift
    (document,) = json.loads(call("history", "triad", "--json")[1])
    assert (document["state"], len(document["drifts"]), document["changes"]) == ("changed", 1, [])
    assert "drift, 3.7 % less over 20 runs (worse)" in call("history")[1]


def test_two_states_are_marked_below_their_bars_and_no_change(call, imported):
    _, verdict, *_, marks, _ = imported([1.1e-3 if n // 5 % 2 else 1e-3 for n in range(20)]).splitlines()
    assert verdict == "two states, 3636 GB/s and 4000 GB/s: 3 switches in 20 runs, the last 5 at 3636 GB/s"
    assert marks.strip() == "=" * 20
    (document,) = json.loads(call("history", "triad", "--json")[1])
    assert (document["state"], document["changes"]) == ("two states", [])
    (states,) = document["two_states"]
    assert (states["start"], states["end"], states["switches"]) == (0, 20, [5, 10, 15])
    assert states["low"] < states["high"]
    assert call("history")[1].splitlines()[2].startswith(f"two states  {CASE.id} ")


def test_json_is_one_document_with_runs_and_changes(call, filled):
    (trend,) = json.loads(call("history", "triad", "--json")[1])
    assert (trend["case"], trend["series"], trend["unit"]) == (CASE.id, "hot", "B/s")
    assert len(trend["runs"]) == 20
    assert trend["runs"][0]["started"] == "2026-01-02T03:04:05+00:00"
    (change,) = trend["changes"]
    assert (change["index"], change["worse"], change["differences"]) == (12, True, ["cublas 13.1 → 13.2"])
    assert (change["note"], trend["two_states"]) == ("", [])
    assert "5 runs, newest" in call("history", "triad", "--last", "5")[1]


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        (("triat",), "no case in the history matches triat; did you mean bandwidth/triad?"),
        (("zzz",), "no case in the history matches zzz; `gpubench history` lists all cases"),
        (("triad", "--series", "cold"), "no series 'cold'; choose from hot"),
    ],
)
def test_a_missing_case_or_series_is_answered_with_those_that_exist(call, filled, message, answer):
    assert call("history", *message) == (2, "", f"gpubench: {answer}\n")


def test_the_page_names_neither_hosts_nor_folders_unless_asked_to(call, filled, tmp_path):
    assert call("history", "--html", "trend.html")[0] == 0
    page = (tmp_path / "trend.html").read_text()
    assert page.count("<section") == 2
    assert "cublas 13.1 → 13.2" in page
    assert "19.jsonl" in page
    assert str(tmp_path) not in page
    assert "node7" not in page
    assert call("history", "--html", "trend.html")[0] == 2
    assert call("history", "triad", "--html", "trend.html", "--force")[0] == 0
    assert (tmp_path / "trend.html").read_text().count("<section") == 1
    assert call("history", "--html", filled / history.FILE, "--force")[0] == 2


def test_import_takes_folders_and_files_and_ends_with_5_if_one_is_refused(call, runs, tmp_path):
    status, output, said = call("history", "import", runs)
    assert (status, output, said) == (0, "20 runs in gpubench-runs/history.sqlite: 20 new\n", "")
    (runs / "bad.jsonl").write_text("{}\n")
    status, output, said = call("history", "import", runs / "01.jsonl", runs / "bad.jsonl")
    assert (status, output) == (5, "1 runs in gpubench-runs/history.sqlite: 1 known\n")
    assert said.startswith(f"gpubench: {runs}/bad.jsonl: line 1: ")
    assert call("history", "import", tmp_path / "nothing")[0] == 5


def test_rebuild_restores_a_damaged_history_and_keeps_the_damaged_one(call, filled):
    before = call("history", "--json")
    store = filled / history.FILE
    store.write_bytes(store.read_bytes()[:6000])
    assert call("history")[0] == 5
    status, output, said = call("history", "rebuild")
    assert (status, output) == (0, "20 runs in gpubench-runs/history.sqlite: 20 new\n")
    assert "was damaged and is renamed to gpubench-runs/history.sqlite.damaged-" in said
    assert call("history", "--json") == before


def test_prune_keeps_the_newest_of_every_case_and_deletes_run_files_only_when_asked(call, filled):
    assert call("history", "prune", "--keep", "15", "--dry-run")[1] == "5 of 20 runs would be dropped\n"
    assert call("history", "prune", "--keep", "15")[1] == "5 of 20 runs are dropped\n"
    assert len(list(filled.glob("*.jsonl"))) == 20
    status, output, _ = call("history", "prune", "--keep", "3", "--files")
    assert (status, output.startswith("12 of 15 runs are dropped, and 12 run files of ")) == (0, True)
    assert [path.name for path in sorted(filled.glob("*.jsonl"))][5:] == ["17.jsonl", "18.jsonl", "19.jsonl"]
    assert "3 runs, newest" in call("history", "triad")[1]


def test_run_files_elsewhere_are_never_deleted(call, runs, tmp_path):
    store = tmp_path / "store" / "h.sqlite"
    call("history", "import", runs, "--store", store)
    output = call("history", "prune", "--keep", "1", "--files", "--store", store)[1]
    assert output == "19 of 20 runs are dropped; 19 run files are outside the history's folder and stay\n"
    assert len(list(runs.glob("*.jsonl"))) == 20
