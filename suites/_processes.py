"""Run a case's code in a fresh interpreter, bound its time, and end it with all the processes that it started.

The clock of both sides is CLOCK_MONOTONIC, which all processes of a machine share."""

import contextlib
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from gpubench.api import suite as gb

READY = b"1"
_KIB = 1024  # the unit of VmHWM, proc_pid_status(5)
# time limit after SIGKILL: a driver takes a while to free a process's memory, and may never let the process end
_ENDING_S = 10.0


@dataclass(frozen=True, slots=True)
class Answer:
    """The JSON object that an interpreter wrote, and the seconds from its start until READY; NaN if not awaited."""

    content: Mapping[str, Any]
    seconds: float


class FreshInterpreter:
    """A Python program in a fresh interpreter, which leads its own session and process group.

    `program` is its source text, and `arguments` follow in `sys.argv`."""

    def __init__(
        self,
        program: str,
        arguments: Sequence[str],
        errors: IO[bytes],
        environment: Mapping[str, str],
        descriptors: Sequence[int] = (),
        stdin: IO[bytes] | int = subprocess.DEVNULL,
        stdout: IO[bytes] | None = None,
    ) -> None:
        self._errors = errors
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", program, *arguments],
            stdin=stdin,
            stdout=errors if stdout is None else stdout,
            stderr=errors,
            env=environment,
            start_new_session=True,
            pass_fds=descriptors,
        )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def status(self, limit_s: float) -> int | None:
        """Wait at most `limit_s` seconds for the end; return the exit status, or None if the interpreter still runs.

        The status is -N after signal N."""
        try:
            return self._process.wait(max(limit_s, 0.0))
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """Kill the interpreter's process group, and wait at most 10 s for its end; repeated calls do nothing more.

        An interpreter that a driver holds even after SIGKILL is left behind."""
        with contextlib.suppress(ProcessLookupError):  # no process of the group is left
            os.killpg(self.pid, signal.SIGKILL)
        self.status(_ENDING_S)

    def last_line(self) -> str:
        """Return the last line of the interpreter's standard error, or `it printed nothing`."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"


def answer_of(
    program: str,
    order: object,
    label: str,
    limit_s: float,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    *,
    is_ready_awaited: bool = False,
) -> Answer:
    """Run a program in a fresh interpreter, and return the JSON object that it writes to standard output.

    `program` is its source text; it reads the pickled `order`, its request, from standard input."""
    with tempfile.TemporaryFile() as request, tempfile.TemporaryFile() as reply, tempfile.TemporaryFile() as errors:
        pickle.dump(order, request)
        request.seek(0)
        reader, writer = os.pipe()
        with os.fdopen(reader, "rb", buffering=0) as ready:
            try:
                ready_argument = [str(writer)] if is_ready_awaited else []
                started = time.monotonic()
                interpreter = FreshInterpreter(
                    program,
                    [repr(started), *arguments, *ready_argument],
                    errors,
                    {**os.environ, **(environment or {})},
                    [writer] if is_ready_awaited else (),
                    request,
                    reply,
                )
            finally:
                os.close(writer)
            try:
                seconds = _ready_after(ready, started, limit_s) if is_ready_awaited else float("nan")
                status = interpreter.status(started + limit_s - time.monotonic())
            finally:
                interpreter.end()
        if status is None:
            raise RuntimeError(f"{label} did not end within {limit_s:g} s and was ended")
        if status:
            how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
            raise RuntimeError(f"{label} ended with {how}: {interpreter.last_line()}")
        reply.seek(0)
        return Answer(_answer_or_raise(json.load(reply)), seconds)


def _ready_after(ready: IO[bytes], started: float, limit_s: float) -> float:
    """Return the seconds from `started` until the interpreter writes READY to the pipe whose reading end is `ready`."""
    arrived, _, _ = select.select([ready], [], [], limit_s)
    seconds = time.monotonic() - started
    return seconds if arrived and ready.read(1) == READY else float("nan")


def _answer_or_raise(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the interpreter's JSON object `answer` unchanged if it reports no failure."""
    if "skip" in answer:
        raise gb.Skip(answer["skip"])
    if "missing" in answer:
        raise gb.Unavailable(*answer["missing"])
    if "wrong" in answer:
        raise gb.WrongAnswer(answer["wrong"])
    return answer


def resident_bytes() -> int:
    """Return the peak of this process's resident memory in bytes (VmHWM of /proc/self/status).

    ru_maxrss of getrusage(2) would count the memory of the process that started this one."""
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * _KIB
