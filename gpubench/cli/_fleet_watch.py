"""`gpubench fleet watch`: follow the same GPUs over days."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.cli import _options as options
from gpubench.cli import _sharing as sharing

if TYPE_CHECKING:
    from gpubench.judging.fleet_watch import ComponentHistory

_MOST_ROWS = 60
_MOST_TRENDS = 2

Folders = Annotated[
    list[Path],
    typer.Argument(metavar="DIR…", help="Folders of fleets, measured on different days.", show_default=False),
]


def watch(folders: Folders, json: options.Json = False, no_redact: sharing.NoRedact = False) -> None:
    """Follow each GPU, host and link through several measurements of a fleet, by its UUID.

    Lists the components that were slow, those that recovered, and those whose figures became worse by the rules of
    `gpubench history`. The exit status is 1 if a component is slow in the newest fleet and was before."""
    from gpubench.cli import _print
    from gpubench.judging.fleet_watch import watch as watched
    from gpubench.tools.fleet import watching

    fleets = watching.read_all(folders)
    histories = watched(fleets)
    if json:
        _print.document(
            [watching.document(component) for component in sharing.shareable_histories(histories, no_redact)]
        )
    else:
        printed = sharing.shareable_histories(histories, no_redact) if sharing.is_ci() else histories
        _show(printed, len(fleets))
    raise typer.Exit(1 if any(component.is_slow_again for component in histories) else 0)


def _show(histories: list[ComponentHistory], fleets: int) -> None:
    """Print a table of the first 60 components with a slow or a worse figure, and a line that says how many there are.

    `fleets` is the number of measurements that were compared.
    """
    from gpubench.cli import _print
    from gpubench.cli._layout import NamedRow, named_rows
    from gpubench.judging.finding_text import plural
    from gpubench.judging.fleet_watch import newest_event_text

    if not histories:
        _print.echo(f"{plural(fleets, 'measurement')}: no component was slow, and none became slower")
        return
    _print.echo(f"{plural(fleets, 'measurement')}: {plural(len(histories), 'component')} with a slow or a worse figure")
    rows = [
        NamedRow(
            component.place.text,
            "; ".join(map(newest_event_text, component.trends[:_MOST_TRENDS])) or "no change over time",
            (f"{component.suspected} of {len(component.states)}", str(component.transient)),
            "bold red" if component.is_slow_again else "",
        )
        for component in histories[:_MOST_ROWS]
    ]
    for part in named_rows(
        ("component", "newest changes", "slow", "recovered"), rows, shutil.get_terminal_size().columns
    ):
        _print.out().print(part)
    if len(histories) > _MOST_ROWS:
        _print.echo(f"not listed: {len(histories) - _MOST_ROWS} more; --json has them all")
