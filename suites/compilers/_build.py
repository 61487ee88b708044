"""What compiling costs: the time of a fresh interpreter to its first checked result, and the parts of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from gpubench.api.suite import (
    Bench,
    Effort,
    Observation,
    Observed,
    Stage,
    Target,
    Task,
    Topic,
    Untrustworthy,
    View,
    points,
)

from . import _providers as providers
from ._build_child import Order, Report
from ._fresh import Caches, report_of

_GPU_QUICK = ("nvrtc", "triton")
_UNCACHED = frozenset({"numpy", "torch", "tvm", "iree"})  # providers that keep nothing on disk
_SHAPES = {"host": (1024, 4096, "float32"), "gpu": (4096, 4096, "float16")}  # rows, columns, type
_SAMPLES = 3  # of a case in full
_LIMITS_S = {"smoke": 50.0, "quick": 50.0, "full": 90.0}  # of one interpreter; a case has four in full
_STAGES = ("first", "import", "context", "compile", "again")  # the headline first

topic = Topic(
    views=[
        View(
            "bars", "Seconds to the first result by provider", ("build",), by=("op", "by", "cache"), series="first.self"
        ),
        View("bars", "Seconds to compile by provider", ("build",), by=("op", "by", "cache"), series="compile.self"),
    ]
)


def _by(target: Target) -> Any:
    if target.is_host:
        return points(providers.HOST_QUICK, providers.HOST_QUICK[:1], providers.HOST)
    return points(_GPU_QUICK, _GPU_QUICK[:1], providers.GPU)


def _caches(target: Target) -> Any:
    return points(("cold",) if target.is_host else ("cold", "warm"), ("cold",), ("cold", "warm", "process"))


def _in_time(target: Target, params: Mapping[str, Any]) -> bool:
    """Leave the warm cache of Triton to full: two processes that take four seconds each."""
    return target.tier == "full" or params["by"] != "triton" or params["cache"] == "cold"


@topic.case(op=points(("softmax",), full=("softmax", "swiglu")), by=_by, cache=_caches, where=_in_time)
def build(bench: Bench, op: str, by: str, cache: str) -> Task:
    """Seconds from the start of a fresh interpreter to the first checked result, with private caches.

    The caches are empty (`cold`), or full of what the same build wrote before (`warm`). `process`: seconds from the
    build to the first checked result in an interpreter that built another operator before, with empty caches.
    """
    is_full = bench.target.tier == "full"
    rows, cols, dtype = _SHAPES["gpu" if bench.traits.is_gpu else "host"]
    load = os.getloadavg()[0]
    reports: list[Report] = []
    with Caches() as kept:
        ask = partial(_report, bench, op, rows, cols, dtype, by)
        if cache == "warm" and by not in _UNCACHED:
            ask("cold", kept)
        for _ in range(_SAMPLES if is_full else 1):
            if cache == "warm":
                reports.append(ask(cache, kept))
            else:
                with Caches() as empty:
                    reports.append(ask(cache, empty))
    names = [name for name in _STAGES if name in reports[0].seconds]
    stages = {name: _stage([report.seconds[name] for report in reports]) for name in names}
    return Task(stages, partial(_observed, reports, load), notes=_notes(by, rows, cols, dtype))


def _report(bench: Bench, op: str, rows: int, cols: int, dtype: str, by: str, cache: str, caches: Caches) -> Report:
    order = Order(
        bench.case,
        bench.target,
        bench.package,
        bench.seed,
        op,
        rows,
        cols,
        dtype,
        by,
        is_up=cache == "process",
        folder=str(caches.folder),
        usual_cache=os.environ.get("CUPY_CACHE_DIR"),
    )
    report = report_of(order, caches, _LIMITS_S[bench.target.tier])
    expect_state(cache, by, report)
    return report


def expect_state(cache: str, by: str, report: Report) -> None:
    """Raise Untrustworthy where the caches were not in the state that was asked for, by what the compile wrote."""
    before, written = report.entries_before, report.entries_written
    if by in _UNCACHED:
        is_right, wanted = not written, "no cache at all"
    elif cache == "warm":
        is_right, wanted = before > 0 and not written, "a warm cache"
    else:
        is_right, wanted = written > 0, "a cold cache"
    if not is_right:
        raise Untrustworthy("cache", f"not {wanted}: the compile wrote {written} entries beside {before} old ones")


def _stage(seconds: Sequence[float]) -> Stage:
    """Return the samples of interpreters that have ended as a stage: its call returns them all."""
    return Stage(lambda: seconds, clock="self", effort=Effort.exactly(len(seconds)), checked=True)


def _observed(reports: Sequence[Report], load: float) -> Observation:
    return {
        "error": max(report.error for report in reports),
        "entries": Observed(max(report.entries_written for report in reports)),
        "written": Observed(max(report.bytes_written for report in reports), "B"),
        "resident": Observed(max(report.resident_bytes for report in reports), "B"),
        "load": Observed(load),
    }


def _notes(by: str, rows: int, cols: int, dtype: str) -> dict[str, str]:
    caches = "this provider keeps nothing on disk" if by in _UNCACHED else "private, removed afterwards"
    return {
        "shape": f"{rows} × {cols} elements of {dtype}",
        "caches": f"{caches}; compiled Python files and the system's page cache are as they were",
        "outside": "gpubench's own modules, the inputs, overwriting the outputs",
    }
