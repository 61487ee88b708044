"""The command that puts a case under a vendor's profiler."""

import shlex
import subprocess

import pytest
from _command import gpubench


def run(*words, cwd):
    return gpubench("run", "bandwidth", "--device", "host", "--tier", "smoke", *words, cwd=cwd)


CASE = "bandwidth/triad[size=16MiB,dtype=float32]"


@pytest.mark.parametrize(("tool", "first"), [("ncu", "ncu"), ("nsys", "nsys"), ("rocprof", "rocprofv3")])
def test_the_command_runs_the_one_case_alone(tmp_path, tool, first):
    found = run("--filter", CASE, "--print-profiler-command", tool, cwd=tmp_path)
    assert found.returncode == 0
    words = shlex.split(found.stdout)
    assert words[0] == first
    assert words[words.index("--filter") + 1] == CASE
    assert list(tmp_path.iterdir()) == []  # nothing was measured


@pytest.mark.slow
def test_the_printed_command_without_its_profiler_measures_that_case(tmp_path):
    words = shlex.split(run("--filter", CASE, "--print-profiler-command", "rocprof", cwd=tmp_path).stdout)
    own = words[words.index("--") + 1 :]
    done = subprocess.run(own, capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path)
    assert done.returncode == 0
    assert CASE.removeprefix("bandwidth/") in done.stdout
    assert "1 case in " in done.stdout


def test_ncu_takes_the_kernels_of_the_cases_range_and_not_the_gate(tmp_path):
    words = shlex.split(run("--filter", CASE, "--print-profiler-command", "ncu", cwd=tmp_path).stdout)
    assert words[words.index("--nvtx-include") + 1] == r"bandwidth\/triad\[size=16MiB\,dtype=float32\]/"
    assert words[words.index("--kernel-name") + 1] == "regex:^(?!gate$)"


@pytest.mark.slow
def test_several_cases_are_refused_by_name(tmp_path):
    found = run("--print-profiler-command", "ncu", cwd=tmp_path)
    assert (found.returncode, found.stdout) == (2, "")
    assert "choose one by --filter" in found.stderr


def test_without_a_profiler_a_range_costs_less_than_a_hundredth_of_a_millisecond(monkeypatch):
    nvtx = pytest.importorskip("cupy.cuda.nvtx", reason="its wheel brings NVTX, which needs no GPU")
    import time

    start = time.perf_counter()
    for _ in range(1000):
        nvtx.RangePush(CASE)
        nvtx.RangePop()
    assert (time.perf_counter() - start) / 1000 < 1e-5
