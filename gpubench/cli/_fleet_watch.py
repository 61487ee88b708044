"""`gpubench fleet watch`: follow the same GPUs over days."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.cli import _options as options
from gpubench.cli import _sharing as sharing

if TYPE_CHECKING:
    from gpubench.tools.fleet.watching import ComponentHistory

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
    from gpubench.tools.fleet import watching

    fleets = watching.read_all(folders)
    histories = watching.watch(fleets)
    if json:
        _print.document([component.document for component in sharing.shareable_histories(histories, no_redact)])
    else:
        _show(sharing.shareable_histories(histories, no_redact) if sharing.is_ci() else histories, len(fleets))
    raise typer.Exit(1 if any(component.is_slow_again for component in histories) else 0)


def _show(histories: list[ComponentHistory], fleets: int) -> None:
    """Print a line on each of the first 60 components, and their changes for the worse as `gpubench history` does."""
    from gpubench.cli import _findings, _print, _trends
    from gpubench.judging.finding_text import plural

    if not histories:
        _print.echo(f"{plural(fleets, 'measurement')}: no component was slow, and none became slower")
        return
    _print.echo(f"{plural(fleets, 'measurement')}: {plural(len(histories), 'component')} with a slow or a worse figure")
    out, listed = _print.out(), histories[:_MOST_ROWS]
    for component in listed:
        counts = f"slow in {component.suspected} of {len(component.states)}, recovered in {component.transient}"
        style = "bold red" if component.is_slow_again else ""
        out.print(_print.plain(f"{component.place.text}: {counts}", style), soft_wrap=True)
    if trends := [trend for component in listed for trend in component.trends[:_MOST_TRENDS]]:
        _findings.show(_trends.trend_rows(trends, True, out.width))
    if len(histories) > _MOST_ROWS:
        _print.echo(f"not listed: {len(histories) - _MOST_ROWS} more; --json has them all")
