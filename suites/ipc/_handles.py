"""What a handle costs: exporting, opening and closing, by size, by kind of memory and by number."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from gpubench.api.suite import (
    POINT,
    Bench,
    Handle,
    Observation,
    Observed,
    SharedBuffer,
    SharedEvent,
    SharedMemory,
    Stage,
    Target,
    Task,
    Work,
    expect,
)

from .._between import exclusive, expect_pattern, fill_pattern, hand_over, labels, notes

GPU_KINDS = ("raw", "block", "pool", "virtual")
HOST_KINDS = ("memfd", "file")
_ROOM = 6  # times the size: a block's whole allocation, and what the check needs
EACH_BYTES = 2**21  # of many: what an allocation of its own takes at the least


def kinds(target: Target) -> tuple[str, ...]:
    """The kinds of memory that processes share on this device."""
    return HOST_KINDS if target.is_host else GPU_KINDS


def seconds_of(call: Callable[[], Any]) -> tuple[float, Any]:
    """How long a call took by the host's clock, and what it gave."""
    start = time.perf_counter()
    found = call()
    return time.perf_counter() - start, found


def filled(bench: Bench, memory: SharedMemory, nbytes: int, seed: int) -> SharedBuffer:
    """Memory of this process with the pattern of a seed in it."""
    buffer = memory.allocate(nbytes)
    fill_pattern(bench, buffer.array, seed)
    bench.device.synchronize()
    return buffer


def _expect_shown(bench: Bench, buffer: SharedBuffer, seed: int) -> None:
    local = bench.xp.empty_like(buffer.array)
    bench.device.copy(local, buffer.array)
    bench.device.synchronize()
    expect_pattern(bench, local, seed, "shown by the mapping")


def self_timed(call: Callable[[], float], items: int = 1) -> Stage:
    """A stage of calls that time themselves: seconds an item."""
    return Stage(call, Work(items=items), "item", clock="self", effort=POINT)


def close_all(found: Iterable[SharedBuffer | Handle | SharedEvent]) -> None:
    """Close each."""
    for each in found:
        each.close()


class Cycle:
    """Opens and closes, again and again: seconds to open an item, and as series `close` to close it."""

    def __init__(self, open_all: Callable[[], Sequence[SharedBuffer | SharedEvent]], items: int = 1) -> None:
        self._open_all = open_all
        self._items = items
        self._closing_s = 0.0

    def _opening(self) -> float:
        seconds, opened = seconds_of(self._open_all)
        self._closing_s = seconds_of(lambda: close_all(opened))[0]
        return seconds

    def _closing(self) -> Observation:
        return {"close": Observed(self._closing_s / self._items, "s")}

    @property
    def stage(self) -> Stage:
        """The stage of these cycles."""
        return replace(self_timed(self._opening, self._items), probe=self._closing)


def export(bench: Bench, kind: str, size_bytes: int) -> Task:
    """Seconds to make a handle; another process opens the first one and reads what this one wrote."""
    bench.need(_ROOM * size_bytes)
    memory = bench.device.shared_memory(kind)
    if bench.rank == 1:
        handle = hand_over(bench, None)
        opened = memory.open(handle, size_bytes)
        _expect_shown(bench, opened, bench.seed)
        opened.close()
        handle.close()
        bench.exchange("read")
        return Task.idle()
    buffer = filled(bench, memory, size_bytes, bench.seed)
    handle = hand_over(bench, memory.export(buffer))
    handle.close()
    answer = bench.exchange(None)[1]

    def exporting() -> float:
        seconds, made = seconds_of(lambda: memory.export(buffer))
        made.close()
        return seconds

    def check() -> Observation:
        expect(answer == "read", "the other process did not read what was exported")
        return {}

    return Task.of(self_timed(exporting), check=check, release=buffer.close, notes={"kind": kind})


def mapping(bench: Bench, path: str, kind: str, size_bytes: int) -> Task:
    """Seconds to open a handle of another process; as series `close`, to close it again."""
    exclusive(bench)
    bench.need(_ROOM * size_bytes)
    memory = bench.device.shared_memory(kind)
    if bench.rank == 0:
        buffer = filled(bench, memory, size_bytes, bench.seed)
        held = hand_over(bench, memory.export(buffer))

        def let_go() -> None:
            held.close()
            buffer.close()

        return Task.idle(let_go)
    handle = hand_over(bench, None)

    def check() -> Observation:
        opened = memory.open(handle, size_bytes)
        _expect_shown(bench, opened, bench.seed)
        opened.close()
        return {}

    cycle = Cycle(lambda: [memory.open(handle, size_bytes)])
    found = {**notes(bench, path), "kind": kind}
    return Task.of(cycle.stage, check=check, close=handle.close, notes=found, labels=labels(bench, path))


class Batch:
    """Many handles of another process: opened one after another, all kept, and closed again."""

    def __init__(self, bench: Bench, memory: SharedMemory, count: int) -> None:
        self._bench = bench
        self._memory = memory
        self._handles = [hand_over(bench, None) for _ in range(count)]

    def opened(self) -> list[SharedBuffer]:
        """A mapping of each."""
        return [self._memory.open(handle, EACH_BYTES) for handle in self._handles]

    def check(self) -> Observation:
        """Each mapping shows what was written for it."""
        opened = self.opened()
        for index, buffer in enumerate(opened):
            _expect_shown(self._bench, buffer, self._bench.seed + index)
        close_all(opened)
        return {}

    def close(self) -> None:
        """Let go of the handles."""
        close_all(self._handles)


def many(bench: Bench, path: str, count: int) -> Task:
    """Seconds a handle where so many are opened one after another and all kept; as series `close`, to close each."""
    exclusive(bench)
    bench.need(2 * count * EACH_BYTES)
    memory = bench.device.shared_memory("memfd" if not bench.traits.is_gpu else "raw")
    if bench.rank == 0:
        buffers = [filled(bench, memory, EACH_BYTES, bench.seed + index) for index in range(count)]
        held = [hand_over(bench, memory.export(buffer)) for buffer in buffers]
        return Task.idle(lambda: close_all([*held, *buffers]))
    batch = Batch(bench, memory, count)
    return Task.of(
        Cycle(batch.opened, count).stage,
        check=batch.check,
        close=batch.close,
        notes=notes(bench, path),
        labels=labels(bench, path),
    )


def mesh(bench: Bench, of: int) -> Task:
    """Seconds a handle where every rank opens one of every other GPU, all at once."""
    exclusive(bench)
    memory = bench.device.shared_memory("raw")
    mine = filled(bench, memory, EACH_BYTES, bench.seed + bench.rank)
    data = bench.exchange(memory.export(mine).data)
    others = {rank: Handle(found) for rank, found in enumerate(data) if rank != bench.rank}

    def open_all() -> dict[int, SharedBuffer]:
        return {rank: memory.open(handle, EACH_BYTES) for rank, handle in others.items()}

    def check() -> Observation:
        for rank, buffer in open_all().items():
            _expect_shown(bench, buffer, bench.seed + rank)
            buffer.close()
        return {}

    found = {"devices": ", ".join(device.id for device in bench.devices)}
    stage = Cycle(lambda: list(open_all().values()), of - 1).stage
    return Task.of(stage, check=check, release=mine.close, notes=found)


def event(bench: Bench, path: str) -> Task:
    """Seconds to open, close and export the handle of an event."""
    exclusive(bench)
    if bench.rank == 0:
        own = bench.device.shared_event()
        own.record()
        bench.device.synchronize()
        bench.exchange(own.export())
        return Task.idle(own.close)
    mine = bench.device.shared_event()
    handle = bench.exchange(None)[0]

    def exporting() -> float:
        return seconds_of(mine.export)[0]

    def check() -> Observation:
        opened = bench.device.shared_event(handle)
        opened.synchronize()  # it was recorded and is over: this returns
        opened.close()
        return {}

    stages = {"": Cycle(lambda: [bench.device.shared_event(handle)]).stage, "export": self_timed(exporting)}
    return Task(stages, check, close=mine.close, notes=notes(bench, path), labels=labels(bench, path))
