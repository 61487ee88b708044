"""How long reports and comparisons of large runs take, how much memory, and how both grow.

    bash ci/study.sh large_runs [CASES…]        default 1000 10000 100000

The runs are made of a recording: its results over and over under other names, a hundred readings of counters a case.
Each command runs in a process of its own; its processor time is what a machine without other work takes on one core.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gpubench.model import Case, Result, Run, Samples, SuiteInfo, View, store

_RECORDING = Path(__file__).parents[1] / "recordings/h200-quick.jsonl.gz"
_GPUBENCH = Path(sys.executable).parent / "gpubench"
_DTYPES = ("float16", "bfloat16", "float32", "float64")
_PARTS = tuple(f"part{number}" for number in range(5))
_SIZES = 25
_SUITE = len(_PARTS) * len(_DTYPES) * _SIZES  # number of cases in one suite
_READINGS = 100  # readings of all counters together for each case
_CASE_S = 0.3  # simulated duration of a case
_CHUNK = 2000  # readings of a counter in one record


def cases() -> Iterator[Case]:
    """Yield an endless sequence of cases: suites of five parts, each over four types and twenty-five sizes."""
    for suite in itertools.count():
        for part, dtype, power in itertools.product(_PARTS, _DTYPES, range(_SIZES)):
            yield Case(f"suite{suite}", part, (("size_bytes", 1024 * 2**power), ("dtype", dtype)))


def large(count: int, factor: float = 1.0) -> Run:
    """Return a run with `count` cases whose headline figures are multiplied by a factor."""
    run = store.read_run(_RECORDING)
    measured = [result for result in run.results if result.status == "ok" and result.series]
    results = [
        _renamed(result, case, factor, number * _CASE_S)
        for number, (case, result) in enumerate(zip(itertools.islice(cases(), count), itertools.cycle(measured)))
    ]
    views = (
        View("curve", "Over size", _PARTS, x="size_bytes", by=("dtype",), log_x=True),
        View("bars", "All of them", _PARTS),
    )
    names = dict.fromkeys(result.case.suite for result in results)
    suites = tuple(SuiteInfo(name, "points of a recording", views) for name in names)
    settings = dataclasses.replace(run.manifest.settings, suites=tuple(suite.name for suite in suites))
    manifest = dataclasses.replace(run.manifest, suites=suites, settings=settings)
    return Run(manifest, tuple(results), tuple(_samples(run.samples, count)))


def _renamed(result: Result, case: Case, factor: float, start: float) -> Result:
    """Return a copy of the result as `case`, with times multiplied by `factor` and a window from `start` on."""
    first, *others = result.series
    scaled = dataclasses.replace(first, values=tuple(value * factor for value in first.values))
    return dataclasses.replace(result, case=case, series=(scaled, *others), window=(start, start + 0.8 * _CASE_S))


def _samples(recorded: tuple[Samples, ...], count: int) -> Iterator[Samples]:
    """Return the recorded samples, repeated at even steps over the whole run."""
    sources = {(samples.collector, samples.device): samples for samples in recorded}.values()
    moments = count * _READINGS // sum(len(samples.columns) for samples in sources)
    step = count * _CASE_S / moments
    for start in range(0, moments, _CHUNK):
        at = tuple(step * moment for moment in range(start, min(start + _CHUNK, moments)))
        for samples in sources:
            columns = tuple((name, _repeated(values, len(at))) for name, values in samples.columns)
            yield dataclasses.replace(samples, at=at, columns=columns)


def _repeated(values: tuple[float | None, ...], count: int) -> tuple[float | None, ...]:
    return tuple(itertools.islice(itertools.cycle(values), count))


def _timed(*arguments: str | Path) -> str:
    """Return elapsed and processor time of a command with its processes, and the memory of the largest."""
    start = time.perf_counter()
    child = subprocess.Popen([_GPUBENCH, *arguments], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    elapsed = time.perf_counter() - start
    if status:
        raise SystemExit(f"gpubench {arguments[0]} ended with {os.waitstatus_to_exitcode(status)}")
    return f"{elapsed:7.2f} s, of processors {used.ru_utime + used.ru_stime:7.2f} s, {used.ru_maxrss / 1024:6.0f} MB"


def main(counts: list[int]) -> None:
    """Make runs with these numbers of cases, and print the time and memory of each command."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for count in counts:
            before, after = folder / "before.jsonl", folder / "after.jsonl"
            before.write_bytes(store.encode_run(large(count)))
            after.write_bytes(store.encode_run(large(count, 1.03)))
            _say(f"{count} cases, {count * _READINGS} readings, {before.stat().st_size / 1e6:.0f} MB")
            for form in ("html", "md", "json", "csv", "prom", "trace", "parquet"):
                out = folder / f"report.{form}"
                used = _timed("report", before, "-o", out, "--format", form, "--force")
                _say(f"  report {form:8} {used}, writes {out.stat().st_size / 1e6:6.2f} MB")
            _say(f"  compare         {_timed('compare', before, after)}")
            page = folder / "compare.html"
            used = _timed("compare", before, after, "-o", page, "--force")
            _say(f"  compare html    {used}, writes {page.stat().st_size / 1e6:6.2f} MB")


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [1000, 10_000, 100_000])
