"""Start child processes, in fresh interpreters, that answer one message at a time within a time limit."""

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping
from multiprocessing.connection import Connection, Pipe
from typing import Any

from gpubench.api import libraries as lib
from gpubench.api import suite as gb

from .._processes import FreshInterpreter

_CLOSING_S = 2.0


class ChildEndedError(RuntimeError):
    """A child process ended, or was killed because it did not answer in time."""


class BoundedChild:
    """A child process that serves messages; error messages call it `name`.

    `program` is the text of a Python program that calls `serve`."""

    def __init__(self, name: str, program: str, without: Collection[str] = ()) -> None:
        self.name = name
        self._connection, child_end = Pipe()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes it
        self._last_line = ""
        environment = {key: value for key, value in os.environ.items() if key not in without}
        with child_end:
            descriptor = child_end.fileno()
            self._interpreter = FreshInterpreter(program, [str(descriptor)], self._errors, environment, [descriptor])

    @property
    def pid(self) -> int:
        """The process id."""
        return self._interpreter.pid

    def ask(self, limit_s: float, verb: str, *args: object) -> Any:
        """Send the message `verb` with `args`, and return the answer, waiting up to `limit_s` seconds.

        Raises ChildEndedError, Skip and DriverCallError as `answer` does."""
        self.tell(verb, *args)
        return self.answer(limit_s, verb)

    def tell(self, verb: str, *args: object) -> None:
        """Send the message `verb` with `args` without waiting; `answer` fetches the answer later.

        Raises ChildEndedError if the child has ended."""
        try:
            self._connection.send((verb, args))
        except OSError as error:
            raise ChildEndedError(self._ending_message()) from error

    def answer(self, limit_s: float, verb: str) -> Any:
        """Return the answer to the message `verb`, which `tell` has sent.

        Raises Skip and DriverCallError if the child raised them, and ChildEndedError if the child has ended."""
        try:
            if not self._connection.poll(limit_s):
                self.end()
                raise ChildEndedError(f"{self.name} did not answer {verb!r} within {limit_s:g} s and was ended")
            kind, value = self._connection.recv()
        except (EOFError, ConnectionError) as error:
            raise ChildEndedError(self._ending_message()) from error
        if kind == "skip":
            raise gb.Skip(value)
        if kind == "refusal":
            raise lib.DriverCallError(value)
        return value

    def end(self) -> None:
        """Kill the child and its process group, and wait at most 10 s until it is gone; repeated calls do nothing."""
        if self._errors.closed:
            return
        self._interpreter.end()
        self._last_line = self._interpreter.last_line()
        self._errors.close()
        self._connection.close()

    def _ending_message(self) -> str:
        """End the child, and return how it ended, as a sentence for an error message."""
        # The interpreter has closed the connection, so it is about to end by itself.
        self._interpreter.status(_CLOSING_S)
        self.end()
        status = self._interpreter.status(0.0)
        if status is None:
            return f"{self.name} does not end, not even by SIGKILL: the driver holds it"
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
        return f"{self.name} {how}; last line: {self._last_line}"


def serve(verbs: Mapping[str, Callable[..., object]]) -> None:
    """Answer messages until the parent closes the connection, whose file descriptor is the program's first argument.

    `verbs` maps the messages' names to functions, which get a message's arguments and return the answer."""
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
        except gb.Skip as reason:
            answer = ("skip", str(reason))
        except lib.DriverCallError as error:
            answer = ("refusal", str(error))
        connection.send(answer)
