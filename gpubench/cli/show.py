"""`gpubench show`: a run file's summary in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunFile = Annotated[Path, typer.Argument(metavar="RUN", help="A run file (.jsonl, .jsonl.gz).", show_default=False)]


def show(run: RunFile) -> None:
    """Print the summary of a run file: median, interval, % of peak, noise, status."""
    from gpubench.cli import _print
    from gpubench.model import store

    _print.out().print(*_print.summary(store.read_run(run)), sep="\n")
