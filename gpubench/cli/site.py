"""`gpubench site`: write a static web site of many runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.cli import _print
from gpubench.cli import _sharing as sharing

if TYPE_CHECKING:
    from gpubench.tools.site import SiteSharing

Folder = Annotated[
    Path,
    typer.Argument(
        metavar="FOLDER", help="A folder with run files; its subfolders are searched too.", show_default=False
    ),
]
Out = Annotated[
    Path,
    typer.Option("--out", "-o", metavar="DIR", help="The folder to which the site is written.", show_default=False),
]


def site_sharing(no_redact: bool) -> SiteSharing:
    """Return how the content of a site is anonymised."""
    from gpubench.tools.site import SiteSharing

    return SiteSharing(
        lambda value, manifests: sharing.shareable(value, no_redact, manifests, is_told=False), not no_redact
    )


def site(folder: Folder, out: Out, no_redact: sharing.NoRedact = False) -> None:
    """Write a static site of many runs: an index, each run's page, comparisons with the run before, and trends.

    Only new and changed runs are read again. The site needs no server and no network; its index is DIR/index.html."""
    from gpubench.tools import site as sites

    sharing.shareable((), no_redact)  # prints a warning once
    built = sites.build(folder, out, site_sharing(no_redact), _print.say)
    for file, reason in built.refused:
        _print.say(f"not in the site: {file}: {reason}", "yellow")
    runs = "1 run" if built.runs == 1 else f"{built.runs} runs"
    _print.echo(f"{built.index}: {runs}, {built.new} of them new or changed")
