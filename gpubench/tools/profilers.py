"""Return the command that runs one case under a vendor's profiler; NVTX ranges of the worker name the case."""

import re
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from gpubench.base.errors import UsageError
from gpubench.measuring.plan import Plan
from gpubench.model import Settings

_LAUNCHES = 20  # launches of a case that ncu profiles: it runs each several times
# the gate kernel before a batch waits for the host, which under ncu waits for the kernel: it is not profiled
_NO_GATE = "regex:^(?!gate$)"


class Tool(StrEnum):
    """A profiler of a vendor, by the name of its command."""

    NCU = "ncu"
    NSYS = "nsys"
    ROCPROF = "rocprof"


def command(tool: Tool, plan: Plan, suite_names: Sequence[str]) -> list[str]:
    """Return the program and the arguments that run the only case of a plan under a profiler.

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
    if tool is Tool.NCU:
        included = ["--nvtx", "--nvtx-include", f"{_escaped_range(case)}/"]
        launches = ["--kernel-name", _NO_GATE, "--launch-count", str(_LAUNCHES)]
        return ["ncu", "--target-processes", "all", *included, *launches, "--set", "full", "-f", "-o", slug, *run]
    if tool is Tool.NSYS:
        return ["nsys", "profile", "--trace", "cuda,nvtx", "-f", "true", "-o", slug, *run]
    return ["rocprofv3", "--kernel-trace", "--memory-copy-trace", "--marker-trace", "-d", slug, "--", *run]


def _run_command(settings: Settings, case: str, suite_names: Sequence[str], slug: str) -> list[str]:
    """Return the program and the arguments of a `gpubench run` of `case` alone, which is a case's id."""
    devices = [argument for device in settings.devices for argument in ("--device", device)]
    out = f"{slug}-{settings.tier}.jsonl"
    gpubench = str(Path(sys.executable).parent / "gpubench")
    program = [gpubench] if Path(gpubench).exists() else [sys.executable, "-P", "-m", "gpubench"]
    return [*program, "run", *suite_names, *devices, "--tier", settings.tier, "--filter", case, "--out", out]


def _escaped_range(name: str) -> str:
    """Return the name of an NVTX range with ncu's special characters escaped (Nsight Compute CLI, NVTX filtering)."""
    return re.sub(r"([\[\]/@,*()\\])", r"\\\1", name)
