"""`gpubench site`: write a static web site of many runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.base.walk import Value
from gpubench.cli import _sharing as sharing

if TYPE_CHECKING:
    from gpubench.model import Manifest, Run

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


class _SiteSharing:
    """Anonymises runs as `report` does, or leaves them as they are."""

    def __init__(self, no_redact: bool) -> None:
        self._no_redact = no_redact

    @property
    def is_redacted(self) -> bool:
        return not self._no_redact

    def run(self, run: Run) -> Run:
        """Return the run, anonymised unless names are kept."""
        return run if self._no_redact else sharing.shareable([run], False)[0]

    def value(self, value: Value, manifests: Sequence[Manifest]) -> Value:
        """Return a value made from the runs of these manifests, without their names unless names are kept."""
        return sharing.anonymised_value(value, list(manifests), self._no_redact)


def site(folder: Folder, out: Out, no_redact: sharing.NoRedact = False) -> None:
    """Write a static site of many runs: an index, each run's page, comparisons with the run before, and trends.

    Only new and changed runs are read again. The site needs no server and no network; its index is DIR/index.html."""
    from gpubench.cli import _print
    from gpubench.tools import site as sites

    if no_redact:
        sharing.shareable([], no_redact)  # prints a warning once
    built = sites.build(folder, out, _SiteSharing(no_redact), _print.say)
    for file, reason in built.refused:
        _print.say(f"not in the site: {file}: {reason}", "yellow")
    runs = "1 run" if built.runs == 1 else f"{built.runs} runs"
    _print.echo(f"{built.index}: {runs}, {built.new} of them new or changed")
