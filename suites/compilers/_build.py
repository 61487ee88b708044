"""Measure the cost of compiling: a fresh interpreter to its first checked result, and lengths that change.

The clock is CLOCK_MONOTONIC, which all processes of a machine share. Some work is excluded, because a program that
only uses the operator would not do it: gpubench's own modules, the inputs, overwriting the outputs."""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpubench.api import suite as gb

from .._checks import in_turn, measured_before
from . import _providers as providers
from ._cases import dtype_of, in_full, runtime_of
from ._operators import Problem

_OPERATORS = ("softmax", "swiglu")
_HOST = gb.points(providers.HOST_QUICK, providers.HOST_QUICK[:1], providers.HOST)
_GPU = gb.points(("nvrtc",), full=[by for by in providers.GPU if by not in ("tvm", "iree")])
_CACHES = gb.points(("cold",), full=("cold", "warm", "process"))
_UNCACHED = frozenset({"numpy", "numba-cuda", "torch", "tvm", "iree"})  # providers that keep nothing on disk
_ROWS, _COLS = {"host": 1024, "gpu": 4096}, 4096
_SAMPLES = 3  # interpreters for the first operator in the full tier, with a cold and with a warm cache
_BUDGET_S = 15.0  # the time after which no further interpreter is started
_LIMITS_S = {"smoke": 50.0, "quick": 50.0, "full": 90.0}  # for one interpreter; a case starts four in the full tier
_STAGES = ("first", "import", "context", "compile", "again")  # the headline first
_NO_COMPILE = {"compile": "not measurable: a first call took no longer than the second"}
_PRELUDE = "import time, numpy; begun = time.monotonic()"
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
# Each names the folder of a compiler's cache: Triton, torch's Inductor, CuPy, numba, JAX, cuTile, the CUDA driver, and
# programs that follow the XDG Base Directory Specification.
_FOLDERS = (
    *("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUPY_CACHE_DIR", "NUMBA_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR"),
    *("CUDA_TILE_CACHE_DIR", "CUDA_CACHE_PATH", "XDG_CACHE_HOME"),
)
# By default JAX caches only code that took at least a second to compile.
_SETTINGS = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}

_LENGTHS, _RANGE, _SHAPES_ROWS = 16, (64, 8192), 1024  # lengths of a row from that range, and rows
_BY_CACHE = ("op", "by", "cache")

topic = gb.Topic(
    views=[
        gb.View(
            "bars", "Time of the calls at 16 new lengths by provider", ("shapes",), by=("op", "by"), series="all.self"
        ),
        gb.View("bars", "Time to the first result by provider", ("build",), by=_BY_CACHE, series="first.self"),
        gb.View("bars", "Time to compile by provider", ("build",), by=_BY_CACHE, series="compile.self"),
    ]
)


class Order(NamedTuple):
    """The operator to build and its case, which the parent process sends to the fresh interpreter.

    `op`, `rows`, `cols` and `dtype` describe the problem, and `by` names the provider. With `is_up` the interpreter
    builds another operator before."""

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


class BuildReport(NamedTuple):
    """The result of one build: the seconds of each step, its caches, its memory, and the relative error of its result.

    After another build (`is_up`) `first` begins with the build. The memory is the peak of the largest process: of the
    interpreter or of a program that it started."""

    seconds: Mapping[str, float]
    entries_before: int
    entries_written: int
    bytes_written: int
    resident_bytes: int
    error: float


class Caches:
    """Private folders for the caches of all compilers, empty at first and removed at the end of the context.

    `folder` holds them all, and `environment` has the variables that point every compiler to its folder."""

    def __init__(self, within: Path | None = None) -> None:
        """Create the folders in the folder `within`, or where temporary files go if it is None."""
        try:
            self._holder = tempfile.TemporaryDirectory("", "gpubench-caches-", within, ignore_cleanup_errors=True)
            self.folder = Path(self._holder.name)
            for name in _FOLDERS:
                (self.folder / name.lower()).mkdir()
        except OSError as error:
            raise gb.FileError(
                f"the caches of compilers cannot be written: {error}; set TMPDIR to a writable folder"
            ) from error
        self.environment = {name: str(self.folder / name.lower()) for name in _FOLDERS} | _SETTINGS

    def __enter__(self) -> Caches:
        return self

    def __exit__(self, *_: object) -> None:
        self._holder.cleanup()


@topic.case(
    when=lambda target: target.is_host or gb.beyond_quick(target),  # on a GPU interpreters take four seconds to start
    op=gb.points(_OPERATORS[:1], full=_OPERATORS),
    by=lambda target: _HOST if target.is_host else _GPU,
    cache=_CACHES,
    # the second operator in a running process shows nothing new
    where=lambda _target, params: bool(params["op"] == _OPERATORS[0] or params["cache"] != "process"),
)
def build(bench: gb.Bench, op: str, by: str, cache: str) -> gb.Task:
    """Seconds from the start of a fresh interpreter to the first checked result of an operator, with private caches.

    `by` names the compiler or library. The caches are empty (`cold`), or filled by an earlier run of the same build
    (`warm`). `process`: seconds from the build to the first checked result in an interpreter that built another
    operator before, with empty caches."""
    rows, dtype = _ROWS["gpu" if bench.traits.is_gpu else "host"], dtype_of(not bench.traits.is_gpu)
    case = bench.case, bench.target, bench.package, bench.seed
    order = Order(*case, op, rows, _COLS, dtype, by, cache == "process", os.environ.get("CUPY_CACHE_DIR"))
    load = os.getloadavg()[0]
    reports = _reports(bench, order, cache, samples_of(bench.target, op, cache))
    names = [name for name in _STAGES if all(name in report.seconds for report in reports)]
    stages = {name: measured_before([report.seconds[name] for report in reports]) for name in names}
    caches = "this provider keeps nothing on disk" if by in _UNCACHED else "private, removed afterwards"
    notes = {
        "shape": f"{rows} × {_COLS} elements of {dtype}",
        "caches": f"{caches}; compiled Python files and the system's page cache are as they were",
        "outside": "gpubench's own modules, the inputs, overwriting the outputs",
    }
    return gb.Task(
        stages, partial(_observations, reports, load), notes=notes | ({} if "compile" in stages else _NO_COMPILE)
    )


def samples_of(target: gb.Target, op: str, cache: str) -> int:
    """Return the number of interpreters that a case starts if time allows.

    It is three for softmax in the full tier with a cold or a warm cache, else one."""
    return _SAMPLES if target.tier == "full" and op == _OPERATORS[0] and cache != "process" else 1


def _reports(bench: gb.Bench, order: Order, cache: str, samples: int) -> list[BuildReport]:
    """Return the reports of at most `samples` fresh interpreters, which build the order one after the other."""
    reports: list[BuildReport] = []

    def report(state: str, caches: Caches) -> BuildReport:
        of_build = report_of(bench, order, caches, _LIMITS_S[order.target.tier])
        expect_state(state, order.by, of_build)
        return of_build

    with Caches() as filled:
        if cache == "warm" and order.by not in _UNCACHED:
            report("cold", filled)
        begun = time.monotonic()
        while not reports or (len(reports) < samples and time.monotonic() - begun < _BUDGET_S):
            with contextlib.nullcontext(filled) if cache == "warm" else Caches() as caches:
                reports.append(report(cache, caches))
    return reports


def report_of(bench: gb.Bench, order: Order, caches: Caches, limit_s: float) -> BuildReport:
    """Build `order` in a fresh interpreter that uses these caches, and return the interpreter's report.

    The interpreter and its process group end with this call."""
    name = f"the build by {order.by}"
    with bench.helper(report_here, name, environment=caches.environment, prelude=_PRELUDE) as helper:
        report: BuildReport = helper.ask(limit_s, order, str(caches.folder), helper.started_s)
        return report._replace(resident_bytes=max(report.resident_bytes, helper.resident_bytes()))


def expect_state(cache: str, by: str, report: BuildReport) -> None:
    """Raise Untrustworthy if a report shows that the caches of the provider `by` were not in the state `cache`.

    A warm cache has entries before the compile and gets none; any other cache gets entries."""
    before, written = report.entries_before, report.entries_written
    if by in _UNCACHED:
        is_right, wanted = not written, "no cache at all"
    elif cache == "warm":
        is_right, wanted = before > 0 and not written, "a warm cache"
    else:
        is_right, wanted = written > 0, "a cold cache"
    if not is_right:
        raise gb.Untrustworthy("cache", f"not {wanted}: the compile wrote {written} entries beside {before} old ones")


def _observations(reports: Sequence[BuildReport], load: float) -> gb.Observation:
    """Return the largest error, cache entries, bytes written and resident memory of the reports, and the load."""
    most = [max(values) for values in zip(*(report[2:] for report in reports), strict=True)]
    units = {"entries": "", "written": "B", "resident": "B", "error": ""}
    observed = {name: gb.Observed(value, unit) for value, (name, unit) in zip(most, units.items(), strict=True)}
    return {**observed, "load": gb.Observed(load)}


def lengths_of(seed: int, op: str) -> list[int]:
    """Return 16 distinct lengths of the rows of the operator `op`, from 64 to 8191, the same for all providers.

    Their logarithms are drawn evenly from a generator that `seed` and `op` determine."""
    rng = np.random.default_rng([seed, zlib.crc32(op.encode())])
    lengths: dict[int, None] = {}
    while len(lengths) < _LENGTHS:
        lengths[int(np.exp(rng.uniform(*np.log(_RANGE))))] = None
    return list(lengths)


@topic.case(
    op=("softmax",),
    by=lambda target: ("numba",) if target.is_host else ("triton", "inductor"),
    when=in_full,
    runtime=runtime_of,
)
def shapes(bench: gb.Bench, op: str, by: str) -> gb.Task:
    """Seconds of calls at 16 lengths of a row, each twice: `first` at a new length, `again` at a length met before.

    `all` is the sum of the first calls. The caches on disk are empty before. `recompiles` counts the compilations after
    the one for the first length. `by` names the compiler."""
    lengths = lengths_of(bench.seed, op)
    dtype = dtype_of(not bench.traits.is_gpu)
    problems = [Problem(bench, op, _SHAPES_ROWS, length, dtype) for length in lengths]
    operators = providers.varied(bench, problems, by)
    with Caches() as caches, with_environment(caches.environment):
        first = _seconds(bench, operators)
    compiled, change = operators.compiled(), in_turn(*(problem.change for problem in problems))
    stages = {
        "all": measured_before(
            [sum(first)]
        ),  # most first calls compile nothing, so that the median of `first` says little
        "first": measured_before(first),
        "again": gb.Stage(partial(_seconds, bench, operators), clock="self", effort=gb.POINT, inputs=change),
    }

    def check() -> gb.Observation:
        """Compare the results at every length; return the largest error, the recompilations and the lengths by name."""
        pairs = zip(problems, operators.built, strict=True)
        errors = [problem.compare(built.rows())["error"] for problem, built in pairs]
        return {
            "error": max(error.value for error in errors if isinstance(error, gb.Observed)),
            "recompiles": gb.Observed(compiled - 1),
            "lengths": gb.Profile(tuple(map(float, lengths)), "elements"),
        }

    notes = {
        **operators.built[0].notes,
        "rows": str(_SHAPES_ROWS),
        "order": "first and lengths are in the order of the calls",
    }
    return gb.Task(stages, check, in_turn(*(built.poison for built in operators.built)), notes=notes)


def _seconds(bench: gb.Bench, operators: providers.Varied) -> Sequence[float]:
    """Return the seconds of one call at each length, in the order of `operators.built`, on a device that is idle."""
    seconds = []
    for built in operators.built:
        bench.device.synchronize()
        start = time.perf_counter()
        built.call()
        bench.device.synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds


# The rest runs in the fresh interpreter.


def report_here(order: Order, caches: str, started: float) -> BuildReport:
    """Build the order in this interpreter, which was started at the moment `started`, with caches in that folder."""
    begun: float = vars(sys.modules["__main__"])["begun"]
    return measured(order, Path(caches), Ledger(started, time.monotonic() - begun))


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
            other = _Build(bench, order, "softmax" if order.op != "softmax" else "rmsnorm", ledger)
            other.first()
            other.compared()
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


class _Build:
    """One operator: its problem, which is created at once, and the operator as the provider builds it."""

    built: providers.Built

    def __init__(self, bench: gb.Bench, order: Order, op: str, ledger: Ledger) -> None:
        self._bench, self._by, self._ledger = bench, order.by, ledger
        with with_environment({"CUPY_CACHE_DIR": order.usual_cache}):
            self._problem = Problem(bench, op, order.rows, order.cols, order.dtype)
            self._problem.expected()  # so that the kernels of the check exist
            bench.xp.empty(1, order.dtype).fill(float("nan"))  # so that the kernels that overwrite outputs exist
        bench.device.synchronize()

    def first(self) -> None:
        """Build the operator and call it; raises Skip or Unavailable if the provider or its operator is unavailable."""
        self.built = providers.build(self._bench, self._problem, self._by)
        self.again()

    def again(self) -> float:
        """Overwrite the outputs, call the operator, and return the seconds of the call and the device's work."""
        with self._ledger.outside():
            self.built.poison()
            self._bench.device.synchronize()
        begun = self._ledger.now()
        self.built.call()
        if self.built.wait is not None:
            self.built.wait()
        self._bench.device.synchronize()
        return self._ledger.now() - begun

    def compared(self) -> float:
        """Return the relative error of the last call."""
        error = self._problem.compare(self.built.rows())["error"]
        assert isinstance(error, gb.Observed)
        return error.value


@contextlib.contextmanager
def with_environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables inside the `with` block; None removes one. They are as before afterwards."""
    before = {name: os.environ.pop(name, None) for name in variables}
    os.environ.update({name: value for name, value in variables.items() if value is not None})
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
        os.environ.update({name: value for name, value in before.items() if value is not None})
