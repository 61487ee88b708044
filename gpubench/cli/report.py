"""Commands that give a run file another form: `gpubench report`, `show`, `redact` and `site`."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from gpubench.base import units
from gpubench.base.errors import FileError, UsageError
from gpubench.cli import _options as options
from gpubench.cli import _print, _summary, compare
from gpubench.cli import _sharing as sharing
from gpubench.cli._late import late

with late():
    from gpubench import model, plugins
    from gpubench.analysis import summary as summaries
    from gpubench.judging import comparison, evidence, policy
    from gpubench.tools import enclosing, rendering
    from gpubench.tools import sharing as rules
    from gpubench.tools import site as sites
    from gpubench.tools.gating import gate
    from gpubench.tools.history import recording

RunFiles = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="RUN", help="Run files (.jsonl, .jsonl.gz); each of several becomes a column.", show_default=False
    ),
]
Reports = Annotated[
    list[Path] | None,
    typer.Option(
        "--out",
        "-o",
        help="The file to write; its suffix selects the format (.trace.json is a trace). Can be repeated. "
        "\\[default: RUN.html beside the run file]",
        show_default=False,
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
    out: Reports = None,
    format: Format = None,  # noqa: A002 - the option's name
    formats: Formats = False,
    force: sharing.Force = False,
    no_redact: sharing.NoRedact = False,
) -> None:
    """Write an anonymised report of one run file (.html, .md, .csv, .json and more), or of several side by side."""
    from gpubench.model.store import read_run

    if formats:
        rows = [(f".{name}", rendering.report(name).summary) for name in plugins.names("reports")]
        _print.out().print(_print.table(("format", "description"), rows))
        return
    if not runs:
        raise UsageError("name a run file; --formats lists the formats of its report")
    if len(runs) > 1 and not out:
        raise UsageError("name the report of several runs with -o, such as -o runs.html")
    if format and len(out or []) > 1:
        raise UsageError("--format is for one report; the suffixes select the formats of several")
    out = out or [runs[0].with_name(f"{sharing.run_name(runs[0])}.{format or 'html'}")]
    reports = [(path, _checked_report(path, format, runs, force)) for path in out]
    gc.disable()  # a run has no reference cycles; searching for them would take 5 % of the time
    if len(runs) > 1:
        limit = (lambda _: policy.THRESHOLD_PERCENT / 100) if len(runs) == 2 else None
        names = [comparison.letter(index) for index in range(len(runs))]  # the name of a file may name a person
        sides = compare.side_by_side(runs, names, lambda named: _beside(named, limit), no_redact)
        for path, form in reports:
            sharing.write(path, form.compare(sides), is_told=True)
        return
    shared = sharing.shareable(read_run(runs[0]), no_redact)
    for path, form in reports:
        encloses = hasattr(form, "enclose")  # a page contains the results themselves
        content = form.enclose(shared, enclosing.enclosure(shared, runs[0])) if encloses else form.render(shared)
        sharing.write(path, content, is_told=True)


def _beside(named: Sequence[evidence.Reading], limit: Callable[[str], float] | None) -> comparison.Comparison:
    gate.refuse_other_methods(named)
    return comparison.beside(named, limit)


def _checked_report(out: Path, name: str | None, runs: list[Path], force: bool) -> rendering.CleanReport:
    """Return the report called `name`, or like the suffix of `out`; raises UsageError if `out` cannot be written."""
    suffix = ".trace" if out.name.endswith(".trace.json") else out.suffix  # viewers of traces read .json files
    name, formats = name or suffix.removeprefix("."), plugins.names("reports")
    if name not in formats:
        raise UsageError(f"no report format {name or 'without a suffix'}; choose from {', '.join(formats)}")
    form = rendering.report(name)
    if len(runs) > 1 and not hasattr(form, "compare"):
        raise UsageError(f"a .{name} report takes one run; .html takes several, and `gpubench compare` judges them")
    sharing.check_target(out, force, *runs)
    return form


RunFile = Annotated[Path, typer.Argument(metavar="RUN", help="A run file (.jsonl, .jsonl.gz).", show_default=False)]
All = Annotated[bool, typer.Option("--all", help="List every case, and the tables derived from them.")]
Wide = Annotated[
    bool, typer.Option("--wide", help="Add columns: every kind of peak, within-process and between-process noise.")
]
Top = Annotated[int | None, typer.Option("--top", min=1, help="List at most this number of cases.", show_default=False)]


Sort = Annotated[
    Literal["measured", "share", "noise", "duration"],
    typer.Option(
        "--sort",
        help="Order of the cases: as measured, or by share of peak, by noise, or by duration, highest first.",
    ),
]


def show(
    run: RunFile,
    filter: options.Filters = None,  # noqa: A002 - the option's name
    sort: Sort = "measured",
    top: Top = None,
    all_: All = False,
    wide: Wide = False,
    json: options.Json = False,
) -> None:
    """Print a run: its key figures, whether they can be trusted, and its cases."""
    from gpubench.model.store import read_run

    gc.disable()  # as in `report`
    read = read_run(run)
    if json:
        sharing.print_json(read)
    elif all_ or wide or filter or top or sort != "measured":
        summary = summaries.Summary(read)
        first = _summary.overview(summary) if all_ else _summary.head(summary)
        _print.out().print(*first, *_summary.cases(summary, filter or (), sort, top, wide), sep="\n")
    else:
        _print.out().print(*_summary.run_parts(read, run), sep="\n")


Source = Annotated[
    Path,
    typer.Argument(
        metavar="RUN|FOLDER", help="A run file (.jsonl, .jsonl.gz), or a folder of them.", show_default=False
    ),
]
Copies = Annotated[
    Path,
    typer.Option(
        "--out",
        "-o",
        help="The run file to write (.jsonl or .jsonl.gz), or the folder to write if a folder is redacted.",
    ),
]


def redact(run: Source, out: Copies, force: sharing.Force = False) -> None:
    """Write an anonymised copy of a run file, or of all run files in a folder. Every number is kept."""
    if run.is_dir():
        _redact_folder(run, out, force)
    else:
        _redact_file(run, out, force)


def _redact_file(run: Path, out: Path, force: bool, others: tuple[model.Manifest, ...] = ()) -> None:
    """Write an anonymised copy of the run file `run` to `out`."""
    from gpubench.model import store

    sharing.check_target(out, force, run)
    shared = sharing.shareable(store.read_run(run), manifests=others)
    sharing.write(out, store.encode_run(shared, packed=out.suffix == ".gz"), is_told=not others)


def _redact_folder(folder: Path, out: Path, force: bool) -> None:
    """Write anonymised copies of all run files in `folder` and below to the folder `out`, under anonymised names."""
    from gpubench.model.store import scan

    if out.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"{out} is inside the folder that is redacted; name a folder outside of it")
    manifests, unreadable = {}, 0
    for path in recording.run_files([folder]):
        try:
            manifests[path] = scan(path, lambda _: None).manifest
        except FileError as error:
            _print.warn(f"left out: {error}")
            unreadable += 1
    all_manifests = tuple(filter(None, manifests.values()))  # `scan` raises FileError without a manifest
    for path in manifests:
        names = rules.FileNames(path.relative_to(folder).parts)
        target = out.joinpath(*sharing.shareable(names, manifests=all_manifests).names)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make {target.parent}: {error.strerror}; choose another place") from error
        _redact_file(path, target, force, all_manifests)
    _print.say(f"{len(manifests)} run files redacted in {out}")
    if unreadable:
        raise FileError(f"{unreadable} files of {folder} cannot be read as run files; they were left out")


Folder = Annotated[
    Path,
    typer.Argument(
        metavar="FOLDER", help="A folder with run files; its subfolders are searched too.", show_default=False
    ),
]
SiteOut = Annotated[
    Path,
    typer.Option("--out", "-o", metavar="DIR", help="The folder to which the site is written.", show_default=False),
]


NoRuns = Annotated[bool, typer.Option("--no-runs", help="Leave out the pages of runs, their comparisons and trends.")]


def site(folder: Folder, out: SiteOut, no_runs: NoRuns = False, no_redact: sharing.NoRedact = False) -> None:
    """Write a static site of runs: an index, each run's page and comparison with the one before, trends, a catalogue.

    Only new and changed runs are read again. The site needs no server and no network; its index is DIR/index.html."""
    sharing.shareable((), no_redact)  # prints a warning once
    share = lambda value, manifests: sharing.shareable(value, no_redact, manifests, is_told=False)  # noqa: E731
    built = sites.build(folder, out, share, not no_redact, _print.say, not no_runs)
    for file, reason in built.refused:
        _print.warn(f"not in the site: {file}: {reason}")
    _print.echo(f"{built.index}: {units.count(built.runs, 'run')}, {built.new} of them new or changed")
