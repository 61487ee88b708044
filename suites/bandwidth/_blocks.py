"""Copy many small blocks between host and device, as an inference engine moves pages of a KV cache out and back.

In host memory the blocks lie packed, one after another; in device memory they lie in a pool, in any order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.api import suite as gb

from .._checks import flipping, in_turn
from .._stream import NEEDS_NUMBA, need_numba
from ._link import host_memory
from ._submit import BlockCopies, as_a_batch, driver_function
from ._words import expect_words, grid_of, random_words

_VECTOR_BYTES, _WORD_BYTES = 16, 8
_THREADS = 256  # threads per block, as in blocks.cu
_MOST_GRID = 2**16
_SPARE_BYTES = 2**26
# At most this many commands are queued behind the gate: the launch queue holds about 1000, and a submission that does
# not fit waits for the gate.
_MOST_QUEUED = 512

_LOOP, _BATCH, _KERNEL, _MERGED, _BINDING = "loop", "batch", "kernel", "merged", "binding"
_TO_DEVICE, _TO_HOST, _SCATTER, _GATHER = "h2d", "d2h", "scatter", "gather"
_SHUFFLED, _ORDERED = "shuffled", "ordered"
_COUNT = 256  # number of blocks in a case that measures one number only
_LIMITS = {_TO_DEVICE: "link.h2d", _TO_HOST: "link.d2h"}

Call = Callable[[], object]
Places = npt.NDArray[np.uint32]

_LINES = ("way", "direction", "count", "order")

topic = gb.Topic(
    views=[
        gb.View("transfer", "Block copy bandwidth by block size", ("blocks",), "block_bytes", by=_LINES, series="hot"),
        gb.View(
            "transfer",
            "Block copy bandwidth by number of blocks",
            ("blocks",),
            "count",
            by=("way", "direction", "block_bytes", "order"),
            series="hot",
        ),
        gb.View(
            "curve",
            "Block copy submission time by block size",
            ("blocks",),
            "block_bytes",
            by=_LINES,
            series="host",
            log_x=True,
            log_y=True,
        ),
    ]
)


def _ways(target: gb.Target) -> Any:
    """Return the axis of ways to copy: on a GPU `batch`, `kernel`, `merged` and a loop."""
    if target.is_host:
        return gb.points((_LOOP, _KERNEL), (_LOOP,), (_LOOP, _KERNEL, _MERGED))
    others = (_BATCH, _KERNEL, _MERGED)
    # in the quick tier, compiling the loop takes a second
    return gb.points((_BINDING, *others), full=(_LOOP, *others, _BINDING))


def _directions(target: gb.Target) -> Any:
    both = (_SCATTER, _GATHER) if target.is_host else (_TO_DEVICE, _TO_HOST)
    return gb.points(both[:1], full=both)


def _is_measured(target: gb.Target, params: Mapping[str, Any]) -> bool:
    if target.is_host:
        return bool(params["count"] == _COUNT)
    if params["way"] == _BINDING:
        return bool(params["count"] == _COUNT and params["order"] == _SHUFFLED)
    return bool(params["order"] == _SHUFFLED or params["count"] == _COUNT)


@topic.case(
    way=_ways,
    direction=_directions,
    block_bytes=gb.points((2**14,), full=gb.powers_of_two(10, 18, 2)),
    count=gb.points((_COUNT,), full=gb.powers_of_two(4, 12, 2)),
    order=gb.points((_SHUFFLED,), full=(_SHUFFLED, _ORDERED)),
    where=_is_measured,
)
def blocks(bench: gb.Bench, way: str, direction: str, block_bytes: int, count: int, order: str) -> gb.Task:
    """Bandwidth of copying blocks from packed memory to their places in a pool (h2d, scatter), or back (d2h, gather).

    A call copies `count` blocks of `block_bytes`. `way` is how the copies are submitted; the places have the order of
    the blocks or a shuffled one (`order`). The rate counts each byte once (payload). The time begins with the first
    command on an idle device and ends with the last byte, submission included; the series `host` is the submission
    alone. In the stage `queued` all commands are in the queue before the device begins."""
    layout = BlockLayout.of(bench, block_bytes, count, order)
    bench.need(4 * layout.nbytes + _SPARE_BYTES)
    if not bench.traits.is_gpu:
        return _host_task(bench, layout, way, direction == _SCATTER)
    pools = GpuBlocks(bench, layout, direction == _TO_DEVICE)
    call, commands = pools.submission(way)
    work = gb.Work(payload=layout.nbytes)
    rest: dict[str, Any] = {"effort": gb.POINT, "outputs": (pools.target,), "inputs": pools.redraw}
    stage = partial(gb.Stage, call, work, "payload", _LIMITS[direction], **rest)
    stages = {"": stage(max_calls=1, waits=True)}
    if commands <= _MOST_QUEUED:
        stages["queued"] = stage(max_calls=_MOST_QUEUED // commands)
    return gb.Task(stages, pools.check, close=pools.close, notes={"blocks": layout.note})


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """Blocks of `block_bytes` each, and the place of each in a pool with one place per block.

    `places[i]` is the place of packed block i: uint32, shape (count,). `order` is `shuffled` or `ordered`."""

    block_bytes: int
    places: Places
    order: str

    @classmethod
    def of(cls, bench: gb.Bench, block_bytes: int, count: int, order: str) -> BlockLayout:
        """Return the layout of `count` blocks, with random places if `order` is `shuffled`.

        Raises SuiteError if there is no block, or if `block_bytes` is not a power of two of at least 16."""
        if count < 1 or block_bytes < _VECTOR_BYTES or block_bytes & (block_bytes - 1):
            least = f"blocks of {_VECTOR_BYTES} bytes or a larger power of two"
            raise gb.SuiteError(f"{count} blocks of {block_bytes} bytes: needs one or more, and {least}")
        places = bench.rng.permutation(count) if order == _SHUFFLED else np.arange(count)
        return cls(block_bytes, places.astype(np.uint32), order)

    @property
    def count(self) -> int:
        """The number of blocks."""
        return len(self.places)

    @property
    def nbytes(self) -> int:
        """The bytes of all blocks."""
        return self.count * self.block_bytes

    @property
    def note(self) -> str:
        """The layout as text for a note."""
        return f"{self.count} × {gb.units.brief_size(self.block_bytes)}, {self.order}"

    @property
    def inverse(self) -> Places:
        """The index of the packed block at each place of the pool: uint32, shape (count,)."""
        packed = np.empty_like(self.places)
        packed[self.places] = np.arange(self.count, dtype=np.uint32)
        return packed

    def addresses(self, packed: int, pool: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Return the blocks' addresses in packed memory and in the pool, in the order of packed blocks (uint64)."""
        packed_offsets = np.arange(self.count, dtype=np.uint64) * np.uint64(self.block_bytes)
        pool_offsets = self.places.astype(np.uint64) * np.uint64(self.block_bytes)
        return packed_offsets + np.uint64(packed), pool_offsets + np.uint64(pool)


class GpuBlocks:
    """Packed blocks in page-locked host memory, a pool on the device, and the check that every word arrived.

    With `to_device` the host memory is the source and the pool the `target` of the copy, otherwise the reverse."""

    def __init__(self, bench: gb.Bench, layout: BlockLayout, to_device: bool) -> None:
        self._bench, self._layout, self._to_device = bench, layout, to_device
        device, xp = bench.device, bench.xp
        host = host_memory(bench, "pinned", layout.nbytes)
        self._host, self.close = host.array, host.close
        self._words = random_words(bench, layout.nbytes)
        self._places = xp.asarray(layout.places)
        self._pool = xp.zeros(layout.nbytes, np.uint8)
        self._compared = xp.zeros(layout.nbytes, np.uint8)  # the blocks in packed order, as the check compares them
        self._verify = partial(expect_words, self._words, self._compared)
        self._inverse = xp.asarray(layout.inverse)
        self.redraw()
        device.synchronize()
        self.target = self._pool if to_device else self._host

    def redraw(self) -> None:
        """Put the other words of two into the source of the copy."""
        self._words.redraw(self._words.array)
        if self._to_device:
            self._bench.device.copy(self._host, self._words.array)
        else:
            self._rearrange(self._words.array, self._inverse, self._pool)

    def submission(self, way: str) -> tuple[Call, int]:
        """Return the call that copies all blocks by `way`, and the largest number of commands that it queues.

        `way` is a value of the axis of `blocks`. Raises Skip if the device or its software does not support it."""
        if way == _KERNEL:
            return self._kernel(np.uint64(self._host.ctypes.data)), 1
        if way == _MERGED:
            return self._merged(), 2
        count = self._layout.count
        if way == _BINDING:
            return self._by_binding(), count
        if self._bench.traits.vendor != "nvidia":
            raise gb.Skip(f"the way {way} calls CUDA's driver; the ways {_KERNEL} and {_MERGED} do not")
        name, submit = ("cuMemcpyAsync", _compiled_loop()) if way == _LOOP else ("cuMemcpyBatchAsync", as_a_batch)
        copies = BlockCopies(*self._addresses(), self._layout.block_bytes)
        return submit(driver_function(name), copies, self._bench.device.stream), count

    def _addresses(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Return the target addresses and the source addresses of the blocks: uint64, shape (count,) each."""
        packed, pool = self._layout.addresses(self._host.ctypes.data, self._pool.data.ptr)
        return (pool, packed) if self._to_device else (packed, pool)

    def _by_binding(self) -> Call:
        """Return the copy of all blocks by a Python loop of CuPy's memcpyAsync, whose arguments are prepared here."""
        runtime, nbytes = self._bench.xp.cuda.runtime, self._layout.block_bytes
        kind = runtime.memcpyHostToDevice if self._to_device else runtime.memcpyDeviceToHost
        stream, copy = self._bench.device.stream, runtime.memcpyAsync
        ends = list(zip(*(end.tolist() for end in self._addresses()), strict=True))

        def call() -> None:
            for target, source in ends:
                copy(target, source, nbytes, kind, stream)

        return call

    def _kernel(self, packed: Any) -> Call:
        """Return the launch of the kernel that copies between the pool and `packed`, an array or an address."""
        vectors = self._layout.nbytes // _VECTOR_BYTES
        shift = (self._layout.block_bytes // _VECTOR_BYTES).bit_length() - 1
        name = "scatter_blocks" if self._to_device else "gather_blocks"
        ends = (self._pool, packed) if self._to_device else (packed, self._pool)
        kernel, grid = self._bench.kernel("blocks.cu", name), (min(grid_of(vectors, _THREADS)[0], _MOST_GRID),)
        args = (*ends, self._places, np.uint64(vectors), np.uint32(shift))
        return lambda: kernel(grid, (_THREADS,), args)

    def _merged(self) -> Call:
        """Return the copy in two steps: one copy of all blocks between the host and a staging buffer, and a kernel."""
        staging, host, copy = self._bench.xp.empty_like(self._pool), self._host, self._bench.device.copy
        kernel = self._kernel(staging)
        if self._to_device:
            return in_turn(lambda: copy(staging, host), kernel)
        return in_turn(kernel, lambda: copy(host, staging))

    def _rearrange(self, source: Any, order: Any, target: Any) -> None:
        """Fill block i of `target` with block order[i] of `source`."""
        rows = (-1, self._layout.block_bytes // _WORD_BYTES)
        blocks, rearranged = (array.view(np.uint64).reshape(rows) for array in (source, target))
        self._bench.xp.take(blocks, order, axis=0, out=rearranged)

    def check(self) -> None:
        """Raise WrongAnswer if a word in the target of the copy is not the word that was sent there."""
        if self._to_device:
            self._rearrange(self._pool, self._places, self._compared)
        else:
            self._bench.device.copy(self._compared, self._host)
        self._verify()


def _compiled_loop() -> Callable[[int, BlockCopies, int], Call]:
    """Return `one_by_one` of the module _submit_loop; raises Skip without numba."""
    try:
        from . import _submit_loop
    except ImportError as error:
        raise gb.Skip(NEEDS_NUMBA) from error
    return _submit_loop.one_by_one


def _host_task(bench: gb.Bench, layout: BlockLayout, way: str, is_scatter: bool) -> gb.Task:
    """Return the task that copies blocks within the host's memory, to the pool if `is_scatter`, else from it."""
    need_numba(bench)
    from . import _host_blocks

    rows = (layout.count, layout.block_bytes // _WORD_BYTES)
    packed = bench.rng.integers(2**64, size=rows, dtype=np.uint64)
    pool, staging, places = np.zeros_like(packed), np.zeros_like(packed), layout.places
    expected = packed[layout.inverse]
    if not is_scatter:
        expected, pool, packed = packed.copy(), expected, pool
    copied = pool if is_scatter else packed
    call = _host_blocks.copy(way, pool, packed, staging, places, is_scatter)

    def check() -> None:
        wrong = int((copied != expected).any(axis=1).sum())
        gb.expect(wrong == 0, f"{wrong} of {layout.count} blocks are wrong")

    work = gb.Work(payload=layout.nbytes, moved=2 * layout.nbytes)
    inputs = flipping(packed if is_scatter else pool, expected)
    stage = gb.Stage(call, work, "payload", effort=gb.POINT, outputs=(copied,), inputs=inputs)
    return gb.Task.of(stage, check=check, notes={"blocks": layout.note})
