"""Measure the cost of compiling: the time of a fresh interpreter to its first checked result, step by step."""

import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from gpubench.api import suite as gb

from . import _providers as providers
from ._build_child import BuildReport, Order
from ._fresh import Caches, report_of

_OPERATORS = ("softmax", "swiglu")
_CACHES = gb.points(("cold",), full=("cold", "warm", "process"))
_GPU_QUICK = ("nvrtc",)
_UNCACHED = frozenset({"numpy", "numba-cuda", "torch", "tvm", "iree"})  # providers that keep nothing on disk
_COMPILED_ELSEWHERE = ("tvm", "iree")  # providers whose kernels for GPUs another machine may have compiled
_SHAPES = {"host": (1024, 4096, "float32"), "gpu": (4096, 4096, "float16")}  # rows, columns, type
_SAMPLES = 3  # interpreters for the first operator in the full tier, with a cold and with a warm cache
_BUDGET_S = 15.0  # the time after which no further interpreter is started
_LIMITS_S = {"smoke": 50.0, "quick": 50.0, "full": 90.0}  # for one interpreter; a case starts four in the full tier
_STAGES = ("first", "import", "context", "compile", "again")  # the headline first
_NO_COMPILE = {"compile": "not measurable: a first call took no longer than the second"}

topic = gb.Topic(
    views=[
        gb.View(
            "bars", "Time to the first result by provider", ("build",), by=("op", "by", "cache"), series="first.self"
        ),
        gb.View("bars", "Time to compile by provider", ("build",), by=("op", "by", "cache"), series="compile.self"),
    ]
)


def _by(target: gb.Target) -> Any:
    if target.is_host:
        return gb.points(providers.HOST_QUICK, providers.HOST_QUICK[:1], providers.HOST)
    return gb.points(_GPU_QUICK, full=[by for by in providers.GPU if by not in _COMPILED_ELSEWHERE])


def _is_informative(_target: gb.Target, params: Mapping[str, Any]) -> bool:
    """Return whether a point is measured: all but the second operator in a running process, which shows nothing new."""
    return bool(params["op"] == _OPERATORS[0] or params["cache"] != "process")


@topic.case(op=gb.points(_OPERATORS[:1], full=_OPERATORS), by=_by, cache=_CACHES, where=_is_informative)
def build(bench: gb.Bench, op: str, by: str, cache: str) -> gb.Task:
    """Seconds from the start of a fresh interpreter to the first checked result of an operator, with private caches.

    `by` names the compiler or library. The caches are empty (`cold`), or filled by an earlier run of the same build
    (`warm`). `process`: seconds from the build to the first checked result in an interpreter that built another
    operator before, with empty caches."""
    rows, cols, dtype = _SHAPES["gpu" if bench.traits.is_gpu else "host"]
    case = bench.case, bench.target, bench.package, bench.seed
    order = Order(*case, op, rows, cols, dtype, by, cache == "process", os.environ.get("CUPY_CACHE_DIR"))
    load = os.getloadavg()[0]
    reports = _reports(bench, order, cache, samples_of(bench.target, op, cache))
    names = [name for name in _STAGES if all(name in report.seconds for report in reports)]
    stages = {name: _stage([report.seconds[name] for report in reports]) for name in names}
    return gb.Task(
        stages,
        partial(_observations, reports, load),
        notes=_notes(by, rows, cols, dtype) | ({} if "compile" in stages else _NO_COMPILE),
    )


def samples_of(target: gb.Target, op: str, cache: str) -> int:
    """Return the number of interpreters that a case starts if time allows.

    It is three for softmax in the full tier with a cold or a warm cache, else one."""
    return _SAMPLES if target.tier == "full" and op == _OPERATORS[0] and cache != "process" else 1


def _reports(bench: gb.Bench, order: Order, cache: str, samples: int) -> list[BuildReport]:
    """Return the reports of at most `samples` fresh interpreters, which build the order one after the other."""
    reports: list[BuildReport] = []
    with Caches() as filled:
        if cache == "warm" and order.by not in _UNCACHED:
            _report(bench, order, "cold", filled)
        begun = time.monotonic()
        while not reports or (len(reports) < samples and time.monotonic() - begun < _BUDGET_S):
            if cache == "warm":
                reports.append(_report(bench, order, cache, filled))
            else:
                with Caches() as empty:
                    reports.append(_report(bench, order, cache, empty))
    return reports


def _report(bench: gb.Bench, order: Order, cache: str, caches: Caches) -> BuildReport:
    """Return the report of one fresh interpreter that builds the order with these caches."""
    report = report_of(bench, order, caches, _LIMITS_S[order.target.tier])
    expect_state(cache, order.by, report)
    return report


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


def _stage(seconds: Sequence[float]) -> gb.Stage:
    """Return a stage whose call returns all `seconds` at once, one sample for each interpreter that has ended."""
    return gb.Stage(lambda: seconds, clock="self", effort=gb.Effort.exactly(len(seconds)), checked=True)


def _observations(reports: Sequence[BuildReport], load: float) -> gb.Observation:
    """Return the largest error, cache entries, bytes written and resident memory of the reports."""
    return {
        "error": max(report.error for report in reports),
        "entries": gb.Observed(max(report.entries_written for report in reports)),
        "written": gb.Observed(max(report.bytes_written for report in reports), "B"),
        "resident": gb.Observed(max(report.resident_bytes for report in reports), "B"),
        "load": gb.Observed(load),
    }


def _notes(by: str, rows: int, cols: int, dtype: str) -> dict[str, str]:
    """Return notes, by name, on the shape, the caches of the provider `by`, and the work that the times exclude."""
    caches = "this provider keeps nothing on disk" if by in _UNCACHED else "private, removed afterwards"
    return {
        "shape": f"{rows} × {cols} elements of {dtype}",
        "caches": f"{caches}; compiled Python files and the system's page cache are as they were",
        "outside": "gpubench's own modules, the inputs, overwriting the outputs",
    }
