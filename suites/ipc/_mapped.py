"""Map memory of another process by its handle, and measure opening it, the first copy through it, and steady copies."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from gpubench.api import suite as gb

from .. import _between
from .._copies import ARRAYS, Call, call_of, reads
from .._link import FIRST, LIMIT, ONE_WAY, STEADY, link_of

# From this size on, a pull is a sustained rate with counters sampled beside it, not a point of a curve.
_SUSTAINED_BYTES = 2**28

topic = gb.Topic(
    views=[
        gb.View("bars", "First-touch copy bandwidth", ("first_touch", "first_use"), by=("path",)),
        gb.View("bars", "IPC handle open time", ("open",), by=("path",)),
    ],
)


def _first_sizes(target: gb.Target) -> Any:
    quick = (2**22,) if target.is_host else (2**26,)
    return gb.points(quick, smoke=(2**21,), full=(2**3, 2**12, 2**21, 2**26, *(() if target.is_host else (2**30,))))


def _pull_sizes(target: gb.Target) -> Any:
    """Return the axis of sizes in bytes for `pull`: `sizes`, but on the host `quick` also has 256 MiB, the headline."""
    common = _between.sizes(target)
    if not target.is_host:
        return common
    return gb.points(_between.fitting(target, (2**3, 2**12, 2**16, 2**20, 2**24, 2**28)), common.smoke, common.full)


@topic.case(
    ranks=2,
    devices=_between.devices_of,
    path=_between.paths,
    size_bytes=lambda target: gb.points((2**21,) if target.is_host else (2**21, 2**28), (2**21,), (2**21, 2**28)),
    runtime=_between.opening,
)
def open_(bench: gb.Bench, path: str, size_bytes: int) -> gb.Task:
    """Seconds to map an allocation of another process by its handle; unmapping it is not timed.

    `path` is `same` if both processes use one device, or `peer` for two GPUs."""
    if bench.rank == 0:
        return owner(bench, size_bytes)
    partner = Partner(bench, path, "pull", size_bytes)
    stage = gb.Stage(partner.opening_seconds, gb.Work(items=1), "item", clock="self", effort=gb.POINT)
    return gb.Task.of(
        stage, check=partner.check_mapping, notes=_between.notes(bench, path), labels=_between.labels(bench, path)
    )


@topic.case(
    ranks=2,
    devices=_between.devices_of,
    path=_between.paths,
    size_bytes=lambda target: gb.points((2**24,) if target.is_host else (2**26,), (2**21,), (2**26,)),
)
def first_touch(bench: gb.Bench, path: str, size_bytes: int) -> gb.Task:
    """Bandwidth of the first copy out of another process's memory through a fresh mapping, by the host's clock.

    The rate counts each byte once (payload). `path` is `same` if both processes use one device, or `peer` for two GPUs.
    """
    return _first(bench, path, "pull", size_bytes)


@topic.case(
    ranks=2, devices=_between.devices_of, path=_between.paths, way=("push", "load", "store"), size_bytes=_first_sizes
)
def first_use(bench: gb.Bench, path: str, way: str, size_bytes: int) -> gb.Task:
    """Bandwidth of the first copy through a fresh mapping, as in `first_touch`, by another way: payload.

    With `push` a copy engine writes the other process's memory; with `load` or `store` a kernel reads or writes it.
    `path` is `same` if both processes use one device, or `peer` for two GPUs."""
    return _first(bench, path, way, size_bytes)


def _first(bench: gb.Bench, path: str, way: str, size_bytes: int) -> gb.Task:
    """Return this rank's task of the first copy by `way` through a fresh mapping, timed by the host's clock."""
    if bench.rank == 0:
        return owner(bench, size_bytes)
    partner = Partner(bench, path, way, size_bytes)
    stage = gb.Stage(partner.first_copy_seconds, gb.Work(payload=size_bytes), "payload", clock="self", effort=gb.POINT)
    return partner.task(stage, FIRST)


@topic.case(ranks=2, devices=_between.devices_of, path=_between.paths, size_bytes=_pull_sizes, headline={})
def pull(bench: gb.Bench, path: str, size_bytes: int) -> gb.Task:
    """Bandwidth of copies out of the other process's memory through a mapping that stays open: payload.

    `path` is `same` if both processes use one device, or `peer` for two GPUs."""
    return _steady(bench, path, "pull", size_bytes)


@topic.case(ranks=2, devices=_between.devices_of, path=_between.paths, size_bytes=_between.sizes)
def push(bench: gb.Bench, path: str, size_bytes: int) -> gb.Task:
    """Bandwidth of copies into the other process's memory through a mapping that stays open: payload.

    `path` is `same` if both processes use one device, or `peer` for two GPUs."""
    return _steady(bench, path, "push", size_bytes)


@topic.case(ranks=2, devices=_between.devices_of, path=_between.paths, size_bytes=_between.sizes)
def load(bench: gb.Bench, path: str, size_bytes: int) -> gb.Task:
    """Bandwidth of a kernel, or on the host of all threads, that loads from the other process's memory: payload.

    `path` is `same` if both processes use one device, or `peer` for two GPUs."""
    return _steady(bench, path, "load", size_bytes)


@topic.case(ranks=2, devices=_between.devices_of, path=_between.paths, size_bytes=_between.sizes)
def store(bench: gb.Bench, path: str, size_bytes: int) -> gb.Task:
    """Bandwidth of a kernel, or on the host of all threads, that stores to the other process's memory: payload.

    `path` is `same` if both processes use one device, or `peer` for two GPUs."""
    return _steady(bench, path, "store", size_bytes)


def _steady(bench: gb.Bench, path: str, way: str, size_bytes: int) -> gb.Task:
    """Return this rank's task of copies by `way` through a mapping that stays open; both ranks must call this."""
    if bench.rank == 0:
        return owner(bench, size_bytes)
    partner = Partner(bench, path, way, size_bytes)
    limit = LIMIT if path == "peer" else ""
    effort = gb.TIER if way == "pull" and size_bytes >= _SUSTAINED_BYTES else gb.POINT
    return partner.task(gb.Stage(partner.keep(), gb.Work(payload=size_bytes), "payload", limit, effort=effort))


@topic.case(devices=_between.devices_of, path=_between.paths, size_bytes=_between.sizes)
def plain(bench: gb.Bench, path: str, size_bytes: int) -> gb.Task:
    """Bandwidth of the same copy as in `pull`, within one process and without a handle, for comparison: payload.

    `path` is `same` if the copy is within one device, or `peer` for two GPUs."""
    bench.need(ARRAYS * size_bytes)
    xp = bench.xp
    near = xp.empty(size_bytes, xp.uint8)
    far = bench.device.peer_memory(bench.devices[1], size_bytes) if path == "peer" else xp.empty(size_bytes, xp.uint8)
    sent = _between.fill_pattern(bench, far, bench.seed)
    bench.device.synchronize()

    def check() -> None:
        _between.expect_pattern(bench, near, sent.seed, "copied in one process")

    limit = LIMIT if path == "peer" else ""
    call, work, inputs = partial(bench.device.copy, near, far), gb.Work(payload=size_bytes), partial(sent.redraw, far)
    stage = gb.Stage(call, work, "payload", limit, effort=gb.POINT, outputs=(near,), inputs=inputs)
    tags = {"devices": " ← ".join(device.id for device in bench.devices), "processes": "1"}
    tags |= link_of(ONE_WAY, "pull", protocol="none (one process)") if path == "peer" else {}
    return gb.Task.of(stage, check=check, notes=tags)


def owner(bench: gb.Bench, nbytes: int) -> gb.Task:
    """Return the task of rank 0, which shares a new allocation of `nbytes` until rank 1 has finished.

    The allocation holds the pattern of the bench's seed. Rank 1 must create a Partner at the same time."""
    _between.need_shared_gpu(bench)
    buffer = bench.device.share(nbytes)
    _between.fill_pattern(bench, buffer.array, bench.seed)
    bench.device.synchronize()
    bench.exchange(buffer.handle)
    return gb.Task.idle(buffer.close)


def _no_copy() -> None:
    """Copy nothing: no mapping is open."""


class Partner:
    """Rank 1, which opens the allocation of `nbytes` of rank 0 (`owner`) and copies out of it or into it.

    `way` is `pull`, `push`, `load` or `store`; `path` is `same` (both ranks on one device) or `peer`."""

    def __init__(self, bench: gb.Bench, path: str, way: str, nbytes: int) -> None:
        _between.need_shared_gpu(bench)
        bench.need(ARRAYS * nbytes)
        self._bench = bench
        self._path = path
        self._way = way
        self._nbytes = nbytes
        self._writes = not reads(way)
        # the written pattern differs from the owner's pattern
        self._sent = bench.words(nbytes // 8, bench.seed + (1 if self._writes else 0))
        self._local = bench.xp.empty(nbytes, bench.xp.uint8)
        if self._writes:
            self._sent.fill(self._local)
        self._handle: bytes = bench.exchange(None)[0]
        self._kept: gb.SharedBuffer | None = None
        self._kept_copy: Call = _no_copy

    def _open(self) -> gb.SharedBuffer:
        return _between.open_shared(self._bench, self._handle, self._nbytes)

    def _copy_through(self, shared: gb.SharedBuffer) -> Call:
        return call_of(self._bench, self._way, self._local, shared.array)

    def opening_seconds(self) -> float:
        """Map the allocation and return the seconds that this took; then unmap it."""
        start = time.perf_counter()
        shared = self._open()
        seconds = time.perf_counter() - start
        shared.close()
        return seconds

    def first_copy_seconds(self) -> float:
        """Map the allocation and return the seconds of the first copy, by the host's clock.

        Then unmap the allocation."""
        shared = self._open()
        call = self._copy_through(shared)
        start = time.perf_counter()
        call()
        self._bench.device.synchronize()
        seconds = time.perf_counter() - start
        del call
        shared.close()
        return seconds

    def keep(self) -> Call:
        """Map the allocation until `close`, and return the copy through this mapping."""
        self._kept = self._open()
        self._kept_copy = self._copy_through(self._kept)
        return lambda: self._kept_copy()

    def poison(self) -> None:
        """Overwrite the target of the copy."""
        self._use(self._writes, lambda array: array.fill(_between.POISON))

    def redraw(self) -> None:
        """Put other words into the source of the copy; a second call restores the first ones."""
        self._use(not self._writes, self._sent.redraw)

    def check(self) -> None:
        """Raise WrongAnswer if a byte in the target of the copy is wrong.

        On a GPU a kernel reads written memory back, so that the copy under test does not check itself."""
        label = "written through the handle" if self._writes else "read through the handle"
        self._use(self._writes, lambda array: _between.expect_pattern(self._bench, array, self._sent.seed, label))

    def check_mapping(self) -> None:
        """Copy once through a fresh mapping; raise WrongAnswer if a byte is not the other process's."""
        self.poison()
        self.first_copy_seconds()
        self.check()

    def _use(self, is_far: bool, use: Callable[[Any], object]) -> None:
        """Call `use` with this rank's array, or with rank 0's memory, which is mapped for this unless it is kept."""
        if not is_far:
            use(self._local)
            return
        shared = self._kept or self._open()
        use(shared.array)
        self._bench.device.synchronize()
        if shared is not self._kept:
            shared.close()

    def close(self) -> None:
        """Unmap the allocation if it is still mapped."""
        self._kept_copy = _no_copy  # drops the copy, which holds the mapped array
        if self._kept is not None:
            self._kept.close()

    def task(self, stage: gb.Stage, state: str = STEADY) -> gb.Task:
        """Return the task of `stage` with this rank's check, clean-up and notes.

        `state` is the state of the mapping in the notes: STEADY or FIRST."""
        tags = link_of(ONE_WAY, self._way, state=state) if self._path == "peer" else {}
        return gb.Task.of(
            replace(stage, inputs=self.redraw),
            check=self.check,
            poison=self.poison,
            close=self.close,
            notes={**_between.notes(self._bench, self._path), **tags},
            labels=_between.labels(self._bench, self._path),
        )
