"""Run a private control daemon of NVIDIA's Multi-Process Service during one run.

Processes that start meanwhile share their GPUs through it: their kernels run at the same time instead of in turns."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gpubench.base.errors import UsageError

_PROGRAM = "nvidia-cuda-mps-control"
_PID_FILE = "nvidia-cuda-mps-control.pid"
_PIPES, _LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
_STARTING_S, _STOPPING_S = 10.0, 10.0
_LOOK_S = 0.02


@contextlib.contextmanager
def private_daemon() -> Iterator[None]:
    """Run an MPS control daemon during the context; all child processes of this process that start meanwhile use it.

    The daemon uses a temporary folder, which variables of this process's environment name."""
    program = shutil.which(_PROGRAM)
    if program is None:
        raise UsageError(f"--mps needs {_PROGRAM}, which comes with NVIDIA's driver")
    if _PIPES in os.environ:
        raise UsageError(f"--mps starts a daemon of its own, but {_PIPES} names another one; unset that variable")
    with tempfile.TemporaryDirectory(prefix="gpubench-mps-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        os.environ |= {_PIPES: name, _LOGS: name}
        log = folder / "output"
        try:
            with log.open("wb") as output:
                daemon = subprocess.Popen([program, "-f"], stdout=output, stderr=output, start_new_session=True)
            try:
                _wait_until_ready(daemon, folder, log)
                yield
            finally:
                _stop(program, daemon)
        finally:
            del os.environ[_PIPES], os.environ[_LOGS]


def _wait_until_ready(daemon: subprocess.Popen[bytes], folder: Path, log: Path) -> None:
    """Wait up to 10 s until the daemon has written its process id into `folder`."""
    deadline = time.monotonic() + _STARTING_S
    while not (folder / _PID_FILE).exists():
        if daemon.poll() is not None or time.monotonic() > deadline:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise UsageError(f"{_PROGRAM} does not start: {lines[-1] if lines else 'it printed nothing'}")
        time.sleep(_LOOK_S)


def _stop(program: str, daemon: subprocess.Popen[bytes]) -> None:
    """Ask the daemon to quit, which ends its servers too, and wait up to 10 s; then kill its process group."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        if daemon.poll() is None:
            subprocess.run([program], input=b"quit\n", capture_output=True, timeout=_STOPPING_S, check=False)
        daemon.wait(_STOPPING_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(daemon.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        daemon.wait(_STOPPING_S)
