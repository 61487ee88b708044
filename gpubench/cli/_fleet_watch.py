"""`gpubench fleet watch`: the same GPUs over days."""

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

    Lists what was slow, what was slow once and recovered, and whose figures changed for the worse, by the rules of
    `gpubench history`. The exit status is 1 if a component is slow in the newest fleet and was before.
    """
    from gpubench.cli import _print
    from gpubench.judging.fleet_watch import watch as watched
    from gpubench.tools.fleet import watching

    fleets = watching.read_all(folders)
    found = watched(fleets)
    if json:
        _print.document([watching.document(each) for each in sharing.shareable_histories(found, no_redact)])
    else:
        shown = sharing.shareable_histories(found, no_redact) if sharing.is_ci() else found
        _show(shown, len(fleets))
    raise typer.Exit(1 if any(each.is_slow_again for each in found) else 0)


def _show(found: list[ComponentHistory], fleets: int) -> None:
    from gpubench.cli import _print
    from gpubench.cli._layout import NamedRow, named_rows
    from gpubench.judging.fleet_watch import event_words
    from gpubench.judging.words import plural

    if not found:
        _print.echo(f"{plural(fleets, 'measurement')}: no component was slow, and none became slower")
        return
    _print.echo(f"{plural(fleets, 'measurement')}: {plural(len(found), 'component')} with a slow or a worse figure")
    rows = [
        NamedRow(
            each.place.text,
            "; ".join(map(event_words, each.trends[:_MOST_TRENDS])) or "no change over time",
            (f"{each.suspected} of {len(each.states)}", str(each.transient)),
            "bold red" if each.is_slow_again else "",
        )
        for each in found[:_MOST_ROWS]
    ]
    for part in named_rows(
        ("component", "newest changes", "slow", "recovered"), rows, shutil.get_terminal_size().columns
    ):
        _print.out().print(part)
    if len(found) > _MOST_ROWS:
        _print.echo(f"not listed: {len(found) - _MOST_ROWS} more; --json has them all")
