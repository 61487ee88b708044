"""Share what the suites that work between processes need: axes, patterns, and the exchange of memory and handles."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from gpubench.api import suite as gb

_WORD_BYTES = 8  # patterns are made of 64-bit words
_LARGEST, _HOST_LARGEST = 30, 28  # the largest sizes as powers of two, on a GPU and on the host
_SHARE_OF_MEMORY = 8  # a size is left out if eight buffers of it do not fit into the device's memory
MEMORY = "memory"  # ranks of the host exchange data by shared memory
POISON = 0xA5  # the byte that overwrites outputs before a check
# Parts of a driver's error message, and the setting that removes the error.
_REMEDIES = (
    (("NotSupported", "PeerAccessUnsupported"), "MIG instances and some virtual GPUs share no memory: use whole GPUs"),
    (
        ("InvalidDevice", "DevicesUnavailable"),
        "every process must see the GPU: check CUDA_VISIBLE_DEVICES",
    ),
    (("NotPermitted", "OperatingSystem"), "in a container: docker run --ipc=host --pid=host"),
    (("Permission denied", "not permitted"), "run as one user, in one PID namespace: docker run --pid=host"),
)

Params = Mapping[str, str | int | float]


def paths(target: gb.Target) -> tuple[str, ...]:
    """Return the points of the axis `path`: `same` if both ranks use one device, `peer` if they use two.

    The two devices of `peer` reach each other's memory. The host has only `same`; quick only `peer` where there is one.
    """
    if target.is_host:
        return ("same",)
    return ("peer",) if target.tier == "quick" and target.device.peers else ("same", "peer")


def devices_of(params: Params) -> int:
    """Return the number of devices that a case needs: 2 if its axis `path` is `peer`, else 1."""
    return 2 if params["path"] == "peer" else 1


def opening(params: Params) -> str:
    """Return the runtime of cases that open handles: after a case that reached the other GPU they take 0.9 ms less."""
    return "handles" if params.get("path", "peer") == "peer" else ""


def ranks_of(params: Params) -> int:
    """Return the number of ranks of a case with the axis `of`."""
    return int(params["of"])


def gpus_of(params: Params) -> int:
    """Return the number of devices of a case whose ranks have a GPU each; 1 on the host (axis `by` = `memory`)."""
    return 1 if params["by"] == MEMORY else ranks_of(params)


def rank_counts(target: gb.Target, host_counts: tuple[int, ...] = (2,)) -> Any:
    """Return the points of the axis `of`, the number of ranks of a case.

    The full tier has all, quick the last, and smoke has 2."""
    reachable = max(1 + len(target.device.peers), 2)
    gpu_counts = (*(count for count in (2, 4, 8) if count < reachable), reachable)
    counts = host_counts if target.is_host else gpu_counts
    return gb.points(counts[-1:], smoke=(2,), full=counts)


def sizes(target: gb.Target) -> Any:
    """Return the points of an axis of sizes in bytes, from 8 bytes to 1 GiB (on the host to 256 MiB).

    The full tier has every power of two, quick has at most six sizes, and smoke has 1 MiB."""
    if target.is_host:
        few = (_WORD_BYTES, 2**16, 2**24)
        return gb.points(few, smoke=(2**20,), full=fitting(target, gb.powers_of_two(3, _HOST_LARGEST)))
    quick = (_WORD_BYTES, 2**12, 2**16, 2**20, 2**24, 2**_LARGEST)
    return gb.points(fitting(target, quick), smoke=(2**20,), full=fitting(target, gb.powers_of_two(3, _LARGEST)))


def fitting(target: gb.Target, wanted: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes in bytes of `wanted` of which eight buffers fit the device's memory.

    Returns the first size alone if none fits, and all sizes if the size of the memory is unknown."""
    room = target.device.memory_bytes // _SHARE_OF_MEMORY
    return tuple(size for size in wanted if size <= room or not room) or wanted[:1]


def pattern(nbytes: int, seed: int) -> Any:
    """Return `nbytes` bytes of the known words of `seed`: NumPy, uint8, shape (nbytes,), a multiple of 8 bytes."""
    return gb.random_words(seed, 0, nbytes // _WORD_BYTES).view(np.uint8)


def fill_pattern(bench: gb.Bench, array: Any, seed: int) -> gb.Words:
    """Write the bytes of `pattern` for `seed` into `array`, memory that the device reaches, and return the words."""
    pattern_words = bench.words(array.nbytes // _WORD_BYTES, seed)
    pattern_words.fill(array)
    return pattern_words


def wrong_words(bench: gb.Bench, array: Any, seed: int) -> int:
    """Return how many 64-bit words of `array` differ from `pattern` of the same size and `seed`."""
    return bench.words(array.nbytes // _WORD_BYTES, seed).wrong(array)


def expect_pattern(bench: gb.Bench, array: Any, seed: int, label: str) -> None:
    """Raise WrongAnswer if a 64-bit word of `array` differs from `pattern` of the same size and `seed`.

    `label` names the array in the message. On a GPU a kernel compares the words, wherever the memory lies."""
    wrong, size = wrong_words(bench, array, seed), gb.units.size(array.nbytes)
    total = array.nbytes // _WORD_BYTES
    gb.expect(wrong == 0, f"{wrong} of {total} words of {size} {label} differ from the data written")


def notes(bench: gb.Bench, path: str) -> dict[str, str]:
    """Return the note `devices` of a case with two ranks.

    If `path` is `peer`, it names both devices, the receiver first; if `path` is `same`, it says that both processes
    share one device."""
    if path == "peer":
        return {"devices": " ← ".join(device.id for device in reversed(bench.devices))}
    if not bench.traits.is_gpu:
        return {"devices": "both processes use one device and take turns on it"}
    return {"devices": "both processes share one GPU, which serves them in turns"}


def labels(bench: gb.Bench, path: str) -> tuple[str, ...]:
    """Return the label `time-sliced` if two processes share a GPU (`path` is `same`), and no label otherwise."""
    return ("time-sliced",) if path == "same" and bench.traits.is_gpu else ()


def need_shared_gpu(bench: gb.Bench) -> None:
    """Raise Unavailable if the GPU's compute mode is not the default, so that no second process may use it."""
    mode = dict(bench.target.device.details).get("compute_mode", "0")
    if mode not in ("", "0"):
        raise gb.Unavailable(
            f"the GPU's compute mode is {mode}, so no second process may use it", "nvidia-smi -c 0 allows it"
        )


def open_shared(bench: gb.Bench, handle: bytes, nbytes: int) -> gb.SharedBuffer:
    """Map memory of `nbytes` that another rank shares by the handle `handle`, and return the mapping.

    Raises Unavailable with the setting to change if the driver refuses for a known reason, and else the driver's own
    error."""
    try:
        return bench.device.open_shared(handle, nbytes)
    except (RuntimeError, PermissionError) as error:  # the runtime raises RuntimeError
        if remedy := remedy_for(str(error)):
            raise gb.Unavailable(f"the memory of another process cannot be opened ({error})", remedy) from error
        raise


def remedy_for(error: str) -> str:
    """Return a clause with the setting that makes the driver accept a refused handle; empty if none is known.

    `error` is the driver's message."""
    for names, remedy in _REMEDIES:
        if any(name in error for name in names):
            return remedy
    return ""


def core_of(rank: int, cores: list[int]) -> int:
    """Return `cores[rank % len(cores)]`: ranks share cores if there are more ranks than cores."""
    return cores[rank % len(cores)]


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Bind the calling thread to `core` within the context; afterwards it may use the cores that it used before."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def on_own_core(bench: gb.Bench) -> AbstractContextManager[None]:
    """Return a context that binds the calling thread to the core of its rank, as MPI launchers place ranks.

    Two ranks on one core would take turns. A single rank is not bound, nor one of a GPU, whose driver needs threads."""
    if bench.world == 1 or bench.traits.is_gpu:
        return nullcontext()
    return on_core(core_of(bench.rank, sorted(os.sched_getaffinity(0))))


class RankMemory:
    """Memory of `nbytes` that each rank allocates, fills (with zeros by default) and shares with every other rank.

    Every rank of the case must create it, because the ranks exchange handles."""

    def __init__(
        self, bench: gb.Bench, nbytes: int, fill: Callable[[Any], object] = lambda array: array.fill(0)
    ) -> None:
        own = bench.device.share(nbytes)
        fill(own.array)
        bench.device.synchronize()
        handles = bench.exchange(own.handle)
        self._rank = bench.rank
        self.buffers = [  # in rank order, as this process maps them
            own if rank == bench.rank else open_shared(bench, handle, nbytes) for rank, handle in enumerate(handles)
        ]

    @property
    def arrays(self) -> list[Any]:
        """The memory of every rank, in rank order: uint8, shape (nbytes,)."""
        return [buffer.array for buffer in self.buffers]

    @property
    def local(self) -> Any:
        return self.buffers[self._rank].array

    @property
    def remote(self) -> Any:
        """The memory of the other rank of two."""
        return self.buffers[1 - self._rank].array

    def close(self) -> None:
        """Unmap the memory of the other ranks; no array over it may remain."""
        for rank, buffer in enumerate(self.buffers):
            if rank != self._rank:
                buffer.close()

    def release(self) -> None:
        """Free the memory of this rank; no other rank may still map it."""
        self.buffers[self._rank].close()
