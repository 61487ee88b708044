"""Child processes: a pipe to talk, drained output, a process group of their own, no orphans."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_TAIL = 8192  # bytes of a child's output that are kept for its obituary
_GRACE_S = 2.0


class Child:
    """A Python that runs `main` of a module, with a two-way pipe; killing it kills its process group.

    Start it from the main thread: the kernel ends a child when the thread that started it ends.
    """

    def __init__(self, module: str, environment: Mapping[str, str] | None = None) -> None:
        ours, theirs = socket.socketpair()
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        self.output = reading
        self.connection: Connection[Any, Any] = Connection(ours.detach())
        self._tail = b""
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", f"from {module} import main; main()", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        os.close(writing)

    def drain(self) -> None:
        """Read what the child has printed, so that a full pipe never holds it up; close it at its end."""
        with contextlib.suppress(BlockingIOError):
            while self.output >= 0:
                chunk = os.read(self.output, 65536)
                self._tail = (self._tail + chunk)[-_TAIL:]
                if not chunk:  # closed, which is not yet the end of the process: it may have silenced itself
                    os.close(self.output)
                    self.output = -1

    @property
    def last_words(self) -> str:
        """The last line that the child printed, or nothing; of a crash that faulthandler saw, where it was."""
        self.drain()
        lines = self._tail.decode(errors="replace").strip().splitlines()
        crashed = itertools.dropwhile(lambda line: not line.startswith("Current thread"), lines)
        place = next((line for line in crashed if line.lstrip().startswith("File ")), "")
        return (place or (lines[-1] if lines else "")).strip()

    def obituary(self) -> str:
        """How the child ended: `killed by SIGKILL`, `exit status 3`; and its last line."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_GRACE_S)
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_GRACE_S)
        status = self.process.poll()
        if status is None:
            return "it does not end, not even by SIGKILL: the driver holds it"
        how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        return f"{how}; last line: {self.last_words}" if self.last_words else how

    def kill(self) -> None:
        """End the whole process group now and reap it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hold it for ever: it is left behind then
            self.process.wait(_GRACE_S)
        self._close()

    def stop(self) -> None:
        """Ask the child to end by closing the pipe; kill what does not."""
        self.connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_GRACE_S)
        self.kill()

    def _close(self) -> None:
        self.connection.close()
        self.drain()
        if self.output >= 0:
            os.close(self.output)
            self.output = -1


def to_parent(argument: str) -> Connection[Any, Any]:
    """In a child: the pipe to the parent; from here on this process ends when its parent does."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return Connection(int(argument))
