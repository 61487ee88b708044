"""Build one operator by one provider in a fresh interpreter, timed from the interpreter's start.

The clock is CLOCK_MONOTONIC, which all processes of a machine share. Some work is excluded, because a program that
only uses the operator would not do it: gpubench's own modules, the inputs, overwriting the outputs."""

import contextlib
import importlib
import os
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpubench.api import suite as gb

from . import _providers as providers
from ._operators import Problem

PRELUDE = "import time, numpy; begun = time.monotonic()"
# Libraries that are imported before the provider builds an operator; the provider reports one that is unavailable.
LIBRARIES = {
    "numba": ("numba",),
    "triton": ("triton", "triton.language"),
    "cutile": ("cuda.tile", "cuda.tile.compilation"),
    "torch": ("torch",),
    "inductor": ("torch",),
    "jax": ("jax",),
    "numba-cuda": ("numba.cuda",),
    "tvm": ("tvm",),
    "iree": ("iree.compiler", "iree.runtime"),
}
# Libraries that a provider imports if they are installed, and does not need: Triton 3.6 looks for torch's tensors.
_LEFT_OUT = {"triton": ("torch",)}
_KIB = 1024  # the unit of ru_maxrss on Linux, getrusage(2)


@dataclass(frozen=True, slots=True)
class Order:
    """The operator to build and its case, which the parent process sends to this program.

    `op`, `rows`, `cols` and `dtype` describe the problem, and `by` names the provider."""

    case: gb.Case
    target: gb.Target
    package: str
    seed: int
    op: str
    rows: int
    cols: int
    dtype: str
    by: str
    is_up: bool
    usual_cache: str | None  # the folder of CuPy's usual cache, for kernels that are no part of the build


@dataclass(frozen=True, slots=True)
class BuildReport:
    """The result of one build: the seconds of each step, its caches, its memory, and the relative error of its result.

    After another build (`is_up`) it has only the last three, and `first` begins with the build. The memory is the
    peak of one process: of the largest that the interpreter started, or of the interpreter if that is more."""

    seconds: Mapping[str, float]
    entries_before: int
    entries_written: int
    bytes_written: int
    resident_bytes: int
    error: float


class Ledger:
    """A stopwatch of the seconds since the interpreter was started, without excluded work.

    `started` is a time of `time.monotonic`, and `outside` the seconds that are excluded from the outset."""

    def __init__(self, started: float, outside: float) -> None:
        self._started, self._outside = started, outside

    def now(self) -> float:
        """Return the seconds since the interpreter was started, without excluded work."""
        return time.monotonic() - self._started - self._outside

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """Exclude the time that the body of the `with` statement takes."""
        begun = time.monotonic()
        yield
        self._outside += time.monotonic() - begun


def entries(folder: Path) -> dict[str, int]:
    """Return the size in bytes of every file below `folder`, keyed by its path; lock files are not counted."""
    sizes: dict[str, int] = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a compiler may remove what it wrote for a moment
            if path.is_file() and path.suffix != ".lock":
                sizes[str(path)] = path.stat().st_size
    return sizes


def added(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes that were added to every file that is new or has grown, keyed by the file's path.

    `before` and `after` are results of `entries`. Growth counts because cuTile keeps all code in one file."""
    return {path: size - before.get(path, 0) for path, size in after.items() if size > before.get(path, -1)}


def measured(order: Order, caches: Path, ledger: Ledger) -> BuildReport:
    """Build the operator, call it, check the result, call it again, and return the report of the build.

    `caches` is the folder of all caches, and `ledger` keeps the time."""
    for library in _LEFT_OUT.get(order.by, ()):
        sys.modules.setdefault(library, None)  # type: ignore[arg-type]  # so that it cannot be imported
    for library in (*(["cupy"] if order.target.device.backend == "cupy" else []), *LIBRARIES.get(order.by, ())):
        with contextlib.suppress(ImportError):
            importlib.import_module(library)
    seconds = {"import": ledger.now()}
    bench = gb.Bench.untimed(order.case, order.target, order.package, order.seed)
    bench.device.synchronize()
    if bench.traits.is_gpu:
        seconds["context"] = ledger.now() - seconds["import"]
    with ledger.outside():
        build = _Build(bench, order, order.op, ledger)
        if order.is_up:
            _Build(bench, order, "softmax" if order.op != "softmax" else "rmsnorm", ledger).compared()
        before = entries(caches)
    begun = ledger.now()
    build.first()
    called = ledger.now()
    error = build.compared()
    checked = ledger.now()
    again = build.again()
    if (compile_s := called - begun - again) > 0:  # a library that compiles nothing has only noise here
        seconds["compile"] = compile_s
    seconds["again"] = again
    seconds["first"] = checked - begun if order.is_up else checked
    if order.is_up:
        seconds = {name: seconds[name] for name in ("first", "compile", "again") if name in seconds}
    written = added(before, entries(caches))
    peak_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * _KIB
    return BuildReport(seconds, len(before), len(written), sum(written.values()), peak_bytes, error)


@contextlib.contextmanager
def _usual_cache(folder: str | None) -> Iterator[None]:
    """Let CuPy use its usual cache folder inside the `with` block, and its private one again afterwards."""
    name = "CUPY_CACHE_DIR"
    private = os.environ.pop(name, "")
    if folder is not None:
        os.environ[name] = folder
    yield
    os.environ[name] = private


class _Build:
    """One operator: its problem, which is created at once, and the operator as the provider builds it."""

    def __init__(self, bench: gb.Bench, order: Order, op: str, ledger: Ledger) -> None:
        self._bench, self._by, self._ledger = bench, order.by, ledger
        with _usual_cache(order.usual_cache):
            self._problem = Problem(bench, op, order.rows, order.cols, order.dtype)
            self._problem.expected()  # so that the kernels of the check exist
            bench.xp.empty(1, order.dtype).fill(float("nan"))  # so that the kernels that overwrite outputs exist
        bench.device.synchronize()
        self._built: providers.Built | None = None

    def first(self) -> None:
        """Build the operator and call it; raises Skip or Unavailable if the provider or its operator is unavailable."""
        self._built = providers.build(self._bench, self._problem, self._by)
        self.again()

    def again(self) -> float:
        """Overwrite the outputs, call the operator, and return the seconds of the call and the device's work."""
        assert self._built is not None
        with self._ledger.outside():
            self._built.poison()
            self._bench.device.synchronize()
        begun = self._ledger.now()
        self._built.call()
        if self._built.wait is not None:
            self._built.wait()
        self._bench.device.synchronize()
        return self._ledger.now() - begun

    def compared(self) -> float:
        """Return the relative error of the last call, or of a first call if there was none."""
        if self._built is None:
            self.first()
        assert self._built is not None
        error = self._problem.compare(self._built.rows())["error"]
        assert isinstance(error, gb.Observed)
        return error.value


def report_of(order: Order, caches: str, started: float) -> BuildReport:
    """Build the order in this interpreter, which was started at the moment `started`, with caches in that folder."""
    begun: float = vars(sys.modules["__main__"])["begun"]
    return measured(order, Path(caches), Ledger(started, time.monotonic() - begun))
