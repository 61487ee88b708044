"""`gpubench run`: measure suites and write a run file."""

from __future__ import annotations

import shlex
import sys
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.base.errors import UsageError
from gpubench.cli import _options as options
from gpubench.cli import _print, _sharing

if TYPE_CHECKING:
    from gpubench.measuring.plan import Plan

Out = Annotated[
    Path | None,
    typer.Option(
        "--out", "-o", help="The run file to write (.jsonl or .jsonl.gz). \\[default: gpubench-runs/TIME.jsonl]"
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Continue the interrupted run in the file of --out, with the same options, devices and versions.",
    ),
]

Exclusive = Annotated[
    bool,
    typer.Option(
        "--exclusive",
        help="Refuse to start (exit status 6) while another gpubench run uses one of the devices, and make other runs "
        "refuse while this one uses them. Without it, both runs warn and label their cases.",
    ),
]


Mps = Annotated[
    bool,
    typer.Option(
        "--mps",
        help="Start a private daemon of NVIDIA's Multi-Process Service for this run and stop it afterwards, so that "
        "processes use a GPU at the same time instead of in turns.",
    ),
]

Paranoid = Annotated[
    bool,
    typer.Option(
        "--paranoid",
        help="Check the answer of each batch, for CI. Outputs are overwritten before each sample, so the figures are "
        "labelled and not comparable with others.",
    ),
]


class ProfilerName(StrEnum):
    """A vendor's profiler."""

    NCU = "ncu"
    NSYS = "nsys"
    ROCPROF = "rocprof"


Profiler = Annotated[
    ProfilerName | None,
    typer.Option(
        "--print-profiler-command",
        help="Do not measure. Print the command that runs the one selected case under this profiler.",
    ),
]


def run(
    suites: options.Suites = None,
    device: options.Devices = None,
    with_host: options.WithHost = False,
    tier: options.TierOption = options.TierName.QUICK,
    filter: options.Filters = None,  # noqa: A002 - the option's name
    out: Out = None,
    json: options.Json = False,
    resume: Resume = False,
    data: options.Data = None,
    replicates: options.Replicates = 1,
    seed: options.Seed = 0,
    link: options.Links = None,
    exclusive: Exclusive = False,
    mps: Mps = False,
    paranoid: Paranoid = False,
    print_profiler_command: Profiler = None,
) -> None:
    """Measure suites on this machine, write a run file, and print a summary."""
    from gpubench.analysis import summary
    from gpubench.cli import _print, _summary
    from gpubench.cli._machine import run_display
    from gpubench.measuring import inventory, plan
    from gpubench.tools import session
    from gpubench.tools.sharing import private_daemon

    if resume and out is None:
        raise UsageError("--resume continues a run file: name it with --out")
    options.check_suites(suites)
    facts = inventory.facts()
    settings = options.settings(facts, suites, device, with_host, tier, filter, data, replicates, seed, link, paranoid)
    planned = plan.make(facts, settings)
    if print_profiler_command:
        _print_command(print_profiler_command, planned, suites or [])
        return
    if not device and (reason := plan.why_host(facts, settings)):
        _warn(reason)
    for message in plan.skip_messages(planned):
        _warn(message)
    path = options.run_file(out)
    with run_display() as watch, private_daemon() if mps else nullcontext():
        measured = session.measure(planned, path, sys.argv, watch, resume, tell=_warn, exclusive=exclusive)
    if json:
        from gpubench.tools import rendering

        shared = _sharing.shareable(measured)
        typer.echo(rendering.report("json").render(shared), nl=False)
    else:
        _print.out().print(*_summary.run_parts(measured, path), sep="\n")
    _print.err().print(
        _print.plain(f"run file: {path}; for a report: gpubench report {path} -o report.html"), soft_wrap=True
    )
    raise typer.Exit(summary.exit_status(measured.results))


def _warn(message: str) -> None:
    _print.err().print(_print.plain(message, "yellow"), soft_wrap=True)


def _print_command(name: ProfilerName, planned: Plan, suites: list[str]) -> None:
    """Print the command that runs the planned case under the profiler `name`."""
    from gpubench.tools import enclosing

    typer.echo(shlex.join(enclosing.command(enclosing.Tool(name.value), planned, suites)))
