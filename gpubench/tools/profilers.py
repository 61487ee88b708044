"""The exact command that puts one case under a vendor's profiler: the ranges of the worker name the case."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from gpubench.base.errors import UsageError
from gpubench.measuring.plan import Plan
from gpubench.model import Settings

_LAUNCHES = 20  # of a case that ncu takes apart: each is run several times over
# the gate in front of a batch waits for the host, which waits for it under ncu: it is left out
_NO_GATE = "regex:^(?!gate$)"


class Tool(StrEnum):
    """A profiler."""

    NCU = "ncu"
    NSYS = "nsys"
    ROCPROF = "rocprof"


def command(tool: Tool, plan: Plan, suite_words: Sequence[str]) -> list[str]:
    """The words that profile the one case of a plan; UsageError where there is not one.

    `suite_words` are what the user called the suite. rocprof has never met a GPU of ours.
    """
    cases = list(dict.fromkeys(job.case.id for job in plan.jobs))
    if len(cases) != 1:
        some = ", ".join(cases[:3])
        raise UsageError(f"one case is profiled at a time, these are {len(cases)} ({some}, …); choose one by --filter")
    (case,) = cases
    slug = re.sub(r"[^A-Za-z0-9]+", "-", case).strip("-")
    run = _run(plan.settings, case, suite_words, slug)
    if tool is Tool.NCU:
        included = ["--nvtx", "--nvtx-include", f"{_escaped(case)}/"]
        launches = ["--kernel-name", _NO_GATE, "--launch-count", str(_LAUNCHES)]
        return ["ncu", "--target-processes", "all", *included, *launches, "--set", "full", "-f", "-o", slug, *run]
    if tool is Tool.NSYS:
        return ["nsys", "profile", "--trace", "cuda,nvtx", "-f", "true", "-o", slug, *run]
    return ["rocprofv3", "--kernel-trace", "--memory-copy-trace", "--marker-trace", "-d", slug, "--", *run]


def _run(settings: Settings, case: str, suite_words: Sequence[str], slug: str) -> list[str]:
    """The run of that case alone, as short as it gets, into a file of its own."""
    devices = [word for device in settings.devices for word in ("--device", device)]
    out = f"{slug}-{settings.tier}.jsonl"
    gpubench = str(Path(sys.executable).parent / "gpubench")
    program = [gpubench] if Path(gpubench).exists() else [sys.executable, "-P", "-m", "gpubench"]
    return [*program, "run", *suite_words, *devices, "--tier", settings.tier, "--filter", case, "--out", out]


def _escaped(name: str) -> str:
    """A range's name where ncu's own signs mean themselves (Nsight Compute CLI, NVTX filtering)."""
    return re.sub(r"([\[\]/@,*()\\])", r"\\\1", name)
