"""Profile any program: sample the devices while it runs, find its phases, and write a run file.

`profile` starts the program as a child process. The sampling process reads every device meanwhile, and each sample is
written as soon as it arrives. After the end the phases come from the program's marks, or are found in the counters."""

import contextlib
import errno
import importlib.util
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from gpubench import marks
from gpubench.analysis import phases
from gpubench.analysis.counters import CounterTable
from gpubench.base import installation
from gpubench.base.errors import FileError, GpubenchError
from gpubench.measuring.recording import Recording, new_manifest
from gpubench.model import Device, Facts, Manifest, Result, Run, Samples, Settings
from gpubench.model.store import read_run
from gpubench.tools.profile import detection, inside, results, traced
from gpubench.tools.profile.program import Program, ProgramEnd, cannot_run, check_executable, watching_signals

_NVTX = "NVTX_INJECTION64_PATH"  # the library that NVTX 2 and 3 load at the program's first call
_COMPILE_S = 20.0
_WRITTEN_EVERY = 8  # readings of the process tree, one per 0.25 s: samples are written to the disk every 2 s


class ProfileError(GpubenchError):
    """gpubench failed before the program started: exit status 125, as with `env` and `timeout`."""

    exit_status = 125


@dataclass(frozen=True, slots=True)
class ProgramProfile:
    """A profiled program: its exit status as a shell gives it, its run, and warnings.

    `run` is None if the run file is incomplete; the warnings then give the reason."""

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
) -> ProgramProfile:
    """Run a program to its end, sample its devices into a new run file, and return its exit status and its run."""
    environment = dict(os.environ if environment is None else environment)
    command = tracing_command(command) if trace else command
    check_executable(command, environment)
    ids = [device.id for device in devices if device.backend != "host"] or ["host"]
    settings = Settings(suites=(phases.SUITE,), devices=tuple(ids), tier="")
    manifest = new_manifest(facts, settings, (results.INFO,), argv)
    try:
        recording = Recording.begin(path, manifest, devices, traced.COUNTERS)
    except GpubenchError as error:
        raise ProfileError(str(error)) from error
    try:
        return _run_and_record(command, environment, _ProfileFile(recording, path), manifest)
    finally:
        recording.sampler.kill()


class _ProfileFile:
    """The run file while the program runs; after an error, such as a full disk, nothing is written any more."""

    def __init__(self, recording: Recording, path: Path) -> None:
        self.path = path
        self.warnings: list[str] = []
        self._recording = recording

    def write(self, chunks: Sequence[Samples], *, is_last: bool = False) -> None:
        """Write these samples and all that the sampling process has sent; with `is_last`, stop sampling too."""
        with self._collecting_errors():
            if not self.warnings:
                (self._recording.stop_sampling if is_last else self._recording.write_sampled)(chunks)

    def finish(self, phase_results: Sequence[Result]) -> None:
        with self._collecting_errors():
            for result in phase_results if not self.warnings else ():
                self._recording.result(result)
            if not self.warnings:
                self._recording.end()

    def abandon(self) -> None:
        with self._recording:
            pass  # leaving the context closes the file, which can be removed only then
        self.path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _collecting_errors(self) -> Iterator[None]:
        """Turn a FileError in the context into a warning; after it nothing more is written."""
        try:
            yield
        except FileError as error:
            self.warnings.append(str(error))


def _run_and_record(
    command: Sequence[str], environment: dict[str, str], file: _ProfileFile, manifest: Manifest
) -> ProgramProfile:
    """Run the program while the devices are sampled, write its phases into the file, and return its profile."""
    with tempfile.TemporaryDirectory(prefix="gpubench-") as folder:
        marked = Path(folder, "marks")
        marked.touch()
        library, problem = nvtx_library(environment, Path(folder))
        environment = {**environment, marks.VARIABLE: str(marked), inside.VARIABLE: folder}
        environment |= {_NVTX: str(library)} if library else {}
        try:
            program, ended = _run_and_sample(command, environment, file, manifest.started_at)
        except GpubenchError:
            file.abandon()
            raise
        spans = marks.spans(marked.read_text(encoding="utf-8", errors="replace").splitlines(), ended.end)
        trace = traced.read(Path(folder)) if inside.MODULE in command else None
    program_results = _results(program, ended, spans, file, manifest)
    if trace:
        program_results += traced.results(trace, manifest.settings.devices, manifest.started_at)
        numbered = list(enumerate(program_results))
        file.write(traced.events(trace, numbered, manifest.settings.devices, manifest.started_at))
    file.finish(program_results)
    untraced = (f"nothing was traced: {trace.reason}",) if trace and trace.reason else ()
    unmarked = (f"NVTX ranges are not recorded: {problem}",) if problem else ()
    warnings = (*unmarked, *untraced, *file.warnings)
    return ProgramProfile(ended.status, read_run(file.path) if not file.warnings else None, warnings)


def nvtx_library(environment: Mapping[str, str], folder: Path) -> tuple[Path | None, str]:
    """Compile the library that records NVTX ranges into `folder`; return its path, or None and the reason."""
    if environment.get(_NVTX):
        return None, f"{_NVTX} names another tool; unset it"
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None, "install a C compiler (cc) to record them"
    source, library = folder / "nvtx.c", folder / "libgpubench-nvtx.so"
    source.write_bytes(files("gpubench.tools.profile").joinpath("nvtx.c").read_bytes())
    arguments = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source)]
    try:
        compilation = subprocess.run(
            arguments, capture_output=True, encoding="utf-8", errors="replace", timeout=_COMPILE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"{compiler} failed ({error})"
    if compilation.returncode:
        reason = (compilation.stderr.strip().splitlines() or [f"status {compilation.returncode}"])[-1]
        return None, f"{compiler} failed ({reason})"
    return library, ""


def tracing_command(command: Sequence[str]) -> list[str]:
    """Return the command that runs a script, or this interpreter with a script, with tracing in this interpreter."""
    if Path(command[0]).name.startswith("python") and len(command) > 1:
        python = shutil.which(command[0])
        if python is None or Path(python).absolute().parent != Path(sys.executable).parent:
            raise ProfileError(f"--trace runs a script in gpubench's own Python, {sys.executable}, not in {command[0]}")
        command = command[1:]
    if not command[0].endswith(".py"):
        raise ProfileError(f"--trace takes a Python script and its arguments, not {command[0]}")
    if not os.path.isfile(command[0]):  # noqa: PTH113 - false for a name that is too long
        raise cannot_run(command[0], FileNotFoundError(errno.ENOENT, "no such script"))
    if importlib.util.find_spec("cupti") is None:
        raise ProfileError(f"--trace needs cupti-python; run {installation.with_extra('counters')}")
    return [sys.executable, "-P", "-c", inside.MODULE, *command]


def _run_and_sample(
    command: Sequence[str], environment: Mapping[str, str], file: _ProfileFile, zero: float
) -> tuple[Program, ProgramEnd]:
    """Run the program to its end, write samples into `file` meanwhile, and return the program and how it ended."""
    with watching_signals() as mask:
        program = Program(command, environment, mask)
        process_tree = traced.ProcessTree(program.pid, zero)
        process_tree.read()
        readings = itertools.count(1)
        while (ended := program.wait(traced.PERIOD_S)) is None:
            process_tree.read()
            file.write(process_tree.take() if next(readings) % _WRITTEN_EVERY == 0 else [])
    file.write(process_tree.take(), is_last=True)
    return program, ended


def _results(
    program: Program, ended: ProgramEnd, spans: Sequence[marks.Span], file: _ProfileFile, manifest: Manifest
) -> list[Result]:
    devices, zero = manifest.settings.devices, manifest.started_at
    program_result = results.program_result(ended, devices, zero)
    if spans:
        return [program_result, *results.marked_results(spans, devices, zero)]
    if program.marks:
        edges = [ended.begin, *program.marks, ended.end]
        return [program_result, *results.consecutive_results(phases.PART, edges, devices, zero)]
    if file.warnings:
        return [program_result]
    begin, end = program_result.window
    cuts = detection.changes(CounterTable.of_run(read_run(file.path)).tracks, begin, end)
    edges = [ended.begin, *(zero + cut for cut in cuts), ended.end]
    return [program_result, *(results.consecutive_results(phases.FOUND, edges, devices, zero) if cuts else [])]
