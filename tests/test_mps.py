"""A private control daemon of NVIDIA's MPS: started for a run, found by its processes, and always stopped."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpubench.base.errors import UsageError
from gpubench.tools import sharing

# A replacement for the program. In the foreground it waits for a file, which a second call writes when it reads `quit`.
CONTROL = """#!{python} -S
import os, sys, time
folder = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
if sys.argv[1:] != ["-f"]:
    assert sys.stdin.read() == "quit\\n"
    {quit}
    sys.exit()
{start}
open(folder + "/nvidia-cuda-mps-control.pid", "w").write(str(os.getpid()))
while not os.path.exists(folder + "/quit"):
    time.sleep(0.01)
"""
QUIT = 'open(folder + "/quit", "w").close()'


@pytest.fixture(autouse=True)
def no_daemon(monkeypatch):
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)


def install_fake_mps(tmp_path, monkeypatch, start="", quits=QUIT):
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text(CONTROL.format(python=sys.executable, start=start, quit=quits))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def has_ended(pid):
    """Return whether the process ends within five seconds."""
    deadline = time.monotonic() + 5
    while Path("/proc", str(pid)).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not Path("/proc", str(pid)).exists()


def daemon_of_children():
    """Return the daemon that a process of this one finds."""
    program = "import os; print(open(os.environ['CUDA_MPS_PIPE_DIRECTORY'] + '/nvidia-cuda-mps-control.pid').read())"
    return int(subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, check=True).stdout)


def test_processes_find_the_daemon_and_nothing_of_it_is_left(tmp_path, monkeypatch):
    install_fake_mps(tmp_path, monkeypatch)
    with sharing.private_daemon():
        pid, folder = daemon_of_children(), Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
        assert Path("/proc", str(pid)).exists()
    assert has_ended(pid)
    assert not folder.exists()
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ


def test_a_daemon_that_does_not_quit_is_killed_and_a_run_that_fails_stops_it_too(tmp_path, monkeypatch):
    install_fake_mps(tmp_path, monkeypatch, quits="")
    monkeypatch.setattr(sharing, "_STOPPING_S", 0.3)
    pids = []

    def failing():
        with sharing.private_daemon():
            pids.append(daemon_of_children())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert has_ended(pids[0])


def test_a_daemon_without_permission_beside_another_or_without_its_program_is_refused(tmp_path, monkeypatch):
    def refused(reason):
        with pytest.raises(UsageError, match=reason):
            sharing.private_daemon().__enter__()

    install_fake_mps(tmp_path, monkeypatch, start='sys.exit("an instance of this daemon is not allowed here")')
    refused("does not start: an instance of this daemon is not allowed here")
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    refused("names another one; unset that variable")
    monkeypatch.setenv("PATH", "")
    refused("comes with NVIDIA's driver")
