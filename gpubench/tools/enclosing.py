"""The results of a run as a page carries them: a run file that is small enough, and a word on what it has not."""

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

LIMIT_BYTES = 200_000  # packed; in base64 270 kB of a page that has a megabyte at the most
_DIGITS = (9, 7)  # of samples that were rounded: finer than what is read from any clock, then finer than any noise
_COLUMN = 400  # readings of a counter that were thinned
_BYTES = 1.2  # that a number takes packed at the least: more of them than would fit are not even tried


def enclosure(run: Run, path: str | Path) -> Enclosure:
    """What a report of this run, read from a file, carries of it: as much as LIMIT_BYTES hold."""
    source = store.file_hash(path)
    for small, left_out in _attempts(run):
        content = store.content(small, packed=True)
        if len(content) <= LIMIT_BYTES:
            return Enclosure(source, content, left_out)
    size = units.round_size(Path(path).stat().st_size)
    return Enclosure(source, b"", f"The samples themselves are left out: the run file has {size}.")


def _attempts(run: Run) -> Iterator[tuple[Run, str]]:
    """The run as it is and ever smaller, as far as its numbers can fit at all, each with what it has not."""
    if _fits(run):
        yield run, ""
    thinned = dataclasses.replace(run, samples=tuple(part for samples in run.samples for part in _thinned(samples)))
    before, after = _readings(run), _readings(thinned)
    if not _fits(thinned):
        return
    words = f"Of {before} readings of counters it has {after}, the least and the greatest of equal spans"
    if after < before:
        yield thinned, words + "."
    for digits in _DIGITS:
        rounded = dataclasses.replace(thinned, results=tuple(_rounded(result, digits) for result in thinned.results))
        samples = f"samples are rounded to {digits} digits."
        yield rounded, f"{words}; {samples}" if after < before else samples.capitalize()


def _fits(run: Run) -> bool:
    numbers = sum(len(series.values) for result in run.results for series in result.series) + _readings(run)
    return numbers * _BYTES <= LIMIT_BYTES


def _readings(run: Run) -> int:
    return sum(len(samples.at) * len(samples.columns) for samples in run.samples)


def _thinned(samples: Samples) -> Iterator[Samples]:
    """Each column on its own, with its extremes; what is missing is left out."""
    if len(samples.at) <= _COLUMN:
        yield samples
        return
    at = np.asarray(samples.at, dtype=float)
    for name, column in samples.columns:
        values = np.asarray(column, dtype=float)
        there = np.flatnonzero(np.isfinite(values))
        kept = there[extremes(values[there], _COLUMN)]
        columns = ((name, Packed[float | None](values[kept].tolist())),)
        yield dataclasses.replace(samples, at=Packed[float](at[kept].tolist()), columns=columns)


def _rounded(result: Result, digits: int) -> Result:
    series = (
        dataclasses.replace(each, values=tuple(float(f"{value:.{digits}g}") for value in each.values))
        for each in result.series
    )
    return dataclasses.replace(result, series=tuple(series))
