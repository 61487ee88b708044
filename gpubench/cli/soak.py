"""`gpubench soak`: repeat the same work on the same inputs for hours, and compare each result bit by bit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.base.errors import Interrupted, UsageError
from gpubench.cli import _options as options
from gpubench.cli import _print, _sharing
from gpubench.cli.run import Exclusive, Out

if TYPE_CHECKING:
    from gpubench.analysis.soak import SoakLedger
    from gpubench.measuring.plan import Plan

For = Annotated[
    str,
    typer.Option(
        "--for", metavar="TIME", help="The duration of the soak: a number with s, min, h or d, such as 10min."
    ),
]
Resume = Annotated[
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
    resume: Resume = False,
    seed: options.Seed = 0,
    exclusive: Exclusive = False,
) -> None:
    """Repeat products, memory patterns and copies on fixed inputs and compare every bit of every result.

    The exit status is 3 if a result was wrong, and 6 if a device is unhealthy: errors of its memory, hardware errors
    that its driver reports. The run file is an ordinary one, with one replicate per pass."""
    from gpubench.measuring import inventory
    from gpubench.measuring import plan as planning
    from gpubench.tools import soak as soaking

    if resume and out is None:
        raise UsageError("--resume continues a run file: name it with --out")
    seconds = soaking.seconds_of(time)
    facts = inventory.facts()
    tier = options.TierName(soaking.tier_of(seconds))
    settings = options.settings(facts, [soaking.SUITE], device, False, tier, None, None, 1, seed)
    plan = soaking.make_plan(facts, settings, seconds)
    if not device and (reason := planning.why_host(facts, settings)):
        _warn(reason)
    path = options.run_file(out, "-soak")
    raise typer.Exit(_measure_and_print(plan, path, json, resume, exclusive))


def _measure_and_print(plan: Plan, path: Path, is_json: bool, resume: bool, exclusive: bool) -> int:
    """Measure `plan`, print the ledger or with `is_json` the run, and return the exit status."""
    from gpubench.analysis.soak import ledger_of
    from gpubench.cli._machine import run_display
    from gpubench.model.store import read_run
    from gpubench.tools import session
    from gpubench.tools import soak as soaking

    try:
        with run_display() as watch:
            bounded = soaking.limit_remaining_time(plan.most_s, watch)
            run = session.measure(plan, path, sys.argv, bounded, resume, tell=_warn, exclusive=exclusive)
    except Interrupted:
        if path.exists() and not is_json:
            _print_ledger(ledger_of(read_run(path)))
        raise
    ledger = ledger_of(run)
    if is_json:
        from gpubench.tools import rendering

        shared = _sharing.shareable(run)
        typer.echo(rendering.report("json").render(shared), nl=False)
    else:
        _print_ledger(ledger)
    _print.say(f"run file: {path}; for a report: gpubench report {path} -o report.html")
    return ledger.exit_status


def _warn(message: str) -> None:
    _print.say(message, "yellow")


def _print_ledger(ledger: SoakLedger) -> None:
    from gpubench.analysis.soak import tables_of
    from gpubench.cli import _print, _summary

    _print.out().print(*(part for table in tables_of(ledger) for part in _summary.derived_parts(table)), sep="\n")
