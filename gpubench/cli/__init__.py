"""Define the commands: one turns its options into calls of `gpubench.tools` and `gpubench.measuring`, and prints.

It computes nothing. Slow modules are imported by `_late` when a command uses them, so that `--help` stays fast."""

import sys

import typer

from gpubench.base.errors import UsageError
from gpubench.cli import compare, doctor, fleet, gate, history, import_, list_, monitor, profile, report, run

app = typer.Typer(
    name="gpubench",
    help="Benchmark and profile NVIDIA and AMD GPUs, or the host processor if there is none: measure suites, check "
    "every answer, sample counters, write reports, compare runs, and find regressions.",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("list")(list_.list_)
app.command("plan")(list_.plan)
app.command("profile", cls=profile.Command, context_settings=profile.CONTEXT)(profile.profile)
app.command("doctor")(doctor.doctor)
app.command("soak")(run.soak)
app.command("monitor")(monitor.monitor)
app.command("show")(report.show)
app.command("report")(report.report)
app.command("compare")(compare.compare)
app.command("site")(report.site)
app.command("gate")(gate.gate)
app.command("ab")(gate.ab)
app.command("redact")(report.redact)
app.add_typer(history.app, name="history")
app.add_typer(fleet.app, name="fleet")
app.command("import")(import_.import_)


def call() -> int:
    """Run the command in the process's arguments and return the exit status; an invalid argument is a UsageError."""
    arguments = sys.argv[1:]
    try:
        status = app(arguments or ["--help"], prog_name="gpubench", standalone_mode=False)
    except profile.TyperUsageError as error:
        raise _usage_error(error) from error
    return int(status or 0) if arguments else UsageError.exit_status


def _usage_error(error: typer.BadParameter) -> UsageError:
    command = error.ctx.command_path if error.ctx else "gpubench"
    usage_error = UsageError(f"{error.format_message().rstrip('.')}; see {command} --help")
    usage_error.exit_status = error.exit_code
    return usage_error


@app.callback()
def version(
    version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True),
) -> None:
    """Options of the command itself."""
    if version:
        from gpubench import __version__

        typer.echo(f"gpubench {__version__}")
        raise typer.Exit
