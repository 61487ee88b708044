"""`gpubench gate` and `gpubench ab` as a user calls them: options, files, exit statuses."""

import dataclasses
import json
import os
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import _files as files
import _make as make
import pytest
from _sides import TRIAD, noisy

from gpubench.model import store
from gpubench.tools.history import recording

PLUGIN = str(Path(__file__).parent / "plugin")
COPY = make.case("copy", size_bytes=2**30)
SELF = f"{sys.executable} -P -m gpubench"


@pytest.fixture
def longer_suite(monkeypatch):
    """Return the suite `longer`, whose case `told` takes a time that LONGER_PERCENT decides."""
    monkeypatch.setenv("PYTHONPATH", PLUGIN)
    monkeypatch.syspath_prepend(PLUGIN)
    return ("longer", "--filter", "told", "--device", "host", "--tier", "smoke")


def run_file(name, centre=1.0, of=TRIAD, manifest=None, count=5, spread=1e-3, end=True, moved=0.0, **fields):
    """Return a run file with `count` quiet processes of a case."""
    values = noisy(centre, spread, count) if count > 1 else [centre]
    results = [make.result(make.timing(v, moved=moved), of=of, replicate=i, **fields) for i, v in enumerate(values)]
    return files.write(Path(name), *results, manifest=make.manifest(**(manifest or {})), end=end)


SLOWER = {"centre": 1.05}
H100 = {"manifest": {"facts": make.facts(make.device(name="NVIDIA H100"))}}


@pytest.mark.parametrize(
    ("base", "new", "options", "status", "text"),
    [
        ({}, {"centre": 1.0005}, (), 0, "PASSED: none of 1 case is slower (exit status 0: "),
        ({}, {"centre": 1.1}, (), 1, "SLOWER: 1 of 1 case is slower (exit status 1: "),
        ({"count": 1}, {"count": 1}, (), 0, "1 same"),
        ({"of": COPY}, {}, (), 4, "CANNOT JUDGE: no case has a figure on both sides (exit status 4: "),
        (H100, {"centre": 1.0005}, (), 4, "model NVIDIA H200 instead of NVIDIA H100"),
        (H100, {"centre": 1.0005}, ("--allow-mismatch",), 0, "PASSED"),
        ({"of": dataclasses.replace(TRIAD, version=2)}, {}, ("--allow-mismatch",), 4, "case version was 2, is 1"),
        ({}, SLOWER, ("--threshold", "10"), 0, "PASSED"),
        ({}, SLOWER, ("--threshold", "1", "--policy", "lax.toml"), 0, "PASSED"),
        ({}, SLOWER, ("--policy", "none.toml"), 2, ""),
        ({}, SLOWER, (), 4, "CANNOT JUDGE: 1 case of 1 is slower, to be confirmed"),
        ({}, SLOWER, ("--noise", "noise.jsonl"), 4, "nothing is decided in bandwidth"),
        ({}, {"centre": 1.0005, "end": False}, (), 4, "new.jsonl is a partial run"),
        ({}, {"centre": 1.0005, "end": False}, ("--allow-undecided",), 0, "PASSED"),
    ],
)
def test_files_are_judged(call, base, new, options, status, text):
    run_file("base.jsonl", **base)
    run_file("new.jsonl", **new)
    run_file("noise.jsonl", count=10, spread=0.04)
    Path("lax.toml").write_text("[gate.thresholds_percent]\ntriad = 10\n")
    exit_status, out, _ = call("gate", "new.jsonl", "--baseline", "base.jsonl", *options)
    assert exit_status == status
    assert text in out


def test_one_process_is_inconclusive_and_says_what_it_cannot_decide(call):
    run_file("base.jsonl", count=1)
    run_file("new.jsonl", 1.5, count=1)
    status, out, err = call("gate", "new.jsonl", "-b", "base.jsonl")
    assert status == 4
    assert out.startswith("CANNOT JUDGE: nothing is decided in bandwidth: 1 inconclusive (exit status 4: ")
    assert "1 and 1 processes do not show the noise between processes" in out
    assert "next: measure both sides in turn with --replicates 5" in out
    assert err == ""
    said = call("gate", "new.jsonl", "-b", "base.jsonl", "--json")[2]
    assert "warning: bandwidth/triad[size=1GiB]: too few processes" in said
    allowed = call("gate", "new.jsonl", "-b", "base.jsonl", "--allow-undecided")
    assert (allowed[0], allowed[1].splitlines()[0]) == (
        0,
        "INCONCLUSIVE: 0 of 1 case is decided (exit status 0: the gate passes)",
    )


def test_a_vanished_case_ends_with_4_unless_it_is_allowed_or_not_selected(call):
    both = [make.result(make.timing(v), of=of, replicate=i) for of in (TRIAD, COPY) for i, v in enumerate(noisy())]
    files.write(Path("base.jsonl"), *both)
    run_file("new.jsonl", 1.0005)
    status, out, err = call("gate", "new.jsonl", "-b", "base.jsonl", "--markdown", "m.md")
    assert status == 4
    assert out.startswith("CANNOT JUDGE: 1 case vanished: 1 same, 1 missing (exit status 4: ")
    assert "missing: bandwidth/copy[size=1GiB]: only the baseline has a figure" in out
    assert err == ""
    assert "only the baseline has a figure" in Path("m.md").read_text()
    allowed = call("gate", "new.jsonl", "-b", "base.jsonl", "--allow-missing")
    assert allowed[0] == 0
    assert allowed[1].startswith("INCOMPLETE: 1 of 2 cases are decided, and none of these is slower (exit status 0: ")
    settings = dataclasses.replace(make.manifest().settings, filters=("triad",))
    run_file("filtered.jsonl", 1.0005, manifest={"settings": settings})
    assert call("gate", "filtered.jsonl", "-b", "base.jsonl")[0] == 0
    headline = {"settings": dataclasses.replace(make.manifest().settings, headline=True)}
    run_file("headline.jsonl", 1.0005, manifest=headline)
    assert call("gate", "headline.jsonl", "-b", "base.jsonl")[0] == 0  # the baseline measured all cases
    files.write(Path("headlines.jsonl"), *both, manifest=make.manifest(**headline))
    assert call("gate", "headline.jsonl", "-b", "headlines.jsonl")[0] == 4


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("none.jsonl", "none.jsonl"),
        ("main", "main"),
        ("nihgtly", "did you mean nightly?"),
        ("last:5", "history"),
        ("edited.jsonl", "edited or damaged"),
        ("newer.jsonl", "schema gpubench.run/2: a newer gpubench is needed"),
    ],
)
@pytest.mark.parametrize("history", [None, b"no database" * 100], ids=["no-history", "damaged-history"])
def test_a_missing_edited_or_damaged_baseline_ends_with_5(call, name, text, history):
    call("gate", run_file("new.jsonl"), "--save-baseline", "nightly")
    files.edit(run_file("edited.jsonl"), 2, '"replicate":0', '"replicate":7')
    files.edit(run_file("newer.jsonl"), 1, "gpubench.run/1", "gpubench.run/2")
    Path("gpubench-runs").mkdir()
    if history:
        Path("gpubench-runs/history.sqlite").write_bytes(history)
    status, out, err = call("gate", "new.jsonl", "--baseline", name)
    assert (status, out, len(err.strip().splitlines())) == (5, "", 1)
    assert text in err
    status, _, err = call("gate", "--run", "latency", "--baseline", name, "--out", "measured.jsonl")
    assert (status, text in err, Path("measured.jsonl").exists()) == (5, True, False), "before anything is measured"


DISTURBED = {"status": "invalid", "cause": "discarded", "reason": "most samples were disturbed"}
NEXT_DAY = {"started": "2026-01-04T00:00:00+00:00"}


@pytest.mark.parametrize(
    ("base", "more", "new", "text"),
    [
        (DISTURBED, DISTURBED, {}, "baseline: invalid: most samples were disturbed"),
        ({}, {}, DISTURBED, "candidate: invalid: most samples were disturbed"),
        ({}, {"manifest": H100["manifest"] | NEXT_DAY}, {}, "model NVIDIA H200 instead of NVIDIA H100"),
        ({}, {"manifest": NEXT_DAY, "moved": 1e9}, {}, "unit was s, is B/s"),
    ],
)
def test_a_side_of_only_invalid_processes_and_mixed_sessions_are_not_judged(call, base, more, new, text):
    for name, fields in (("base", base), ("more", more), ("new", new)):
        run_file(f"{name}.jsonl", **fields)
    status, out, _ = call("gate", "new.jsonl", "-b", "base.jsonl", "-b", "more.jsonl")
    assert status == 4
    assert out.startswith("CANNOT JUDGE: nothing is decided in bandwidth")
    assert text in out
    if base:
        assert call("gate", "base.jsonl", "--save-baseline", "main")[0] == 4


def test_several_sessions_are_given_as_a_folder_or_as_several_options(call):
    Path("sessions").mkdir()
    for index, centre in enumerate((1.0, 1.03, 1.06)):
        run_file(f"sessions/{index}.jsonl", centre, manifest={"started": f"2026-01-0{index + 1}T00:00:00+00:00"})
    run_file("new.jsonl", 1.08)
    baselines = [word for index in range(3) for word in ("-b", f"sessions/{index}.jsonl")]
    for arguments in (("-b", "sessions"), tuple(baselines)):
        status, out, _ = call("gate", "new.jsonl", *arguments)
        assert status == 4
        assert "nothing is decided" in out
        assert "(15 and 5 processes)" in out


def test_a_file_counts_once_and_not_on_both_sides(call):
    Path("all").mkdir()
    run_file("all/old.jsonl")
    run_file("all/new.jsonl", 1.1)
    status, out, _ = call("gate", "all/new.jsonl", "./all/new.jsonl", "-b", "all", "-b", "all/old.jsonl")
    assert status == 1
    assert "(5 and 5 processes)" in out
    assert re.search(r"1\.000 s +1\.100 s", out)


def test_a_baseline_is_saved_by_name_and_replaced(call):
    run_file("old.jsonl")
    run_file("new.jsonl", 1.1)
    assert call("gate", "old.jsonl", "--save-baseline", "main")[0] == 0
    status, _, err = call("gate", "new.jsonl", "-b", "main", "--save-baseline", "main")
    assert status == 1
    assert "not saved" in err
    assert call("gate", "new.jsonl", "--save-baseline", "main")[0] == 0
    assert call("gate", "new.jsonl", "-b", "main")[0] == 0
    (kept,) = Path("gpubench-baselines/main").iterdir()
    assert kept.read_bytes() == Path("new.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("result", "exit_status"),
    [
        (make.result(of=TRIAD, status="failed", cause="crash", reason="the worker ended"), 3),
        (dataclasses.replace(make.result(of=TRIAD, labels=("dry-run",)), series=()), 4),
    ],
)
def test_a_candidate_that_failed_and_a_dry_run_are_no_baselines(call, result, exit_status):
    files.write(Path("new.jsonl"), result)
    status, _, err = call("gate", "new.jsonl", "--save-baseline", "main")
    assert (status, "not saved as the baseline main" in err) == (exit_status, True)
    assert not Path("gpubench-baselines").exists()


def test_a_failed_case_ends_with_3_even_without_a_baseline(call):
    run_file("base.jsonl")
    good = [make.result(make.timing(v), of=TRIAD, replicate=i) for i, v in enumerate(noisy(1.0005, 1e-3))]
    files.write(
        Path("new.jsonl"), *good, make.result(of=COPY, status="failed", cause="wrong-answer", reason="1 + 1 = 3")
    )
    status, out, _ = call("gate", "new.jsonl", "-b", "base.jsonl")
    assert status == 3
    assert out.startswith("FAILED: a case failed that has no baseline (exit status 3: ")


def test_a_reason_that_many_cases_share_is_printed_once(call):
    cases = [make.case("triad", size_bytes=2**n) for n in range(10, 30)]
    for name, driver in (("base.jsonl", "570.1"), ("new.jsonl", "580.1")):
        facts = make.facts(versions=(("nvidia.driver", driver),))
        files.write(Path(name), *(make.result(of=case) for case in cases), manifest=make.manifest(facts=facts))
    status, out, _ = call("gate", "new.jsonl", "-b", "base.jsonl")
    assert status == 4
    assert out.count("driver nvidia 580 instead of nvidia 570") == 1
    assert " and 19 more: not comparable with the baseline: " in out


def test_the_last_results_of_the_history_are_a_baseline_without_the_candidate(call):
    Path("gpubench-runs").mkdir()
    with recording.HistoryRecorder(Path("gpubench-runs/history.sqlite")) as recorder:
        for day, centre in enumerate((1.0, 1.0, 1.1), 1):
            started = f"2026-01-0{day}T00:00:00+00:00"
            file = run_file(f"gpubench-runs/{day}.jsonl", centre, manifest={"started": started})
            recorder.record(file)
    status, out, _ = call("gate", "gpubench-runs/3.jsonl", "--baseline", "last:10")
    assert status == 1
    assert "(10 and 5 processes)" in out
    assert "(5 and 5 processes)" in call("gate", "gpubench-runs/3.jsonl", "--baseline", "last:5")[1]


def test_a_baseline_grows_by_sessions_of_the_same_card_and_then_decides(call):
    days = [{"started": f"2026-01-0{day}T00:00:00+00:00"} for day in (1, 2)]
    for day, manifest in enumerate(days):
        run_file(f"{day}.jsonl", 1.0 + day / 1000, manifest=manifest)
        assert call("gate", f"{day}.jsonl", "--save-baseline", "main", "--append")[0] == 0
    assert len(list(Path("gpubench-baselines/main").iterdir())) == 2
    run_file("new.jsonl", 1.05)
    assert call("gate", "0.jsonl", "--append", "-b", "main")[0] == 2
    status, out, _ = call("gate", "new.jsonl", "-b", "main")
    assert (status, "(10 and 5 processes)" in out) == (1, True)
    other = make.facts(make.device(uuid="GPU-of-another-card"))
    run_file("other.jsonl", manifest={"facts": other})
    status, _, err = call("gate", "other.jsonl", "--save-baseline", "main", "--append")
    assert (status, "another card" in err) == (2, True)
    newer = files.edit(run_file("newer.jsonl"), 1, "gpubench.run/1", "gpubench.run/2")
    assert call("gate", str(newer), "--save-baseline", "main", "--append")[0] == 5


def test_a_locked_run_file_can_still_be_judged(call):
    """A baseline that another process is writing is a partial run, and says so."""
    run_file("new.jsonl")
    with store.RunWriter.create(Path("base.jsonl"), make.manifest()) as writer:
        for index, value in enumerate(noisy(1.0, 1e-3)):
            writer.result(make.result(make.timing(value), of=TRIAD, replicate=index))
        status, out, _ = call("gate", "new.jsonl", "-b", "base.jsonl")
    assert status == 0
    assert "baseline: base.jsonl is a partial run" in out


def test_cases_are_compared_with_the_floors_of_their_model(call):
    Path("gpubench.toml").write_text(
        "[[floor]]\nmodel='NVIDIA H200'\ncase='bandwidth/triad*'\nexpected=1.0\nunit='s'\nsource='seen'\n"
    )
    run_file("new.jsonl", 1.2)
    assert call("gate", "new.jsonl", "--floor")[0] == 1
    run_file("good.jsonl", 1.01)
    assert call("gate", "good.jsonl", "--floor")[0] == 0


def test_json_is_exactly_one_document(call, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    run_file("base.jsonl")
    run_file("new.jsonl", 1.1)
    status, out, err = call("gate", "new.jsonl", "-b", "base.jsonl", "--json")
    assert (status, json.loads(out)["counts"]) == (1, {"slower": 1})
    assert err.startswith("::error title=gpubench gate::")


def test_in_a_ci_the_publications_are_written_and_the_annotations_printed(call, monkeypatch, tmp_path):
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    run_file("base.jsonl")
    run_file("new.jsonl", 1.1)
    arguments = ("--junit", "j.xml", "--markdown", "m.md")
    status, out, _ = call("gate", "new.jsonl", "-b", "base.jsonl", *arguments)
    assert status == 1
    assert "::error title=gpubench gate::" in out
    assert ET.parse("j.xml").getroot().get("failures") == "1"
    assert Path("m.md").read_text().startswith("<!-- gpubench gate -->")
    assert summary.read_text().startswith("before\n<!-- gpubench gate -->")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("new.jsonl",), "name a baseline: "),
        (("new.jsonl", "-b", "x", "--floor"), "two gates"),
        (("-b", "x"), "name the candidate's run files"),
        (("new.jsonl", "-b", "x", "--replicates", "3"), "--replicates: only with --run"),
        (("new.jsonl", "-b", "x", "--tier", "full"), "--tier: only with --run"),
        (("new.jsonl", "--save-baseline", "../x"), "is no name for a baseline"),
        (("--run", "nosuch", "-b", "last:1"), "no suite 'nosuch'"),
    ],
)
def test_options_that_exclude_each_other_are_refused(call, arguments, hint):
    status, out, err = call("gate", *arguments)
    assert (status, out) == (2, "")
    assert hint in err


def test_a_measured_candidate_that_is_slower_is_measured_again_before_it_fails(call, longer_suite, monkeypatch):
    """The baseline is one measured process, five times: the suite takes the same time in each."""
    assert call("run", *longer_suite, "--out", "one.jsonl")[0] == 0
    run = store.read_run("one.jsonl")
    processes = [dataclasses.replace(run.results[0], replicate=index) for index in range(5)]
    files.write(Path("base.jsonl"), *processes, manifest=run.manifest)
    monkeypatch.setenv("LONGER_PERCENT", "10")
    arguments = (*longer_suite, "--replicates", "5", "-b", "base.jsonl", "--out", "new.jsonl")
    status, out, _ = call("gate", "--run", *arguments)
    assert status == 1
    assert "(5 and 10 processes)" in out
    assert len(store.read_run("new-again1.jsonl").results) == 5


def test_a_baseline_of_another_machine_is_refused_before_anything_is_measured(call, longer_suite):
    facts = make.facts(make.device("host", "another processor"), make.device())
    settings = dataclasses.replace(make.manifest().settings, devices=("host",))
    run_file("base.jsonl", manifest={"facts": facts, "settings": settings})
    status, _, err = call("gate", "--run", *longer_suite, "-b", "base.jsonl", "--out", "new.jsonl")
    assert status == 4
    assert "model" in err
    assert not Path("new.jsonl").exists()


BUILD = """
import os, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import _files, _make
words = sys.argv[1:]
out, turn = Path(words[words.index("--out") + 1]), len(list(Path.cwd().glob("ab/*")))
kept = words[words.index("--filter") + 1] if "--filter" in words else ""
seconds = float(os.environ["SECONDS"]) * (1 + 1e-3 * (turn % 3))
times = {{"triad": seconds, "copy": 1.0 + turn * 1e-4}}
results = [
    _make.result(_make.timing(value), of=_make.case(name)) for name, value in times.items() if name in kept or not kept
]
_files.write(out, *results)
"""


@pytest.mark.slow
def test_two_builds_are_measured_in_turn_and_slower_cases_again(call):
    """Builds that write the run files of a device whose times are arithmetic."""
    Path("build.py").write_text(BUILD.format(tests=str(Path(__file__).parent)))
    command = f"{sys.executable} build.py"
    arguments = ("--a", f"SECONDS=1.0 {command}", "--b", f"SECONDS=1.05 {command}", "--replicates", "3", "--out", "ab")
    status, out, err = call("ab", *arguments)
    assert status == 1, err
    assert out.startswith("SLOWER: 1 of 2 cases is slower")
    assert "1 slower, 1 same on cuda:0" in out
    turns = [line[0] for line in err.splitlines() if "process" in line]
    assert "".join(turns) == "abbaab" + "baabba"
    again = store.read_run("ab/b-004.jsonl").results
    assert [result.case.name for result in again] == ["triad"]


@pytest.mark.slow
def test_two_real_builds_are_measured_in_turn(call, longer_suite):
    arguments = ("--a", SELF, "--b", f"LONGER_PERCENT=5 {SELF}", *longer_suite, "--replicates", "3", "--out", "ab")
    status, out, err = call("ab", *arguments)
    assert status == 1, err
    assert out.startswith("SLOWER: 1 of 1 case is slower")


def stand_in(path, body):
    """Return a program that replaces gpubench."""
    Path(path).write_text(f"#!/bin/sh\n{body}\n")
    Path(path).chmod(0o755)
    return str(Path(path).absolute())


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ("exit 0", 5, "name a gpubench program"),
        ("echo no suite >&2; exit 2", 2, "--a ended with status 2: no suite"),
        ("exit 6", 6, "--a ended with status 6: it printed no message"),
        ("exit 9", 2, "status 9"),
        ("kill -9 $$", 2, "status 137"),
        ("exit 143", 143, "status 143"),
    ],
)
def test_a_build_that_does_not_measure_ends_the_comparison_in_one_line(call, longer_suite, body, status, message):
    exit_status, out, err = call("ab", "--a", stand_in("a", body), "--b", SELF, *longer_suite)
    assert (exit_status, out) == (status, "")
    assert message in err.splitlines()[-1]


@pytest.mark.parametrize("command", ["", "X=1", "'", "/no/such/gpubench"])
def test_a_build_that_is_no_command_is_refused(call, longer_suite, command):
    status, _, err = call("ab", "--a", command, "--b", SELF, *longer_suite)
    assert status == 2
    assert "--a" in err


def test_a_build_has_the_variables_in_front_of_its_command(tmp_path):
    from gpubench.tools.gating.ab import Build

    build = Build.parse("a", "A=1 LD_LIBRARY_PATH='/x y/lib' /opt/gpubench --version X=2")
    assert build.command == ("/opt/gpubench", "--version", "X=2")
    assert dict(build.environment) == {"A": "1", "LD_LIBRARY_PATH": "/x y/lib"}
    assert os.environ.get("A") is None
