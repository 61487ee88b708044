"""`gpubench profile`: sample the devices while any program runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from gpubench.cli import _options as options

if TYPE_CHECKING:
    from gpubench.tools.profile import ProgramProfile

CONTEXT = {"allow_interspersed_args": False, "ignore_unknown_options": False}
_OWN = 125  # the exit status of gpubench's own errors, as with env and timeout
TyperUsageError: Any = typer.BadParameter.__base__  # Click's class, which Typer contains or imports

Program = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- COMMAND…", help="The command to run, with its arguments.", show_default=False),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", "-o", help="The run file to write (.jsonl or .jsonl.gz). \\[default: gpubench-runs/TIME-profile.jsonl]"
    ),
]
Trace = Annotated[
    bool,
    typer.Option(
        "--trace",
        help="The command is a Python script: record its kernels and copies as well (CUDA, extra counters).",
    ),
]
Sampled = Annotated[
    list[str] | None,
    typer.Option("--device", help="Sample only this device. Can be repeated. \\[default: every device]"),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing after the program has ended.")]


class Command(TyperCommand):
    """A command whose own errors have exit status 125; every other status is the program's."""

    def make_context(self, *given: Any, **named: Any) -> Any:
        """Return Click's context for the arguments; the error for an invalid argument gets exit status 125."""
        try:
            return super().make_context(*given, **named)
        except TyperUsageError as error:
            error.exit_code = _OWN
            raise


def profile(
    command: Program = None,
    out: Out = None,
    trace: Trace = False,
    device: Sampled = None,
    quiet: Quiet = False,
) -> None:
    """Sample every device while a program runs, find its phases, and write a run file.

    The exit status is the program's."""
    from gpubench.base.errors import GpubenchError
    from gpubench.tools.profile import ProfileError
    from gpubench.tools.profile.program import CannotRun

    if not command:
        raise ProfileError("no command given; name the program to run: gpubench profile -- COMMAND…")
    try:
        outcome, path = _run_profiled(command, out, trace, device)
    except CannotRun:
        raise
    except GpubenchError as error:
        raise ProfileError(str(error)) from error
    if not quiet:
        _print_outcome(outcome, path)
    raise typer.Exit(outcome.status)


def _run_profiled(
    command: list[str], out: Path | None, trace: bool, device: list[str] | None
) -> tuple[ProgramProfile, Path]:
    import os

    from gpubench.measuring import inventory
    from gpubench.measuring import plan as planning
    from gpubench.tools import profile as profiling
    from gpubench.tools.profile import program

    program.check_executable(profiling.tracing_command(command) if trace else command, os.environ)
    facts = inventory.facts()
    path = options.run_file(out, "-profile")
    return profiling.profile(
        command, facts, planning.sampled_devices(facts, device or []), path, sys.argv, trace=trace
    ), path


def _print_outcome(outcome: ProgramProfile, path: Path) -> None:
    from gpubench.cli import _phases, _print

    if outcome.run is not None:
        console = _print.err()
        console.print(*_phases.profiled(outcome.run, console), sep="\n")
    for warning in outcome.warnings:
        _print.say(warning, "yellow")
    _print.say(f"run file: {path}; for a report: gpubench report {path} -o report.html")
