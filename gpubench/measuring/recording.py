"""Record a run: only this module combines manifest, sampling process and run file.

`run`, a resumed run, `profile` and the pytest plugin all record through it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from gpubench import __version__
from gpubench.base.errors import UsageError
from gpubench.measuring.sampler import SamplingProcess
from gpubench.model import SCHEMA, Counter, Device, Facts, Manifest, Remark, Result, Run, Samples, Settings, SuiteInfo
from gpubench.model.record import FIRST_YEAR, LAST_YEAR
from gpubench.model.store import RunWriter


def new_manifest(facts: Facts, settings: Settings, suites: Sequence[SuiteInfo], argv: Sequence[str]) -> Manifest:
    """Return the manifest of a run that starts now; `argv` is its command line.

    Its counters are still empty: they are known when the sampler has started. Raises UsageError if the system clock is
    so wrong that no run file can have its date."""
    started = datetime.now(UTC)
    if not FIRST_YEAR <= started.year <= LAST_YEAR:
        raise UsageError(f"the system clock says {started:%Y-%m-%d}; set it: a run file needs the date of the run")
    return Manifest(
        schema=SCHEMA,
        gpubench=__version__,
        facts=facts,
        settings=settings,
        suites=tuple(suites),
        counters=(),
        argv=tuple(argv),
        started=started.isoformat(timespec="seconds"),
        started_at=time.monotonic(),
    )


class Recording(AbstractContextManager["Recording"]):
    """A run file that is being written, and the process that samples its devices meanwhile.

    Leaving it ends the sampler and closes the file; without `end` that is a valid partial run."""

    def __init__(self, writer: RunWriter, sampler: SamplingProcess, started_at: float) -> None:
        self.sampler = sampler
        self.started_at = started_at  # monotonic seconds, the zero of the run's times
        self._writer = writer

    @classmethod
    def begin(
        cls, path: Path, manifest: Manifest, devices: Sequence[Device], counters: Sequence[Counter] = ()
    ) -> Recording:
        """Start a run file at `path`, with a process that samples `devices`; return the recording.

        `counters` are the counters that the caller reads itself."""
        sampler = SamplingProcess(devices, manifest.started_at)
        try:
            writer = RunWriter.create(path, replace(manifest, counters=(*counters, *sampler.counters)))
        except BaseException:  # any error: end the sampler and raise it again
            sampler.kill()
            raise
        return cls(writer, sampler, manifest.started_at)

    @classmethod
    def resume(cls, path: Path, devices: Sequence[Device]) -> tuple[Recording, Run]:
        """Continue the run file at `path`, and sample `devices` again; return the recording and the run so far.

        The file's clock continues where it stopped, because another boot has another CLOCK_MONOTONIC."""
        writer, run = RunWriter.resume(path)
        started_at = time.monotonic() - _last_moment(run)
        return cls(writer, SamplingProcess(devices, started_at), started_at), run

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sampler.kill()
        self._writer.__exit__(kind, error, trace)

    def result(self, result: Result) -> None:
        """Write a result. Raises ValueError if it is not valid, and FileError if the disk does not accept it."""
        self._writer.result(result)

    def samples(self, samples: Samples) -> None:
        """Write samples. Raises ValueError and FileError as `result` does."""
        self._writer.samples(samples)

    def remark(self, remark: Remark) -> None:
        """Write a remark on the counters. Raises ValueError and FileError as `result` does."""
        self._writer.remark(remark)

    def write_sampled(self, chunks: Sequence[Samples] = ()) -> None:
        """Write `chunks`, which the caller has read itself, the chunks that the sampler has sent, and its remarks.

        Raises ValueError and FileError as `result` does."""
        self._write([*chunks, *self.sampler.drain()])

    def stop_sampling(self, chunks: Sequence[Samples] = ()) -> None:
        """Stop the sampler; write `chunks`, which the caller has read itself, and the sampler's last chunks.

        Its remarks are written too. Raises ValueError and FileError as `result` does."""
        self._write([*chunks, *self.sampler.stop()])

    def _write(self, chunks: Sequence[Samples]) -> None:
        for chunk in chunks:
            self._writer.samples(chunk)
        for remark in self.sampler.remarks():
            self._writer.remark(remark)

    def end(self) -> None:
        """Write the end of the file, which marks the run as complete.

        Raises FileError if the disk does not accept it."""
        self._writer.end()


def _last_moment(run: Run) -> float:
    """Return the time in seconds of the last result or sample of the run; 0 without any."""
    ends = [result.window[1] for result in run.results] + [max(samples.at, default=0.0) for samples in run.samples]
    return max(ends, default=0.0)
