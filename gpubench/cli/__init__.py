"""Define the commands: one turns its options into calls of `gpubench.tools` and `gpubench.measuring`, and prints.

It computes nothing. Slow modules are imported by `_late` when a command uses them, so that `--help` stays fast."""

import sys

import typer

from gpubench.base.errors import UsageError
from gpubench.cli import (
    _help,
    bisect,
    compare,
    doctor,
    explain,
    fleet,
    gate,
    history,
    import_,
    list_,
    monitor,
    preflight,
    profile,
    report,
    run,
    schema,
)

app = typer.Typer(
    name="gpubench",
    help="Benchmark and profile NVIDIA and AMD GPUs, or the host processor if there is none: measure suites, check "
    "every answer, sample counters, write reports, compare runs, and find regressions.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_MEASURE, _JUDGE, _SHARE = "Measure", "Judge", "Read and share"  # the panels of commands
app.command("run", rich_help_panel=_MEASURE)(run.run)
app.command("list", rich_help_panel=_MEASURE)(list_.list_)
app.command("plan", rich_help_panel=_MEASURE)(list_.plan)
app.command("soak", rich_help_panel=_MEASURE)(run.soak)
app.command("preflight", rich_help_panel=_JUDGE)(preflight.preflight)
app.command("profile", cls=profile.Command, context_settings=profile.CONTEXT, rich_help_panel=_MEASURE)(profile.profile)
app.command("monitor", rich_help_panel=_MEASURE)(monitor.monitor)
app.command("doctor", rich_help_panel=_MEASURE)(doctor.doctor)
app.command("compare", rich_help_panel=_JUDGE)(compare.compare)
app.command("ab", rich_help_panel=_JUDGE)(gate.ab)
app.command("gate", rich_help_panel=_JUDGE)(gate.gate)
app.command("bisect", rich_help_panel=_JUDGE)(bisect.bisect)
app.command("show", rich_help_panel=_SHARE)(report.show)
app.command("explain", rich_help_panel=_SHARE)(explain.explain)
app.command("contribute", rich_help_panel=_SHARE)(explain.contribute)
app.command("report", rich_help_panel=_SHARE)(report.report)
app.command("site", rich_help_panel=_SHARE)(report.site)
app.command("redact", rich_help_panel=_SHARE)(report.redact)
app.command("import", rich_help_panel=_SHARE)(import_.import_)
app.command("schema", rich_help_panel=_SHARE)(schema.schema)
app.add_typer(history.app, name="history", rich_help_panel=_JUDGE)
app.add_typer(fleet.app, name="fleet", rich_help_panel=_JUDGE)


def call() -> int:
    """Run the command in the process's arguments and return the exit status; an invalid argument is a UsageError."""
    arguments = sys.argv[1:]
    try:
        status = _help.arranged(app)(arguments or ["--help"], prog_name="gpubench", standalone_mode=False)
    except profile.TyperUsageError as error:
        raise _usage_error(error) from error
    return int(status or 0) if arguments else UsageError.exit_status


def _usage_error(error: typer.BadParameter) -> UsageError:
    command = error.ctx.command_path if error.ctx else "gpubench"
    message = error.format_message().rstrip(".").replace("Value error, ", "")  # a word of the library that checks it
    usage_error = UsageError(f"{message}{'' if message.endswith('?') else ';'} see {command} --help")
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
