"""Read run files as the evidence of a gate, record by record; large files are read in parallel."""

import gc
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from gpubench.judging.evidence import Gathering, Key, Process, Reading
from gpubench.model import Case, store

# Below this, starting processes takes longer than they save: a worker starts in 0.4 s, a core reads 40 MB per second.
_LARGE_BYTES = 48 * 2**20


def read(path: Path) -> Reading:
    """Return the evidence in one run file. Raises FileError if it cannot be read or is invalid."""
    gathered = Gathering()
    with garbage_collection_off():
        scan = store.scan(path, gathered.add)
    assert scan.manifest is not None  # `store.scan` raises FileError without one
    return Reading(scan.manifest, gathered, str(path), scan.complete, tuple(scan.warnings))


@contextmanager
def garbage_collection_off() -> Iterator[None]:
    """Switch Python's garbage collector off: evidence has no cycles, and searching costs a fifth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def read_all(paths: Sequence[Path]) -> list[Reading]:
    """Return the evidence in each run file, in the order of `paths`; large files are read by one process per core."""
    processors = min(len(os.sched_getaffinity(0)), len(paths))
    if processors < 2 or sum(path.stat().st_size for path in paths if path.exists()) < _LARGE_BYTES:
        return [read(path) for path in paths]
    with garbage_collection_off(), ProcessPoolExecutor(processors, mp_context=get_context("spawn")) as pool:
        return [reading_in_columns.reading() for reading_in_columns in pool.map(_read_in_columns, paths)]


class _ReadingInColumns(NamedTuple):
    """A reading in columns, to be sent between processes: pickling ten thousand small objects takes too long."""

    without_results: Reading
    keys: list[Key]
    cases: list[Case]
    counts: list[int]
    columns: list[tuple[Any, ...]]

    def reading(self) -> Reading:
        """Put the results back into `without_results` and return it, which is then the whole reading."""
        processes = map(Process._make, zip(*self.columns, strict=True))
        for key, case, count in zip(self.keys, self.cases, self.counts, strict=True):
            self.without_results.gathered.results[key] = [(case, process) for process in islice(processes, count)]
        return self.without_results


def _read_in_columns(path: Path) -> _ReadingInColumns:
    """Return the evidence in one run file, in columns. Raises FileError if it cannot be read or is invalid."""
    reading = read(path)
    results = reading.gathered.results
    case_processes = [entry for entries in results.values() for entry in entries]
    columns = list(zip(*(process for _, process in case_processes), strict=True)) or [()] * len(Process._fields)
    cases, counts = [entries[0][0] for entries in results.values()], [len(entries) for entries in results.values()]
    without_results = replace(reading, gathered=Gathering(clocks=reading.gathered.clocks))
    return _ReadingInColumns(without_results, list(results), cases, counts, columns)
