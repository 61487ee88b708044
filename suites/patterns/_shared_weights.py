"""Measure the loading of one model's weights in several processes: shared by handle, or read by each from a file.

The weights lie in a file. It is in the page cache, so that no disk is measured. A process is ready when its first
product with the weights has ended."""

import contextlib
import math
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._between import need_shared_gpu, open_shared
from .._checks import flipping
from ._products import Normals, expect_close, type_of, use_one_thread

_WAYS = ("shared", "private")
_OWNER = 0
_REQUESTS = 4
_SMAPS = Path("/proc/self/smaps_rollup")
_KIB, _PERCENT = 1024, 100

topic = gb.Topic(
    views=[
        gb.View("bars", "Time to load a model's weights", ("weights",), by=("way", "of")),
        gb.View("bars", "Memory per process: share of a private copy", ("weights",), by=("way", "of"), series="memory"),
    ],
)


def _widths(target: gb.Target) -> Any:
    if target.is_host:
        return gb.points((1024,), smoke=(512,), full=(1024, 4096))
    return gb.points((2**12,), smoke=(2**11,), full=(2**12, 2**14))


@topic.case(
    when=gb.beyond_quick,
    ranks=lambda params: int(params["of"]),
    way=_WAYS,
    of=gb.points((2,), full=(2, 4)),
    width=_widths,
)
def weights(bench: gb.Bench, way: str, of: int, width: int) -> gb.Task:
    """Seconds from the beginning of loading weights of width² numbers to the first product with them.

    `shared` opens the handle of rank 0's weights; `private` reads the file into the process's own memory. `memory` is
    the average memory per process as a share of one private copy."""
    del of
    need_shared_gpu(bench)
    return LoadedModel(ModelFile(bench, width), way).task()


class ModelFile:
    """The file of weights of width × width, which rank 0 writes, and requests with their expected products."""

    def __init__(self, bench: gb.Bench, width: int) -> None:
        dtype = np.dtype(type_of(bench))
        self.bench, self.width, self.dtype = bench, width, dtype
        self.nbytes = width * width * dtype.itemsize
        bench.need((2 * self.nbytes + 8 * width**2) * bench.world)
        normals = Normals(bench)
        self.requests = normals.matrix(_REQUESTS, width, 1)
        name = ""
        if bench.rank == _OWNER:
            matrix = bench.device.to_host(normals.matrix(width, width, 0, 1 / math.sqrt(width)))
            descriptor, name = tempfile.mkstemp(prefix="gpubench-weights-")
            with os.fdopen(descriptor, "wb") as file:
                file.write(matrix)
        self.path = Path(bench.exchange(name)[_OWNER])
        content = bench.xp.empty((width, width), dtype)
        bench.device.copy(content, np.fromfile(self.path, dtype).reshape(width, width))
        self.expected = self.requests.astype(np.float64) @ content.astype(np.float64)
        self.redraw = flipping(self.requests, self.expected)
        self.output = bench.xp.empty_like(self.requests)
        # Makes the library allocate its memory before any memory is counted.
        bench.xp.matmul(self.requests, content, out=self.output)
        bench.device.synchronize()
        self._staging: Any = None  # page-locked memory between the file and a GPU, allocated by the first read
        bench.barrier()

    def read(self, into: Any) -> None:
        """Read the file into `into`, memory of the device (flat uint8), through page-locked memory on a GPU."""
        bench = self.bench
        if bench.traits.is_gpu and self._staging is None:
            self._staging = bench.device.pinned(self.nbytes)
        with self.path.open("rb") as file:
            count = file.readinto(into if self._staging is None else self._staging)
        gb.expect(count == self.nbytes, f"the file ends after {count} of {self.nbytes} bytes")
        if self._staging is not None:
            bench.device.copy(into, self._staging)
            bench.device.synchronize()

    def multiply(self, flat: Any) -> None:
        """Write the product of the requests with the weights in `flat` (uint8) to `output`, and wait for the device."""
        matrix = flat.view(self.dtype).reshape(self.width, self.width)
        self.bench.xp.matmul(self.requests, matrix, out=self.output)
        self.bench.device.synchronize()

    def check(self) -> None:
        """Raise WrongAnswer if the last product differs from the product with the weights in the file."""
        expect_close(self.output, self.expected, "products with the loaded weights")

    def remove(self) -> None:
        if self.bench.rank == _OWNER:
            self.path.unlink()


def _resident_bytes() -> int:
    """Return the memory of this process in bytes, with shared pages divided among their processes (PSS)."""
    with contextlib.suppress(OSError):
        for line in _SMAPS.read_text(encoding="utf-8").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * _KIB
    return 0


class LoadedModel:
    """One rank's weights in the way `way`: `private` reads its own copy of the file, `shared` maps the copy of rank 0.

    Every rank must create it; creating it loads the weights once and measures the memory in use."""

    def __init__(self, model: ModelFile, way: str) -> None:
        self._bench, self._model = model.bench, model
        self._restore_threads = use_one_thread(model.bench)
        self._holds = way == "shared" and model.bench.rank == _OWNER
        self._opens = way == "shared" and not self._holds
        self._handle = b""
        self._held: gb.SharedBuffer | None = None
        before, start = self._used_bytes(), time.perf_counter()
        if self._holds:
            self._held = self._load()
        offer = (self._held.handle if self._held else b"", time.perf_counter() - start)
        self._handle, self._first_s = self._bench.exchange(offer)[_OWNER]
        loaded = self._held or self._load()
        self._bench.barrier()  # every rank has its weights
        used = sum(self._bench.exchange(self._used_bytes() - before))
        self._share = used / (self._bench.world * model.nbytes)
        if not self._holds:
            loaded.close()

    def _load(self) -> gb.SharedBuffer:
        """Open or read the weights, compute the first product, and return their buffer, which the caller must close."""
        if self._opens:
            buffer = open_shared(self._bench, self._handle, self._model.nbytes)
        else:
            buffer = self._bench.device.share(self._model.nbytes)
            self._model.read(buffer.array)
        self._model.multiply(buffer.array)
        return buffer

    def _used_bytes(self) -> float:
        """Return the memory in use in bytes, of which only differences have a meaning."""
        if not self._bench.traits.is_gpu:
            return _resident_bytes()
        return -float(self._bench.device.free_bytes()) if self._bench.rank == _OWNER else 0.0

    def _load_seconds(self) -> float:
        """Load the weights, multiply by them once, and free them; return the seconds up to the end of the product."""
        start = time.perf_counter()
        buffer = self._load()
        seconds = time.perf_counter() - start
        buffer.close()
        return seconds

    def _check(self) -> gb.Observation:
        """Check the last product, and return `memory`, the memory per process in % of a private copy."""
        self._model.check()
        observed = {"memory": gb.Observed(_PERCENT * self._share, "%")}
        return {**observed, "first": gb.Observed(self._first_s, "s")} if self._opens else observed

    def _release(self) -> None:
        self._restore_threads()
        if self._held is not None:
            self._held.close()
        self._model.remove()

    def task(self) -> gb.Task:
        """Return this rank's task: idle if it only holds weights, else one stage that times their loading."""
        if self._holds:
            return gb.Task.idle(self._release)
        work = gb.Work(payload=self._model.nbytes, items=1)
        rest: dict[str, Any] = {"outputs": (self._model.output,), "inputs": self._model.redraw}
        stage = gb.Stage(self._load_seconds, work, "item", clock="self", effort=gb.POINT, **rest)
        notes = {"weights": gb.units.size(self._model.nbytes), "type": str(self._model.dtype)}
        return gb.Task.of(stage, check=self._check, release=self._release, notes=notes)
