"""Programs of ours in fresh interpreters that answer one message at a time, each within a time limit."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping
from multiprocessing.connection import Connection, Pipe
from typing import Any

from gpubench.api.libraries import DriverCallError
from gpubench.api.suite import Skip

_CLOSING_S = 2.0
_ENDING_S = 10.0  # after SIGKILL: a driver takes a while to free a process's memory


class ChildEndedError(RuntimeError):
    """A child that ended, or that was ended because it did not answer in time."""


class BoundedChild:
    """A child process that serves messages; `name` is what errors call it.

    `program` is the text of a Python program that calls `serve`. Variables in `without` are taken out of its
    environment. The child is the leader of a session of its own, so that `end` ends everything that it started.
    """

    def __init__(self, name: str, program: str, without: Collection[str] = ()) -> None:
        self.name = name
        self._ours, theirs = Pipe()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes it
        self._last_line = ""
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", program, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={key: value for key, value in os.environ.items() if key not in without},
            )

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def ask(self, limit_s: float, verb: str, *args: object) -> Any:
        """Send a message and return its answer; raises what `answer` raises."""
        self.tell(verb, *args)
        return self.answer(limit_s, verb)

    def tell(self, verb: str, *args: object) -> None:
        """Send a message whose answer is fetched later."""
        try:
            self._ours.send((verb, args))
        except OSError as error:
            raise ChildEndedError(self._obituary()) from error

    def answer(self, limit_s: float, verb: str) -> Any:
        """Return the answer to the message `verb` that was sent before.

        Raises Skip and DriverCallError as the child did, and ChildEndedError if it has ended or does not answer
        within `limit_s`: then it is ended here.
        """
        try:
            if not self._ours.poll(limit_s):
                self.end()
                raise ChildEndedError(f"{self.name} did not answer {verb!r} within {limit_s:g} s and was ended")
            kind, value = self._ours.recv()
        except (EOFError, ConnectionError) as error:
            raise ChildEndedError(self._obituary()) from error
        if kind == "skip":
            raise Skip(value)
        if kind == "refusal":
            raise DriverCallError(value)
        return value

    def end(self) -> None:
        """Kill the child and its process group, and wait until it is gone; repeated calls do nothing."""
        if self._errors.closed:
            return
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hold it for ever: it is left behind then
            self._process.wait(_ENDING_S)
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        self._last_line = lines[-1] if lines else "it printed nothing"
        self._errors.close()
        self._ours.close()

    def _obituary(self) -> str:
        """End the child, and return how it ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):  # it has closed its end: it is about to end by itself
            self._process.wait(_CLOSING_S)
        self.end()
        status = self._process.returncode
        if status is None:
            return f"{self.name} does not end, not even by SIGKILL: the driver holds it"
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
        return f"{self.name} {how}; last line: {self._last_line}"


def serve(verbs: Mapping[str, Callable[..., object]]) -> None:
    """Answer messages until the parent closes its end; the program's argument is the descriptor of the connection.

    What a verb raises beside Skip and DriverCallError ends the process, whose last line is then in the error.
    """
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    connection: Connection = Connection(descriptor)
    while True:
        try:
            verb, args = connection.recv()
        except EOFError:
            return
        try:
            answer = ("answer", verbs[verb](*args))
        except Skip as reason:
            answer = ("skip", str(reason))
        except DriverCallError as error:
            answer = ("refusal", str(error))
        connection.send(answer)
