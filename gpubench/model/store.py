"""Read and write the run file: JSON Lines of the kinds `manifest`, `result`, `samples`, `remark` and `end`.

Every record is written and fsynced as soon as it exists, so that a run which dies keeps its measurements: a torn last
line is dropped on reading, and a file without an `end` is a valid partial run. A name that ends in `.gz` means gzip.
`run-1.schema.json` publishes the result of `schema()`."""

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
from gpubench.base.files import open_regular, open_to_read
from gpubench.model import Manifest, Remark, Result, Run, Samples, limits
from gpubench.model.disk import DurableFile, as_file_errors, read_lines, sync_folder
from gpubench.model.record import (
    KINDS,
    SAMPLES_LIMIT_BYTES,
    End,
    Malformed,
    Record,
    append_samples,
    check_events,
    decode,
    encode,
    is_surely_valid,
    samples_key,
    schema,
    split_samples,
)

__all__ = ["SAMPLES_LIMIT_BYTES", "RunWriter", "Scan", "encode_run", "file_hash", "read_run", "scan", "schema"]

RecordHandler = Callable[[Manifest | Result | Samples | Remark], None]


def read_run(path: str | Path) -> Run:
    """Return the run in a file. Raises FileError, with a message of one line, if it cannot be read or is not valid.

    A torn last line is dropped with a warning in the run. Without an `end` record the run is not `complete`."""
    return _scan_and_run(Path(path))[1]


def file_hash(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes in hexadecimal, which identifies the source of a report.

    Raises FileError if the file cannot be read."""
    with as_file_errors(path), os.fdopen(open_to_read(Path(path)), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(slots=True)
class _Tally:
    """The sums over the records of a file: what its end record states, its bytes, and the counts that have a limit.

    `hash` is the SHA-256 object of the lines so far, `keys` are the keys of the results, and `tracks` the tracks of the
    samples."""

    records: int = 0
    size_bytes: int = 0
    hash: Any = field(default_factory=hashlib.sha256)
    keys: set[tuple[str, tuple[str, ...], int]] = field(default_factory=set)
    tracks: set[tuple[object, ...]] = field(default_factory=set)
    remarks: int = 0

    def count(self, record: Record, line: bytes) -> None:
        """Add a record and its line to the sums."""
        if isinstance(record, Result):
            count_before = len(self.keys)
            self.keys.add(record.key)
            if len(self.keys) == count_before:
                raise Malformed(f"a second result of {record.case.id}, replicate {record.replicate}")
            _check_count(len(self.keys), limits.FILE_RESULTS, "results")
        elif isinstance(record, Samples):
            self.tracks.add(samples_key(record))
            _check_count(len(self.tracks), limits.FILE_TRACKS, "sets of counters")
        elif isinstance(record, Remark):
            self.remarks += 1
            _check_count(self.remarks, limits.FILE_REMARKS, "remarks")
        self.hash.update(line)
        self.records += 1
        self.size_bytes += len(line)

    def end(self) -> End:
        return End(self.records, self.hash.hexdigest())


def _check_count(count: int, most: int, name: str) -> None:
    """Raise Malformed if a count is above `most`; `name` says what is counted."""
    if count > most:
        raise Malformed(f"the file holds more than {most} {name}")


@dataclass(slots=True)
class Scan:
    """A file as far as it was read; each record except the end was passed to `handle`.

    `complete` is False for a file without an end record, which is a valid partial run."""

    handle: RecordHandler
    tally: _Tally = field(default_factory=_Tally)
    manifest: Manifest | None = None
    complete: bool = False
    warnings: list[str] = field(default_factory=list)
    events: frozenset[str] = frozenset()  # the names of the event counters
    devices: frozenset[str] = frozenset()  # the devices that the manifest describes

    def add(self, line: bytes) -> None:
        """Add the next whole line of the file and pass its record to `handle`, except for the end record.

        Raises Malformed if the line is not valid at this place of the file."""
        if self.complete:
            raise Malformed("the record comes after the end record")
        if self.tally.size_bytes + len(line) > limits.FILE_BYTES:
            raise Malformed(f"the file holds more than {units.round_size(limits.FILE_BYTES)}")
        record = decode(line)
        if isinstance(record, Manifest) == (self.manifest is not None):
            raise Malformed("a second manifest" if self.manifest else "the manifest does not come first")
        if isinstance(record, End):
            if record != self.tally.end():
                raise Malformed("the records differ from their recorded count and hash: the file was edited or damaged")
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
        self.handle(record)

    def _check_devices(self, subject: str, devices: Iterable[str]) -> None:
        for device in devices:
            if device not in self.devices:
                raise Malformed(f"{subject} of the device {device!r}, which the manifest does not describe")


def scan(path: str | Path, handle: RecordHandler) -> Scan:
    """Read a run file, pass each record except the end to `handle`, and return the scan; no record is kept.

    Only at the end of a file is it known whether the file is valid: do not use the records before this returns."""
    file_scan, number = Scan(handle), 0
    try:
        with as_file_errors(path):
            for number, line in enumerate(read_lines(Path(path), limits.RECORD_BYTES), 1):
                if line.endswith(b"\n") or file_scan.complete or len(line) > limits.RECORD_BYTES:
                    file_scan.add(line)
                else:
                    file_scan.warnings.append(f"{path}: line {number}: the last line is incomplete and was dropped")
    except Malformed as error:
        prefix = "" if file_scan.manifest else "cannot be read as a run of gpubench: "
        raise FileError(f"{path}: line {max(number, 1)}: {prefix}{error}") from error
    except zlib.error as error:
        raise FileError(f"{path}: after line {number}: damaged gzip data ({error})") from error
    if file_scan.manifest is None:
        raise FileError(
            f"{path}: line 1: its manifest is missing or incomplete, so nothing was measured; remove the file"
        )
    return file_scan


def _scan_and_run(path: Path) -> tuple[Scan, Run]:
    records: dict[type, list[Any]] = {Manifest: [], Result: [], Remark: []}
    samples: dict[tuple[object, ...], Samples] = {}

    def keep(record: Manifest | Result | Samples | Remark) -> None:
        """Add a record to the list of its kind; samples of the same counters become one."""
        if isinstance(record, Samples):
            append_samples(record, samples)
        else:
            records[type(record)].append(record)

    file_scan = scan(path, keep)
    assert file_scan.manifest is not None  # `scan` raises without one
    (_, results, remarks), joined = map(tuple, records.values()), tuple(samples.values())
    return file_scan, Run(file_scan.manifest, results, joined, file_scan.complete, tuple(file_scan.warnings), remarks)


class RunWriter:
    """Writes a run file record by record; each record is durable when the call that writes it returns.

    As a context manager it closes the file, which without `end()` is a valid partial run."""

    def __init__(self, sink: DurableFile, tally: _Tally) -> None:
        self._sink = sink
        self._tally = tally

    @classmethod
    def create(cls, path: str | Path, manifest: Manifest) -> Self:
        """Return the writer of a new file at `path`, which then has only its manifest; a name in `.gz` means gzip.

        Raises UsageError if the file exists (only `resume` continues one) or cannot be created, FileError if the
        disk does not accept the manifest, and ValueError if the manifest is not valid."""
        path = Path(path)
        line = _manifest_line(manifest)
        try:
            file = io.FileIO(path, "x")
        except FileExistsError as error:
            raise UsageError(f"{path} exists; choose another name, or continue it with `run --resume`") from error
        except FileNotFoundError as error:
            raise UsageError(f"cannot write {path}: the folder does not exist; make it first") from error
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}; choose another place") from error
        sink, tally = DurableFile(path, file), _Tally()
        tally.count(manifest, line)
        sink.write(line)
        sync_folder(path)
        return cls(sink, tally)

    @classmethod
    def resume(cls, path: str | Path) -> tuple[Self, Run]:
        """Return a writer that continues the file after its last whole record, and the run so far.

        A torn last line and the `end` record are dropped from the file; `complete` of the returned run says whether
        there was an end."""
        path = Path(path)
        with as_file_errors(path), contextlib.ExitStack() as undo:
            sink = DurableFile(path, undo.enter_context(io.FileIO(open_regular(path, os.O_RDWR), "r+")))
            file_scan, run = _scan_and_run(path)
            sink.cut(file_scan.tally.size_bytes)
            undo.pop_all()
        return cls(sink, file_scan.tally), run

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sink.close()

    def result(self, result: Result) -> None:
        """Write a result. Raises ValueError if it is not valid, and FileError if the disk does not accept it."""
        self._append(result, encode(result))

    def samples(self, samples: Samples) -> None:
        """Write samples, split in time until no record is longer than SAMPLES_LIMIT_BYTES. Raises as `result` does."""
        for part, line in split_samples(samples):
            self._append(part, line)

    def remark(self, remark: Remark) -> None:
        """Write a remark on the counters. Raises as `result` does."""
        self._append(remark, encode(remark))

    def end(self) -> None:
        """Write the end record, which makes the file complete, and close it.

        Raises FileError if the disk does not accept it."""
        self._sink.write(encode(self._tally.end()), last=True)
        self._sink.close()

    def _append(self, record: Record, line: bytes) -> None:
        """Check, count and write one record. Raises as `result` does."""
        self._tally.count(record, _checked_line(record, line))
        self._sink.write(line)


def encode_run(run: Run, packed: bool = False) -> bytes:
    """Return the bytes of a run file with the whole run, compressed with gzip if `packed`.

    The file has no `end` record if the run is not complete."""
    tally, lines = _Tally(), [_manifest_line(run.manifest)]
    tally.count(run.manifest, lines[0])
    others: tuple[Record, ...] = (*run.results, *run.remarks)
    records = [(record, encode(record)) for record in others]
    records += [pair for samples in run.samples for pair in split_samples(samples)]
    for record, line in records:
        tally.count(record, _checked_line(record, line))
        lines.append(line)
    if run.complete:
        lines.append(encode(tally.end()))
    data = b"".join(lines)
    return gzip.compress(data, mtime=0) if packed else data


def _manifest_line(manifest: Manifest) -> bytes:
    try:
        return _checked_line(manifest, encode(manifest, "strict"))
    except UnicodeEncodeError as error:
        raise UsageError(f"{error.object!r} is not UTF-8 text, which a run file is; rename it") from error


def _checked_line(record: Record, line: bytes) -> bytes:
    """Return `line`, the line of the record, unchanged. Raises ValueError if the line could not be read again."""
    if is_surely_valid(record, line):
        return line
    try:
        decode(line)
    except Malformed as error:
        name = record.case.id if isinstance(record, Result) else KINDS[type(record)]
        raise ValueError(f"{name} is not a valid record: {error}") from error
    return line
