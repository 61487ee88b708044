"""Start child processes with a channel to talk, drained output, and no orphans."""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Generic, TypeVar

from gpubench.base.endings import describe_status, last_line
from gpubench.measuring import keeper
from gpubench.measuring.channel import ToChild, ToParent

M = TypeVar("M")
_TAIL = 8192  # bytes of a child's output that are kept to explain its end
_CHUNK_BYTES, _CHUNKS = 65536, 16  # bytes per read, and reads at a time: endless output must not delay the parent
_GRACE_S = 3.0  # the keeper needs over a second for a process that a driver releases slowly


class Child(Generic[M]):
    """A Python process that runs `main` of a module under a keeper; killing it ends everything that it ever started.

    `channel` is the parent's end of the channel, and `output` the descriptor from which `drain` reads, -1 once it is
    closed."""

    def __init__(self, module: str, classes: tuple[type[M], ...], environment: Mapping[str, str] | None = None) -> None:
        """Start a process that runs `main` of `module`, with the descriptor of its channel as `sys.argv[1]`."""
        own_end, child_end = socket.socketpair()
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        self.output = reading
        self.channel = ToChild(own_end.detach(), classes)
        self._tail = b""
        self._mark = secrets.token_hex(8)
        program = f"from gpubench.measuring.keeper import keep; keep({child_end.fileno()})\n"
        program += f"from {module} import main; main()"
        with child_end:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", program, str(child_end.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                pass_fds=(child_end.fileno(),),
                start_new_session=True,
                env={**os.environ, **(environment or {}), keeper.RUNNER: str(os.getpid()), keeper.CHILD: self._mark},
            )
        os.close(writing)

    def drain(self) -> None:
        """Read without waiting what the child has printed, so that a full pipe never blocks it.

        The pipe is closed at its end."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(_CHUNKS):
                if self.output < 0:
                    return
                chunk = os.read(self.output, _CHUNK_BYTES)
                self._tail = (self._tail + chunk)[-_TAIL:]
                if not chunk:  # the process has closed its output, and may still run
                    os.close(self.output)
                    self.output = -1

    @property
    def last_line(self) -> str:
        """Return the last line that the child printed on standard output or error, or an empty text."""
        self.drain()
        return last_line(self._tail)

    def describe_end(self) -> str:
        """Wait for the child's end; return how it ended (`killed by SIGKILL`, `exit status 3`), with its last line.

        A child that still runs after 3 s is ended, and the text then says that it had closed its channel."""
        still_runs = not self._ends_within(_GRACE_S)
        if still_runs:
            self._end()
        status = self.process.poll()
        if status is None:
            return "it does not end, not even by SIGKILL: the driver holds it"
        outcome = "it closed its channel but did not end" if still_runs else describe_status(status)
        return f"{outcome}; last line: {self.last_line}" if self.last_line else outcome

    def kill(self) -> None:
        """End the child and everything that it started, reap it, and close its channel and its output."""
        self._end()
        self.channel.close()
        self.drain()
        if self.output >= 0:
            os.close(self.output)
            self.output = -1

    def stop(self) -> None:
        """Ask the child to end by closing the channel, and kill it if it does not."""
        self.channel.close()
        self._ends_within(_GRACE_S)
        self.kill()

    def _end(self) -> None:
        """End the keeper and all processes below it; if the keeper was killed or does not react, end them from here."""
        if self.process.poll() is None:
            self.process.terminate()
        elif self.process.returncode == -signal.SIGKILL:
            keeper.end_marked(self._mark)
            return
        if self._ends_within(_GRACE_S):
            return
        keeper.end_descendants(self.process.pid)
        self.process.kill()
        self._ends_within(_GRACE_S)  # if a driver holds it for ever, it is left behind

    def _ends_within(self, seconds: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return self.process.poll() is not None


def to_parent(argument: str) -> ToParent:
    """Return the child's channel to its parent; `argument` is the number of its descriptor, from the command line.

    Programs that the child starts then do not inherit the channel, and SIGINT no longer ends the child."""
    descriptor = int(argument)
    os.set_inheritable(descriptor, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return ToParent(descriptor)
