"""Read the history: its lines (the series of each case), their trends, and the newest results for a gate."""

import functools
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gpubench import stats
from gpubench.analysis.fingerprint import Fingerprint
from gpubench.analysis.trend import Line, RunSource, Trend, TrendPoint
from gpubench.base import patterns
from gpubench.model import Better, Tier
from gpubench.model.limits import Count
from gpubench.tools.history.database import FileName, Finite, Key, Moment, OpenHistory, checked, damaged, reported
from gpubench.tools.history.recording import AHEAD_S, full_path

_LINES_OF_CASE = """
SELECT lines.id, headline, case_id, version, tier, series, unit, better, devices, pairs
FROM lines JOIN fingerprints ON fingerprint = fingerprints.id WHERE case_id = ?
AND EXISTS (SELECT 1 FROM points JOIN runs ON runs.id = run WHERE line = lines.id)
ORDER BY version, tier, fingerprint, devices, headline DESC, series
"""
_POINT = "run, replicate, low, centre, high, noise, samples, labels, key, path, runs.at, host, versions"
_LINE_ROW = TypeAdapter(tuple[Key, Key, str, Count, Tier, str, str, Better, str, str])  # _LINES_OF_CASE
_POINT_ROW = TypeAdapter(tuple[Key, Count, Finite, Finite, Finite, Finite, Count, str, str, FileName, Moment, str, str])
_PAIRS = TypeAdapter(tuple[tuple[str, str], ...])


@dataclass(frozen=True, slots=True)
class StoredLine:
    """A line of the history: one series of a case on one kind of device, in all runs; `number` is its row."""

    number: int
    line: Line
    headline: bool


class History(OpenHistory):
    """A history that is open to read."""

    def lines(self, case_patterns: Sequence[str] = (), series: str = "") -> list[StoredLine]:
        """Return the lines of the cases whose id contains one of `case_patterns`, ordered by case.

        `*` and `?` are wildcards; no pattern selects every case."""
        ids = [str(case_id) for (case_id,) in self._fetch_all("SELECT DISTINCT case_id FROM lines ORDER BY case_id")]
        matching = []
        for case_id in ids:
            if not case_patterns or patterns.matches(case_id, case_patterns):
                for row in self._fetch_all(_LINES_OF_CASE, (case_id,)):
                    stored = self._parse_line(row)
                    if series == stored.line.series or (stored.headline and not series):
                        matching.append(stored)
        return matching

    def _parse_line(self, row: tuple[Any, ...]) -> StoredLine:
        """Return the line in a row of _LINES_OF_CASE. Raises Damaged if a value has a wrong type or range."""
        number, headline, case, version, tier, series, unit, better, devices, pairs = checked(_LINE_ROW, row, self.path)
        kind = Fingerprint(self._parse_pairs(pairs))
        if not kind.pairs:
            raise damaged(self.path)
        line = Line(case, version, tier, series, unit, better, tuple(devices.split("+")), kind)
        return StoredLine(number, line, bool(headline))

    def series(self, case_patterns: Sequence[str]) -> list[str]:
        """Return the names of all series of the cases whose id matches a pattern, as in `lines`; sorted."""
        rows = self._fetch_all("SELECT DISTINCT case_id, series FROM lines")
        return sorted(
            {str(series) for case, series in rows if not case_patterns or patterns.matches(str(case), case_patterns)}
        )

    def trend(self, stored: StoredLine, runs: int) -> Trend:
        """Return the results of a line in its newest `runs` runs, oldest first, and the changes among them."""
        points: list[TrendPoint] = []
        sources: dict[str, None] = {}
        for point in self._newest_points(stored.number):
            sources[point.source.key] = None
            if len(sources) > runs:
                break
            points.append(point)
        if not points:  # `lines` returns only lines with points
            raise damaged(self.path)
        return Trend.of(stored.line, points[::-1])

    def last(
        self, case: str, version: int, tier: str, fingerprint: str, count: int, now: float | None = None
    ) -> tuple[TrendPoint, ...]:
        """Return the newest `count` headline results of a case on devices with this fingerprint id, oldest first.

        Each replicate is a result. Runs that start more than AHEAD_S after `now` (s since 1970, by default the present)
        are left out: their clock was wrong. The result is empty if the history has none."""
        query = "SELECT id FROM lines WHERE case_id = ? AND version = ? AND tier = ? AND fingerprint = ? AND headline"
        numbers = [number for (number,) in self._fetch_all(query, (case, version, tier, fingerprint))]
        limit = (time.time() if now is None else now) + AHEAD_S
        newest = [point for number in numbers for point in self._newest_points(number, limit, count)]
        newest.sort(key=lambda point: (point.source.at, point.source.key, point.replicate))
        return tuple(newest[-count:])

    def files(self, points: Iterable[TrendPoint]) -> tuple[Path, ...]:
        """Return the run files that these results come from, each once, the oldest run first."""
        sources = sorted({point.source for point in points}, key=lambda source: (source.at, source.key))
        return tuple(Path(source.path) for source in sources)

    def warnings(self, now: float | None = None) -> tuple[str, ...]:
        """Return sentences that warn of runs with a wrong clock: runs that start in the future, and corrected ones."""
        limit = (time.time() if now is None else now) + AHEAD_S
        ((future, ahead),) = self._fetch_all("SELECT total(at > ?), total(ahead_s > 0) FROM runs", (limit,))
        messages = []
        if future:
            messages.append(
                f"{future:.0f} runs start in the future: a clock was wrong; no gate takes them as a baseline"
            )
        if ahead:
            messages.append(
                f"{ahead:.0f} runs start after their file was written: the time of the file is used instead"
            )
        return tuple(messages)

    def _newest_points(self, number: int, limit: float = float("inf"), count: int = -1) -> Iterator[TrendPoint]:
        """Yield the newest results of a line, the newest first; a negative `count` gives all."""
        query = (
            f"SELECT {_POINT} FROM points JOIN runs ON runs.id = run WHERE line = ? AND points.at <= ? "
            "ORDER BY points.at DESC, run DESC, replicate DESC LIMIT ?"
        )
        sources: dict[int, RunSource] = {}
        for row in self._fetch(query, (number, limit, count)):
            run, replicate, low, centre, high, noise, samples, labels, key, path, at, host, versions = checked(
                _POINT_ROW, row, self.path
            )
            if run not in sources:
                sources[run] = RunSource(key, full_path(self._folder, path), at, host, self._parse_pairs(versions))
            label_list = tuple(labels.split(",")) if labels else ()
            yield TrendPoint(sources[run], replicate, stats.Interval(low, centre, high), noise, samples, label_list)

    def _parse_pairs(self, text: str) -> tuple[tuple[str, str], ...]:
        """Return pairs of names and values from their JSON. Raises Damaged if the JSON has another form."""
        try:
            return _parse_pairs(text)
        except ValidationError as error:
            raise damaged(self.path) from error

    def _fetch_all(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query; `values` replace its question marks. Raises as `_fetch` does."""
        return list(self._fetch(query, values))

    def _fetch(self, query: str, values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query; `values` replace its question marks."""
        with reported(self.path):
            cursor: sqlite3.Cursor = self._connection.execute(query, values)
            yield from cursor


@functools.lru_cache(maxsize=1024)
def _parse_pairs(text: str) -> tuple[tuple[str, str], ...]:
    """Return pairs of names and values from their JSON. Raises ValidationError if the JSON has another form."""
    return _PAIRS.validate_json(text, strict=True)
