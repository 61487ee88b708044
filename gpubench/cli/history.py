"""`gpubench history`: the figures of a case over all runs, where they changed, and the store that holds them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from gpubench.cli import _options as options
from gpubench.cli import _sharing as sharing

if TYPE_CHECKING:
    from rich.text import Text

    from gpubench.analysis.trend import Trend
    from gpubench.cli._findings import Part
    from gpubench.tools.history import Found, History, Recorded, Recorder

_WIDTH = 60  # characters of a sparkline
_LEAST = 10  # of one on the narrowest terminal
_NARROW = 24  # of one in the list of many
_SHOWN = 8  # series that are shown one by one; more are a list
_LISTED = 200  # series whose changes are looked for in a list: each takes some milliseconds
_LAST = 400
_FILE_STATUS = 5


class CaseFirst(TyperGroup):
    """A group whose first word may be a case instead of a command: `gpubench history CASE`.

    The context is Click's, which newer Typers bring inside and older ones depend on.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `show` before words that name no command."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["show", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=CaseFirst,
    help="Show how a case's figures developed over all runs and where they changed: gpubench history CASE. "
    "Runs are recorded beside their run files in gpubench-runs, or where GPUBENCH_HISTORY says.",
    subcommand_metavar="[CASE… | COMMAND]",
)

Store = Annotated[
    Path | None,
    typer.Option(
        "--store",
        help="The history to use. \\[default: what GPUBENCH_HISTORY names, else gpubench-runs/history.sqlite]",
    ),
]
Cases = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CASE…]",
        help="Cases whose id contains this text (* and ? are wild); without one, all are listed.",
        show_default=False,
    ),
]
Series = Annotated[
    str, typer.Option("--series", help="The series to show: hot, cold, … \\[default: the headline]", show_default=False)
]
Last = Annotated[int, typer.Option("--last", min=1, help="Look at the last runs only; changes in 400 at the most.")]
Html = Annotated[
    Path | None, typer.Option("--html", help="Write the trends as a page of their own, instead of showing them.")
]
Sources = Annotated[
    list[Path], typer.Argument(metavar="FILE|FOLDER…", help="Run files, or folders that hold some.", show_default=False)
]
MoreSources = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[FILE|FOLDER…]",
        help="Run files or folders to take in besides those of the history's own folder and those it knows of.",
        show_default=False,
    ),
]
Keep = Annotated[
    int,
    typer.Option("--keep", min=1, help="Keep the newest so many runs, and of every case its newest so many."),
]
Files = Annotated[
    bool,
    typer.Option(
        "--files", help="Delete the run files of what is dropped too, where they lie in the history's own folder."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be dropped, and drop nothing.")]


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
    """The default: a case's runs as a line of bars, the newest figure, and each change with what changed beside it."""
    from gpubench.tools.history import History

    with History(_place(store)) as history:
        found = _wanted(history, cases or [], series)
        if html:
            _page(history, found, last, html, force, no_redact)
        elif json:
            from gpubench.cli import _print

            _print.document([_document(history.trend(line, last)) for line in found])
        else:
            _shown(history, found, last, bool(cases))
        _warn(history.warnings())


def _place(store: Path | None) -> Path:
    from gpubench.tools import history

    return store or history.default_place()


def _wanted(history: History, cases: list[str], series: str) -> list[Found]:
    """The lines that the words name; UsageError with what there is instead."""
    from gpubench import plugins
    from gpubench.base.errors import UsageError

    found = history.lines(cases, series)
    if found:
        return found
    if series and (names := history.series(cases)):
        raise plugins.unknown("series", series, names)
    ids = sorted({each.line.case for each in history.lines()})
    if not ids:
        raise UsageError(f"{history.path} holds no figures yet; `gpubench history import FOLDER` adds run files")
    near = difflib.get_close_matches(cases[0], [*ids, *(each.partition("[")[0] for each in ids)], n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}?" if near else "`gpubench history` lists what there is"
    raise UsageError(f"no case in the history matches {' '.join(cases)}; {hint}")


def _shown(history: History, found: list[Found], last: int, named: bool) -> None:
    from gpubench.cli import _print

    out = _print.out()
    if named and len(found) <= _SHOWN:
        for number, each in enumerate(found):
            lines = _lines(history.trend(each, last))
            out.print(*([""] if number else []), *lines, sep="\n", soft_wrap=True)
        return
    from gpubench.cli import _findings

    judged = len(found) <= _LISTED
    trends = [history.trend(each, min(last, _LAST if judged else _NARROW)) for each in found]
    _findings.show(_listed(trends, judged, out.width))
    if not judged:
        words = f"changes are looked for in {_LISTED} series at most; name cases to see the changes of these"
        out.print(_print.plain(words, "dim"), soft_wrap=True)


def _listed(trends: Sequence[Trend], judged: bool, width: int) -> list[Part]:
    """Return a line for each series, those whose newest change is for the worse first."""
    from gpubench.cli import _print
    from gpubench.cli._layout import NamedRow, named_rows

    several = len({trend.line.devices for trend in trends}) > 1
    where = [_print.plain(f"on {'+'.join(trends[0].line.devices)}", "dim")] if trends and not several else []
    heads = ("state", "case", "runs", "newest", "trend", *(["newest change"] if judged else []))
    ordered = sorted(trends, key=_rank) if judged else trends
    rows = [NamedRow(*_row(trend, judged, several)) for trend in ordered]
    return [*where, *named_rows(heads, rows, width)]


def _rank(trend: Trend) -> int:
    """Return what sorts series: those that became worse, those that became better, those without a change."""
    event = trend.newest_event
    return 2 if event is None else 0 if event.is_worse else 1


def _lines(trend: Trend) -> list[Text]:
    """Return one series: the verdict, what to do next, what the figures are of, the runs, each change."""
    from gpubench.analysis.trend import sparkline
    from gpubench.base import units
    from gpubench.cli import _print

    line, values = trend.line, trend.values
    newest, event = trend.moments[-1], trend.newest_event
    low, high = (units.quantity(value, line.unit) for value in (min(values), max(values)))
    room = _print.out().width - len(low) - len(high) - 2
    bars, marks = sparkline(trend, max(min(_WIDTH, room), _LEAST))
    words = f"newest {units.quantity(values[-1], line.unit)} ({_when(newest.source.at)}, {newest.source.path})"
    texts = [
        _print.plain(line.case, "bold"),
        _print.plain(trend.verdict_words, "bold red" if event and event.is_worse else "bold"),
        *_next_step(trend),
        _print.plain(line.words, "dim"),
        _print.plain(f"{low} {bars} {high}"),
    ]
    if marks:
        texts.append(_print.plain(" " * (len(low) + 1) + marks))
    texts.append(_print.plain(f"{len(values)} {'run' if len(values) == 1 else 'runs'}, {words}"))
    return [*texts, *_events(trend)]


def _next_step(trend: Trend) -> list[Text]:
    """Return how to look into the newest change: the runs before and after it side by side."""
    import shlex

    from gpubench.cli import _print

    event = trend.newest_event
    if event is None or not event.start:
        return []
    files = [shlex.quote(trend.moments[index].source.path) for index in (event.start - 1, event.start)]
    return [_print.plain(f"next: gpubench compare {' '.join(files)}")]


def _events(trend: Trend) -> Iterator[Text]:
    """A line for each step and for each drift, in order of time."""
    from gpubench.base import units
    from gpubench.cli import _print

    lines: list[tuple[int, str, bool]] = []
    for change in trend.changes:
        sides = " → ".join(units.quantity(value, trend.line.unit) for value in (change.before, change.after))
        text = f"^ {_when(trend.moments[change.index].source.at)}: {sides}, {change.words}"
        lines.append((change.index, text, change.is_worse))
    for drift in trend.drifts:
        sides = " → ".join(units.quantity(value, trend.line.unit) for value in (drift.before, drift.after))
        times = " to ".join(_when(trend.moments[index].source.at) for index in (drift.start, drift.end - 1))
        lines.append((drift.start, f"~ {times}: {sides}, {drift.words}", drift.is_worse))
    return (_print.plain(text, "red" if is_worse else "green") for _, text, is_worse in sorted(lines))


def _row(trend: Trend, is_judged: bool, several: bool) -> tuple[str, str, tuple[str, ...], str]:
    """Return the lead, the name, the figures and the style of a series' row."""
    from gpubench.analysis.trend import sparkline
    from gpubench.base import units

    line = trend.line
    name = f"{line.case} on {'+'.join(line.devices)}" if several else line.case
    figures = (str(len(trend.moments)), units.quantity(trend.values[-1], line.unit), sparkline(trend, _NARROW)[0])
    if not is_judged:
        return "", name, figures, ""
    event = trend.newest_event
    return trend.state, name, (*figures, _newest_event(trend)), "bold red" if event and event.is_worse else ""


def _newest_event(trend: Trend) -> str:
    """Return the step or drift that began last; of too few runs how the newest differs."""
    event = trend.newest_event
    if event is None:
        return trend.newest_words.partition(" than")[0] if trend.state == "too few runs" else "–"
    return f"{event.effect_words}, {_when(trend.moments[event.start].source.at, '%Y-%m-%d')}"


def _when(at: float, form: str = "%Y-%m-%d %H:%M UTC") -> str:
    return f"{datetime.fromtimestamp(at, UTC):{form}}"


def _page(history: History, found: list[Found], last: int, html: Path, force: bool, no_redact: bool) -> None:
    from gpubench.tools import rendering

    sharing.check_target(html, force, history.path)
    trends = [history.trend(each, last) for each in found]
    report = rendering.report("html")
    sharing.write(html, report.trends(sharing.shareable_trends(trends, no_redact)))


def _document(trend: Trend) -> dict[str, Any]:
    from dataclasses import asdict

    from gpubench.stats.changepoints import LEAST_RUNS

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
    kind = {"id": line.fingerprint.id, **dict(line.fingerprint.pairs)}
    changes, drifts = (
        [{**asdict(event), "effect": event.effect, "worse": event.is_worse} for event in events]
        for events in (trend.changes, trend.drifts)
    )
    return {
        **asdict(line),
        "fingerprint": kind,
        "state": trend.state,
        "runs_needed": LEAST_RUNS,
        "newest_step": trend.newest_step,
        "runs": runs,
        "changes": changes,
        "drifts": drifts,
    }


def _warn(lines: Iterable[str]) -> None:
    from gpubench.cli import _print

    for line in lines:
        _print.say(line, "yellow")


@app.command("import")
def import_(sources: Sources, store: Store = None) -> None:
    """Record run files that were measured elsewhere or before; they stay where they are, and none is taken twice."""
    from gpubench.tools.history import Recorder, add, run_files

    with Recorder(_place(store)) as recorder:
        _end(recorder, add(recorder, run_files(sources)))


@app.command("rebuild")
def rebuild(sources: MoreSources = None, store: Store = None) -> None:
    """Make the history anew from the run files, which are the record; a damaged one is kept beside it."""
    from gpubench.tools.history import opened, refill

    place = _place(store)
    recorder, aside = opened(place)
    with recorder:
        if aside:
            words = f"{place} was damaged and is now {aside}; name the run files that lie elsewhere: it knew them"
            _warn([words])
        found, gone = refill(recorder, sources or [])
        if gone:
            _warn([f"{gone} runs are dropped: their files are gone, or are not to be trusted"])
        _end(recorder, found)


def _end(recorder: Recorder, found: Iterable[Recorded]) -> None:
    """Say what became of the files; status 5 where one was refused."""
    from gpubench.cli import _print

    counts = {"new": 0, "updated": 0, "known": 0, "refused": 0}
    for each in found:
        counts[each.state] += 1
        if each.state == "refused":
            _print.say(f"gpubench: {each.warnings[0]}")
        else:
            _warn(each.warnings)
    refused = counts.pop("refused")
    words = ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "none"
    _print.echo(f"{sum(counts.values())} runs in {recorder.path}: {words}")
    if refused:
        raise typer.Exit(_FILE_STATUS)


@app.command("prune")
def prune(keep: Keep, files: Files = False, dry_run: DryRun = False, store: Store = None) -> None:
    """Drop old runs; without --files their run files stay, and `rebuild` would take them in again."""
    from gpubench.base import units
    from gpubench.cli import _print
    from gpubench.tools.history import Recorder

    place = _place(store)
    with Recorder(place) as recorder:
        sources, dropped = recorder.sources(), recorder.beyond(keep)
        there = [sources[key] for key in dropped if sources[key].exists()] if files else []
        ours = [file for file in there if _is_inside(file, place)]
        size = units.round_size(sum(file.stat().st_size for file in ours))
        if not dry_run:
            recorder.forget(dropped)
            for file in ours:
                file.unlink()
    words = f"{len(dropped)} of {len(sources)} runs {'would be' if dry_run else 'are'} dropped"
    words += f", and {len(ours)} run files of {size}" if ours else ""
    left = len(there) - len(ours)
    _print.echo(words + (f"; {left} run files lie outside the history's folder and stay" if left else ""))


def _is_inside(file: Path, place: Path) -> bool:
    return file.resolve().is_relative_to(place.absolute().parent.resolve())
