"""Read a file through the page cache, past it (O_DIRECT), and by cuFile, into the memory of the device."""

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from gpubench.api import suite as gb

from .._files import drop_from_page_cache, read_into_page_cache, resident_pages
from ._cufile import CufileReader
from ._readers import Reader, SystemReader
from ._sources import MADE, Source, source_of

_PATHS = ("buffered", "direct")
_USUAL_BLOCK, _USUAL_DEPTH = 2**20, 8

topic = gb.Topic(
    views=[
        gb.View("bars", "Read bandwidth of files by path", ("read",), by=("path", "file", "cache"), series="self"),
        gb.View(
            "curve",
            "Read bandwidth of files over block size",
            ("read",),
            x="block_bytes",
            by=("path", "cache", "depth"),
            series="self",
            log_x=True,
        ),
    ],
)


def _paths(target: gb.Target) -> Any:
    return gb.points(_PATHS if target.is_host else _PATHS[1:], full=_PATHS if target.is_host else (*_PATHS, "cufile"))


def _files(target: gb.Target) -> Any:
    return tuple(file.label for file in target.data) or (MADE,)


def _sizes(target: gb.Target) -> Any:
    return gb.points(smoke=(2**22,), quick=(2**25 if target.is_host else 2**26,), full=(2**28,))


def _is_wanted(target: gb.Target, params: Mapping[str, Any]) -> bool:
    """Return whether the point `params` is measured."""
    if params["cache"] == "warm" and params["path"] != "buffered":
        return False
    is_usual = params["block_bytes"] == _USUAL_BLOCK, params["depth"] == _USUAL_DEPTH
    return target.tier != "full" or (any(is_usual) if params["cache"] == "cold" else all(is_usual))


@topic.case(
    where=_is_wanted,
    headline={"path": "direct", "depth": _USUAL_DEPTH, "block_bytes": _USUAL_BLOCK},
    path=_paths,
    file=_files,
    cache=gb.points(("cold",), full=("cold", "warm")),
    size_bytes=_sizes,
    block_bytes=gb.points((_USUAL_BLOCK,), full=(2**16, 2**18, _USUAL_BLOCK, 2**23)),
    depth=gb.points((_USUAL_DEPTH,), full=(1, 4, _USUAL_DEPTH, 32)),
)
def read(bench: gb.Bench, path: str, file: str, cache: str, size_bytes: int, block_bytes: int, depth: int) -> gb.Task:
    """Bandwidth of reading the first `size_bytes` of a file, or all of a shorter one, once in blocks: payload.

    `depth` threads read blocks of `block_bytes` at a time. `path` is `buffered` (through the page cache), `direct`
    (past it) or `cufile`; `cache` says whether the page cache holds the file before."""
    source = source_of(bench, file, size_bytes)
    with contextlib.ExitStack() as on_error:
        on_error.callback(source.close)
        kind = CufileReader if path == "cufile" else SystemReader
        reader = kind(bench, source, block_bytes, depth, is_direct=path != "buffered")
        on_error.pop_all()
    return _Reading(bench, source, reader, path, cache).task()


class _Reading:
    """Reads of the whole `source` by `reader`, one in each sample.

    Before each read the file's pages are read into the page cache if `cache` is `warm`, else dropped from it."""

    def __init__(self, bench: gb.Bench, source: Source, reader: Reader, path: str, cache: str) -> None:
        self._bench, self._source, self._reader, self._path, self._cache = bench, source, reader, path, cache

    def task(self) -> gb.Task:
        """Return the task; each call of its stage times itself and compares every byte."""
        stage = gb.Stage(
            self._call,
            gb.Work(payload=self._source.size),
            "payload",
            limit="link.h2d" if self._bench.traits.is_gpu else "",
            clock="self",
            effort=gb.POINT,
            checked=True,
        )
        notes = {**self._source.notes, **self._reader.notes}
        return gb.Task.of(stage, check=self._observed, close=self._close, notes=notes, labels=self._reader.labels)

    def _call(self) -> float:
        """Put the file's pages into the state of the case, read the file, compare it, and return the read's seconds."""
        source, reader = self._source, self._reader
        source.expect_unchanged()
        (read_into_page_cache if self._cache == "warm" else drop_from_page_cache)(source.descriptor, source.size)
        reader.poison()
        begun = time.perf_counter()
        count = reader.read()
        seconds = time.perf_counter() - begun
        source.expect_unchanged()
        gb.expect(count == source.size, f"{source.name}: {count} of {source.size} bytes could be read")
        if self._path != "buffered":
            self._expect_past_cache()
        reader.compare()
        return seconds

    def _expect_past_cache(self) -> None:
        """Raise Untrustworthy if the page cache holds a page of the file after a read past it."""
        resident, pages = resident_pages(self._source.descriptor, self._source.size)
        if resident:
            evidence = f"after a read past the page cache {resident} of {pages} pages of the file are in it"
            raise gb.Untrustworthy("not-direct", f"{evidence}: this file system does not really support O_DIRECT")

    def _observed(self) -> gb.Observation:
        resident, _ = resident_pages(self._source.descriptor, self._source.size)
        return {"cached pages": gb.Observed(resident), **self._reader.observed()}

    def _close(self) -> None:
        self._reader.close()
        self._source.close()
