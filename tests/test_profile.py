"""`gpubench profile` with real programs: what it leaves untouched, and what it measures of them."""

import importlib.util
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from _command import gpubench

from gpubench.analysis import phases
from gpubench.analysis.counters import CounterTable
from gpubench.marks import Span, phase, spans
from gpubench.model import store

GPUBENCH = Path(sys.executable).parent / "gpubench"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "profile.jsonl"


def profile(out, *command, options=("-q",), **named):
    arguments = [GPUBENCH, "profile", *options, "-o", out, "--", *command]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False, **named)


def called(out, *command, options=("-q",)):
    """Return the outcome of a call in this process, whose program has the standard streams of this process."""
    return gpubench("profile", *options, "-o", out, "--", *command)


def python(source):
    return (sys.executable, "-c", source)


def started(out, source):
    """Start a profiled Python program in its own process group and return it when it prints `ready`."""
    command = [GPUBENCH, "profile", "-q", "-o", out, "--", *python(source)]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert running.stdout.readline() == "ready\n"
    return running


def status_of(running):
    running.communicate(timeout=30)
    return running.returncode


def test_standard_streams_and_the_exit_status_are_those_of_the_program(out):
    source = "import sys; print(sys.stdin.read().upper()); print('err', file=sys.stderr); sys.exit(7)"
    done = profile(out, *python(source), input="hello")
    assert (done.returncode, done.stdout, done.stderr) == (7, "HELLO\n", "err\n")
    (program,) = store.read_run(out).results
    assert (program.status, program.reason) == ("failed", "the program ended: exit status 7")
    assert called(out.with_name("b.jsonl"), "true").returncode == 0
    (program,) = store.read_run(out.with_name("b.jsonl")).results
    assert program.series[0].values[0] > 0, "a program that ends at once has a duration"


def test_the_summary_goes_to_standard_error(out, capfd):
    done = called(out, "echo", "words", options=())
    assert (done.stdout, capfd.readouterr().out) == ("", "words\n")
    assert "run file:" in done.stderr


@pytest.mark.parametrize(("number", "status"), [("INT", 130), ("KILL", 137), ("SEGV", 139)])
def test_a_program_that_a_signal_killed_has_the_status_a_shell_gives_it(out, number, status):
    heard = "signal.signal(signal.SIGINT, signal.SIG_DFL)"  # a job in the background begins without it
    source = f"import os, signal; {heard}; os.kill(os.getpid(), signal.SIG{number})"
    assert called(out, *python(source)).returncode == status
    run = store.read_run(out)
    assert run.complete
    assert run.results[0].reason == f"the program ended: killed by SIG{number}"


def test_a_program_that_cannot_run_gives_a_reason_a_status_and_no_file(out, tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("no program")
    assert called(out, "no-such-program-here").returncode == 127
    assert called(out, plain).returncode == 126
    plain.chmod(0o755)  # executable, but in no format that the system can run
    assert called(out, plain).returncode == 126
    assert not out.exists()


def test_errors_of_gpubench_are_reported_before_the_program_starts(tmp_path):
    touched = tmp_path / "touched"
    for options in (("--no-such-option",), ("--device", "cuda:9"), ()):
        # a folder in place of a file cannot be written
        target = tmp_path if not options else tmp_path / "profile.jsonl"
        error = called(target, "touch", touched, options=options)
        assert (error.returncode, error.stdout) == (125, "")
        assert error.stderr
    assert not touched.exists()


def test_only_a_python_script_is_traced_and_only_with_cupti(out, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print('ran')")
    error = called(out, "true", options=("--trace",))
    assert (error.returncode, error.stdout) == (125, "")
    assert "takes a Python script" in error.stderr
    assert called(out, tmp_path / "missing.py", options=("--trace",)).returncode == 127
    done = profile(out, script, options=("--trace",))
    if importlib.util.find_spec("cupti") is None:
        assert (done.returncode, done.stdout) == (125, "")
        assert "[counters]" in done.stderr
    else:
        assert (done.returncode, done.stdout) == (0, "ran\n")


@pytest.mark.slow
def test_a_full_disk_does_not_end_the_program(out):
    limited = (
        f"ulimit -f 8; exec {GPUBENCH} profile -o {out} -- {sys.executable} -c 'import time; time.sleep(4); print(1)'"
    )
    done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "the records written before are kept" in done.stderr


COUNTS = """
import signal, sys, time
got = []
signal.signal(signal.{name}, lambda *_: got.append(1))
print("ready", flush=True)
end = time.monotonic() + 30
while not got and time.monotonic() < end:
    time.sleep(0.05)
time.sleep(0.5)  # in which a second signal would come
sys.exit(len(got))
"""


_LATER = [pytest.param(name, marks=pytest.mark.slow) for name in ("SIGINT", "SIGHUP", "SIGUSR2")]


@pytest.mark.parametrize("name", ["SIGTERM", *_LATER])
def test_a_signal_to_gpubench_alone_reaches_the_program_once(out, name):
    running = started(out, COUNTS.format(name=name))
    os.kill(running.pid, getattr(signal, name))
    assert status_of(running) == 1


def test_ctrl_c_at_a_terminal_reaches_the_program_once_and_the_file_is_kept(out):
    source = COUNTS.format(name="SIGINT")
    terminal, ours = os.openpty()

    def own_terminal():
        os.setsid()
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    command = [GPUBENCH, "profile", "-q", "-o", out, "--", *python(source)]
    running = subprocess.Popen(command, stdin=ours, stdout=ours, stderr=ours, preexec_fn=own_terminal)
    seen = b""
    while b"ready" not in seen:
        seen += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    assert running.wait(30) == 1
    os.close(terminal)
    os.close(ours)
    assert store.read_run(out).complete


@pytest.mark.slow
def test_a_program_that_ctrl_c_ends_gives_status_130_and_the_file_is_kept(out):
    default = "import signal, time; signal.signal(2, signal.SIG_DFL)"
    running = started(out, f"{default}; print('ready', flush=True); time.sleep(30)")
    os.kill(running.pid, signal.SIGINT)
    assert status_of(running) == 130
    run = store.read_run(out)
    assert (run.complete, run.results[0].reason) == (True, "the program ended: killed by SIGINT")


@pytest.mark.slow
def test_processes_that_a_program_leaves_behind_are_not_waited_for(out):
    start = time.monotonic()
    done = profile(out, "sh", "-c", "sleep 30 >/dev/null 2>&1 & echo $!")
    os.kill(int(done.stdout), signal.SIGKILL)
    assert time.monotonic() - start < 25


@pytest.mark.slow
def test_children_count_as_the_programs_own(out):
    burn = "import time\nend = time.monotonic() + 2\nwhile time.monotonic() < end: pass"
    assert profile(out, "sh", "-c", f"{sys.executable} -c '{burn}'; true").returncode == 0
    run = store.read_run(out)
    (program,) = run.results
    used = {series.label: series.values[0] for series in program.series}
    assert 1.0 < used["cpu"] < 3
    assert used["memory"] > 5e6
    assert phases.figures(program, CounterTable.of_run(run), "host").cores > 0.4


@pytest.mark.slow
def test_sleeping_and_working_are_detected_as_phases(out):
    """Other programs that take the processor away add phases, so only the sleep is required."""
    source = """
import time
def work(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end: pass
work(2.5); time.sleep(2.5); work(2.5)
"""
    assert profile(out, *python(source)).returncode == 0
    run = store.read_run(out)
    program, *phases_found = run.results
    table, begin = CounterTable.of_run(run), program.window[0]
    cores = {phases.spans_of(result)[0]: phases.figures(result, table, "host").cores for result in phases_found}
    (asleep,) = (span for span, used in cores.items() if used is not None and used < 0.2)
    assert asleep == pytest.approx((begin + 2.5, begin + 5.0), abs=0.6)
    assert len(phases_found) >= 3


def test_phases_marked_by_a_program_are_recorded_with_their_names_and_times(out):
    source = """
import time
from gpubench.marks import phase
with phase("load"):
    time.sleep(0.2)
for _ in range(3):
    with phase("a  step\\n"):
        time.sleep(0.1)
import os
held = phase("never ended")
held.__enter__()
time.sleep(0.1)
os._exit(0)
"""
    assert called(out, *python(source)).returncode == 0
    _, load, step, last = store.read_run(out).results
    assert [result.case.param("name") for result in (load, step, last)] == ["load", "a step", "never ended"]
    assert step.series[0].values == pytest.approx([0.1] * 3, abs=0.08)
    assert (load.labels, last.labels) == ((), ("unfinished",))


@pytest.mark.slow
def test_mark_signals_divide_a_program_into_phases(out):
    mark = "time.sleep(0.3); os.kill(os.getppid(), signal.SIGUSR1)"
    source = f"import os, signal, time\nfor _ in range(2): {mark}\ntime.sleep(0.3)"
    assert profile(out, *python(source)).returncode == 0
    _, *parts = store.read_run(out).results
    assert [result.case.id for result in parts] == [f"profile/part[number={n}]" for n in (1, 2, 3)]


def test_nvtx_ranges_are_phases(out):
    pytest.importorskip("cupy", reason="its wheel brings NVTX, which needs no GPU")
    source = """
import time
from cupy.cuda import nvtx
for _ in range(2):
    nvtx.RangePush("outer"); nvtx.RangePush("inner"); time.sleep(0.1); nvtx.RangePop(); nvtx.RangePop()
found = nvtx.RangeStart("across", 0); time.sleep(0.1); nvtx.RangeEnd(found)
"""
    assert called(out, *python(source)).returncode == 0
    _, *marked = store.read_run(out).results
    counts = {result.case.param("name"): len(result.series[0].values) for result in marked}
    assert counts == {"outer": 2, "inner": 2, "across": 1}
    assert marked[-1].labels == ()


def test_marks_are_paired_by_key_invalid_lines_are_ignored_and_without_gpubench_marks_do_nothing(monkeypatch):
    begins, ends = ["B 1.0 7.1 outer", "B 2.0 7.1 inner"], ["E 3.0 7.1", "E 4.0 7.1", "E 5 9.9"]
    lines = [*begins, "rubbish", "E x y", "B 2.5 8.8 other", *ends]
    assert spans(lines, end=6.0) == [
        Span("outer", 1.0, 4.0),
        Span("inner", 2.0, 3.0),
        Span("other", 2.5, 6.0, ended=False),
    ]
    monkeypatch.delenv("GPUBENCH_MARKS", raising=False)
    with phase("anything"):
        pass


# ---- The command that puts a case under a vendor's profiler.


def run(*arguments, cwd):
    return gpubench("run", "bandwidth", "--device", "host", "--tier", "smoke", *arguments, cwd=cwd)


CASE = "bandwidth/triad[size=16MiB,dtype=float32]"


@pytest.mark.parametrize(("tool", "first"), [("ncu", "ncu"), ("nsys", "nsys"), ("rocprof", "rocprofv3")])
def test_the_command_runs_the_one_case_alone(tmp_path, tool, first):
    done = run("--filter", CASE, "--print-profiler-command", tool, cwd=tmp_path)
    assert done.returncode == 0
    command = shlex.split(done.stdout)
    assert command[0] == first
    assert command[command.index("--filter") + 1] == CASE
    if tool == "ncu":
        assert command[command.index("--nvtx-include") + 1] == r"bandwidth\/triad\[size=16MiB\,dtype=float32\]/"
        assert command[command.index("--kernel-name") + 1] == "regex:^(?!gate$)"
    several = run("--print-profiler-command", tool, cwd=tmp_path)
    assert (several.returncode, several.stdout) == (2, "")
    assert "choose one by --filter" in several.stderr
    assert list(tmp_path.iterdir()) == []  # nothing was measured


@pytest.mark.slow
def test_the_printed_command_without_its_profiler_measures_that_case(tmp_path):
    command = shlex.split(run("--filter", CASE, "--print-profiler-command", "rocprof", cwd=tmp_path).stdout)
    gpubench_command = command[command.index("--") + 1 :]
    done = subprocess.run(gpubench_command, capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path)
    assert done.returncode == 0
    assert CASE.removeprefix("bandwidth/") in done.stdout
    assert "1 case in " in done.stdout


def test_without_a_profiler_a_range_costs_less_than_a_hundredth_of_a_millisecond(monkeypatch):
    nvtx = pytest.importorskip("cupy.cuda.nvtx", reason="its wheel brings NVTX, which needs no GPU")
    import time

    start = time.process_time()
    for _ in range(1000):
        nvtx.RangePush(CASE)
        nvtx.RangePop()
    assert (time.process_time() - start) / 1000 < 1e-5
