"""Two builds measured in turn: each a command of another environment that runs gpubench, in fresh processes."""

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
_LAST_WORDS = 4  # lines of a build's own message that are passed on
_GRACE_S = 30.0  # a run that is interrupted ends its workers and its file
_KEPT_STATUSES = (0, 3)  # done; done, and a case failed, which is in the file


@dataclass(frozen=True, slots=True)
class Build:
    """A command that is gpubench in some environment, and the variables that it is called with."""

    name: str
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, name: str, text: str) -> Build:
        """A build from words as a shell reads them: `LD_LIBRARY_PATH=/opt/cublas/lib /opt/venv/bin/gpubench`."""
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise UsageError(f"--{name} {text!r}: {error}") from error
        count = next((index for index, word in enumerate(words) if not _VARIABLE.match(word)), len(words))
        if not words[count:]:
            raise UsageError(f"--{name} {text!r}: there is no command; name a gpubench, e.g. /opt/venv/bin/gpubench")
        variables = (word.partition("=") for word in words[:count])
        return cls(name, tuple(words[count:]), tuple((key, value) for key, _, value in variables))


@dataclass(frozen=True, slots=True)
class Pair:
    """Two builds, the words of the run that both are asked for, its filters, and where their run files go."""

    builds: tuple[Build, Build]
    words: tuple[str, ...]
    filters: tuple[str, ...]
    folder: Path
    tell: Callable[[str], None]

    def measure(self, first: int, count: int, filters: Sequence[str] = ()) -> tuple[list[Path], list[Path]]:
        """`count` turns, numbered from `first`: A B, B A, A B, …; the run files of A and of B.

        Which of the two begins takes turns, so that neither has the warmer machine. `filters` stand in the place
        of the pair's own. Raises what the run of a build ended with.
        """
        files: dict[str, list[Path]] = {build.name: [] for build in self.builds}
        for turn in range(first, first + count):
            for build in self.builds if turn % 2 else self.builds[::-1]:
                self.tell(f"{build.name}, process {turn} of {first + count - 1}")
                files[build.name].append(self._measure(build, turn, filters or self.filters))
        before, after = (files[build.name] for build in self.builds)
        return before, after

    def _measure(self, build: Build, turn: int, filters: Sequence[str]) -> Path:
        file = self.folder / f"{build.name}-{turn:03d}.jsonl"
        filtered = [word for text in filters for word in ("--filter", text)]
        command = [*build.command, "run", *self.words, *filtered, "--replicates", "1", "--out", str(file)]
        status, words = _run(build, command)
        if status not in _KEPT_STATUSES:
            raise _error(build, status, words)
        if not file.exists():
            raise FileError(f"--{build.name}: {shlex.join(command)} wrote no {file}; is it gpubench?")
        return file


def _run(build: Build, command: Sequence[str]) -> tuple[int, str]:
    """The command's exit status and the end of what it said; it is ended with us."""
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
        _, said = child.communicate()
    except BaseException:  # whatever ends us ends the build too, and is raised again
        child.terminate()
        try:
            child.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            child.kill()
        raise
    return child.returncode, " ".join(said.split("\n")[-_LAST_WORDS - 1 :]).strip()


def _error(build: Build, status: int, words: str) -> GpubenchError:
    """What a build ended with, as our own end: a run that was ended by a signal is interrupted."""
    status = 128 - status if status < 0 else status
    message = f"--{build.name} ended with status {status}: {words or 'it said nothing'}"
    if status in (130, 143):
        return Interrupted(message, status)
    error = GpubenchError(message)
    error.exit_status = status if status in (2, 5, 6, 70) else 2
    return error
