"""Prepare the run file that a page contains: small enough, with a note about the data that it leaves out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gpubench.analysis.counters import extremes
from gpubench.base import units
from gpubench.model import Result, Run, Samples, store
from gpubench.model.packed import Packed
from gpubench.plugins.report import Enclosure

LIMIT_BYTES = 200_000  # compressed; base64 makes 270 kB of it, and a page has at most a megabyte
_DIGITS = (9, 7)  # digits of rounded samples: finer than any clock's resolution, then finer than any noise
_COLUMN = 400  # samples of a counter after thinning
_BYTES = 1.2  # the least compressed size of a number: a run with too many numbers is not even compressed


def enclosure(run: Run, path: str | Path) -> Enclosure:
    """Return the part of a run, read from `path`, that a report contains: as much as fits into LIMIT_BYTES."""
    source = store.file_hash(path)
    for small, left_out in _attempts(run):
        content = store.content(small, packed=True)
        if len(content) <= LIMIT_BYTES:
            return Enclosure(source, content, left_out)
    size = units.round_size(Path(path).stat().st_size)
    return Enclosure(source, b"", f"The samples themselves are left out: the run file has {size}.")


def _attempts(run: Run) -> Iterator[tuple[Run, str]]:
    """Yield the run and ever smaller versions of it that may fit, each with a note about what is left out."""
    if _fits(run):
        yield run, ""
    thinned = dataclasses.replace(run, samples=tuple(part for samples in run.samples for part in _thinned(samples)))
    before, after = _readings(run), _readings(thinned)
    if not _fits(thinned):
        return
    thinning = f"Of {before} readings of counters it has {after}, the least and the greatest of equal spans"
    if after < before:
        yield thinned, thinning + "."
    for digits in _DIGITS:
        rounded = dataclasses.replace(thinned, results=tuple(_rounded(result, digits) for result in thinned.results))
        samples = f"samples are rounded to {digits} digits."
        yield rounded, f"{thinning}; {samples}" if after < before else samples.capitalize()


def _fits(run: Run) -> bool:
    numbers = sum(len(series.values) for result in run.results for series in result.series) + _readings(run)
    return numbers * _BYTES <= LIMIT_BYTES


def _readings(run: Run) -> int:
    return sum(len(samples.at) * len(samples.columns) for samples in run.samples)


def _thinned(samples: Samples) -> Iterator[Samples]:
    """Yield each column as samples of its own, reduced to its extremes and without missing values."""
    if len(samples.at) <= _COLUMN:
        yield samples
        return
    at = np.asarray(samples.at, dtype=float)
    for name, column in samples.columns:
        values = np.asarray(column, dtype=float)
        present = np.flatnonzero(np.isfinite(values))
        extreme = present[extremes(values[present], _COLUMN)]
        columns = ((name, Packed[float | None](values[extreme].tolist())),)
        yield dataclasses.replace(samples, at=Packed[float](at[extreme].tolist()), columns=columns)


def _rounded(result: Result, digits: int) -> Result:
    rounded = (
        dataclasses.replace(series, values=tuple(float(f"{value:.{digits}g}") for value in series.values))
        for series in result.series
    )
    return dataclasses.replace(result, series=tuple(rounded))
