"""Sampling round any program: its phases, and what each device did in them, as a run file.

`profile` starts the program as a child, has the sampling process read every device meanwhile, and writes what comes as
it comes. When the program has ended its phases are taken from its marks, or else found in the counters.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpubench import DISTRIBUTION, marks
from gpubench.analysis import phases
from gpubench.analysis.counters import CounterTable
from gpubench.base.errors import FileError, GpubenchError
from gpubench.measuring.recording import Recording, new_manifest
from gpubench.model import Device, Facts, Manifest, Result, Run, Samples, Settings
from gpubench.model.store import read_run
from gpubench.tools.profile import found, inside, nvtx, results, traced, tree
from gpubench.tools.profile.program import Ended, Program, check, not_started, watched

_WRITTEN_EVERY = 8  # readings of the program itself: what was sampled goes to the disk every 2 s


class ProfileError(GpubenchError):
    """What keeps gpubench from profiling, before the program is started: 125, as of `env` and `timeout`."""

    exit_status = 125


@dataclass(frozen=True, slots=True)
class Profile:
    """A program that was profiled: its exit status, the run (None where the file was lost on the way), what to tell."""

    status: int
    run: Run | None
    warnings: tuple[str, ...]


def profile(
    command: Sequence[str],
    facts: Facts,
    devices: Sequence[Device],
    path: Path,
    argv: Sequence[str],
    environment: Mapping[str, str] | None = None,
    trace: bool = False,
) -> Profile:
    """Run a program to its end with its devices sampled into a new run file.

    Raises NotStarted where the program cannot be run and ProfileError where the file cannot be written: in either case
    nothing was started. From then on the program's end is waited for whatever happens to the file or the sampler.
    With `trace` the command is a Python script and its words, run by this Python with its kernels and copies recorded.
    """
    environment = dict(os.environ if environment is None else environment)
    command = traceable(command) if trace else command
    check(command, environment)
    ids = [device.id for device in devices if device.backend != "host"] or ["host"]
    settings = Settings(suites=(phases.SUITE,), devices=tuple(ids), tier="")
    manifest = new_manifest(facts, settings, (results.INFO,), argv)
    try:
        recording = Recording.begin(path, manifest, devices, tree.COUNTERS)
    except GpubenchError as error:
        raise ProfileError(str(error)) from error
    try:
        return _profiled(command, environment, _File(recording, path), manifest)
    finally:
        recording.sampler.kill()


class _File:
    """The run file while the program runs: where the disk takes no more, the program goes on and the file ends."""

    def __init__(self, recording: Recording, path: Path) -> None:
        self.path = path
        self.warnings: list[str] = []
        self._recording = recording

    def write(self, chunks: Sequence[Samples], *, last: bool = False) -> None:
        """Write these chunks and what the sampler has sent; with `last` it stops sampling."""
        with self._kept():
            if not self.warnings:
                (self._recording.stop_sampling if last else self._recording.write_sampled)(chunks)

    def finish(self, found: Sequence[Result]) -> None:
        """Write the results and the end."""
        with self._kept():
            for result in found if not self.warnings else ():
                self._recording.result(result)
            if not self.warnings:
                self._recording.end()

    def abandon(self) -> None:
        """Take the file away again: the program never was."""
        with self._recording:
            pass  # closes the file, which may go only then
        self.path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except FileError as error:
            self.warnings.append(str(error))


def _profiled(command: Sequence[str], environment: dict[str, str], file: _File, manifest: Manifest) -> Profile:
    with tempfile.TemporaryDirectory(prefix="gpubench-") as folder:
        marked = Path(folder, "marks")
        marked.touch()
        told = nvtx.prepared(environment, Path(folder))
        environment = {**environment, marks.VARIABLE: str(marked), inside.VARIABLE: folder, **told.variables}
        try:
            program, ended = _watched(command, environment, file, manifest.started_at)
        except GpubenchError:
            file.abandon()
            raise
        spans = marks.spans(marked.read_text(encoding="utf-8", errors="replace").splitlines(), ended.end)
        trace = traced.read(Path(folder)) if inside.MODULE in command else None
    seen = _results(program, ended, spans, file, manifest)
    if trace:
        seen += traced.results(trace, manifest.settings.devices, manifest.started_at)
        numbered = list(enumerate(seen))
        file.write(traced.events(trace, numbered, manifest.settings.devices, manifest.started_at))
    file.finish(seen)
    untraced = (f"nothing was traced: {trace.reason}",) if trace and trace.reason else ()
    warnings = (*told.warnings, *untraced, *file.warnings)
    return Profile(ended.status, read_run(file.path) if not file.warnings else None, warnings)


def traceable(command: Sequence[str]) -> list[str]:
    """The words that run a script with tracing in this Python; raises ProfileError where that cannot be."""
    if Path(command[0]).name.startswith("python") and len(command) > 1:  # who names a Python means this one, or errs
        place = shutil.which(command[0])
        if place is None or Path(place).absolute().parent != Path(sys.executable).parent:
            raise ProfileError(f"--trace runs a script in gpubench's own Python, {sys.executable}, not in {command[0]}")
        command = command[1:]
    if not command[0].endswith(".py"):
        raise ProfileError(f"--trace takes a Python script and its words, not {command[0]}")
    if not Path(command[0]).is_file():
        raise not_started(command[0], FileNotFoundError(errno.ENOENT, "no such script"))
    if importlib.util.find_spec("cupti") is None:
        raise ProfileError(f"--trace needs cupti-python; pip install '{DISTRIBUTION}[counters]'")
    return [sys.executable, "-P", "-c", inside.MODULE, *command]


def _watched(command: Sequence[str], environment: Mapping[str, str], file: _File, zero: float) -> tuple[Program, Ended]:
    with watched() as mask:
        program = Program(command, environment, mask)
        own = tree.Tree(program.pid, zero)
        own.read()
        readings = itertools.count(1)
        while (ended := program.ended(tree.PERIOD_S)) is None:
            own.read()
            file.write(own.take() if next(readings) % _WRITTEN_EVERY == 0 else [])
    file.write(own.take(), last=True)
    return program, ended


def _results(
    program: Program, ended: Ended, spans: Sequence[marks.Span], file: _File, manifest: Manifest
) -> list[Result]:
    """The program and its phases: those it marked, else those that signals marked, else those found."""
    devices, zero = manifest.settings.devices, manifest.started_at
    whole = results.program(ended, devices, zero)
    if spans:
        return [whole, *results.marked(spans, devices, zero)]
    if program.marks:
        edges = [ended.begin, *program.marks, ended.end]
        return [whole, *results.consecutive(phases.PART, edges, devices, zero)]
    if file.warnings:
        return [whole]
    begin, end = whole.window
    cuts = found.changes(CounterTable.of_run(read_run(file.path)).tracks, begin, end)
    edges = [ended.begin, *(zero + cut for cut in cuts), ended.end]
    return [whole, *(results.consecutive(phases.FOUND, edges, devices, zero) if cuts else [])]
