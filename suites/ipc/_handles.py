"""Measure the cost of a handle: exporting, opening and closing it, by size, by kind of memory and by number."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from gpubench.api import suite as gb

from .. import _between

_GPU_KINDS = ("raw", "block", "pool", "virtual")
_HOST_KINDS = ("memfd", "file")
_ROOM = 6  # memory as a multiple of the size: the whole allocation around a block, and the buffers of the check
EACH_BYTES = 2**21  # the smallest memory that one allocation occupies

topic = gb.Topic(
    views=[
        gb.View(
            "curve",
            "IPC handle open time by kind and size",
            ("mapping",),
            "size_bytes",
            by=("path", "kind"),
            log_x=True,
            log_y=True,
        ),
        gb.View(
            "curve",
            "IPC handle open time by number of handles",
            ("many",),
            "count",
            by=("path",),
            log_x=True,
            log_y=True,
        ),
        gb.View("bars", "IPC handle export time", ("export",), by=("kind",)),
    ]
)


def _kinds(target: gb.Target) -> tuple[str, ...]:
    """Return the kinds of memory that processes share on this device, as `OpenDevice.shared_memory` names them."""
    return _HOST_KINDS if target.is_host else _GPU_KINDS


def _sizes(target: gb.Target) -> Any:
    quick = (2**21,) if target.is_host else (2**21, 2**30)
    full = {2**21, *(2**power for power in range(12, 31, 2))}
    return gb.points(smoke=(2**21,), quick=quick, full=tuple(sorted(full)))


def _seconds_of(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that `call` took by the host's clock, and its result."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def filled(bench: gb.Bench, memory: gb.SharedMemory, nbytes: int, seed: int) -> gb.SharedBuffer:
    """Return `nbytes` of new memory of this process and of the kind of `memory`, filled with the pattern of `seed`."""
    buffer = memory.allocate(nbytes)
    _between.fill_pattern(bench, buffer.array, seed)
    bench.device.synchronize()
    return buffer


def _expect_shown(bench: gb.Bench, buffer: gb.SharedBuffer, seed: int) -> None:
    """Raise WrongAnswer if `buffer`, a mapping of another process's memory, does not hold the pattern of `seed`."""
    local = bench.xp.empty_like(buffer.array)
    bench.device.copy(local, buffer.array)
    bench.device.synchronize()
    _between.expect_pattern(bench, local, seed, "seen through the mapping")


def self_timed(call: Callable[[], float], items: int = 1) -> gb.Stage:
    """Return a stage of `call`, which returns its own seconds for `items` items; the figure is seconds per item."""
    return gb.Stage(call, gb.Work(items=items), "item", clock="self", effort=gb.POINT)


def _close_all(opened: Iterable[gb.SharedBuffer | gb.Handle | gb.SharedEvent]) -> None:
    for item in opened:
        item.close()


class OpenCloseCycle:
    """Cycles that open `items` items with `open_all` and close them: seconds to open one item.

    The series `close` is the seconds to close one."""

    def __init__(self, open_all: Callable[[], Sequence[gb.SharedBuffer | gb.SharedEvent]], items: int = 1) -> None:
        self._open_all = open_all
        self._items = items
        self._closing_s = 0.0

    def _opening(self) -> float:
        seconds, opened = _seconds_of(self._open_all)
        self._closing_s = _seconds_of(lambda: _close_all(opened))[0]
        return seconds

    def _closing(self) -> gb.Observation:
        return {"close": gb.Observed(self._closing_s / self._items, "s")}

    def stage(self) -> gb.Stage:
        """Return the stage whose samples are these cycles."""
        return replace(self_timed(self._opening, self._items), probe=self._closing)


@topic.case(ranks=2, kind=_kinds, size_bytes=gb.points((2**21,), full=(2**21, 2**28, 2**30)))
def export(bench: gb.Bench, kind: str, size_bytes: int) -> gb.Task:
    """Seconds to make a handle of an allocation of `size_bytes`; `kind` is how the memory is allocated.

    Another process opens the first handle and checks the memory."""
    bench.need(_ROOM * size_bytes)
    memory = bench.device.shared_memory(kind)
    if bench.rank == 1:
        handle = bench.hand_over(None)
        opened = memory.open(handle, size_bytes)
        _expect_shown(bench, opened, bench.seed)
        opened.close()
        handle.close()
        bench.exchange("read")
        return gb.Task.idle()
    buffer = filled(bench, memory, size_bytes, bench.seed)
    handle = bench.hand_over(memory.export(buffer))
    handle.close()
    answer = bench.exchange(None)[1]

    def exporting() -> float:
        seconds, exported = _seconds_of(lambda: memory.export(buffer))
        exported.close()
        return seconds

    def check() -> None:
        gb.expect(answer == "read", "the other process could not read the exported memory")

    return gb.Task.of(self_timed(exporting), check=check, release=buffer.close, notes={"kind": kind})


@topic.case(
    ranks=2,
    devices=_between.devices_of,
    path=_between.paths,
    kind=_kinds,
    size_bytes=_sizes,
    where=lambda target, params: target.is_host or gb.beyond_quick(target) or params["size_bytes"] != 2**21,
    runtime=_between.opening,
)
def mapping(bench: gb.Bench, path: str, kind: str, size_bytes: int) -> gb.Task:
    """Seconds to open a handle of memory of one kind, and to close it again (series `close`).

    `path` is `same` if both processes use one device, or `peer` for two GPUs."""
    _between.need_shared_gpu(bench)
    bench.need(_ROOM * size_bytes)
    memory = bench.device.shared_memory(kind)
    if bench.rank == 0:
        buffer = filled(bench, memory, size_bytes, bench.seed)
        exported = bench.hand_over(memory.export(buffer))
        return gb.Task.idle(lambda: _close_all((exported, buffer)))
    handle = bench.hand_over(None)

    def check() -> None:
        opened = memory.open(handle, size_bytes)
        _expect_shown(bench, opened, bench.seed)
        opened.close()

    return gb.Task.of(
        OpenCloseCycle(lambda: [memory.open(handle, size_bytes)]).stage(),
        check=check,
        close=handle.close,
        notes={**_between.notes(bench, path), "kind": kind},
        labels=_between.labels(bench, path),
    )


class ManyHandles:
    """Handles of `count` allocations of another process, each of 2 MiB, which rank 1 receives one after another."""

    def __init__(self, bench: gb.Bench, memory: gb.SharedMemory, count: int) -> None:
        self._bench = bench
        self._memory = memory
        self._handles = [bench.hand_over(None) for _ in range(count)]

    def opened(self) -> list[gb.SharedBuffer]:
        """Open every handle and return the mappings, which the caller closes."""
        return [self._memory.open(handle, EACH_BYTES) for handle in self._handles]

    def check(self) -> None:
        """Open all handles.

        Raise WrongAnswer if a mapping does not hold the bytes that the other process wrote for it."""
        opened = self.opened()
        for index, buffer in enumerate(opened):
            _expect_shown(self._bench, buffer, self._bench.seed + index)
        _close_all(opened)

    def close(self) -> None:
        """Close the handles; mappings stay open."""
        _close_all(self._handles)


@topic.case(
    ranks=2,
    devices=_between.devices_of,
    path=_between.paths,
    count=gb.points((1, 16), smoke=(2,), full=tuple(2**power for power in range(9))),
    runtime=_between.opening,
)
def many(bench: gb.Bench, path: str, count: int) -> gb.Task:
    """Seconds per handle to open `count` handles that all stay open, and to close each (series `close`).

    `path` is `same` if both processes use one device, or `peer` for two GPUs."""
    _between.need_shared_gpu(bench)
    bench.need(2 * count * EACH_BYTES)
    memory = bench.device.shared_memory("memfd" if not bench.traits.is_gpu else "raw")
    if bench.rank == 0:
        buffers = [filled(bench, memory, EACH_BYTES, bench.seed + index) for index in range(count)]
        exported = [bench.hand_over(memory.export(buffer)) for buffer in buffers]
        return gb.Task.idle(lambda: _close_all([*exported, *buffers]))
    handles = ManyHandles(bench, memory, count)
    return gb.Task.of(
        OpenCloseCycle(handles.opened, count).stage(),
        check=handles.check,
        close=handles.close,
        notes=_between.notes(bench, path),
        labels=_between.labels(bench, path),
    )


@topic.case(
    ranks=_between.ranks_of,
    devices=_between.ranks_of,
    when=gb.on_gpu,
    of=_between.rank_counts,
    runtime=_between.opening,
)
def mesh(bench: gb.Bench, of: int) -> gb.Task:
    """Seconds per handle when the rank on each GPU opens one handle of every other GPU, all at once."""
    _between.need_shared_gpu(bench)
    memory = bench.device.shared_memory("raw")
    own_buffer = filled(bench, memory, EACH_BYTES, bench.seed + bench.rank)
    data = bench.exchange(memory.export(own_buffer).data)
    others = {rank: gb.Handle(exported) for rank, exported in enumerate(data) if rank != bench.rank}

    def open_all() -> dict[int, gb.SharedBuffer]:
        return {rank: memory.open(handle, EACH_BYTES) for rank, handle in others.items()}

    def check() -> None:
        for rank, buffer in open_all().items():
            _expect_shown(bench, buffer, bench.seed + rank)
            buffer.close()

    devices = {"devices": ", ".join(device.id for device in bench.devices)}
    stage = OpenCloseCycle(lambda: list(open_all().values()), of - 1).stage()
    return gb.Task.of(stage, check=check, release=own_buffer.close, notes=devices)


@topic.case(ranks=2, devices=_between.devices_of, when=gb.on_gpu, path=_between.paths)
def event(bench: gb.Bench, path: str) -> gb.Task:
    """Seconds to open the handle of an event, to close it (series `close`) and to make it (stage `export`).

    `path` is `same` if both processes use one device, or `peer` for two GPUs."""
    _between.need_shared_gpu(bench)
    if bench.rank == 0:
        exported_event = bench.device.shared_event()
        exported_event.record()
        bench.device.synchronize()
        bench.exchange(exported_event.export())
        return gb.Task.idle(exported_event.close)
    own_event = bench.device.shared_event()
    handle = bench.exchange(None)[0]

    def exporting() -> float:
        return _seconds_of(own_event.export)[0]

    def check() -> None:
        opened = bench.device.shared_event(handle)
        opened.synchronize()  # returns at once, because the recorded event is complete
        opened.close()

    stages = {"": OpenCloseCycle(lambda: [bench.device.shared_event(handle)]).stage(), "export": self_timed(exporting)}
    return gb.Task(
        stages, check, close=own_event.close, notes=_between.notes(bench, path), labels=_between.labels(bench, path)
    )
