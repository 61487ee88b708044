"""What the cases between processes share: paths, sizes, patterns, and handles that travel between ranks."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpubench.api.suite import Bench, Handle, Missing, SharedBuffer, Target, expect, points, powers_of_two, units

_WORD = 8  # bytes: patterns are made of 64-bit words
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: multiples of it look random (Knuth, TAOCP 3, §6.4)
_THREADS, _BLOCKS = 256, 1056  # of what fills and compares
_PATIENCE_S = 10.0  # between ranks that build the same case, milliseconds pass
_LARGEST, _HOST_LARGEST = 30, 28  # powers of two
_SHARE_OF_MEMORY = 8  # a size is left out where eight of its kind do not fit the device
SPOILED = 0xA5
_MENDS = (
    (("NotSupported", "PeerAccessUnsupported"), "MIG instances and some virtual GPUs share no memory: use whole GPUs"),
    (
        ("InvalidDevice", "DevicesUnavailable"),
        "every process must see the GPU: check CUDA_VISIBLE_DEVICES",
    ),
    (("NotPermitted", "OperatingSystem"), "in a container: docker run --ipc=host --pid=host"),
    (("Permission denied", "not permitted"), "run as one user, in one PID namespace: docker run --pid=host"),
)

Params = Mapping[str, str | int | float]


def paths(target: Target) -> tuple[str, ...]:
    """Both ranks on the same device, or the second on a peer of the first's."""
    return ("same",) if target.is_host else ("same", "peer")


def devices_of(params: Params) -> int:
    """Two devices on the path `peer`."""
    return 2 if params["path"] == "peer" else 1


def sizes(target: Target) -> Any:
    """From a word to 1 GiB (the host: 256 MiB), a few of them in `quick`."""
    if target.is_host:
        few = (_WORD, 2**16, 2**24)
        return points(few, smoke=(2**20,), full=fitting(target, powers_of_two(3, _HOST_LARGEST)))
    quick = (_WORD, 2**12, 2**16, 2**20, 2**24, 2**_LARGEST)
    return points(fitting(target, quick), smoke=(2**20,), full=fitting(target, powers_of_two(3, _LARGEST)))


def both_sizes(target: Target) -> Any:
    """As `sizes`, in `quick` only what the link is the bound of."""
    found = sizes(target)
    return points(fitting(target, (2**16, 2**20, 2**_LARGEST)), found.smoke, found.full)


def pull_sizes(target: Target) -> Any:
    """As `sizes`, and the host's largest too: the headline is of one that no cache holds."""
    found = sizes(target)
    if not target.is_host:
        return found
    return points(fitting(target, (_WORD, 2**12, 2**16, 2**20, 2**24, 2**_HOST_LARGEST)), found.smoke, found.full)


def fitting(target: Target, wanted: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes that leave the device's memory room; the smallest in any case."""
    room = target.device.memory_bytes // _SHARE_OF_MEMORY
    return tuple(size for size in wanted if size <= room or not room) or wanted[:1]


def pattern(nbytes: int, seed: int) -> Any:
    """Bytes of the host that differ at every 8-byte position and with the seed, shape (nbytes,), uint8."""
    words = np.arange(nbytes // _WORD, dtype=np.uint64)
    words *= np.uint64(_GOLDEN)
    words += np.uint64(seed)
    return words.view(np.uint8)


def fill_pattern(bench: Bench, array: Any, seed: int) -> None:
    """The same bytes into memory that the device reaches."""
    if not bench.traits.is_gpu:
        array[:] = pattern(array.size, seed)
        return
    args = (array, np.uint64(array.size // _WORD), np.uint64(seed))
    bench.kernel("copies.cu", "fill_pattern")((_BLOCKS,), (_THREADS,), args)


def expect_pattern(bench: Bench, found: Any, seed: int, what: str) -> None:
    """Raise WrongAnswer where any word is not the pattern's; on a GPU a kernel looks, wherever the memory lies."""
    if bench.traits.is_gpu:
        counter = bench.xp.zeros(1, bench.xp.uint32)
        args = (found, np.uint64(found.size // _WORD), np.uint64(seed), counter)
        bench.kernel("copies.cu", "count_wrong")((_BLOCKS,), (_THREADS,), args)
        wrong = int(bench.device.to_host(counter)[0])
    else:
        wrong = int(np.count_nonzero(found.view(np.uint64) != pattern(found.size, seed).view(np.uint64)))
    whole = units.size(found.size)
    expect(wrong == 0, f"{wrong} of {found.size // _WORD} words of {whole} {what} differ from what was written")


def notes(bench: Bench, path: str) -> dict[str, str]:
    """Which device works on which."""
    if path == "peer":
        return {"devices": " ← ".join(device.id for device in reversed(bench.devices))}
    if not bench.traits.is_gpu:
        return {"devices": "both processes on one device, taking turns: only one of them works"}
    return {"devices": "both processes on one GPU, which take turns there: only one of them works at a time"}


def labels(bench: Bench, path: str) -> tuple[str, ...]:
    """`time-sliced` where processes share a GPU."""
    return ("time-sliced",) if path == "same" and bench.traits.is_gpu else ()


def exclusive(bench: Bench) -> None:
    """Skip where the driver lets only one process use the GPU."""
    mode = dict(bench.target.device.details).get("compute_mode", "0")
    if mode not in ("", "0"):
        raise Missing(f"the GPU's compute mode is {mode}: no second process may use it", "nvidia-smi -c 0 allows it")


def open_shared(bench: Bench, handle: bytes, nbytes: int) -> SharedBuffer:
    """Map what another rank shares; Missing with the setting that mends it where this machine forbids it."""
    try:
        return bench.device.open_shared(handle, nbytes)
    except (RuntimeError, PermissionError) as error:  # the runtime's own is the first
        if mend := mend_of(str(error)):
            raise Missing(f"another process's memory does not open here ({error})", mend) from error
        raise


def mend_of(error: str) -> str:
    """The setting behind a refused handle, or nothing where no setting is known to be."""
    for names, mend in _MENDS:
        if any(name in error for name in names):
            return mend
    return ""


def hand_over(bench: Bench, handle: Handle | None, source: int = 0) -> Handle:
    """Rank `source`'s handle for every other rank; its descriptors go over a local socket (unix(7), SCM_RIGHTS)."""
    if bench.rank != source:
        data, address, count = bench.exchange(None)[source]
        return Handle(data, _received(address, count))
    assert handle is not None
    if not handle.descriptors:
        bench.exchange((handle.data, "", 0))
        return handle
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        address = f"\0gpubench-{os.getpid()}-{id(handle)}"  # abstract: it leaves no file
        listener.bind(address)
        listener.listen(bench.world)
        listener.settimeout(_PATIENCE_S)
        bench.exchange((handle.data, address, len(handle.descriptors)))
        for _ in range(bench.world - 1):
            connection, _ = listener.accept()
            with connection:
                socket.send_fds(connection, [b"x"], list(handle.descriptors))
    return handle


def _received(address: str, count: int) -> tuple[int, ...]:
    if not count:
        return ()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_PATIENCE_S)
        connection.connect(address)
        _, descriptors, _, _ = socket.recv_fds(connection, 1, count)
    expect(len(descriptors) == count, f"{len(descriptors)} of {count} descriptors arrived")
    return tuple(descriptors)
