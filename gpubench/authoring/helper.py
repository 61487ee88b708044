"""Run a function of a case in a supervised child process: a fresh interpreter that answers within a time limit.

Questions and answers are pickles of one machine, each a line of base64, which programs such as mpirun pass on."""

from __future__ import annotations

import base64
import contextlib
import importlib
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpubench import plugins
from gpubench.base.errors import GpubenchError, Skip, SuiteError, Untrustworthy, WrongAnswer
from gpubench.base.streams import describe_status, last_line

_ENDING_S = 10.0  # after SIGKILL a driver takes a while to free a process's memory, and may never let it end
_CLOSED_S = 2.0  # an interpreter that has closed its standard output is about to end by itself
_MOST_BYTES = 2**16  # a pipe takes this much at once, so that a question never waits for the helper
_KIB = 1024  # the unit of VmHWM, proc_pid_status(5)


class HelperEndedError(RuntimeError):
    """A helper ended, or was ended because it did not answer in time; the message has its last line of output."""


class Helper:
    """A child process that answers questions by one function, or by the methods of one object; see `Bench.helper`.

    It leads its own session and process group, which end with `end`, and at the latest with the case. `started_s` is
    the moment of its start in seconds of `time.monotonic`."""

    def __init__(
        self,
        function: Callable[..., object],
        name: str,
        environment: Mapping[str, str | None],
        prelude: str,
        launcher: Sequence[str],
    ) -> None:
        """Start the process; the arguments are described at `Bench.helper`."""
        module, label = function.__module__, function.__qualname__
        if not label.isidentifier() or module == "__main__":
            raise SuiteError(f"a helper needs a function or class at the top level of an imported module, not {label}")
        folder = plugins.folder_of_files(module)
        program = f"from {__name__} import serve; serve({module!r}, {label!r}, {folder!r})"
        variables = {**os.environ, **environment}
        self.name = name
        self._received, self._ending = b"", ""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes it
        self.started_s = time.monotonic()
        self._process = subprocess.Popen(
            [*(launcher or (sys.executable, "-P")), "-c", f"{prelude}; {program}" if prelude else program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={variable: value for variable, value in variables.items() if value is not None},
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._questions, self._answers = self._process.stdin, self._process.stdout

    def __enter__(self) -> Helper:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def ask(self, limit_s: float, *args: object) -> Any:
        """Call the function with `args` in the helper, and return its result.

        If the helper serves a class, the first of `args` is the name of a method. It raises the same errors as
        `answer`."""
        self.tell(*args)
        return self.answer(limit_s)

    def tell(self, *args: object) -> None:
        """Send a question without waiting; `answer` fetches the answer later.

        Raises HelperEndedError if the helper has ended, and SuiteError if `args` take more than 48 KiB as a pickle."""
        question = base64.b64encode(pickle.dumps(args)) + b"\n"
        if len(question) > _MOST_BYTES:
            raise SuiteError(f"a question to {self.name} takes {len(question)} bytes, more than {_MOST_BYTES}")
        try:
            self._questions.write(question)
            self._questions.flush()
        except (OSError, ValueError) as error:  # it is closed at its other end, or was closed by `end`
            raise HelperEndedError(self._describe_end()) from error

    def answer(self, limit_s: float) -> Any:
        """Return the answer to the earliest question without one; end the helper if it takes more than `limit_s`.

        Raises HelperEndedError if the helper has ended or was ended, and an error of gpubench, such as Skip,
        WrongAnswer, Unavailable or DriverCallError, if the function raised it. The helper then answers further
        questions; any other error ends it."""
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._received:
            if not self.has_answer(deadline - time.monotonic()):
                self.end()
                raise HelperEndedError(f"{self.name} did not answer within {limit_s:g} s and was ended")
            part = os.read(self._answers.fileno(), _MOST_BYTES)
            if not part:
                raise HelperEndedError(self._describe_end())
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        error_type, value, fields = pickle.loads(base64.b64decode(line))  # noqa: S301 - of the case's own code
        if error_type is None:
            return value
        error = error_type.__new__(error_type, *value)
        error.__dict__.update(fields)
        raise error

    def has_answer(self, limit_s: float = 0.0) -> bool:
        """Wait at most `limit_s` seconds for an answer, or for the helper's end; return whether there is one."""
        if self._answers.closed:
            raise HelperEndedError(self._ending)
        return bool(self._received) or bool(select.select([self._answers], [], [], max(limit_s, 0.0))[0])

    def resident_bytes(self) -> int:
        """Return the peak of the resident memory of the helper, which must still run, in bytes (VmHWM)."""
        lines = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * _KIB

    def end(self, grace_s: float = 0.0) -> None:
        """Give the helper `grace_s` seconds to end by itself, kill its process group, and wait for its end.

        Repeated calls do nothing more. A helper that a driver holds for 10 s after SIGKILL is left behind."""
        if self._errors.closed:
            return
        with contextlib.suppress(OSError):
            self._questions.close()
        self._ends_within(grace_s)
        with contextlib.suppress(ProcessLookupError):  # no process of the group is left
            os.killpg(self.pid, signal.SIGKILL)
        self._ending = f"{self.name} does not end, not even by SIGKILL: the driver holds it"
        if self._ends_within(_ENDING_S):
            self._errors.seek(0)
            line = last_line(self._errors.read()) or "it printed nothing"
            self._ending = f"{self.name} ended: {describe_status(self._process.returncode)}; last line: {line}"
        self._answers.close()
        self._errors.close()

    def _ends_within(self, seconds: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.poll() is not None

    def _describe_end(self) -> str:
        """End the helper, which has closed its standard output; return how it ended, for an error message."""
        self.end(_CLOSED_S)
        return self._ending


def serve(module: str, label: str, folder: str) -> None:
    """Answer the questions of `Helper.ask` until standard input ends: the program of a helper.

    `label` names a function or class of `module`; `folder` is the folder of a suite that is a file, else empty."""
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)  # a program that the function starts reads no question
    os.dup2(2, 1)  # what libraries print does not mix with the answers
    if folder:
        plugins.make_package(Path(folder))
    function = getattr(importlib.import_module(module), label)
    served = function() if isinstance(function, type) else None
    for question in questions:
        args = pickle.loads(base64.b64decode(question))  # noqa: S301 - of the process that started this one
        try:
            value = function(*args) if served is None else getattr(served, args[0])(*args[1:])
            answer: tuple[type[Exception] | None, object, dict[str, object]] = (None, value, {})
        except (GpubenchError, Skip, WrongAnswer, Untrustworthy, RuntimeError) as error:
            if not type(error).__module__.startswith("gpubench."):
                raise
            answer = (type(error), error.args, error.__dict__)
        answers.write(base64.b64encode(pickle.dumps(answer)) + b"\n")
        answers.flush()
