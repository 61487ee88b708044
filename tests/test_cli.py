"""The command as a user calls it: real measurements on the host, its output, its files and its exit status."""

import itertools
import json
import os
import re
import signal
import textwrap
import time
from pathlib import Path

import pytest
from _command import CommandResult, gpubench, start

from gpubench.model import store

PLUGIN = str(Path(__file__).parent / "plugin")
QUICKEST = ("gemm", "--tier", "smoke", "--filter", "float64", "--device", "host")


def refused(done):
    """Return the one line of a call that was refused as a usage error."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def process(*arguments, **environment):
    """Start the command in a separate process, with the suite `faults`."""
    return start(*arguments, **{"PYTHONPATH": PLUGIN, **environment})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return the exit and the file of a small run by the command in a separate process."""
    out = tmp_path_factory.mktemp("run") / "run.jsonl"
    child = process("run", *QUICKEST, "--out", out)
    printed, said = child.communicate(timeout=100)
    return CommandResult(child.returncode, printed, said), out


@pytest.fixture(scope="module")
def measured(run):
    """Return a small run file that the command wrote."""
    return run[1]


def test_a_run_prints_a_summary_and_says_where_its_file_is(run):
    done, out = run
    assert done.returncode == 0, done.stderr
    assert "square[dtype=float64,n=256]" in done.stdout
    assert "FLOP/s" in done.stdout
    assert "trustworthy: " in done.stdout
    assert "2 cases in " in done.stdout
    assert f"run file: {out}" in done.stderr
    content = store.read_run(out)
    assert content.complete
    assert content.results[0].devices == ("host",)
    assert content.manifest.facts.device("host").name


def test_json_is_one_document_on_standard_output_and_a_paranoid_run_checks_each_batch(tmp_path):
    done = gpubench("run", *QUICKEST, "--json", "--paranoid", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema"].startswith("gpubench.summary/")
    (path,) = (tmp_path / "gpubench-runs").glob("*.jsonl")
    run = store.read_run(path)
    assert run.manifest.settings.paranoid
    for result in run.results:
        assert "paranoid" in result.labels
        assert result.series[0].checks >= len(result.series[0].values)


CHANGES = """
    import itertools, locale, os, resource, signal, time

    from gpubench.api import suite as gb
    from gpubench.measuring import surroundings

    suite = gb.Suite("cases that change their process")
    CHANGES = {
        "nothing": lambda: None,
        "clock": lambda: setattr(time, "perf_counter", lambda: 1e6),
        "folder": lambda: os.chdir("/"),
        "locale": lambda: locale.setlocale(locale.LC_ALL, "C"),
        "signals": lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN),
        "environment": lambda: os.environ.update(LANGUAGE="xx"),
        "limits": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)),
        "times without sense": lambda: None,
        "last": lambda: None,
    }


    @suite.case(what=tuple(CHANGES))
    def change(bench, what):
        \"\"\"Change the process, and note its id and its state before that.\"\"\"
        notes = {"process": str(os.getpid()), "state": repr(surroundings.state())}
        CHANGES[what]()
        times = (float("nan") if number % 9 == 8 else 1e-3 + 1e-6 * (number % 7) for number in itertools.count())
        call = (lambda: next(times)) if what == "times without sense" else (lambda: sum(range(10_000)))
        clock = "self" if what == "times without sense" else "host"
        return gb.Task.of(gb.Stage(call, gb.Work(items=1), "item", clock=clock), check=dict, notes=notes)
"""


def test_a_case_that_changes_its_process_spoils_neither_itself_nor_the_next_case(tmp_path):
    (tmp_path / "changes.py").write_text(textwrap.dedent(CHANGES))
    options = ("--tier", "smoke", "--device", "host", "--out", "run.jsonl")
    done = process("run", "./changes.py", *options, cwd=tmp_path, LC_ALL="C.UTF-8")
    done.communicate(timeout=100)
    notes = {}
    for result in store.read_run(tmp_path / "run.jsonl").results:
        assert result.status == "ok", result.reason
        assert all(0 < value < 0.1 for value in result.series[0].values)
        notes[dict(result.case.params)["what"]] = dict(result.notes)
    states = {re.sub(r"'GPUBENCH_CHILD': '[^']*'", "", note["state"]) for note in notes.values()}
    assert len(states) == 1, "each case starts with the same state"
    processes = [note["process"] for note in notes.values()]
    assert processes[0] == processes[1], "a case that changes nothing keeps its worker"
    assert len(set(processes)) == len(processes) - 1


def test_show_prints_and_report_writes_every_format_of_a_run_file(measured, tmp_path):
    done = gpubench("show", measured, cwd=tmp_path)
    assert done.returncode == 0
    assert "\ngemm  on host\n" in done.stdout
    assert "square[dtype=float64,n=256]" in done.stdout
    outs = [tmp_path / f"report.{suffix}" for suffix in ("html", "md", "csv", "json")]
    arguments = ("report", measured, *itertools.chain.from_iterable(("-o", out) for out in outs))
    assert gpubench(*arguments, cwd=tmp_path).returncode == 0
    assert all("gemm" in out.read_text() for out in outs)
    assert "exists; --force replaces it" in refused(gpubench("report", measured, "-o", outs[-1], cwd=tmp_path))
    assert "--format is for one report" in refused(gpubench(*arguments, "--force", "--format", "md", cwd=tmp_path))
    assert gpubench(*arguments, "--force", cwd=tmp_path).returncode == 0


def test_a_report_without_a_name_is_a_page_beside_its_run_and_a_trace_may_be_json(measured, tmp_path):
    run = tmp_path / "mine.jsonl"
    run.write_bytes(measured.read_bytes())
    done = gpubench("report", run)
    assert (done.returncode, done.stderr) == (0, f"written: {tmp_path / 'mine.html'}\n")
    assert (tmp_path / "mine.html").read_text().startswith("<!doctype html>")
    assert gpubench("report", run, "-o", tmp_path / "q.trace.json").returncode == 0
    assert "traceEvents" in json.loads((tmp_path / "q.trace.json").read_text())


def test_a_report_never_replaces_the_run_it_is_of(measured, tmp_path):
    run = tmp_path / "run.json"
    run.write_bytes(measured.read_bytes())
    assert "is the run file that is read" in refused(gpubench("report", run, "-o", run, "--force", cwd=tmp_path))
    assert run.read_bytes() == measured.read_bytes()


def test_list_and_plan_agree_and_open_no_device(tmp_path):
    suites = gpubench("list", cwd=tmp_path).stdout
    assert {"bandwidth", "compression", "gemm", "ipc", "latency"} <= set(suites.split())
    assert "\nn: columns of the product\n" in gpubench("list", "gemm", cwd=tmp_path).stdout
    cases = gpubench("list", "gemm", "--cases", "--device", "host", "--json", cwd=tmp_path)
    plan = gpubench("plan", "gemm", "--device", "host", "--json", cwd=tmp_path)
    assert json.loads(cases.stdout) == [job["case"] for job in json.loads(plan.stdout)["jobs"]]


def test_plan_works_for_a_machine_that_a_file_describes(tmp_path):
    facts = {
        "devices": [
            {"id": "cuda:0", "backend": "cupy", "name": "NVIDIA H200", "arch": "sm_90", "uuid": "GPU-0", "units": 132}
            | {"cache_bytes": 62914560, "memory_bytes": 150000000000, "dtypes": ["float64", "float16"]}
        ]
    }
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    done = gpubench("plan", "all", "--facts", "facts.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "gemm/square[dtype=float16,n=2048]" in done.stdout
    assert "cuda:0" in done.stdout


def test_doctor_lists_available_and_missing_parts(tmp_path):
    counters = gpubench("doctor", "--counters", cwd=tmp_path).stdout
    assert re.search(r"host\.cpu\.busy +core·s +cumulative +0\.1 s +yes +head -1 /proc/stat", counters)
    text = gpubench("doctor", cwd=tmp_path).stdout
    assert text.startswith(("no GPU is usable: `gpubench run` measures the host processor\n", "ready to measure "))
    assert re.search(r"^host: .+ cores, [\d.]+ GiB", text, re.MULTILINE)
    facts = json.loads(gpubench("doctor", "--json", cwd=tmp_path).stdout)
    assert [device["id"] for device in facts["devices"]][-1] == "host"
    busy = next(counter for counter in facts["counters"] if counter["name"] == "host.cpu.busy")
    assert (busy["device"], busy["unit"], busy["missing"]) == ("host", "core·s", "")
    assert {"amd", "gpm", "nvml"} - {counter["name"].partition(".")[0] for counter in facts["counters"]} <= {
        missing["what"] for missing in facts["not_sampled"]
    }


@pytest.mark.slow
def test_doctor_names_the_smallest_change_that_a_gate_can_detect_here_also_from_its_run_file(tmp_path):
    done = gpubench("doctor", "--noise", "--tier", "smoke", "--device", "host", "--replicates", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\d+ cases in 3 replicates, about ", done.stderr, re.MULTILINE)
    _, *lines = (line for line in done.stdout.splitlines() if ": no floor, " not in line)  # torch may be missing
    assert len({line.partition("/")[0] for line in lines}) > 6  # suites
    row = re.compile(r"\S+\] +host +3 +±(?:over )?[\d.]+ %  ([\d.]+ %|none below 50 %:)( .*too noisy.*)? *")
    assert [line for line in lines if not row.fullmatch(line)] == []
    (file,) = (tmp_path / "gpubench-runs").glob("*-noise.jsonl")
    assert gpubench("doctor", "--noise", "--from", file, cwd=tmp_path).stdout == done.stdout
    document = json.loads(gpubench("doctor", "--noise", "--from", file, "--json", cwd=tmp_path).stdout)
    assert [floor["case"] for floor in document["floors"]] == [line.split()[0] for line in lines]
    assert all(floor["replicates"] == 3 and floor["threshold"] > floor["log_deviation"] for floor in document["floors"])


def test_wrong_options_and_unknown_names_are_refused_in_one_line_before_anything_is_measured(tmp_path, measured):
    for arguments, message in (
        (("run", "latencyy"), "did you mean latency?"),
        (("run", "xyzzy"), "choose from all, bandwidth, "),
        (("run", "gemm", "--device", "tpu:0"), "available: host"),
        (("run", "gemm", "--device", "host", "--filter", "sqare"), "did you mean gemm/square"),
        (("run", *QUICKEST, "--resume"), "--out"),
        (("run", *QUICKEST, "--out", "nowhere/run.jsonl"), "the folder does not exist"),
        (("run", *QUICKEST, "--out", measured), "exists"),
        (("doctor", "--noise", "--replicates", "2"), "at least 3"),
        (("doctor", "--noise", "--from", measured), "fewer than 3 replicates"),
        (("doctor", "--noise", "--from", measured, "--replicates", "5"), "leave out --replicates"),
        (("doctor", "--tier", "smoke"), "--tier: only with --noise"),
    ):
        assert message in refused(gpubench(*arguments, cwd=tmp_path)), arguments
    assert not (tmp_path / "gpubench-runs").exists()


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="there is a GPU here")
def test_a_missing_gpu_is_refused_with_the_available_devices_and_the_remedy(tmp_path):
    line = refused(gpubench("run", "gemm", "--device", "cuda:0", cwd=tmp_path))
    assert "no device 'cuda:0' (available: host)" in line
    assert "CuPy" in line
    assert "bash ci/bench.sh" in line or "driver" in line  # the tests stand in a clone


@pytest.mark.parametrize("wrong", [("--tier", "slow"), ("--no-such-option",), ("--replicates", "0")])
def test_wrong_options_end_with_the_status_of_a_usage_error(tmp_path, wrong):
    done = gpubench("run", "gemm", *wrong, cwd=tmp_path)
    assert done.returncode == 2
    assert wrong[0] in done.stderr
    assert "Value error" not in done.stderr
    assert not (tmp_path / "gpubench-runs").exists()


def test_empty_or_missing_data_is_refused_with_its_name(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    run = ("run", "compression", "--tier", "smoke", "--data")
    assert "empty: the file is empty" in refused(gpubench(*run, "empty", cwd=tmp_path))
    assert "No such file" in refused(gpubench(*run, "missing", cwd=tmp_path))
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refused(gpubench(*run, "pipe", cwd=tmp_path))
    assert "holds no file" in refused(gpubench(*run, "folder", cwd=tmp_path))


@pytest.mark.parametrize(("suite", "ignored"), [("gemm", True), ("compression", False)])
def test_a_warning_names_data_that_no_case_reads(tmp_path, suite, ignored):
    (tmp_path / "mine.bin").write_bytes(b"mine")
    done = gpubench("plan", suite, "--device", "host", "--tier", "smoke", "--data", "mine.bin", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert ignored == ("--data is ignored: none of these cases reads it" in done.stdout)


def test_a_failed_case_makes_the_status_3_and_loses_no_other_result(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(PLUGIN)
    run = ("run", "faults", "--tier", "smoke", "--filter", "crash", "--filter", "good", "--filter", "unable")
    done = gpubench(*run, "--out", "a.jsonl", cwd=tmp_path, PYTHONPATH=PLUGIN)
    assert done.returncode == 3, done.stderr
    assert {r.case.name: r.status for r in store.read_run(tmp_path / "a.jsonl").results} == {
        "good": "ok",
        "crash": "failed",
        "unable": "skipped",
    }


@pytest.mark.parametrize(
    ("sent", "status"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_an_interrupted_run_keeps_what_was_measured_and_resumes(tmp_path, sent, status):
    """The same for SIGTERM stands in test_odd_places.py."""
    selection = ("run", "faults", "--tier", "smoke", "--filter", "good", "--filter", "hang", "--out")
    file = tmp_path / "a.jsonl"
    child = process(*selection, file)
    deadline = time.monotonic() + 30
    while not (file.exists() and '"kind":"result"' in file.read_text()):
        assert time.monotonic() < deadline, child.communicate()
        time.sleep(0.05)
    child.send_signal(sent)
    _, error_output = child.communicate(timeout=30)
    assert child.returncode == status, error_output
    assert "--resume" in error_output
    run = store.read_run(file)
    assert not run.complete
    assert [result.case.name for result in run.results] == ["good"]
    assert "the run was interrupted" in gpubench("show", "a.jsonl", cwd=tmp_path).stdout


def test_resuming_a_finished_run_measures_nothing(measured, tmp_path):
    copied = tmp_path / "a.jsonl"
    copied.write_bytes(measured.read_bytes())
    done = gpubench("run", *QUICKEST, "--out", "a.jsonl", "--resume", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert store.read_run(copied).results == store.read_run(measured).results


@pytest.mark.slow
def test_a_run_of_other_settings_or_another_machine_is_not_resumed(tmp_path, measured):
    copied = tmp_path / "a.jsonl"
    copied.write_bytes(measured.read_bytes())
    run = ("run", *QUICKEST, "--out", "a.jsonl", "--resume")
    assert "settings seed was 0, is 7" in refused(gpubench(*run, "--seed", "7", cwd=tmp_path))
    lines = measured.read_text().splitlines(keepends=True)
    lines[0] = re.sub(r'\["numpy","[^"]+"\]', '["numpy","0.1"]', lines[0])
    copied.write_text("".join(lines[:-1]))
    assert "version of numpy was 0.1" in refused(gpubench(*run, cwd=tmp_path))
