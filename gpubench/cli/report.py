"""`gpubench report`: a run file in a format for people or for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpubench.cli import _sharing as sharing

RunFile = Annotated[
    Path | None, typer.Argument(metavar="RUN", help="A run file (.jsonl, .jsonl.gz).", show_default=False)
]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="The file to write; its suffix selects the format.", show_default=False),
]
Format = Annotated[
    str | None, typer.Option("--format", help="The format, if the suffix does not name it.", show_default=False)
]
Formats = Annotated[bool, typer.Option("--formats", help="List the formats and what each is for.")]


def report(
    run: RunFile = None,
    out: Out = None,
    format: Format = None,  # noqa: A002 - the option's name
    formats: Formats = False,
    force: sharing.Force = False,
    no_redact: sharing.NoRedact = False,
) -> None:
    """Write an anonymised report of a run file: .html, .md, .csv, .json and more."""
    import gc

    from gpubench.base.errors import UsageError
    from gpubench.model import store
    from gpubench.tools import enclosing, rendering

    if formats:
        _list()
        return
    if run is None or out is None:
        raise UsageError("name a run file, and with -o the report to write; --formats lists the formats")
    name = _format(out, format)
    report = rendering.report(name)
    sharing.check_target(out, force, run)
    gc.disable()  # values of a run have no cycles, and the process ends: looking for them takes a twentieth
    (shared,) = sharing.shareable([store.read_run(run)], no_redact)
    if report.offers("enclose"):
        sharing.write(out, report.enclose(shared, enclosing.enclosure(shared, run)))
    else:
        sharing.write(out, report.render(shared))


def _format(out: Path, name: str | None) -> str:
    from gpubench import plugins
    from gpubench.base.errors import UsageError

    known = plugins.names("reports")
    name = name or out.suffix.removeprefix(".")
    if name not in known:
        raise UsageError(f"no report format {name or 'without a suffix'}; there is {', '.join(known)}")
    return name


def _list() -> None:
    from gpubench import plugins
    from gpubench.cli import _print
    from gpubench.tools import rendering

    rows = [(f".{name}", rendering.report(name).summary) for name in plugins.names("reports")]
    _print.out().print(_print.table(("format", "description"), rows))
