"""Arrange the help of the commands: options in panels, and a word for the value of each option."""

from typing import Any

import typer

_PANELS = {
    "What to measure": "suites device with_host tier filter data link replicates seed time",
    "How to measure": "run rounds resume exclusive mps paranoid print_profiler_command",
    "How to judge": "baseline floor noise threshold policy allow_mismatch allow_missing allow_undecided strict "
    "save_baseline append",
    "Output": "out force no_redact json all_ wide top sort junit markdown",
}
_VALUES = {  # the default is the name of the parameter in capitals
    "N": "replicates seed top rounds count last keep",
    "FILE": "out policy junit markdown facts noise run bundle html store",
    "NAME": "tool format save_baseline host_name",
    "PATH": "data",
    "TEXT": "filter",
    "RATE": "link",
    "PERCENT": "threshold",
    "SECONDS": "interval",
}
_CHOICES = ("tier", "sort", "print_profiler_command")  # Typer lists their values
_FEW = 8  # a command with at most this number of options has no panels


def _by_name(table: dict[str, str]) -> dict[str, str]:
    return {name: head for head, names in table.items() for name in names.split()}


def arranged(app: typer.Typer) -> Any:
    """Return the command of an app, with a panel and a word for the value of each option of it and its subcommands."""
    command = typer.main.get_command(app)
    _arrange(command, command.context_settings["help_option_names"])
    return command


def _arrange(command: Any, help_names: list[str]) -> None:
    panels, values, order = _by_name(_PANELS), _by_name(_VALUES), [None, *_PANELS]
    params = [*command.params, command.get_help_option(typer.Context(command, help_option_names=help_names))]
    has_panels = len(params) > _FEW
    for param in params:
        if param.param_type_name == "argument":
            param.display_type_rich = _no_type
        elif param.metavar is None and param.name not in _CHOICES:
            param.metavar = "" if getattr(param, "is_flag", False) else values.get(param.name, param.name.upper())
        if has_panels and param.param_type_name == "option":
            param.rich_help_panel = panels.get(param.name)
    command.params.sort(key=lambda param: order.index(param.rich_help_panel))
    for child in getattr(command, "commands", {}).values():
        _arrange(child, help_names)


def _no_type(ctx: typer.Context) -> str:
    """Return no text for the type of an argument: its name says what it is."""
    del ctx
    return ""
