"""Runs into the history: one transaction each, so that any number of writers lose nothing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from pydantic import TypeAdapter

from gpubench.analysis.trend import Entry, Line, entries
from gpubench.base import units
from gpubench.base.errors import FileError
from gpubench.model import Manifest, Run
from gpubench.model.store import read_run
from gpubench.tools.history.database import Damaged, FileName, Key, checked, connect, reported, transaction
from gpubench.tools.history.places import place_of

AHEAD_S = 300.0  # a start this much later than the file's last write: the clock was off, not slow
_SUFFIXES = ("*.jsonl", "*.jsonl.gz")
_KNOWN_ROW = TypeAdapter(tuple[Key, FileName, Key])
_NUMBER_ROW = TypeAdapter(tuple[Key])
_SOURCE_ROW = TypeAdapter(tuple[str, FileName])


@dataclass(frozen=True, slots=True)
class Recorded:
    """What became of a run file and its number of results.

    `new`, `updated` (it holds more than before), `known`; or `refused`, the warning saying why.
    """

    path: Path
    state: Literal["new", "updated", "known", "refused"]
    results: int
    warnings: tuple[str, ...] = ()


class Recorder:
    """A history that runs are recorded in; made where there is none. FileError as `database.connect` has it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"{path.parent}: {error.strerror}; name another place by GPUBENCH_HISTORY") from error
        self._folder = path.absolute().parent
        self._connection = connect(path, create=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def record(self, file: Path, run: Run | None = None, *, anew: bool = False) -> Recorded:
        """Take a run file in, once: of two copies the one with more results counts; `anew` does so again.

        `run` is what it holds, where that is known. FileError where it cannot be read or trusted.
        """
        run = run or read_run(file)
        written = file.stat().st_mtime
        started = _started(run.manifest) if run.manifest.started else written
        ahead = started - written if started - written > AHEAD_S else 0.0
        found = list(entries(run))
        with reported(self.path), transaction(self._connection):
            key = _key(run)
            if anew:
                self._forget(key)
            state = self._take(key, file, run, started - ahead, ahead, found)
        return Recorded(file, state, len(run.results), tuple(_clock_words(file, run, ahead)))

    def _take(
        self, key: str, file: Path, run: Run, at: float, ahead_s: float, found: Sequence[Entry]
    ) -> Literal["new", "updated", "known"]:
        row = self._connection.execute("SELECT id, path, results FROM runs WHERE key = ?", (key,)).fetchone()
        known = checked(_KNOWN_ROW, row, self.path) if row else None
        if known and known[2] >= len(run.results):
            if not Path(located(self._folder, known[1])).exists():
                self._connection.execute("UPDATE runs SET path = ? WHERE id = ?", (self._stored(file), known[0]))
            return "known"
        if known:
            self._forget(key)
        facts = run.manifest.facts
        row = (key, self._stored(file), at, ahead_s, dict(facts.host).get("hostname", ""), json.dumps(facts.versions))
        cursor = self._connection.execute(
            "INSERT INTO runs (key, path, at, ahead_s, host, versions, results) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (*row, len(run.results)),
        )
        self._add_points(int(cursor.lastrowid or 0), at, found)
        return "updated" if known else "new"

    def _add_points(self, run: int, at: float, found: Sequence[Entry]) -> None:
        headlines = {each.line: each.headline for each in found}
        lines = {line: self._line(line, headline) for line, headline in headlines.items()}
        self._connection.executemany(
            "INSERT INTO points VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    lines[each.line],
                    at,
                    run,
                    each.replicate,
                    each.interval.low,
                    each.interval.centre,
                    each.interval.high,
                    each.noise,
                    each.samples,
                    ",".join(each.labels),
                )
                for each in found
            ],
        )

    def _line(self, line: Line, headline: bool) -> int:
        kind, execute = line.fingerprint, self._connection.execute
        execute("INSERT OR IGNORE INTO fingerprints VALUES (?, ?)", (kind.id, json.dumps(kind.pairs)))
        taken = (line.case, line.version, line.tier, line.series, line.unit, line.better)
        values = (*taken, "+".join(line.devices), kind.id)
        columns = ("case_id", "version", "tier", "series", "unit", "better", "devices", "fingerprint")
        execute(
            f"INSERT INTO lines ({', '.join(columns)}, headline) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "
            f"ON CONFLICT ({', '.join(columns)}) DO UPDATE SET headline = excluded.headline",
            (*values, headline),
        )
        where = " AND ".join(f"{column} = ?" for column in columns)
        return checked(_NUMBER_ROW, execute(f"SELECT id FROM lines WHERE {where}", values).fetchone(), self.path)[0]

    def _stored(self, file: Path) -> str:
        """The file's path as it is kept: relative to the history's folder where it is inside, so that both can move."""
        folder, file = self.path.absolute().parent.resolve(), file.resolve()
        return str(file.relative_to(folder) if file.is_relative_to(folder) else file)

    def _forget(self, key: str) -> None:
        self._connection.execute("DELETE FROM points WHERE run = (SELECT id FROM runs WHERE key = ?)", (key,))
        self._connection.execute("DELETE FROM runs WHERE key = ?", (key,))

    def sources(self) -> dict[str, Path]:
        """The run files that the history knows of by the keys of their runs, oldest first."""
        with reported(self.path):
            rows = self._connection.execute("SELECT key, path FROM runs ORDER BY at").fetchall()
        known = (checked(_SOURCE_ROW, row, self.path) for row in rows)
        return {key: Path(located(self._folder, path)) for key, path in known}

    def forget(self, keys: Iterable[str]) -> None:
        """Drop runs, and the lines and fingerprints that nothing is left of."""
        with reported(self.path), transaction(self._connection):
            for key in keys:
                self._forget(key)
            self._connection.execute("DELETE FROM lines WHERE id NOT IN (SELECT DISTINCT line FROM points)")
            self._connection.execute("DELETE FROM fingerprints WHERE id NOT IN (SELECT fingerprint FROM lines)")

    def beyond(self, keep: int) -> list[str]:
        """The keys of runs that are neither among the newest `keep` of all nor of one of their lines, oldest first."""
        ranked = "SELECT run, DENSE_RANK() OVER (PARTITION BY line ORDER BY at DESC, run DESC) AS place FROM points"
        lately = "SELECT id FROM runs ORDER BY at DESC, id DESC LIMIT :keep"
        kept = f"SELECT run FROM ({ranked}) WHERE place <= :keep UNION SELECT id FROM ({lately})"
        with reported(self.path):
            rows = self._connection.execute(
                f"SELECT key FROM runs WHERE id NOT IN ({kept}) ORDER BY at", {"keep": keep}
            ).fetchall()
        return [key for (key,) in rows]

    def check(self) -> None:
        """Raise Damaged where SQLite finds the file inconsistent."""
        with reported(self.path):
            (words,) = self._connection.execute("PRAGMA quick_check(1)").fetchone() or ("nothing to check",)
        if words != "ok":
            raise Damaged(f"{self.path}: damaged: {words}")


def located(folder: Path, path: str) -> str:
    """The place of a run file that a history in `folder` knows by `path`; text, since a thousand are asked at once."""
    return os.path.join(folder, path)  # noqa: PTH118 - pathlib takes ten times as long


def _started(manifest: Manifest) -> float:
    """When a run started, in s since 1970; a time without a zone is UTC, as gpubench writes it."""
    found = datetime.fromisoformat(manifest.started)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _clock_words(file: Path, run: Run, ahead_s: float) -> Iterator[str]:
    if not run.manifest.started:  # as the output of other tools, imported
        yield f"{file}: it does not say when it was measured: the file's own time stands for that"
    if ahead_s:
        yield f"{file}: its clock was {units.duration(ahead_s)} ahead: it counts as started when it was last written"


def _key(run: Run) -> str:
    """What makes a run unique, however often it is copied, packed or gone on with.

    Of one that does not say when it started, what it holds.
    """
    manifest, asked = run.manifest, run.manifest.settings
    what = [manifest.started, manifest.started_at, asked.suites, asked.devices, asked.filters, asked.seed]
    if not manifest.started:
        what += [(result.key, [series.values for series in result.series]) for result in run.results]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]


def note(file: Path, run: Run) -> tuple[str, ...]:
    """Record a run that has just been measured where a history is kept; warnings in words, never an error."""
    place = place_of(file)
    if place is None:
        return ()
    try:
        with Recorder(place) as recorder:
            return recorder.record(file, run).warnings
    except FileError as error:
        return (f"not in the history: {error}; the run file is whole: add it by `gpubench history import {file}`",)


def run_files(places: Sequence[Path]) -> Iterator[Path]:
    """Files as they are named, and what looks like one in a folder and below; FileError where there is none."""
    for place in places:
        if place.is_dir():
            yield from sorted({path for suffix in _SUFFIXES for path in place.rglob(suffix) if path.is_file()})
        elif place.exists():
            yield place
        else:
            raise FileError(f"{place}: there is no such file or folder")


def add(recorder: Recorder, files: Iterable[Path], *, anew: bool = False) -> Iterator[Recorded]:
    """Record one file after the other; one that cannot be read or trusted is refused, and the others go on."""
    for file in files:
        try:
            yield recorder.record(file, anew=anew)
        except FileError as error:
            yield Recorded(file, "refused", 0, (str(error),))


def refill(recorder: Recorder, places: Sequence[Path]) -> tuple[list[Recorded], int]:
    """Record everything anew: the run files of `places`, of the history's folder, and those it knows of.

    Runs whose file is gone or refused are dropped; how many stands beside what became of the files.
    """
    files = [*run_files([recorder.path.absolute().parent, *places]), *filter(Path.exists, recorder.sources().values())]
    found = list(add(recorder, dict.fromkeys(file.resolve() for file in files), anew=True))
    refused = {each.path for each in found if each.state == "refused"}
    gone = [key for key, file in recorder.sources().items() if file.resolve() in refused or not file.exists()]
    recorder.forget(gone)
    return found, len(gone)


def opened(path: Path) -> tuple[Recorder, Path | None]:
    """A recorder to rebuild a history with; a damaged one is moved aside before, to the place that is given back."""
    try:
        recorder = Recorder(path)
        with contextlib.ExitStack() as undo:
            undo.enter_context(recorder)
            recorder.check()
            undo.pop_all()
    except Damaged:
        aside = _set_aside(path)
        return Recorder(path), aside
    return recorder, None


def _set_aside(path: Path) -> Path:
    """Move a damaged history out of the way, with its log."""
    aside = path.with_name(f"{path.name}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    try:
        for suffix in ("", "-wal", "-shm"):
            if Path(f"{path}{suffix}").exists():
                Path(f"{path}{suffix}").replace(f"{aside}{suffix}")
    except OSError as error:
        raise FileError(f"{path}: damaged, and cannot be moved: {error.strerror}") from error
    return aside
