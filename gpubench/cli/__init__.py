"""The commands, one module each.

A command turns its options into calls of `gpubench.tools` and `gpubench.measuring` and prints what they return.

It computes nothing, and imports what is slow only when a command runs, so that `--help` stays fast.
"""

from __future__ import annotations

import typer

from gpubench.cli import (
    ab,
    compare,
    doctor,
    gate,
    history,
    import_,
    list_,
    monitor,
    plan,
    profile,
    redact,
    report,
    run,
    show,
)

app = typer.Typer(
    name="gpubench",
    help="Profile and benchmark GPUs (NVIDIA, AMD; without one, the host processor): run suites, "
    "check every answer, sample counters, report, hold against a baseline.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("list")(list_.list_)
app.command("plan")(plan.plan)
app.command("profile", cls=profile.Command, context_settings=profile.CONTEXT)(profile.profile)
app.command("doctor")(doctor.doctor)
app.command("monitor")(monitor.monitor)
app.command("show")(show.show)
app.command("report")(report.report)
app.command("compare")(compare.compare)
app.command("gate")(gate.gate)
app.command("ab")(ab.ab)
app.command("redact")(redact.redact)
app.add_typer(history.app, name="history")
app.command("import")(import_.import_)


@app.callback()
def version(
    version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True),
) -> None:
    """Options of the command itself."""
    if version:
        from gpubench import __version__

        typer.echo(f"gpubench {__version__}")
        raise typer.Exit
