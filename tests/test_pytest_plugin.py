"""The pytest plugin as a project uses it: its cost when unused, timing, files, judgements and refusals."""

import dataclasses
import os
import re
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import _files as files
import _make as make
import numpy as np
import pytest

from gpubench import plugins
from gpubench.authoring.task import Stage, Task
from gpubench.base.errors import FileError, UsageError, WrongAnswer
from gpubench.judging.judge import DECIDED
from gpubench.measuring import inventory
from gpubench.model import Facts, Result, Series, Work, store
from gpubench.stats import median
from gpubench.testing.fixture import Gpubench
from gpubench.testing.session import MeasuringSession, Options, Progress, ReplicateStarter, suite_of
from gpubench.testing.verdicts import Baseline

HEAVY = ("gpubench.model", "gpubench.testing.session", "numpy", "pandas", "pydantic", "rich", "typer", "cupy")


def pytest_in(folder, *arguments):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, arguments)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    return subprocess.run(
        command, capture_output=True, text=True, cwd=folder, timeout=100, check=False, env=environment
    )


@pytest.fixture
def project(tmp_path):
    def run(*arguments, **sources):
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        return pytest_in(tmp_path, *arguments)

    run.folder = tmp_path
    return run


COPY = """
    import pytest

    @pytest.mark.parametrize("n", [64, 4096])
    @pytest.mark.parametrize("kind", [float, "a b"], ids=str)
    def test_copy(gpubench, n, kind):
        data, out = gpubench.rng.random(n), gpubench.xp.zeros(n)
        call = lambda: gpubench.xp.copyto(out, data)
        modes = ("hot", "cold") if n == 64 and kind is float else ("hot",)  # a flush of the host's cache takes long
        timed = gpubench(call, moved=16 * n, modes=modes, check=lambda: assert_equal(out, data))
        assert 0 < timed.seconds < 1
        assert str(timed).endswith("B/s")

    def assert_equal(out, data):
        assert (out == data).all()
"""
WRONG = """
    def test_wrong(gpubench):
        def check():
            assert 6 * 7 == 41
        gpubench(lambda: None, check=check)
"""
TWO = """
    def test_named(gpubench):
        gpubench(lambda: None, name="first")
        gpubench(lambda: None, name="second")

    def test_unnamed(gpubench):
        gpubench(lambda: None)
        gpubench(lambda: None)

    def test_absurd(gpubench):
        gpubench(lambda: None, moved=1e12, check=lambda: None)
"""
SMOKE = ("--gpubench-tier", "smoke", "--gpubench-device", "host")


# ---- in a project


def test_a_project_that_does_not_use_it_imports_nothing_for_it_and_tests_that_measure_can_be_left_out(project):
    source = f"""
        import sys

        def test_nothing():
            assert [name for name in {HEAVY} if name in sys.modules] == []
            assert {{name for name in sys.modules if name.startswith("gpubench")}} == {{"gpubench", "gpubench.testing"}}

        def test_timed(gpubench): raise AssertionError
    """
    done = project("-m", "not gpubench", "--strict-markers", test_it=source)
    assert done.returncode == 0, done.stdout
    assert "1 passed, 1 deselected" in done.stdout
    assert "gpubench:" not in done.stdout


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Run one session of several tests with a run file; return the output of pytest, the run and the folder."""
    folder = tmp_path_factory.mktemp("project")
    for name, source in {"test_it": COPY, "test_wrong": WRONG, "test_two": TWO}.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(source))
    done = pytest_in(folder, *SMOKE, "--gpubench-out", "a.jsonl")
    return done, store.read_run(folder / "a.jsonl"), folder


def test_a_test_times_a_call_and_prints_its_figure(measured):
    done, _, _ = measured
    lines = [re.split("  +", line.strip()) for line in done.stdout.splitlines() if "  test_it/" in line]
    assert [re.sub(r" \(.*\)$", "", line[2]) for line in lines] == [
        f"test_it/test_copy[kind={kind},n={n}]" for kind in ("float", "a_b") for n in (64, 4096)
    ]
    assert all("B/s" in line[0] and "B/s" in line[1] for line in lines)
    assert "tier smoke\n" in done.stdout
    assert re.search("^ +median +95 % interval +case$", done.stdout, re.MULTILINE)


def test_a_timing_without_a_check_is_called_unchecked_and_one_that_no_device_can_reach_fails(measured):
    done, _, _ = measured
    rows = [line for line in done.stdout.splitlines() if re.search(r"[sz] .*  test_(it|two)/", line)]
    assert all(("unchecked" in row) == ("test_two/" in row) for row in rows), rows
    assert len(rows) >= 6
    assert "compute units can do at best" in done.stdout
    assert "FAILED test_two.py::test_absurd" in done.stdout


def test_the_run_file_of_the_tests_is_an_ordinary_run_file(measured):
    _, run, _ = measured
    assert run.complete
    assert run.manifest.settings.tier == "smoke"
    assert run.manifest.settings.suites == ("test_it", "test_two", "test_wrong")
    assert {counter.name.partition(".")[0] for counter in run.manifest.counters} == {"host"}
    first = run.results[0]
    assert (first.status, first.devices, first.case.params) == ("ok", ("host",), (("kind", "float"), ("n", 64)))
    assert {"hot", "cold", "host"} <= {series.label for series in first.series}
    assert 0 < first.window[0] < first.window[1]
    assert first.window[1] - first.window[0] <= first.elapsed_s


def test_a_run_file_that_exists_is_never_touched(measured):
    _, _, folder = measured
    before = (folder / "a.jsonl").read_bytes()
    done = pytest_in(folder, *SMOKE, "--gpubench-out", "a.jsonl", "test_two.py")
    assert "a.jsonl exists; choose another name" in done.stdout
    assert (folder / "a.jsonl").read_bytes() == before


def test_a_wrong_answer_fails_the_test_from_the_check_on_and_is_in_the_file(measured):
    done, run, _ = measured
    assert done.returncode == 1
    failure = done.stdout.partition("_ test_wrong _")[2].partition("=====")[0]
    assert "assert (6 * 7) == 41" in failure
    assert "engine.measure" not in failure
    (result,) = (result for result in run.results if result.case.suite == "test_wrong")
    assert (result.status, result.cause, result.reason) == ("failed", "wrong-answer", "assert (6 * 7) == 41")


def test_two_timings_in_one_test_need_names(measured):
    done, run, _ = measured
    names = [result.case.name for result in run.results if result.case.suite == "test_two"]
    assert names == ["test_named.first", "test_named.second", "test_unnamed", "test_absurd"]
    assert "test_unnamed times several calls: give each its own name=…" in done.stdout


@pytest.mark.slow
def test_replicates_run_the_same_tests_in_separate_processes(project):
    source = """
        import os

        def test_noted(gpubench):
            with open("pids", "a") as file:
                print(os.getpid(), file=file)
            gpubench(lambda: sum(range(100)))

        def test_other():
            with open("others", "a") as file:
                print("once", file=file)
    """
    done = project(*SMOKE, "--gpubench-replicates", 2, "--gpubench-out", "a.jsonl", test_it=source)
    assert done.returncode == 0, done.stdout
    assert len(set((project.folder / "pids").read_text().split())) == 2
    assert (project.folder / "others").read_text() == "once\n"
    results = store.read_run(project.folder / "a.jsonl").results
    assert [(result.case.id, result.replicate) for result in results] == [("test_it/test_noted", n) for n in range(2)]
    # the counters of the other process are not in this file
    assert [result.window == (0.0, 0.0) for result in results] == [False, True]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--gpubench-device", "cuda:9"), r"^gpubench: no device 'cuda:9'"),
        (("--gpubench-out", "n" * 256), r"^gpubench: \S+: File name too long$"),
    ],
)
def test_a_missing_device_or_a_name_that_is_too_long_fails_the_tests_in_one_line(project, options, error):
    done = project(*options, test_it="def test_it(gpubench): pass")
    assert done.returncode == 1
    assert re.search(error, done.stdout, re.MULTILINE), done.stdout


@pytest.mark.slow
def test_parallel_pytest_workers_measure_nothing(project):
    source = "def test_timed(gpubench): pass\ndef test_plain(): pass\n"
    done = project("-n", 2, "-rs", test_it=source)
    assert done.returncode == 0, done.stdout
    assert "1 passed, 1 skipped" in done.stdout
    assert "gpubench measures one thing at a time: run these tests with -n 0" in done.stdout


@pytest.mark.slow
def test_a_kernel_needs_a_device_that_compiles(project):
    (project.folder / "k.cu").write_text("")
    done = project(*SMOKE, "-rs", test_it="def test_it(gpubench): gpubench.kernel('k.cu', 'k')\n")
    assert "1 skipped" in done.stdout
    assert "the host runs numba functions, not the device kernel k" in done.stdout


@pytest.mark.slow
def test_a_replicate_that_does_not_run_is_reported_with_the_reason(project):
    source = """
        import os, sys
        if "--gpubench-out" in " ".join(sys.argv) and "gpubench-" in sys.argv[sys.argv.index("--gpubench-out") + 1]:
            raise SystemError("only here")

        def test_it(gpubench): gpubench(lambda: None)
    """
    done = project(*SMOKE, "--gpubench-replicates", 2, test_it=source)
    assert done.returncode == 1
    assert "gpubench: a replicate's pytest ended with status 4: " in done.stdout
    assert "SystemError: only here" in done.stdout
    assert "During handling" not in done.stdout


@pytest.mark.slow
def test_a_test_that_becomes_slower_fails_and_one_that_does_not_passes(project):
    source = """
        import os, time

        def test_nap(gpubench):
            gpubench(lambda: time.sleep(float(os.environ.get("NAP", "0.002"))), waits=True)
    """
    many = ("--gpubench-replicates", 5)
    assert project(*SMOKE, *many, "--gpubench-out", "base.jsonl", test_it=source).returncode == 0
    done = project(*SMOKE, *many, "--gpubench-baseline", "base.jsonl")
    assert done.returncode == 0, done.stdout
    (project.folder / "test_it.py").write_text(textwrap.dedent(source).replace("0.002", "0.003"))
    done = project(*SMOKE, *many, "--gpubench-baseline", "base.jsonl")
    assert done.returncode == 1
    assert re.search(r"slower: \+\d+\.\d %, threshold \d+\.\d %: test_it/test_nap\n", done.stdout)
    assert "1 of 1 case decided against the baseline" in done.stdout


# ---- the session, on the device whose time is arithmetic


@pytest.fixture
def clockwork(monkeypatch):
    facts = Facts(tuple(plugins.load("backends", "clockwork").devices()))
    monkeypatch.setattr(inventory, "facts", lambda: facts)
    return MeasuringSession(Options("", "quick", None, 1, (), ()), None, ["tests/test_it.py::test_it"])


def spending(device, seconds, moved=1e9):
    return Task.of(Stage(lambda: device.spend(seconds), Work(moved=moved), "moved"), check=dict)


def test_timings_are_exact_on_a_device_with_exact_time_and_without_a_run_file_nothing_is_written(
    clockwork, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    result = clockwork.measure(spending(clockwork.device, 0.25), make.case())
    assert set(result.series[0].values) == {0.25}
    figure = clockwork.figure(result)
    assert (figure.text, figure.interval.low, figure.interval.high) == ("4.000 GB/s", 4e9, 4e9)
    assert clockwork.end()[1:] == [
        "    median       95 % interval  case",
        "4.000 GB/s  4.000 – 4.000 GB/s  bandwidth/triad",
    ]
    assert clockwork.judge(result, "test").verdict == ""
    assert list(tmp_path.iterdir()) == []


def test_the_summary_says_how_many_cases_were_decided(clockwork, tmp_path):
    """One process against one: the test passes, and the last line says that nothing was decided."""
    before = clockwork.measure(spending(clockwork.device, 0.25), make.case())
    base = files.write(tmp_path / "base.jsonl", before, manifest=clockwork._manifest)
    node = "tests/test_it.py::test_it"
    again = MeasuringSession(Options("", "quick", None, 1, (str(base),), ()), None, [node])
    assert not again.judge(again.measure(spending(again.device, 0.5), make.case()), node).fails
    few = "1 and 1 processes do not show the noise between processes"
    assert again.end()[1:] == [
        "  baseline   candidate   change  95 % interval  verdict       case",
        "4.000 GB/s  2.000 GB/s  −50.0 %              –  inconclusive  bandwidth/triad",
        f"inconclusive: bandwidth/triad: {few}: measure with --gpubench-replicates 5 (at least 3)",
        "warning: 0 of 1 case decided against the baseline: the other 1 may be slower",
    ]


def test_work_on_another_stream_is_refused_and_not_timed_as_zero(clockwork, monkeypatch):
    monkeypatch.setattr(clockwork.device, "elsewhere", lambda: 1e-3, raising=False)
    with pytest.raises(UsageError, match=r"left 1\.000 ms of work on another stream than the one that is timed"):
        clockwork.measure(spending(clockwork.device, 1e-3), make.case())


def test_a_batch_that_takes_no_time_on_a_gpu_is_refused(clockwork):
    clockwork.device.traits = dataclasses.replace(clockwork.device.traits, is_gpu=True)
    with pytest.raises(UsageError, match=r"256 calls took 2\.560 µs on the stream that is timed: they launch nothing"):
        clockwork.measure(spending(clockwork.device, 1e-8, 8), make.case())
    result = clockwork.measure(spending(clockwork.device, 1e-6, 8), make.case())  # an empty kernel
    assert median(result.series[0].values) == pytest.approx(1e-6)


def test_any_exception_of_a_check_leaves_the_device_as_it_was(clockwork):
    left = []
    clockwork.device.leave = lambda: left.append("left")

    def check():
        raise WrongAnswer("no")

    with pytest.raises(WrongAnswer):
        clockwork.measure(Task.of(Stage(lambda: None), check=check), make.case())
    assert left == ["left"]
    assert clockwork.end()[-1] == "bandwidth/triad: failed: no"


def test_fewer_than_one_replicate_is_refused():
    with pytest.raises(UsageError, match="at least 1 is needed"):
        MeasuringSession(Options("", "quick", None, 0, (), ()), None, [])


# ---- names


@pytest.mark.parametrize(
    ("node", "suite"),
    [
        ("test_it.py::test_a", "test_it"),
        ("tests/unit/test_it.py::TestX::test_a[1]", "tests.unit.test_it"),
        ("my tests/test_it.py::test_a", "my_tests.test_it"),
    ],
)
def test_each_test_file_is_a_suite(node, suite):
    assert suite_of(node) == suite


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (0.5, "0.5"),
        (True, "True"),
        (float("nan"), "nan"),
        ("a,b]", "a_b_"),
        (np.float32, "float32"),
        (np.dtype("int8"), "int8"),
        (object(), "axis2"),
        ("x" * 50, "axis2"),
        (None, "None"),
    ],
)
def test_a_parameter_is_an_axis_that_stays_the_same_in_every_session(clockwork, value, text):
    callspec = SimpleNamespace(params={"axis": value}, indices={"axis": 2})
    item = SimpleNamespace(name="x", nodeid="test_it.py::TestX::test_a[v]", originalname="test_a", callspec=callspec)
    case = Gpubench(clockwork, item)._new_case("", 1)
    assert case.id == f"test_it/TestX.test_a[axis={text}]"


def test_further_arguments_are_those_of_the_call_and_its_result_is_returned(clockwork):
    """`gpubench(f, *args)` works as `benchmark(f, *args)` of pytest-benchmark."""
    item = SimpleNamespace(nodeid="tests/test_it.py::test_it", name="test_it", path=None)
    fixture = Gpubench(clockwork, item)
    asked = []

    def call(first, second):
        asked.append((first, second))
        clockwork.device.spend(0.25)
        return first + second

    timed = fixture(call, 40, 2)
    assert set(asked) == {(40, 2)}
    assert (timed.value, timed.seconds) == (42, 0.25)


class Reporter:
    """The part of pytest's terminal reporter that the plugin calls; it keeps a line for each call."""

    def __init__(self, isatty):
        self.isatty = isatty
        self.lines = []

    def ensure_newline(self):
        """As pytest's."""

    def write_line(self, line):
        self.lines.append(line)

    def rewrite(self, line, erase):
        assert erase
        self.lines.append(f"\r{line}")

    def flush(self):
        """As pytest's."""


def progress(isatty, verbose=0):
    reporter = Reporter(isatty)
    plugins_by_name = {"terminalreporter": reporter}
    config = SimpleNamespace(
        option=SimpleNamespace(verbose=verbose), pluginmanager=SimpleNamespace(getplugin=plugins_by_name.get)
    )
    return Progress(config), reporter.lines


@pytest.mark.parametrize(
    ("isatty", "verbose", "expected"),
    [
        (False, 0, ["gpubench: replicates: 2 processes"]),
        (True, -1, []),
        (
            True,
            0,
            [
                "\rgpubench: replicates: process 1 of 2",
                "\rgpubench: replicates: process 2 of 2, about 0 s left",
                "\rgpubench: replicates: 2 done in 0 s",
                "",
            ],
        ),
    ],
)
def test_the_progress_of_replicates_is_one_line(isatty, verbose, expected):
    progress_lines, lines = progress(isatty, verbose)
    assert list(progress_lines.count_processes("replicates", 2)) == [0, 1]
    assert lines == expected


def test_a_missing_baseline_is_reported_before_anything_is_measured(clockwork, monkeypatch):
    monkeypatch.setattr(ReplicateStarter, "measure", lambda *_: pytest.fail("measured"))
    with pytest.raises(FileError, match=r"no baseline 'nothing\.jsonl'"):
        MeasuringSession(Options("", "quick", None, 2, ("nothing.jsonl",), ()), None, ["tests/test_it.py::test_it"])


def test_tests_that_are_missing_in_the_baseline_are_named_before_they_are_measured(clockwork, tmp_path):
    before = clockwork.measure(spending(clockwork.device, 0.25), make.case("known"))
    base = files.write(tmp_path / "base.jsonl", before, manifest=clockwork._manifest)
    progress_lines, lines = progress(isatty=False)
    cases = [make.case("known"), make.case("new")]
    MeasuringSession(Options("", "quick", None, 1, (str(base),), ()), None, [], cases, progress_lines)
    assert lines == ["gpubench: no baseline for 1 of 2 tests, which cannot fail as slower: bandwidth/new"]


# ---- the verdict


def run_of(*seconds, case=None, **fields):
    results = [
        Result(
            case or make.case(),
            ("cuda:0",),
            "ok",
            replicate=number,
            series=(Series("hot", "s", (value,) * 10, work=Work(moved=1e9), quantity="moved"),),
        )
        for number, value in enumerate(seconds)
    ]
    return make.run(*results, **fields)


def baseline_of(tmp_path, run):
    path = files.write(tmp_path / "base.jsonl", *run.results, manifest=run.manifest)
    return Baseline((str(path),), ())


QUIET = (1.000e-3, 1.001e-3, 0.999e-3, 1.0005e-3, 0.9995e-3)
SLOW = tuple(value * 1.1 for value in QUIET)


def test_a_slower_result_fails_after_it_was_measured_again(tmp_path):
    asked = []

    def again():
        asked.append(1)
        return [run_of(value) for value in SLOW]

    judged = baseline_of(tmp_path, run_of(*QUIET)).judge(run_of(*SLOW), again)
    assert (judged.verdict, judged.fails, len(asked)) == ("slower", True, 1)
    assert judged.failure.splitlines()[0] == "slower: −9.1 %, threshold 2.0 %: bandwidth/triad"
    assert judged.failure.splitlines()[1].startswith("baseline 1000 GB/s, candidate 909.1 GB/s, 95 % interval −9.")
    assert judged.finding.verdict in DECIDED


def test_a_result_that_is_slower_once_and_not_again_passes(tmp_path):
    judged = baseline_of(tmp_path, run_of(*QUIET)).judge(run_of(*SLOW), lambda: [run_of(value) for value in QUIET * 4])
    assert (judged.verdict in ("same", "inconclusive"), judged.fails) == (True, False)


H100 = {"facts": make.facts(make.device(name="NVIDIA H100"))}


@pytest.mark.parametrize(
    ("before", "after", "verdict", "fails", "reason"),
    [
        (run_of(*QUIET), run_of(*(value * 1.0002 for value in QUIET)), "same", False, ""),
        (run_of(*QUIET), run_of(*(value * 0.8 for value in QUIET)), "faster", False, ""),
        (run_of(*QUIET), run_of(1.1e-3), "inconclusive", False, "--gpubench-replicates 5"),
        (run_of(*QUIET, **H100), run_of(*QUIET), "not comparable", True, "H200 instead of NVIDIA H100"),
        (run_of(*QUIET), run_of(1e-3, case=make.case("other")), "new", False, ""),
    ],
)
def test_only_a_result_that_is_slower_or_cannot_be_compared_fails(tmp_path, before, after, verdict, fails, reason):
    judged = baseline_of(tmp_path, before).judge(after, list)
    assert (judged.verdict, judged.fails) == (verdict, fails)
    assert (judged.finding is not None and judged.finding.verdict in DECIDED) is (verdict in ("same", "faster"))
    assert reason in judged.reason
