"""`gpubench history`: show the figures of a case over all runs and where they changed, and maintain the history.

Show the trends of a history in the terminal: one series in full with its changes, or a row for each of many."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from gpubench.base import units
from gpubench.base.errors import UsageError
from gpubench.cli import _findings, _print
from gpubench.cli import _options as options
from gpubench.cli import _sharing as sharing
from gpubench.cli._findings import Part
from gpubench.cli._late import late
from gpubench.cli._layout import NamedRow, named_rows

with late():
    from gpubench import plugins
    from gpubench.analysis import records, sparkline
    from gpubench.analysis import trend as trending
    from gpubench.tools import history as histories
    from gpubench.tools import rendering
    from gpubench.tools.history import reading, recording

_WIDTH = 60  # characters of a sparkline
_LEAST = 10  # characters of a sparkline on the narrowest terminal
NARROW = 24  # characters of a sparkline in a list of many series


def trend_rows(trends: Sequence[trending.Trend], judged: bool, width: int) -> list[Part]:
    """Return the rows of the series, one each; if `judged`, newest changes for the worse come first."""
    several = len({trend.line.devices for trend in trends}) > 1
    where = [_print.plain(f"on {'+'.join(trends[0].line.devices)}", "dim")] if trends and not several else []
    heads = ("state", "case", "runs", "newest", "trend", *(["newest change"] if judged else []))
    ordered = sorted(trends, key=_rank) if judged else trends
    rows = [NamedRow(*_row(trend, judged, several)) for trend in ordered]
    return [*where, *named_rows(heads, rows, width)]


def _rank(trend: trending.Trend) -> int:
    """Return the sort key of a series: 0 if the newest change is for the worse, 1 if for the better, 2 if none."""
    event = trend.newest_event
    return 2 if event is None else 0 if event.is_worse else 1


def trend_lines(trend: trending.Trend) -> list[Text]:
    """Return the text on one series: case, verdict, next step, fingerprint, sparkline of the runs, and each change."""
    line, values = trend.line, trend.values
    newest, event = trend.moments[-1], trend.newest_event
    low, high = (units.quantity(value, line.unit) for value in (min(values), max(values)))
    room = _print.out().width - len(low) - len(high) - 2
    bars, marks = sparkline.sparkline(trend, max(min(_WIDTH, room), _LEAST))
    texts = [_print.plain(line.case, "bold")]
    texts.append(_print.plain(trend.verdict_text, "bold red" if event and event.is_worse else "bold"))
    if event and event.start:
        files = [trend.moments[index].source.path for index in (event.start - 1, event.start)]
        texts.append(_print.plain(f"next: gpubench compare {shlex.join(files)}"))
    texts += [_print.plain(line.text, "dim"), _print.plain(f"{low} {bars} {high}")]
    if marks:
        texts.append(_print.plain(" " * (len(low) + 1) + marks))
    source = f"({units.utc(newest.source.at)}, {newest.source.path})"
    count = units.count(len(values), "run")
    texts.append(_print.plain(f"{count}, newest {units.quantity(values[-1], line.unit)} {source}"))
    return [*texts, *_events(trend)]


def _events(trend: trending.Trend) -> Iterator[Text]:
    lines: list[tuple[int, str, bool]] = []
    for change in trend.changes:
        sides = " → ".join(units.quantity(value, trend.line.unit) for value in (change.before, change.after))
        note = f"; {change.note}" if change.note else ""
        text = f"^ {units.utc(trend.moments[change.index].source.at)}: {sides}, {change.text}{note}"
        lines.append((change.index, text, change.is_worse))
    for drift in trend.drifts:
        sides = " → ".join(units.quantity(value, trend.line.unit) for value in (drift.before, drift.after))
        times = " to ".join(units.utc(trend.moments[index].source.at) for index in (drift.start, drift.end - 1))
        lines.append((drift.start, f"~ {times}: {sides}, {drift.text}", drift.is_worse))
    return (_print.plain(text, "red" if is_worse else "green") for _, text, is_worse in sorted(lines))


def _row(trend: trending.Trend, is_judged: bool, several: bool) -> tuple[str, str, tuple[str, ...], str]:
    line, (bars, _) = trend.line, sparkline.sparkline(trend, NARROW)
    name = f"{line.case} on {'+'.join(line.devices)}" if several else line.case
    figures = (str(len(trend.moments)), units.quantity(trend.values[-1], line.unit), bars)
    if not is_judged:
        return "", name, figures, ""
    event = trend.newest_event
    return trend.state, name, (*figures, _newest_event(trend)), "bold red" if event and event.is_worse else ""


def _newest_event(trend: trending.Trend) -> str:
    """Return the step or drift that began last as text; – if there is none."""
    event = trend.newest_event
    if event is None:
        return trend.newest_comparison.partition(" than")[0] if trend.state == "too few runs" else "–"
    return f"{event.noted_text}, {units.utc(trend.moments[event.start].source.at, '%Y-%m-%d')}"


_SHOWN = 8  # up to this number of series, each is shown in full; more are listed in a table
_LISTED = 200  # most series in a table with their changes: each takes some milliseconds to judge
_LAST = 400
_FILE_STATUS = 5


class CaseFirst(TyperGroup):
    """A group of commands whose first argument may be a case instead: `gpubench history CASE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `show` before arguments that name no command, and parse them; `ctx` is a context of Click."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["show", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=CaseFirst,
    help="Show the figures of a case over all runs and where they changed: gpubench history CASE. "
    "Runs are recorded in gpubench-runs/history.sqlite, or in the file that GPUBENCH_HISTORY names.",
    subcommand_metavar="[CASE… | COMMAND]",
)

Store = Annotated[
    Path | None,
    typer.Option(
        "--store",
        help="The history file to use. \\[default: that of GPUBENCH_HISTORY, else gpubench-runs/history.sqlite]",
    ),
]
Cases = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CASE",
        help="Cases whose id contains this text (* and ? are wildcards). Without a text, all cases are listed.",
        show_default=False,
    ),
]
Series = Annotated[
    str, typer.Option("--series", help="The series to show: hot, cold, … \\[default: the headline]", show_default=False)
]
Last = Annotated[
    int,
    typer.Option(
        "--last", min=1, help="Use only this number of the newest runs; changes are searched for in the newest 400."
    ),
]
Html = Annotated[Path | None, typer.Option("--html", help="Write the trends to an HTML page instead of showing them.")]
Sources = Annotated[
    list[Path],
    typer.Argument(metavar="FILE|FOLDER", help="Run files, or folders that contain run files.", show_default=False),
]
MoreSources = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="FILE|FOLDER",
        help="Run files or folders to add to those in the history's folder and those already recorded.",
        show_default=False,
    ),
]
Keep = Annotated[
    int,
    typer.Option("--keep", min=1, help="Keep this number of the newest runs, and of the newest runs of each case."),
]
Files = Annotated[
    bool,
    typer.Option("--files", help="Also delete the run files of the dropped runs, if they are in the history's folder."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be dropped, and drop nothing.")]


@app.command("show")
def show(
    cases: Cases = None,
    series: Series = "",
    last: Last = _LAST,
    html: Html = None,
    force: sharing.Force = False,
    no_redact: sharing.NoRedact = False,
    store: Store = None,
    json: options.Json = False,
) -> None:
    """Show the runs of a case as bars, its newest figure, and each change with its possible causes (the default)."""
    with reading.History(store or histories.default_place()) as history:
        stored_lines = _selected_lines(history, cases or [], series)
        if html:
            _write_page(history, stored_lines, last, html, force, no_redact)
        elif json:
            _print.document([_document(history.trend(line, last)) for line in stored_lines])
        else:
            _print_trends(history, stored_lines, last, bool(cases))
        for warning in history.warnings():
            _print.warn(warning)


def _selected_lines(history: reading.History, cases: list[str], series: str) -> list[reading.StoredLine]:
    """Return the stored lines of the series `series` whose case id matches a text in `cases`; all if it is empty."""
    matching = history.lines(cases, series)
    if matching:
        return matching
    if series and (names := history.series(cases)):
        raise plugins.unknown("series", series, names)
    ids = sorted({stored.line.case for stored in history.lines()})
    if not ids:
        raise UsageError(f"{history.path} contains no figures yet; `gpubench history import FOLDER` adds run files")
    near = difflib.get_close_matches(cases[0], [*ids, *(stored.partition("[")[0] for stored in ids)], n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}?" if near else "`gpubench history` lists all cases"
    raise UsageError(f"no case in the history matches {' '.join(cases)}; {hint}")


def _print_trends(history: reading.History, stored_lines: list[reading.StoredLine], last: int, named: bool) -> None:
    """Print each series in full if cases were `named` and they are few, else a table with a row for each."""
    from gpubench.stats.stretches import LEAST_RUNS

    out = _print.out()
    if named and len(stored_lines) <= _SHOWN:
        for number, stored in enumerate(stored_lines):
            lines = trend_lines(history.trend(stored, last))
            out.print(*([""] if number else []), *lines, sep="\n", soft_wrap=True)
        return
    judged = len(stored_lines) <= _LISTED
    trends = [history.trend(stored, min(last, _LAST if judged else NARROW)) for stored in stored_lines]
    _findings.show(trend_rows(trends, judged, out.width))
    if few := sum(trend.state == "too few runs" for trend in trends):
        needed = f"at least {LEAST_RUNS} are needed"
        hint = f"{few} of {len(trends)} series have too few runs to tell a change: {needed}"
        out.print(_print.plain(hint, "dim"), soft_wrap=True)
    if not judged:
        hint = f"changes are looked for in {_LISTED} series at most; name cases to see the changes of these"
        out.print(_print.plain(hint, "dim"), soft_wrap=True)


def _write_page(
    history: reading.History,
    stored_lines: list[reading.StoredLine],
    last: int,
    html: Path,
    force: bool,
    no_redact: bool,
) -> None:
    """Write the trends as an HTML page to the file `html`, anonymised unless `no_redact` is set."""
    sharing.check_target(html, force, history.path)
    trends = tuple(history.trend(stored, last) for stored in stored_lines)
    sharing.write(html, rendering.report("html").trends(sharing.shareable(trends, no_redact)), is_told=True)


def _document(trend: trending.Trend) -> dict[str, Any]:
    """Return a trend as the object that `--json` prints: its line, fingerprint, state, runs and changes."""
    from gpubench.stats.stretches import LEAST_RUNS

    line = trend.line
    runs = [
        {
            "started": datetime.fromtimestamp(moment.source.at, UTC).isoformat(timespec="seconds"),
            "file": moment.source.path,
            "host": moment.source.host,
            "median": moment.interval.centre,
            "low": moment.interval.low,
            "high": moment.interval.high,
            "replicates": moment.replicates,
            "labels": moment.labels,
        }
        for moment in trend.moments
    ]
    return {
        **records.record(line),
        "fingerprint": {"id": line.fingerprint.id, **dict(line.fingerprint.pairs)},
        "state": trend.state,
        "runs_needed": LEAST_RUNS,
        "newest_step": trend.newest_step,
        "runs": runs,
        "changes": records.record(trend.changes),
        "drifts": records.record(trend.drifts),
        "two_states": records.record(trend.states),
    }


@app.command("import")
def import_(sources: Sources, store: Store = None) -> None:
    """Record run files that were measured elsewhere or before. The files are not moved, and no run counts twice."""
    with recording.HistoryRecorder(store or histories.default_place()) as recorder:
        _print_records(recorder, recording.record_files(recorder, recording.run_files(sources)))


@app.command("rebuild")
def rebuild(sources: MoreSources = None, store: Store = None) -> None:
    """Create the history again from the run files. A damaged history is renamed and kept."""
    place = store or histories.default_place()
    recorder, aside = recording.open_for_rebuild(place)
    with recorder:
        if aside:
            _print.warn(f"{place} was damaged and is renamed to {aside}; name run files that are in other folders")
        recorded, deleted = recording.refill(recorder, sources or [])
        if deleted:
            _print.warn(f"{deleted} runs are dropped: their files are missing or invalid")
        _print_records(recorder, recorded)


def _print_records(recorder: recording.HistoryRecorder, recorded: Iterable[recording.RecordedFile]) -> None:
    counts = {"new": 0, "updated": 0, "known": 0, "refused": 0}
    for file in recorded:
        counts[file.state] += 1
        if file.state == "refused":
            _print.say(f"gpubench: {file.warnings[0]}")
            continue
        for warning in file.warnings:
            _print.warn(warning)
    refused = counts.pop("refused")
    summary = ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "none"
    _print.echo(f"{sum(counts.values())} runs in {recorder.path}: {summary}")
    if refused:
        raise typer.Exit(_FILE_STATUS)


@app.command("prune")
def prune(keep: Keep, files: Files = False, dry_run: DryRun = False, store: Store = None) -> None:
    """Drop all but the newest --keep runs and the newest --keep runs of each case.

    Without --files the run files stay, and `rebuild` would record them again."""
    place = store or histories.default_place()
    with recording.HistoryRecorder(place) as recorder:
        sources, dropped = recorder.sources(), recorder.runs_to_delete(keep)
        existing = [sources[key] for key in dropped if sources[key].exists()] if files else []
        inside = [file for file in existing if file.resolve().is_relative_to(place.absolute().parent.resolve())]
        size = units.round_size(sum(file.stat().st_size for file in inside))
        if not dry_run:
            recorder.forget(dropped)
            for file in inside:
                file.unlink()
    summary = f"{len(dropped)} of {len(sources)} runs {'would be' if dry_run else 'are'} dropped"
    summary += f", and {len(inside)} run files of {size}" if inside else ""
    outside = len(existing) - len(inside)
    _print.echo(summary + (f"; {outside} run files are outside the history's folder and stay" if outside else ""))
