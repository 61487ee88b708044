"""Between two processes: handles and what they cost, copies through them, signals and barriers."""

from __future__ import annotations

from typing import Any

from gpubench.api.suite import Bench, Suite, Target, Task, View, on_gpu, on_host, points

from .._between import Params, both_sizes, devices_of, paths, pull_sizes, sizes
from .._copies import WAYS
from . import _both, _handles, _host, _paths, _refused, _signals, _staged

_COPIES = ("pull", "push", "load", "store", "plain", "staged", "socket", "pipe", "direct")

suite = Suite(
    "memory shared between two processes (CUDA or HIP IPC handles; on the host shared memory and sockets)",
    views=[
        View("transfer", "Ways between two processes: which at which size", _COPIES, "size_bytes", by=("path",)),
        View("curve", "Copies over size", _COPIES, "size_bytes", by=("path",), log_x=True, log_y=True),
        View("curve", "Both ways at once, a direction", ("both",), "size_bytes", by=("way",), log_x=True, log_y=True),
        View("bars", "The first copy through a fresh mapping", ("first_touch", "first_use"), by=("path",)),
        View("bars", "One copy and the wait for it", ("single",), by=("path",)),
        View("bars", "Opening a handle", ("open",), by=("path",)),
        View("curve", "Opening, by kind", ("mapping",), "size_bytes", by=("path", "kind"), log_x=True, log_y=True),
        View("curve", "Opening many, a handle", ("many",), "count", by=("path",), log_x=True, log_y=True),
        View("bars", "Exporting a handle", ("export",), by=("kind",)),
        View("bars", "A signal, one way", ("signal", "event_signal"), by=("means",)),
        View("bars", "A barrier", ("barrier", "within"), by=("means",)),
    ],
)

_HOST_MEANS = ("flag", "pipe", "socket")
_GPU_MEANS = ("store", "add", "mapped")
_WORDS = "words"


def _handle_sizes(target: Target) -> Any:
    quick = (2**21,) if target.is_host else (2**21, 2**30)
    return points(smoke=(2**21,), quick=quick, full=tuple(2**power for power in range(12, 31, 2)))


def _open_sizes(target: Target) -> Any:
    """On the host the larger one, whose pages are made anew for each sample, in the full tier alone."""
    return points(smoke=(2**21,), quick=(2**21,) if target.is_host else (2**21, 2**28), full=(2**21, 2**28))


def _touched_sizes(target: Target) -> Any:
    return points(smoke=(2**21,), quick=(2**24,) if target.is_host else (2**26,), full=(2**26,))


def _first_sizes(target: Target) -> Any:
    quick = (2**22,) if target.is_host else (2**26,)
    return points(quick, smoke=(2**21,), full=(2**3, 2**12, 2**21, 2**26, *(() if target.is_host else (2**30,))))


def _gpu_counts(target: Target) -> tuple[int, ...]:
    """Two GPUs, and as many as reach each other."""
    most = 1 + len(target.device.peers)
    return tuple(dict.fromkeys((2, *(count for count in (4, 8) if count < most), max(most, 2))))


def _of(target: Target) -> Any:
    """How many take part: GPUs; on the host processes, each with a processor of its own."""
    counts = (2, 4, 8) if target.is_host else _gpu_counts(target)
    able = tuple(count for count in counts if count <= max(target.device.units, 2)) if target.is_host else counts
    return points(able[-1:], smoke=(2,), full=able)


def _all(params: Params) -> int:
    return int(params["of"])


def _devices_of_barrier(params: Params) -> int:
    return 1 if params["means"] == _WORDS else int(params["of"])


def _devices_of_signal(params: Params) -> int:
    return 2 if params["means"] in _GPU_MEANS else 1


@suite.case(ranks=2, devices=devices_of, path=paths, size_bytes=_open_sizes)
def open_(bench: Bench, path: str, size_bytes: int) -> Task:
    """Seconds to map an allocation of another process by its handle, unmapping outside."""
    return _paths.opening(bench, path, size_bytes)


@suite.case(ranks=2, devices=devices_of, path=paths, size_bytes=_touched_sizes)
def first_touch(bench: Bench, path: str, size_bytes: int) -> Task:
    """The first copy through a fresh mapping, by the host's clock: bytes copied once (payload)."""
    return _paths.first(bench, path, "pull", size_bytes)


@suite.case(
    ranks=2,
    devices=devices_of,
    path=paths,
    way=("push", "load", "store"),
    size_bytes=_first_sizes,
)
def first_use(bench: Bench, path: str, way: str, size_bytes: int) -> Task:
    """As first_touch, in the other ways: by copy engine into the other's memory, by kernel out of it and into it."""
    return _paths.first(bench, path, way, size_bytes)


@suite.case(ranks=2, devices=devices_of, path=paths, size_bytes=pull_sizes, headline={})
def pull(bench: Bench, path: str, size_bytes: int) -> Task:
    """Copies out of the other process's allocation through a kept mapping: payload."""
    return _paths.steady(bench, path, "pull", size_bytes)


@suite.case(ranks=2, devices=devices_of, path=paths, size_bytes=sizes)
def push(bench: Bench, path: str, size_bytes: int) -> Task:
    """Copies into the other process's allocation through a kept mapping: payload."""
    return _paths.steady(bench, path, "push", size_bytes)


@suite.case(ranks=2, devices=devices_of, path=paths, size_bytes=sizes)
def load(bench: Bench, path: str, size_bytes: int) -> Task:
    """A kernel (on the host all threads) that loads from the other process's allocation: payload."""
    return _paths.steady(bench, path, "load", size_bytes)


@suite.case(ranks=2, devices=devices_of, path=paths, size_bytes=sizes)
def store(bench: Bench, path: str, size_bytes: int) -> Task:
    """A kernel (on the host all threads) that stores to the other process's allocation: payload."""
    return _paths.steady(bench, path, "store", size_bytes)


@suite.case(devices=devices_of, path=paths, size_bytes=sizes)
def plain(bench: Bench, path: str, size_bytes: int) -> Task:
    """The same copy within one process, with no handle: payload."""
    return _paths.plain(bench, path, size_bytes)


@suite.case(ranks=2, devices=devices_of, when=on_gpu, path=paths, size_bytes=sizes)
def staged(bench: Bench, path: str, size_bytes: int) -> Task:
    """Through page-locked host memory that both processes share, from the request to the last byte: payload."""
    return _staged.staged(bench, path, size_bytes)


@suite.case(ranks=2, devices=lambda _: 2, when=on_gpu, way=WAYS, size_bytes=both_sizes)
def both(bench: Bench, way: str, size_bytes: int) -> Task:
    """Both processes copy at once, each on a GPU of its own: payload of the slower direction, and the sum of both."""
    return _both.both(bench, way, size_bytes)


@suite.case(ranks=2, devices=devices_of, path=paths, way=WAYS, size_bytes=(2**3,))
def single(bench: Bench, path: str, way: str, size_bytes: int) -> Task:
    """One small copy and the wait for it, by the host's clock: seconds."""
    return _paths.single(bench, path, way, size_bytes)


@suite.case(ranks=2, when=on_host, size_bytes=sizes)
def socket_(bench: Bench, size_bytes: int) -> Task:
    """A message over a local socket, request to last byte: payload."""
    return _host.message(bench, "socket", size_bytes)


@suite.case(ranks=2, when=on_host, size_bytes=sizes)
def pipe(bench: Bench, size_bytes: int) -> Task:
    """A message through a pipe, request (over a socket) to last byte: payload."""
    return _host.message(bench, "pipe", size_bytes)


@suite.case(ranks=2, when=on_host, size_bytes=sizes)
def direct(bench: Bench, size_bytes: int) -> Task:
    """The kernel's copy out of the other process's memory, which is not shared (process_vm_readv): payload."""
    return _host.direct(bench, size_bytes)


@suite.case(ranks=2, kind=_handles.kinds, size_bytes=points((2**21,), full=(2**21, 2**28, 2**30)))
def export(bench: Bench, kind: str, size_bytes: int) -> Task:
    """Seconds to make a handle of an allocation."""
    return _handles.export(bench, kind, size_bytes)


@suite.case(ranks=2, devices=devices_of, path=paths, kind=_handles.kinds, size_bytes=_handle_sizes)
def mapping(bench: Bench, path: str, kind: str, size_bytes: int) -> Task:
    """Seconds to open a handle of each kind of memory, and to close it again (series `close`)."""
    return _handles.mapping(bench, path, kind, size_bytes)


@suite.case(
    ranks=2,
    devices=devices_of,
    path=paths,
    count=points((1, 16), smoke=(2,), full=tuple(2**power for power in range(9))),
)
def many(bench: Bench, path: str, count: int) -> Task:
    """Seconds a handle where many are opened and kept; to close each, series `close`."""
    return _handles.many(bench, path, count)


@suite.case(ranks=_all, devices=_all, when=on_gpu, of=_of)
def mesh(bench: Bench, of: int) -> Task:
    """Seconds a handle where a rank on each GPU opens one of every other, all at once."""
    return _handles.mesh(bench, of)


@suite.case(ranks=2, devices=devices_of, when=on_gpu, path=paths)
def event(bench: Bench, path: str) -> Task:
    """Seconds to open the handle of an event, to close it (series `close`) and to make it (stage `export`)."""
    return _handles.event(bench, path)


@suite.case(ranks=2, when=on_gpu, what=("own", "freed", "closed"))
def refused(bench: Bench, what: str) -> Task:
    """What must fail does: opening one's own handle, one whose memory is freed, closing twice. Seconds to be told."""
    return _refused.refused(bench, what)


@suite.case(ranks=2, devices=_devices_of_signal, means=lambda target: _HOST_MEANS if target.is_host else _GPU_MEANS)
def signal(bench: Bench, means: str) -> Task:
    """A word from one process to the other, half of a ping-pong: between GPUs by kernels, on the host by processors."""
    return _signals.signal(bench, means) if means in _GPU_MEANS else _host.signal(bench, means)


@suite.case(ranks=2, devices=devices_of, when=on_gpu, path=paths)
def event_signal(bench: Bench, path: str) -> Task:
    """A signal by an event that both processes share and a host flag that tells of it: half of a ping-pong."""
    return _signals.event_signal(bench, path)


@suite.case(
    ranks=_all,
    devices=_devices_of_barrier,
    means=lambda target: (_WORDS,) if target.is_host else ("flags", "counter"),
    of=_of,
)
def barrier(bench: Bench, means: str, of: int) -> Task:
    """A barrier of all ranks: between GPUs by kernels, each with a GPU of its own; on the host by processors."""
    del of
    return _host.barrier(bench) if means == _WORDS else _signals.barrier(bench, means)


@suite.case(when=on_gpu, scope=("block", "grid"))
def within(bench: Bench, scope: str) -> Task:
    """A barrier within a GPU: of a block, and of a block on every multiprocessor."""
    return _signals.within(bench, scope)
