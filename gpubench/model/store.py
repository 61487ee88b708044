"""The run file: JSON Lines of the kinds `manifest`, `result`, `samples`, `remark` and `end`.

Every record is written and fsynced as soon as it exists, so that a run which dies keeps what it measured: a torn last
line is dropped on reading, a file without an `end` is a valid partial run.
A name that ends in `.gz` is gzip; `run-1.schema.json` publishes what `schema()` says.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gpubench.base import units
from gpubench.base.errors import FileError, UsageError
from gpubench.base.files import open_to_read
from gpubench.model import Manifest, Remark, Result, Run, Samples, limits
from gpubench.model.disk import Sink, lines, reported, sync_folder
from gpubench.model.record import (
    KINDS,
    SAMPLES_LIMIT_BYTES,
    End,
    Malformed,
    Record,
    check_events,
    chunks,
    decode,
    encode,
    is_surely_valid,
    join,
    schema,
    track,
)

__all__ = ["SAMPLES_LIMIT_BYTES", "RunWriter", "Scan", "content", "file_hash", "read_run", "scan", "schema"]

Take = Callable[[Manifest | Result | Samples | Remark], None]


def read_run(path: str | Path) -> Run:
    """The run in a file; raises FileError, one line, where it cannot be read or trusted.

    A torn last line is dropped with a warning; without an `end` the run is not `complete`.
    """
    return _read(Path(path))[1]


def file_hash(path: str | Path) -> str:
    """The SHA-256 of a file's bytes in hexadecimal, by which a report names its source; raises FileError."""
    with reported(path), os.fdopen(open_to_read(Path(path)), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(slots=True)
class _Tally:
    """What the records of a file add up to: their `end`, their bytes, and what is limited in number."""

    records: int = 0
    size_bytes: int = 0
    hash: Any = field(default_factory=hashlib.sha256)
    keys: set[tuple[str, tuple[str, ...], int]] = field(default_factory=set)
    tracks: set[tuple[object, ...]] = field(default_factory=set)
    remarks: int = 0

    def count(self, record: Record, line: bytes) -> None:
        """Take a record in; Malformed for a second result of one key, and for more than a file may hold."""
        if isinstance(record, Result):
            known = len(self.keys)
            self.keys.add(record.key)
            if len(self.keys) == known:
                raise Malformed(f"a second result of {record.case.id}, replicate {record.replicate}")
            _check_count(len(self.keys), limits.FILE_RESULTS, "results")
        elif isinstance(record, Samples):
            self.tracks.add(track(record))
            _check_count(len(self.tracks), limits.FILE_TRACKS, "sets of counters")
        elif isinstance(record, Remark):
            self.remarks += 1
            _check_count(self.remarks, limits.FILE_REMARKS, "remarks")
        self.hash.update(line)
        self.records += 1
        self.size_bytes += len(line)

    def end(self) -> End:
        """The end record of a file that stops here."""
        return End(self.records, self.hash.hexdigest())


def _check_count(count: int, most: int, name: str) -> None:
    if count > most:
        raise Malformed(f"the file holds more than {most} {name}")


@dataclass(slots=True)
class Scan:
    """A file as read so far; `complete` is False for a file without an end, a valid partial run."""

    take: Take
    tally: _Tally = field(default_factory=_Tally)
    manifest: Manifest | None = None
    complete: bool = False
    warnings: list[str] = field(default_factory=list)
    events: frozenset[str] = frozenset()  # the counters of bits
    devices: frozenset[str] = frozenset()  # those that the manifest describes

    def add(self, line: bytes) -> None:
        """Take one whole line; Malformed where it does not belong here."""
        if self.complete:
            raise Malformed("stands after the end record")
        if self.tally.size_bytes + len(line) > limits.FILE_BYTES:
            raise Malformed(f"the file holds more than {units.round_size(limits.FILE_BYTES)}")
        record = decode(line)
        if isinstance(record, Manifest) == (self.manifest is not None):
            raise Malformed("a second manifest" if self.manifest else "the manifest does not come first")
        if isinstance(record, End):
            if record != self.tally.end():
                raise Malformed("the records are not those that were counted and hashed: edited or damaged")
            self.complete = True
            return
        if isinstance(record, Manifest):
            self.manifest = record
            self.events = frozenset(counter.name for counter in record.counters if counter.kind == "event")
            self.devices = frozenset(device.id for device in record.facts.devices)
        elif isinstance(record, Samples):
            self._check_devices("samples are", (record.device,))
            check_events(record, self.events)
        elif isinstance(record, Result):
            self._check_devices("a result is", record.devices)
        self.tally.count(record, line)
        self.take(record)

    def _check_devices(self, words: str, devices: Iterable[str]) -> None:
        for device in devices:
            if device not in self.devices:
                raise Malformed(f"{words} of the device {device!r}, which the manifest does not describe")


def scan(path: str | Path, take: Take) -> Scan:
    """Read a file record by record, each handed to `take`, without keeping any; raises FileError as `read_run`.

    Whether it can be trusted is known at its end: what was taken is nothing before this returns.
    """
    found, number = Scan(take), 0
    try:
        with reported(path):
            for number, line in enumerate(lines(Path(path), limits.RECORD_BYTES), 1):
                if line.endswith(b"\n") or found.complete or len(line) > limits.RECORD_BYTES:
                    found.add(line)
                else:
                    found.warnings.append(f"{path}: line {number}: the last line is torn and was dropped")
    except Malformed as error:
        what = "" if found.manifest else "cannot be read as a run of gpubench: "
        raise FileError(f"{path}: line {max(number, 1)}: {what}{error}") from error
    except zlib.error as error:
        raise FileError(f"{path}: after line {number}: damaged gzip data ({error})") from error
    if found.manifest is None:
        raise FileError(f"{path}: line 1: there is no whole manifest, so nothing was measured; remove the file")
    return found


def _read(path: Path) -> tuple[Scan, Run]:
    kept: dict[type, list[Any]] = {Manifest: [], Result: [], Remark: []}
    samples: dict[tuple[object, ...], Samples] = {}

    def take(record: Manifest | Result | Samples | Remark) -> None:
        if isinstance(record, Samples):
            join(record, samples)
        else:
            kept[type(record)].append(record)

    found = scan(path, take)
    assert found.manifest is not None  # `scan` has seen to it
    (_, results, remarks), joined = map(tuple, kept.values()), tuple(samples.values())
    return found, Run(found.manifest, results, joined, found.complete, tuple(found.warnings), remarks)


class RunWriter:
    """Writes a run file record by record, each durable when its call returns.

    As a context manager it closes the file; without `end()` that leaves a valid partial run. A
    record that could not be read again (NaN, a second result of one key) raises ValueError, a bug
    in the caller. Where the disk does not take a record FileError is raised and the writer is
    closed: the file is then a valid partial run.
    """

    def __init__(self, sink: Sink, tally: _Tally) -> None:
        self._sink = sink
        self._tally = tally

    @classmethod
    def create(cls, path: str | Path, manifest: Manifest) -> Self:
        """Start a new file with its manifest.

        UsageError where the file exists (only `resume` continues one) or cannot be made.
        """
        path = Path(path)
        line = _manifest_line(manifest)
        try:
            file = io.FileIO(path, "x")
        except FileExistsError as error:
            raise UsageError(f"{path} exists; choose another name, or go on with it by `run --resume`") from error
        except FileNotFoundError as error:
            raise UsageError(f"cannot write {path}: the folder does not exist; make it first") from error
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}; choose another place") from error
        sink, tally = Sink(path, file), _Tally()
        tally.count(manifest, line)
        sink.write(line)
        sync_folder(path)
        return cls(sink, tally)

    @classmethod
    def resume(cls, path: str | Path) -> tuple[Self, Run]:
        """Go on with a file: a writer behind its last whole record, and the run so far.

        A torn last line and the `end` are dropped from the file; the run's `complete` says whether
        there was an end. FileError where the file cannot be read, trusted or written, UsageError
        where another process is writing it.
        """
        path = Path(path)
        with reported(path), contextlib.ExitStack() as undo:
            sink = Sink(path, undo.enter_context(io.FileIO(path, "r+")))
            found, run = _read(path)
            sink.cut(found.tally.size_bytes)
            undo.pop_all()
        return cls(sink, found.tally), run

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sink.close()

    def result(self, result: Result) -> None:
        """Write a result."""
        self._append(result, encode(result))

    def samples(self, samples: Samples) -> None:
        """Write samples, split in time until no record is longer than SAMPLES_LIMIT_BYTES."""
        for part, line in chunks(samples):
            self._append(part, line)

    def remark(self, remark: Remark) -> None:
        """Write what is to be known of the counters."""
        self._append(remark, encode(remark))

    def end(self) -> None:
        """Write the count and hash that make the file complete, and close it."""
        self._sink.write(encode(self._tally.end()), last=True)
        self._sink.close()

    def _append(self, record: Record, line: bytes) -> None:
        self._tally.count(record, _checked(record, line))
        self._sink.write(line)


def content(run: Run, packed: bool = False) -> bytes:
    """A whole run as the bytes of its file, `packed` by gzip: for a run that was not measured here just now.

    Without its `end` where the run is not complete. ValueError for a record that could not be read again.
    """
    tally, lines = _Tally(), [_manifest_line(run.manifest)]
    tally.count(run.manifest, lines[0])
    others: tuple[Record, ...] = (*run.results, *run.remarks)
    records = [(record, encode(record)) for record in others]
    records += [pair for samples in run.samples for pair in chunks(samples)]
    for record, line in records:
        tally.count(record, _checked(record, line))
        lines.append(line)
    if run.complete:
        lines.append(encode(tally.end()))
    data = b"".join(lines)
    return gzip.compress(data, mtime=0) if packed else data


def _manifest_line(manifest: Manifest) -> bytes:
    try:
        return _checked(manifest, encode(manifest, "strict"))
    except UnicodeEncodeError as error:
        name = error.object[: error.start].rpartition('"')[2] + error.object[error.start :].partition('"')[0]
        raise UsageError(f"{name!r} is not UTF-8 text, which a run file is; rename it") from error


def _checked(record: Record, line: bytes) -> bytes:
    if is_surely_valid(record, line):
        return line
    try:
        decode(line)
    except Malformed as error:
        name = record.case.id if isinstance(record, Result) else KINDS[type(record)]
        raise ValueError(f"{name} is not a valid record: {error}") from error
    return line
