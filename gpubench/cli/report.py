"""`gpubench report`: write a run file in a format for people or for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.base.errors import UsageError
from gpubench.cli import _print, compare
from gpubench.cli import _sharing as sharing

if TYPE_CHECKING:
    from gpubench.model import Run
    from gpubench.tools.rendering import CleanReport

RunFiles = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="RUN...", help="Run files (.jsonl, .jsonl.gz); each of several becomes a column.", show_default=False
    ),
]
Out = Annotated[
    list[Path] | None,
    typer.Option(
        "--out", "-o", help="The file to write; its suffix selects the format. Can be repeated.", show_default=False
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format", help="The format of the report, if the suffix of the file does not select it.", show_default=False
    ),
]
Formats = Annotated[bool, typer.Option("--formats", help="List the formats and what each is for.")]


def report(
    runs: RunFiles = None,
    out: Out = None,
    format: Format = None,  # noqa: A002 - the option's name
    formats: Formats = False,
    force: sharing.Force = False,
    no_redact: sharing.NoRedact = False,
) -> None:
    """Write an anonymised report of one run file (.html, .md, .csv, .json and more), or of several side by side."""
    import gc

    from gpubench.judging.comparison import beside, letter
    from gpubench.judging.policy import THRESHOLD_PERCENT
    from gpubench.model import store
    from gpubench.tools import rendering

    if formats:
        _print_formats()
        return
    if not runs or not out:
        raise UsageError("name a run file, and with -o the report to write; --formats lists the formats")
    if format and len(out) > 1:
        raise UsageError("--format is for one report; the suffixes select the formats of several")
    reports = []
    for path in out:
        name = _format_name(path, format)
        report = rendering.report(name)
        if len(runs) > 1 and not report.has_method("compare"):
            raise UsageError(f"a .{name} report takes one run; .html takes several, and `gpubench compare` judges them")
        sharing.check_target(path, force, *runs)
        reports.append((path, report))
    gc.disable()  # a run has no reference cycles; searching for them would take 5 % of the time
    if len(runs) > 1:
        limit = (lambda _: THRESHOLD_PERCENT / 100) if len(runs) == 2 else None
        names = [letter(index) for index in range(len(runs))]  # the name of a file may name a person
        sides = compare.side_by_side(runs, names, lambda named: beside(named, limit), no_redact)
        for path, report in reports:
            sharing.write(path, report.compare(sides))
        return
    shared = sharing.shareable(store.read_run(runs[0]), no_redact)
    for path, report in reports:
        sharing.write(path, _render(report, shared, runs[0]))


def _render(report: CleanReport, run: Run, source: Path) -> str | bytes:
    """Return the document that `report` makes of a run, with the results inside if it can enclose them."""
    from gpubench.tools import enclosing

    if report.has_method("enclose"):
        return report.enclose(run, enclosing.enclosure(run, source))
    return report.render(run)


def _format_name(out: Path, name: str | None) -> str:
    """Return the format of the report: `name` or, if `name` is None, the suffix of `out` without its point."""
    from gpubench import plugins

    formats = plugins.names("reports")
    name = name or out.suffix.removeprefix(".")
    if name not in formats:
        raise UsageError(f"no report format {name or 'without a suffix'}; choose from {', '.join(formats)}")
    return name


def _print_formats() -> None:
    from gpubench import plugins
    from gpubench.tools import rendering

    rows = [(f".{name}", rendering.report(name).summary) for name in plugins.names("reports")]
    _print.out().print(_print.table(("format", "description"), rows))
