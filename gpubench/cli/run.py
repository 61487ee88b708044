"""`gpubench run`: measure suites and write a run file.

`gpubench soak`: repeat the same work on the same inputs for hours, and compare each result bit by bit."""

from __future__ import annotations

import shlex
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal

import typer

from gpubench.base.errors import DeviceError, Interrupted, UsageError
from gpubench.cli import _machine, _print, _sharing, _summary
from gpubench.cli import _options as options
from gpubench.cli._late import late

with late():
    from gpubench.analysis import soak as ledgers
    from gpubench.analysis import summary
    from gpubench.measuring import inventory, plan
    from gpubench.tools import enclosing, session, sharing
    from gpubench.tools import soak as soaking

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


Profiler = Annotated[
    Literal["ncu", "nsys", "rocprof"] | None,
    typer.Option(
        "--print-profiler-command",
        help="Do not measure. Print the command that runs the one selected case under this profiler.",
    ),
]


def run(
    suites: options.Suites = None,
    device: options.Devices = None,
    with_host: options.WithHost = False,
    tier: options.TierOption = "quick",
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
    if resume and out is None:
        raise UsageError("--resume continues a run file: name it with --out")
    options.check_suites(suites)
    facts = inventory.facts()
    settings = options.settings(facts, suites, device, with_host, tier, filter, data, replicates, seed, link, paranoid)
    planned = plan.make(facts, settings)
    if print_profiler_command:
        typer.echo(shlex.join(enclosing.command(print_profiler_command, planned, suites or [])))
        return
    if not device and (reason := plan.why_host(facts, settings)):
        _print.warn(reason)
    for message in plan.skip_messages(planned):
        _print.warn(message)
    path = options.run_file(out)
    with _machine.run_display() as watch, sharing.private_daemon() if mps else nullcontext():
        measured = session.measure(planned, path, sys.argv, watch, resume, tell=_print.warn, exclusive=exclusive)
    if json:
        _sharing.print_json(measured)
    else:
        _print.out().print(*_summary.run_parts(measured, path), sep="\n")
    _print.say(f"run file: {path}; for a report: gpubench report {path}")
    raise typer.Exit(summary.exit_status(measured.results))


For = Annotated[
    str,
    typer.Option(
        "--for", metavar="TIME", help="The duration of the soak: a number with s, min, h or d, such as 10min."
    ),
]
ResumeSoak = Annotated[
    bool,
    typer.Option(
        "--resume", help="Continue the interrupted soak in the file of --out until it has lasted for the time of --for."
    ),
]


def soak(
    time: For = "1h",
    device: options.Devices = None,
    out: Out = None,
    json: options.Json = False,
    resume: ResumeSoak = False,
    seed: options.Seed = 0,
    exclusive: Exclusive = False,
) -> None:
    """Repeat products, memory patterns and copies on all GPUs at once, and compare every bit of every result.

    The exit status is 3 if a result was wrong, and 6 if a device is unhealthy: errors of its memory, hardware errors
    that its driver reports. The run file is an ordinary one, with one replicate per pass."""
    from gpubench.model.store import read_run

    if resume and out is None:
        raise UsageError("--resume continues a run file: name it with --out")
    seconds = soaking.seconds_of(time)
    facts = inventory.facts()
    tier = soaking.tier_of(seconds)
    settings = options.settings(facts, [soaking.SUITE], device or ["all"], False, tier, None, None, 1, seed)
    planned = soaking.make_plan(facts, settings, seconds)
    if not device and (reason := plan.why_host(facts, settings)):
        _print.warn(reason)
    path = options.run_file(out, "-soak")
    try:
        with _machine.run_display() as watch:
            bounded = soaking.limit_remaining_time(planned.most_s, watch)
            measured = session.measure(planned, path, sys.argv, bounded, resume, tell=_print.warn, exclusive=exclusive)
    except (DeviceError, Interrupted):
        if path.exists() and not json:
            _print_ledger(ledgers.ledger_of(read_run(path)))
        raise
    ledger = ledgers.ledger_of(measured)
    if json:
        _sharing.print_json(measured)
    else:
        _print_ledger(ledger)
    _print.say(f"run file: {path}; for a report: gpubench report {path}")
    raise typer.Exit(ledger.exit_status)


def _print_ledger(ledger: ledgers.SoakLedger) -> None:
    parts = (part for table in ledgers.tables_of(ledger) for part in _summary.derived_parts(table))
    _print.out().print(*parts, sep="\n")
