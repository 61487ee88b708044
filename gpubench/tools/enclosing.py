"""Prepare the run file that a report contains: small enough, with a note about the data that it leaves out."""

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
_MOST_VALUES = 400  # samples of a counter after thinning
_LEAST_BYTES = 1.2  # smallest compressed size of a number: a run with too many numbers is not even compressed


def enclosure(run: Run, path: str | Path) -> Enclosure:
    """Return the run file that a report contains: the run, made smaller until it has at most LIMIT_BYTES compressed.

    `path` is the file that the run was read from."""
    source = store.file_hash(path)
    for small, left_out in _smaller_versions(run):
        content = store.encode_run(small, packed=True)
        if len(content) <= LIMIT_BYTES:
            return Enclosure(source, content, left_out)
    size = units.round_size(Path(path).stat().st_size)
    return Enclosure(source, b"", f"The samples themselves are left out: the run file has {size}.")


def _smaller_versions(run: Run) -> Iterator[tuple[Run, str]]:
    if _fits(run):
        yield run, ""
    thinned = dataclasses.replace(run, samples=tuple(part for samples in run.samples for part in _thinned(samples)))
    before, after = _counter_values(run), _counter_values(thinned)
    if not _fits(thinned):
        return
    thinning = f"Of {before} counter samples, {after} are kept: the minimum and the maximum of equal intervals"
    if after < before:
        yield thinned, thinning + "."
    for digits in _DIGITS:
        rounded = dataclasses.replace(thinned, results=tuple(_rounded(result, digits) for result in thinned.results))
        samples = f"samples are rounded to {digits} digits."
        yield rounded, f"{thinning}; {samples}" if after < before else samples.capitalize()


def _fits(run: Run) -> bool:
    """Return whether a run may fit into LIMIT_BYTES, at 1.2 bytes for each value of its series and counters."""
    numbers = sum(len(series.values) for result in run.results for series in result.series) + _counter_values(run)
    return numbers * _LEAST_BYTES <= LIMIT_BYTES


def _counter_values(run: Run) -> int:
    return sum(len(samples.at) * len(samples.columns) for samples in run.samples)


def _thinned(samples: Samples) -> Iterator[Samples]:
    """Yield samples with at most _MOST_VALUES values of each counter, without missing values."""
    if len(samples.at) <= _MOST_VALUES:
        yield samples
        return
    at = np.asarray(samples.at, dtype=float)
    for name, column in samples.columns:
        values = np.asarray(column, dtype=float)
        present = np.flatnonzero(np.isfinite(values))
        extreme = present[extremes(values[present], _MOST_VALUES)]
        columns = ((name, Packed[float | None](values[extreme].tolist())),)
        yield dataclasses.replace(samples, at=Packed[float](at[extreme].tolist()), columns=columns)


def _rounded(result: Result, digits: int) -> Result:
    """Return the result with each sample of its series rounded to `digits` significant digits."""
    rounded = (
        dataclasses.replace(series, values=tuple(float(f"{value:.{digits}g}") for value in series.values))
        for series in result.series
    )
    return dataclasses.replace(result, series=tuple(rounded))
