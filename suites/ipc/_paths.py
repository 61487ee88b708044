"""Copies through another process's memory: by copy engine and by kernel, out of it and into it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gpubench.api.suite import POINT, TIER, Bench, Observation, SharedBuffer, Stage, Task, Work

from .._between import SPOILED, exclusive, expect_pattern, fill_pattern, labels, notes, open_shared
from .._copies import ARRAYS, Call, call_of
from .._link import FIRST, LIMIT, ONE_WAY, STEADY, link_of

_SUSTAINED_BYTES = 2**28  # from here on a pull is a figure that counters meet, not a point of a curve


def nothing() -> None:
    """The copy of a mapping that is not kept."""


class Owner:
    """Rank 0: shares a filled allocation and holds it while rank 1 works."""

    def __init__(self, bench: Bench, nbytes: int) -> None:
        exclusive(bench)
        self.buffer = bench.device.share(nbytes)
        fill_pattern(bench, self.buffer.array, bench.seed)
        bench.device.synchronize()
        bench.exchange(self.buffer.handle)

    def task(self) -> Task:
        """Nothing to do but be there."""
        return Task.idle(self.buffer.close)


class Partner:
    """Rank 1: opens the allocation, and copies out of it or into it."""

    def __init__(self, bench: Bench, path: str, way: str, nbytes: int) -> None:
        exclusive(bench)
        bench.need(ARRAYS * nbytes)
        self.bench = bench
        self.path = path
        self.way = way
        self.nbytes = nbytes
        self.device = bench.device
        self.seed = bench.seed + (1 if self.writes else 0)  # what is written differs from what the owner wrote
        self.local = bench.xp.empty(nbytes, bench.xp.uint8)
        if self.writes:
            fill_pattern(bench, self.local, self.seed)
        self.handle: bytes = bench.exchange(None)[0]
        self.kept: SharedBuffer | None = None
        self._kept_copy: Call = nothing

    @property
    def writes(self) -> bool:
        """Whether this way writes into the other process's memory."""
        return self.way in ("push", "store")

    def open(self) -> SharedBuffer:
        """Map the allocation."""
        return open_shared(self.bench, self.handle, self.nbytes)

    def bound(self, shared: SharedBuffer) -> Call:
        """The copy of this way through a mapping."""
        return call_of(self.bench, self.way, self.local, shared.array)

    def opening(self) -> float:
        """Seconds to map the allocation; unmapping is outside."""
        start = time.perf_counter()
        shared = self.open()
        seconds = time.perf_counter() - start
        shared.close()
        return seconds

    def first_copy(self) -> float:
        """Seconds of the first copy through a fresh mapping, by the host's clock."""
        shared = self.open()
        call = self.bound(shared)
        start = time.perf_counter()
        call()
        self.device.synchronize()
        seconds = time.perf_counter() - start
        del call
        shared.close()
        return seconds

    def keep(self) -> Call:
        """The copy through a mapping that is kept."""
        self.kept = self.open()
        self._kept_copy = self.bound(self.kept)
        return lambda: self._kept_copy()

    def poison(self) -> None:
        """Overwrite what was copied, where it went."""
        if not self.writes:
            self.local.fill(SPOILED)
        elif self.kept is not None:
            self.kept.array.fill(SPOILED)
            self.device.synchronize()
        else:
            self._through_a_mapping(lambda array: array.fill(SPOILED))

    def check(self) -> Observation:
        """Every byte that arrived is right; what was written is read back by a kernel, not by what wrote it."""
        if not self.writes:
            expect_pattern(self.bench, self.local, self.seed, "read through the handle")
        elif self.kept is not None:
            self._expect_written(self.kept.array)
        else:
            self._through_a_mapping(self._expect_written)
        return {}

    def check_mapping(self) -> Observation:
        """What a fresh mapping shows is what the other process wrote."""
        self.poison()
        self.first_copy()
        return self.check()

    def _expect_written(self, array: Any) -> None:
        expect_pattern(self.bench, array, self.seed, "written through the handle")

    def _through_a_mapping(self, look: Callable[[Any], object]) -> None:
        shared = self.open()
        look(shared.array)
        self.device.synchronize()
        shared.close()

    def close(self) -> None:
        """Unmap what is still mapped."""
        self._kept_copy = nothing  # it holds the mapped array
        if self.kept is not None:
            self.kept.close()

    def task(self, stage: Stage, state: str = STEADY) -> Task:
        """The task of one stage of copies."""
        return Task.of(
            stage,
            check=self.check,
            poison=self.poison,
            close=self.close,
            notes={**notes(self.bench, self.path), **self._link(state)},
            labels=labels(self.bench, self.path),
        )

    def _link(self, state: str) -> dict[str, str]:
        return link_of(ONE_WAY, self.way, state=state) if self.path == "peer" else {}


def opening(bench: Bench, path: str, size_bytes: int) -> Task:
    """Opening the handle; closing it is outside."""
    if bench.rank == 0:
        return Owner(bench, size_bytes).task()
    partner = Partner(bench, path, "pull", size_bytes)
    stage = Stage(partner.opening, Work(items=1), "item", clock="self")
    found = notes(bench, path)
    return Task.of(stage, check=partner.check_mapping, notes=found, labels=labels(bench, path))


def steady(bench: Bench, path: str, way: str, size_bytes: int) -> Task:
    """Copies through a mapping that is kept; rank 0 only owns."""
    if bench.rank == 0:
        return Owner(bench, size_bytes).task()
    partner = Partner(bench, path, way, size_bytes)
    limit = LIMIT if path == "peer" else ""
    effort = TIER if way == "pull" and size_bytes >= _SUSTAINED_BYTES else POINT
    return partner.task(Stage(partner.keep(), Work(payload=size_bytes), "payload", limit, effort=effort))


def first(bench: Bench, path: str, way: str, size_bytes: int) -> Task:
    """The first copy through a fresh mapping, by the host's clock; mapping and unmapping are outside."""
    if bench.rank == 0:
        return Owner(bench, size_bytes).task()
    partner = Partner(bench, path, way, size_bytes)
    return partner.task(Stage(partner.first_copy, Work(payload=size_bytes), "payload", clock="self"), FIRST)


def single(bench: Bench, path: str, way: str, size_bytes: int) -> Task:
    """One copy and the wait for it, by the host's clock."""
    if bench.rank == 0:
        return Owner(bench, size_bytes).task()
    partner = Partner(bench, path, way, size_bytes)
    work = Work(payload=size_bytes, items=1)
    return partner.task(Stage(partner.keep(), work, "item", clock="host", max_calls=1, effort=POINT))


def plain(bench: Bench, path: str, size_bytes: int) -> Task:
    """The same copy in one process: no handle, no second process."""
    bench.need(ARRAYS * size_bytes)
    xp, nbytes = bench.xp, size_bytes
    local = xp.empty(nbytes, xp.uint8)
    far = bench.device.peer_memory(bench.devices[1], nbytes) if path == "peer" else xp.empty(nbytes, xp.uint8)
    fill_pattern(bench, far, bench.seed)
    bench.device.synchronize()

    def check() -> Observation:
        expect_pattern(bench, local, bench.seed, "copied in one process")
        return {}

    limit = LIMIT if path == "peer" else ""
    stage = Stage(lambda: bench.device.copy(local, far), Work(payload=nbytes), "payload", limit, effort=POINT)
    found = {"devices": " ← ".join(device.id for device in bench.devices), "processes": "1"}
    found |= link_of(ONE_WAY, "pull", protocol="none, and one process") if path == "peer" else {}
    return Task.of(stage, check=check, poison=lambda: local.fill(SPOILED), notes=found)
