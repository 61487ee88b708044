"""`gpubench show`: print a run file in the terminal."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gpubench.cli import _options as options
from gpubench.cli import _sharing

RunFile = Annotated[Path, typer.Argument(metavar="RUN", help="A run file (.jsonl, .jsonl.gz).", show_default=False)]
All = Annotated[bool, typer.Option("--all", help="List every case, and the tables derived from them.")]
Wide = Annotated[
    bool, typer.Option("--wide", help="Add columns: every kind of peak, within-process and between-process noise.")
]
Top = Annotated[int | None, typer.Option("--top", min=1, help="List at most this number of cases.", show_default=False)]


class SortName(StrEnum):
    """Which cases are listed first."""

    MEASURED = "measured"
    SHARE = "share"
    NOISE = "noise"
    DURATION = "duration"


Sort = Annotated[
    SortName,
    typer.Option(
        "--sort",
        help="Order of the cases: as measured, or by share of peak, by noise, or by duration, highest first.",
    ),
]


def show(
    run: RunFile,
    filter: options.Filters = None,  # noqa: A002 - the option's name
    sort: Sort = SortName.MEASURED,
    top: Top = None,
    all_: All = False,
    wide: Wide = False,
    json: options.Json = False,
) -> None:
    """Print a run: its key figures, whether they can be trusted, and its cases."""
    from gpubench.cli import _print, _summary
    from gpubench.model import store

    read = store.read_run(run)
    if json:
        from gpubench.tools import rendering

        shared = _sharing.shareable(read)
        typer.echo(rendering.report("json").render(shared), nl=False)
    elif all_ or wide or filter or top or sort is not SortName.MEASURED:
        first = _summary.overview(read) if all_ else _summary.head(read)
        _print.out().print(*first, *_summary.cases(read, filter or (), sort.value, top, wide), sep="\n")
    else:
        _print.out().print(*_summary.run_parts(read, run), sep="\n")
