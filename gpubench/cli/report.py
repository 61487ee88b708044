"""`gpubench report`: a run file as HTML, Markdown, CSV or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpubench.cli.show import RunFile

Out = Annotated[
    Path, typer.Option("--out", "-o", help="The file to write: its suffix (.html, .md, .csv, .json) says which format.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace the file where it exists.")]


def report(run: RunFile, out: Out, force: Force = False) -> None:
    """Write a report of a run file; the suffix of -o says in which format."""
    from gpubench import plugins, store
    from gpubench.errors import UsageError

    formats = plugins.names("reports")
    name = out.suffix.removeprefix(".")
    if name not in formats:
        raise UsageError(f"no report format {out.suffix or 'without a suffix'}; there is .{', .'.join(formats)}")
    if out.exists() and out.samefile(run):
        raise UsageError(f"{out} is the run file itself; name another file for the report")
    if out.exists() and not force:
        raise UsageError(f"{out} exists; --force replaces it")
    text = plugins.load("reports", name).render(store.read_run(run))
    torn = out.with_name(f".{out.name}.part")
    try:
        torn.write_text(text, encoding="utf-8")
        torn.replace(out)
    except OSError as error:
        torn.unlink(missing_ok=True)
        raise UsageError(f"cannot write {out}: {error.strerror}; choose another place") from error
