"""Write runs into the history, each in a separate transaction, so that concurrent writers lose no run."""

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from gpubench.analysis.trend import Entry, Line, entries
from gpubench.base import units
from gpubench.base.errors import FileError
from gpubench.model import Run
from gpubench.model.store import read_run
from gpubench.tools import history
from gpubench.tools.history.database import Damaged, FileName, Key, OpenHistory, checked, reported, transaction

AHEAD_S = 300.0  # a run that starts this much after its file was written had a wrong clock
_SUFFIXES = ("*.jsonl", "*.jsonl.gz")
_RUN_ROW = TypeAdapter(tuple[Key, FileName, Key])
_NUMBER_ROW = TypeAdapter(tuple[Key])
_SOURCE_ROW = TypeAdapter(tuple[str, FileName])


@dataclass(frozen=True, slots=True)
class RecordedFile:
    """How a run file was recorded: `known` if it had been before, `refused` with the reason as a warning."""

    path: Path
    state: Literal["new", "updated", "known", "refused"]
    results: int
    warnings: tuple[str, ...] = ()


class HistoryRecorder(OpenHistory):
    """Records runs in the history in the file `path`, which it makes with its folder if needed."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"{path.parent}: {error.strerror}; set GPUBENCH_HISTORY to another file") from error
        super().__init__(path, create=True)

    def record(self, file: Path, run: Run | None = None, *, anew: bool = False) -> RecordedFile:
        """Record a run file and return how it was recorded; of two copies of a run, the one with more results counts.

        `run` is the content of the file; None reads it. `anew` replaces the run even if it is already recorded."""
        run = run or read_run(file)
        written = file.stat().st_mtime
        started = units.unix_seconds(run.manifest.started) if run.manifest.started else written
        ahead = started - written if started - written > AHEAD_S else 0.0
        run_entries = list(entries(run))
        with reported(self.path), transaction(self._connection):
            key = _run_key(run)
            if anew:
                self._delete_run(key)
            state = self._write_run(key, file, run, started - ahead, ahead, run_entries)
        return RecordedFile(file, state, len(run.results), tuple(_clock_warnings(file, run, ahead)))

    def _write_run(
        self, key: str, file: Path, run: Run, at: float, ahead_s: float, run_entries: Sequence[Entry]
    ) -> Literal["new", "updated", "known"]:
        """Write a run into the tables, unless they have all of its results; the caller holds a transaction."""
        row = self._connection.execute("SELECT id, path, results FROM runs WHERE key = ?", (key,)).fetchone()
        stored = checked(_RUN_ROW, row, self.path) if row else None
        if stored and stored[2] >= len(run.results):
            if not Path(full_path(self._folder, stored[1])).exists():
                self._connection.execute("UPDATE runs SET path = ? WHERE id = ?", (self._stored_path(file), stored[0]))
            return "known"
        if stored:
            self._delete_run(key)
        facts = run.manifest.facts
        row = (
            key,
            self._stored_path(file),
            at,
            ahead_s,
            dict(facts.host).get("hostname", ""),
            json.dumps(facts.versions),
        )
        cursor = self._connection.execute(
            "INSERT INTO runs (key, path, at, ahead_s, host, versions, results) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (*row, len(run.results)),
        )
        self._add_points(int(cursor.lastrowid or 0), at, run_entries)
        return "updated" if stored else "new"

    def _add_points(self, run: int, at: float, run_entries: Sequence[Entry]) -> None:
        """Write the figures of the run with this row number; `at` is its start in s since 1970."""
        headlines = {entry.line: entry.headline for entry in run_entries}
        lines = {line: self._find_or_add_line(line, headline) for line, headline in headlines.items()}
        self._connection.executemany(
            "INSERT INTO points VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    lines[entry.line],
                    at,
                    run,
                    entry.replicate,
                    entry.interval.low,
                    entry.interval.centre,
                    entry.interval.high,
                    entry.noise,
                    entry.samples,
                    ",".join(entry.labels),
                )
                for entry in run_entries
            ],
        )

    def _find_or_add_line(self, line: Line, headline: bool) -> int:
        """Return the row number of a line, which is added if needed; store whether it is a headline."""
        fingerprint, execute = line.fingerprint, self._connection.execute
        execute("INSERT OR IGNORE INTO fingerprints VALUES (?, ?)", (fingerprint.id, json.dumps(fingerprint.pairs)))
        identity = (line.case, line.version, line.tier, line.series, line.unit, line.better)
        values = (*identity, "+".join(line.devices), fingerprint.id)
        columns = ("case_id", "version", "tier", "series", "unit", "better", "devices", "fingerprint")
        execute(
            f"INSERT INTO lines ({', '.join(columns)}, headline) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "
            f"ON CONFLICT ({', '.join(columns)}) DO UPDATE SET headline = excluded.headline",
            (*values, headline),
        )
        where = " AND ".join(f"{column} = ?" for column in columns)
        return checked(_NUMBER_ROW, execute(f"SELECT id FROM lines WHERE {where}", values).fetchone(), self.path)[0]

    def _stored_path(self, file: Path) -> str:
        """Return the path to store for a run file."""
        folder, file = self.path.absolute().parent.resolve(), file.resolve()
        return str(file.relative_to(folder) if file.is_relative_to(folder) else file)

    def _delete_run(self, key: str) -> None:
        """Delete the run with this key, if there is one, and its points; the caller holds a transaction."""
        self._connection.execute("DELETE FROM points WHERE run = (SELECT id FROM runs WHERE key = ?)", (key,))
        self._connection.execute("DELETE FROM runs WHERE key = ?", (key,))

    def sources(self) -> dict[str, Path]:
        """Return the path of each recorded run file by the key of its run, oldest run first; a file may be gone."""
        with reported(self.path):
            rows = self._connection.execute("SELECT key, path FROM runs ORDER BY at").fetchall()
        checked_rows = (checked(_SOURCE_ROW, row, self.path) for row in rows)
        return {key: Path(full_path(self._folder, path)) for key, path in checked_rows}

    def forget(self, keys: Iterable[str]) -> None:
        """Delete the runs with these keys, and the lines and fingerprints that no other run uses."""
        with reported(self.path), transaction(self._connection):
            for key in keys:
                self._delete_run(key)
            self._connection.execute("DELETE FROM lines WHERE id NOT IN (SELECT DISTINCT line FROM points)")
            self._connection.execute("DELETE FROM fingerprints WHERE id NOT IN (SELECT fingerprint FROM lines)")

    def runs_to_delete(self, keep: int) -> list[str]:
        """Return the keys of the runs to delete if the newest `keep` are to stay, oldest first; nothing is deleted.

        A run stays if it is among the newest `keep` of all runs, or among the newest `keep` of one of its lines."""
        ranked = "SELECT run, DENSE_RANK() OVER (PARTITION BY line ORDER BY at DESC, run DESC) AS place FROM points"
        newest = "SELECT id FROM runs ORDER BY at DESC, id DESC LIMIT :keep"
        retained = f"SELECT run FROM ({ranked}) WHERE place <= :keep UNION SELECT id FROM ({newest})"
        with reported(self.path):
            rows = self._connection.execute(
                f"SELECT key FROM runs WHERE id NOT IN ({retained}) ORDER BY at", {"keep": keep}
            ).fetchall()
        return [key for (key,) in rows]

    def check(self) -> None:
        """Raise Damaged if SQLite finds the file inconsistent."""
        with reported(self.path):
            (answer,) = self._connection.execute("PRAGMA quick_check(1)").fetchone() or ("nothing to check",)
        if answer != "ok":
            raise Damaged(f"{self.path}: damaged: {answer}")


def full_path(folder: Path, path: str) -> str:
    """Return the path of a run file from its stored `path`, relative or absolute, and the history's folder, as text."""
    return os.path.join(folder, path)  # noqa: PTH118 - pathlib takes ten times as long


def _clock_warnings(file: Path, run: Run, ahead_s: float) -> Iterator[str]:
    """Yield a sentence if a run has no start time, and one if its clock was ahead: if `ahead_s` is not 0."""
    if not run.manifest.started:  # imported output of another tool may have no date
        yield f"{file}: it has no date of measurement: the time of the file is used instead"
    if ahead_s:
        yield f"{file}: its clock was {units.duration(ahead_s)} ahead: the time of the file is used as its start"


def _run_key(run: Run) -> str:
    """Return the key of a run: 32 hexadecimal digits that stay the same if the run is copied, packed or resumed."""
    manifest, settings = run.manifest, run.manifest.settings
    identity = [
        manifest.started,
        manifest.started_at,
        settings.suites,
        settings.devices,
        settings.filters,
        settings.seed,
    ]
    if not manifest.started:
        identity += [(result.key, [series.values for series in result.series]) for result in run.results]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]


def record_measured_run(file: Path, run: Run) -> tuple[str, ...]:
    """Record a run that has just been measured in the history, if there is one; an error becomes a warning."""
    place = history.place_of(file)
    if place is None:
        return ()
    try:
        with HistoryRecorder(place) as recorder:
            return recorder.record(file, run).warnings
    except FileError as error:
        return (f"not in the history: {error}; the run file is whole: add it by `gpubench history import {file}`",)


def run_files(places: Sequence[Path]) -> Iterator[Path]:
    """Yield these files, and all run files (.jsonl, .jsonl.gz) in these folders and below, sorted in each folder."""
    for place in places:
        if place.is_dir():
            if not os.access(place, os.R_OK | os.X_OK):
                raise FileError(f"{place}: {os.strerror(errno.EACCES)}")
            yield from sorted({path for suffix in _SUFFIXES for path in place.rglob(suffix) if path.is_file()})
        elif place.exists():
            yield place
        else:
            raise FileError(f"{place}: there is no such file or folder")


def record_files(recorder: HistoryRecorder, files: Iterable[Path], *, anew: bool = False) -> Iterator[RecordedFile]:
    """Record these files one after the other and yield how each was recorded; an invalid file is `refused`."""
    for file in files:
        try:
            yield recorder.record(file, anew=anew)
        except FileError as error:
            yield RecordedFile(file, "refused", 0, (str(error),))


def refill(recorder: HistoryRecorder, places: Sequence[Path]) -> tuple[list[RecordedFile], int]:
    """Record again all run files in `places`, in the history's folder, and in the history itself."""
    files = [*run_files([recorder.path.absolute().parent, *places]), *filter(Path.exists, recorder.sources().values())]
    records = list(record_files(recorder, dict.fromkeys(file.resolve() for file in files), anew=True))
    refused = {record.path for record in records if record.state == "refused"}
    obsolete_keys = [key for key, file in recorder.sources().items() if file.resolve() in refused or not file.exists()]
    recorder.forget(obsolete_keys)
    return records, len(obsolete_keys)


def open_for_rebuild(path: Path) -> tuple[HistoryRecorder, Path | None]:
    """Return a recorder to rebuild a history with, and the path to which a damaged history was moved, else None."""
    try:
        recorder = HistoryRecorder(path)
        with contextlib.ExitStack() as cleanup:
            cleanup.enter_context(recorder)
            recorder.check()
            cleanup.pop_all()
    except Damaged:
        aside = _rename_damaged(path)
        return HistoryRecorder(path), aside
    return recorder, None


def _rename_damaged(path: Path) -> Path:
    """Rename a damaged history and its log, and return the new path. Raises FileError if that fails."""
    aside = path.with_name(f"{path.name}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    try:
        for suffix in ("", "-wal", "-shm"):
            if Path(f"{path}{suffix}").exists():
                Path(f"{path}{suffix}").replace(f"{aside}{suffix}")
    except OSError as error:
        raise FileError(f"{path}: damaged, and it cannot be renamed: {error.strerror}; remove it") from error
    return aside
