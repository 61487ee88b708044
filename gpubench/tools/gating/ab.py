"""Measure two builds in turn: each build is a command that runs gpubench in another environment."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpubench.base.errors import FileError, GpubenchError, Interrupted, UsageError

_VARIABLE = re.compile(r"[A-Za-z_]\w*=")
_LAST_LINES = 4  # lines of a build's standard error that are quoted
_GRACE_S = 30.0  # time for an interrupted run to end its workers and its file
_COMPLETED_STATUSES = (0, 3)  # every case was measured; a case failed, which is in the file


@dataclass(frozen=True, slots=True)
class Build:
    """A command that runs a build of gpubench, and variables for it; `name` is its option, a or b."""

    name: str
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, name: str, text: str) -> Build:
        """Return the build of a shell command, whose leading NAME=VALUE words become variables."""
        try:
            arguments = shlex.split(text)
        except ValueError as error:
            raise UsageError(f"--{name} {text!r}: {error}") from error
        count = next(
            (index for index, argument in enumerate(arguments) if not _VARIABLE.match(argument)), len(arguments)
        )
        if not arguments[count:]:
            raise UsageError(f"--{name} {text!r}: there is no command; name a gpubench, e.g. /opt/venv/bin/gpubench")
        variables = (argument.partition("=") for argument in arguments[:count])
        return cls(name, tuple(arguments[count:]), tuple((key, value) for key, _, value in variables))


@dataclass(frozen=True, slots=True)
class BuildPair:
    """Two builds to measure in turn, with the arguments (without `--filter`) and filters of `gpubench run`."""

    builds: tuple[Build, Build]
    arguments: tuple[str, ...]
    filters: tuple[str, ...]
    folder: Path
    tell: Callable[[str], None]

    def measure(self, first: int, count: int, filters: Sequence[str] = ()) -> tuple[list[Path], list[Path]]:
        """Measure `count` processes of each build in alternating order; return the run files of A and of B."""
        files: dict[str, list[Path]] = {build.name: [] for build in self.builds}
        for turn in range(first, first + count):
            for build in self.builds if turn % 2 else self.builds[::-1]:
                self.tell(f"{build.name}, process {turn} of {first + count - 1}")
                files[build.name].append(self._measure_build(build, turn, filters or self.filters))
        before, after = (files[build.name] for build in self.builds)
        return before, after

    def _measure_build(self, build: Build, turn: int, filters: Sequence[str]) -> Path:
        """Measure process number `turn` of a build, and return its run file; raises as `measure` does."""
        file = self.folder / f"{build.name}-{turn:03d}.jsonl"
        filtered = [argument for text in filters for argument in ("--filter", text)]
        command = [*build.command, "run", *self.arguments, *filtered, "--replicates", "1", "--out", str(file)]
        status, last_lines = _run(build, command)
        if status not in _COMPLETED_STATUSES:
            raise _build_error(build, status, last_lines)
        if not file.exists():
            raise FileError(f"--{build.name}: {shlex.join(command)} wrote no {file}; name a gpubench program")
        return file


def _run(build: Build, command: Sequence[str]) -> tuple[int, str]:
    """Run a command to its end, and return its exit status (−n for signal n) and its last lines of standard error."""
    try:
        child = subprocess.Popen(
            command,
            env=os.environ | dict(build.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise UsageError(f"--{build.name}: {command[0]}: {error.strerror}") from error
    try:
        _, error_output = child.communicate()
    except BaseException:  # whatever ends this process ends the build too
        child.terminate()
        try:
            child.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            child.kill()
        raise
    return child.returncode, " ".join(error_output.split("\n")[-_LAST_LINES - 1 :]).strip()


def _build_error(build: Build, status: int, last_lines: str) -> GpubenchError:
    """Return the error for a build's exit status (−n for signal n), with `last_lines` in its message."""
    status = 128 - status if status < 0 else status
    message = f"--{build.name} ended with status {status}: {last_lines or 'it printed no message'}"
    if status in (130, 143):
        return Interrupted(message, status)
    error = GpubenchError(message)
    error.exit_status = status if status in (2, 5, 6, 70) else 2
    return error
