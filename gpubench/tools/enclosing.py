"""Prepare the run file that a report contains: small enough, with a note about the data that it leaves out.

Return the command that runs one case under a vendor's profiler; NVTX ranges of the worker name the case."""

import dataclasses
import gzip
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from gpubench.analysis.counters import extremes
from gpubench.base import units
from gpubench.base.errors import UsageError
from gpubench.measuring.plan import Plan
from gpubench.model import Result, Run, Samples, Settings, store
from gpubench.model.disk import Packed
from gpubench.plugins.report import Enclosure

LIMIT_BYTES = 200_000  # compressed; base64 makes 270 kB of it, and a page has at most a megabyte
_DIGITS = (9, 7)  # digits of rounded samples: finer than any clock's resolution, then finer than any noise
_MOST_VALUES = 400  # samples of a counter after thinning
_MOST_BYTES = 20  # largest compressed size of a number
_LEAST_BYTES = 1.2  # smallest compressed size of a number: a run with too many numbers is not even compressed


def enclosure(run: Run, path: str | Path) -> Enclosure:
    """Return the run file that a report contains: the run, made smaller until it has at most LIMIT_BYTES compressed.

    `path` is the file that the run was read from."""
    source = store.file_hash(path)
    for small, left_out in _smaller_versions(run):
        data = store.encode_run(small)
        content = gzip.compress(data, 6, mtime=0)
        if len(content) <= 1.1 * LIMIT_BYTES:  # the highest level, five times as slow, makes real runs 1 to 2 % smaller
            content = gzip.compress(data, mtime=0)
        if len(content) <= LIMIT_BYTES:
            return Enclosure(source, content, left_out)
        if len(content) - _MOST_BYTES * _numbers(small) > LIMIT_BYTES:
            break  # other content fills the file
    size = units.round_size(Path(path).stat().st_size)
    return Enclosure(source, b"", f"The samples themselves are left out: the run file has {size}.")


def _smaller_versions(run: Run) -> Iterator[tuple[Run, str]]:
    if _fits(run):
        yield run, ""
    thinned = dataclasses.replace(run, samples=tuple(part for samples in run.samples for part in _thinned(samples)))
    before, after = _counter_values(run), _counter_values(thinned)
    if not _fits(thinned):
        return
    thinning = f"Of {before} counter samples, {after} are kept: the minimum and the maximum of equal intervals"
    if after < before:
        yield thinned, thinning + "."
    for digits in _DIGITS:
        rounded = dataclasses.replace(thinned, results=tuple(_rounded(result, digits) for result in thinned.results))
        samples = f"samples are rounded to {digits} digits."
        yield rounded, f"{thinning}; {samples}" if after < before else samples.capitalize()


def _fits(run: Run) -> bool:
    """Return whether a run may fit into LIMIT_BYTES, at 1.2 bytes for each value of its series and counters."""
    remarks = len({remark.text for remark in run.remarks})  # of at least two bytes each
    return _numbers(run) * _LEAST_BYTES + 2 * remarks <= LIMIT_BYTES


def _numbers(run: Run) -> int:
    return sum(len(series.values) for result in run.results for series in result.series) + _counter_values(run)


def _counter_values(run: Run) -> int:
    return sum(len(samples.at) * len(samples.columns) for samples in run.samples)


def _thinned(samples: Samples) -> Iterator[Samples]:
    """Yield samples with at most _MOST_VALUES values of each counter, without missing values."""
    if len(samples.at) <= _MOST_VALUES:
        yield samples
        return
    at = np.asarray(samples.at, dtype=float)
    for name, column in samples.columns:
        values = np.asarray(column, dtype=float)
        present = np.flatnonzero(np.isfinite(values))
        extreme = present[extremes(values[present], _MOST_VALUES)]
        columns = ((name, Packed[float | None](values[extreme].tolist())),)
        yield dataclasses.replace(samples, at=Packed[float](at[extreme].tolist()), columns=columns)


def _rounded(result: Result, digits: int) -> Result:
    """Return the result with each sample of its series rounded to `digits` significant digits."""
    rounded = (
        dataclasses.replace(series, values=tuple(float(f"{value:.{digits}g}") for value in series.values))
        for series in result.series
    )
    return dataclasses.replace(result, series=tuple(rounded))


_LAUNCHES = 20  # launches of a case that ncu profiles: it runs each several times
# the gate kernel before a batch waits for the host, which under ncu waits for the kernel: it is not profiled
_NO_GATE = "regex:^(?!gate$)"


def command(tool: str, plan: Plan, suite_names: Sequence[str]) -> list[str]:
    """Return the program and the arguments that run the only case of a plan under `ncu`, `nsys` or `rocprof`.

    The profile is written to a file or folder named after the case."""
    cases = list(dict.fromkeys(job.case.id for job in plan.jobs))
    if len(cases) != 1:
        first_cases = ", ".join(cases[:3])
        raise UsageError(
            f"one case is profiled at a time, these are {len(cases)} ({first_cases}, …); choose one by --filter"
        )
    (case,) = cases
    slug = re.sub(r"[^A-Za-z0-9]+", "-", case).strip("-")
    run = _run_command(plan.settings, case, suite_names, slug)
    if tool == "ncu":
        escaped = re.sub(r"([\[\]/@,*()\\])", r"\\\1", case)  # Nsight Compute CLI, NVTX filtering
        included = ["--nvtx", "--nvtx-include", f"{escaped}/"]
        launches = ["--kernel-name", _NO_GATE, "--launch-count", str(_LAUNCHES)]
        return ["ncu", "--target-processes", "all", *included, *launches, "--set", "full", "-f", "-o", slug, *run]
    if tool == "nsys":
        return ["nsys", "profile", "--trace", "cuda,nvtx", "-f", "true", "-o", slug, *run]
    return ["rocprofv3", "--kernel-trace", "--memory-copy-trace", "--marker-trace", "-d", slug, "--", *run]


def _run_command(settings: Settings, case: str, suite_names: Sequence[str], slug: str) -> list[str]:
    """Return the program and the arguments of a `gpubench run` of `case` alone, which is a case's id."""
    devices = [argument for device in settings.devices for argument in ("--device", device)]
    out = f"{slug}-{settings.tier}.jsonl"
    gpubench = str(Path(sys.executable).parent / "gpubench")
    program = [gpubench] if Path(gpubench).exists() else [sys.executable, "-P", "-m", "gpubench"]
    return [*program, "run", *suite_names, *devices, "--tier", settings.tier, "--filter", case, "--out", out]
