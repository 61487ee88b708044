"""The command that puts a case under a vendor's profiler."""

import shlex
import subprocess

import pytest
from _command import gpubench


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
    assert list(tmp_path.iterdir()) == []  # nothing was measured


@pytest.mark.slow
def test_the_printed_command_without_its_profiler_measures_that_case(tmp_path):
    command = shlex.split(run("--filter", CASE, "--print-profiler-command", "rocprof", cwd=tmp_path).stdout)
    gpubench_command = command[command.index("--") + 1 :]
    done = subprocess.run(gpubench_command, capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path)
    assert done.returncode == 0
    assert CASE.removeprefix("bandwidth/") in done.stdout
    assert "1 case in " in done.stdout


def test_ncu_takes_the_kernels_of_the_cases_range_and_not_the_gate(tmp_path):
    command = shlex.split(run("--filter", CASE, "--print-profiler-command", "ncu", cwd=tmp_path).stdout)
    assert command[command.index("--nvtx-include") + 1] == r"bandwidth\/triad\[size=16MiB\,dtype=float32\]/"
    assert command[command.index("--kernel-name") + 1] == "regex:^(?!gate$)"


@pytest.mark.slow
def test_several_cases_are_refused_by_name(tmp_path):
    done = run("--print-profiler-command", "ncu", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "choose one by --filter" in done.stderr


def test_without_a_profiler_a_range_costs_less_than_a_hundredth_of_a_millisecond(monkeypatch):
    nvtx = pytest.importorskip("cupy.cuda.nvtx", reason="its wheel brings NVTX, which needs no GPU")
    import time

    start = time.process_time()
    for _ in range(1000):
        nvtx.RangePush(CASE)
        nvtx.RangePop()
    assert (time.process_time() - start) / 1000 < 1e-5
