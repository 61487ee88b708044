"""Run files read as evidence: record by record, several at a time where they are large."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

from gpubench import store
from gpubench.evidence import Gathering, Reading

# Below this, starting processes takes longer than they save: a worker starts in 0.4 s, a core reads 40 MB a second.
_LARGE_BYTES = 48 * 2**20


def read(path: Path) -> Reading:
    """One run file; raises FileError where it cannot be read or trusted."""
    gathered = Gathering()
    with uncollected():
        scan = store.scan(path, gathered.take)
    assert scan.manifest is not None  # `store.scan` has seen to it
    return Reading(scan.manifest, gathered, str(path), scan.complete, tuple(scan.warnings))


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the collector of cycles: records and evidence hold none, and looking for them takes a fifth."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def read_all(paths: Sequence[Path]) -> list[Reading]:
    """Run files in order, in as many processes as there are processors where that is worth it."""
    processors = min(len(os.sched_getaffinity(0)), len(paths))
    if processors < 2 or sum(path.stat().st_size for path in paths if path.exists()) < _LARGE_BYTES:
        return [read(path) for path in paths]
    with uncollected(), ProcessPoolExecutor(processors, mp_context=get_context("spawn")) as pool:
        return list(pool.map(read, paths))
