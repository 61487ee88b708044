"""Tables for a terminal. Names are shown as they are: no markup, no control characters, none without an end."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpubench.base.clean import one_line

if TYPE_CHECKING:
    from gpubench.analysis.summary import Figure, Row, Spread, Summary
    from gpubench.analysis.views.tables import Table as Words
    from gpubench.model import Result, Run

_STYLES = {"ok": "green", "skipped": "dim", "failed": "bold red", "invalid": "yellow"}
_MOST_REASONS = 8
_MOST_BESIDE = 3
_WIDE = 1000  # characters of a line that nobody looks at in a window
_SHARES = "% of spec · clock · best"  # in the order of `peaks.BASES`
_WITHIN, _RANGE = "95 % within process", "lowest – highest"
_COLUMNS = ("case", "device", "median", _WITHIN, _SHARES, "within", "between", "bound by", "status")
_SPREAD_COLUMNS = ("case", "device", "median", _RANGE, _SHARES, "within", "between", "bound by", "status")
# what is left out first where there is no room
_LEAVE = ("within", _WITHIN, _RANGE, _SHARES, "between", "bound by", "device")
_ONE_PROCESS = (
    "one process: another process's median may lie outside its 95 % interval; --replicates 3 measures by how much"
)


def out() -> Console:
    """Standard output; wide where it is no terminal, so that nothing is folded in a log."""
    return Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False, emoji=False)


def err() -> Console:
    """Standard error."""
    return Console(stderr=True, highlight=False, emoji=False)


def say(words: object, style: str = "") -> None:
    """Print one line on standard error."""
    err().print(plain(words, style), soft_wrap=True)


def echo(words: object) -> None:
    """Print one line on standard output."""
    out().print(plain(words), soft_wrap=True)


def document(value: object) -> None:
    """Exactly one JSON document on standard output, in ASCII: its texts are whole, and no terminal obeys them."""
    import json

    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def plain(value: object, style: str = "") -> Text:
    """Return a text as a message: on one line, not too long, with neither markup nor control characters."""
    return Text(one_line(str(value)), style=style)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "", right: Sequence[str] = ()
) -> Table:
    """A table of plain cells."""
    found = Table(
        title=plain(title) if title else None, title_justify="left", box=None, pad_edge=False, header_style="bold"
    )
    for column in columns:
        found.add_column(plain(column), justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        found.add_row(*(cell if isinstance(cell, Text) else plain(cell) for cell in row))
    return found


def summary(run: Run) -> list[Table | Text]:
    """The summary of a run: a table, one row a case, then what did not go well, in words."""
    from gpubench.analysis.summary import Summary
    from gpubench.analysis.views.links import link_tables
    from gpubench.analysis.views.phase_tables import phase_tables
    from gpubench.analysis.views.tables import derived_tables

    summed = Summary(run)
    columns: Sequence[str] = _SPREAD_COLUMNS if summed.replicated else _COLUMNS
    rows: list[Sequence[object]] = (
        [_spread(summed, spread) for spread in summed.spreads()]
        if summed.replicated
        else [_row(summed, row) for row in summed.rows()]
    )
    if not any(row[columns.index("between")] for row in rows):  # of a single process, mostly nobody knows it
        columns, rows = _without("between", columns, rows)
    parts = _fitting(columns, rows, out().width)
    parts += [plain(line, "dim") for line in _reproducibility(summed)]
    for suite in run.manifest.suites:
        parts += [part for found in derived_tables(summed, suite.name) for part in _derived(found)]
    parts += [part for found in (*link_tables(summed), *phase_tables(summed)) for part in _derived(found)]
    if not run.complete:
        parts.append(plain("a partial run: it was interrupted, and can be gone on with by `run --resume`", "yellow"))
    parts += [plain(line, "yellow") for line in (*run.told, *_above_peak(summed), *_reasons(run.results))]
    counted = ", ".join(f"{count} {status}" for status, count in summed.counts().items() if count)
    return [*parts, plain(f"{len(run.results)} results: {counted or 'none'}", "bold")]


def _without(
    name: str, columns: Sequence[str], rows: Sequence[Sequence[object]]
) -> tuple[Sequence[str], list[Sequence[object]]]:
    """The columns and rows with one column left out."""
    place = columns.index(name)
    return [*columns[:place], *columns[place + 1 :]], [[*row[:place], *row[place + 1 :]] for row in rows]


def _reproducibility(summed: Summary) -> list[str]:
    """What the intervals of single processes do not cover, and where the deviations between processes are from."""
    from gpubench.analysis.reproducibility import source_words

    has_intervals = any(row.figure and row.figure.samples > 1 for row in summed.rows())
    recorded = source_words(map(summed.reproducibility, summed.spreads()))
    lines = [_ONE_PROCESS if has_intervals and not summed.replicated else "", recorded]
    return [line for line in lines if line]


def _above_peak(summed: Summary) -> list[str]:
    """The cases whose figures are above what their device can do, and what that means."""
    from gpubench.analysis.peaks import ABOVE_PEAK, ABOVE_PEAK_REASON

    impossible = [(row.result.case.id, row.impossible[0].text) for row in summed.rows() if row.impossible]
    if not impossible:
        return []
    (case, share), more = impossible[0], len(impossible) - 1
    return [f"{ABOVE_PEAK}: {case} ({share}){f' and {more} more' if more else ''}: {ABOVE_PEAK_REASON}"]


def _fitting(columns: Sequence[str], rows: Sequence[Sequence[object]], width: int) -> list[Table | Text]:
    """The table in so many characters: columns are left out, and named, before an id is folded."""
    cells = [[cell if isinstance(cell, Text) else plain(cell) for cell in row] for row in rows]
    wide = {
        name: max([len(name), *(len(line) for row in cells for line in row[place].plain.split("\n"))])
        for place, name in enumerate(columns)
    }
    kept = list(columns)
    for name in _LEAVE:
        if sum(wide[each] + 2 for each in kept) - 2 > width and name in kept:
            kept.remove(name)
    places = [columns.index(name) for name in kept]
    shown = table(kept, ([row[place] for place in places] for row in cells), right=columns[2:-1])
    missing = [name for name in columns if name not in kept]
    note = f"left out for want of room: {', '.join(missing)}; a wider terminal, a file or a report has them"
    return [shown, *([plain(note, "dim")] if missing else [])]


def _derived(found: Words) -> list[Table | Text]:
    right = [head for head in found.heads if head not in found.words]
    note = [plain(found.note, "dim")] if found.note else []
    return [plain(""), table(found.heads, found.rows, found.title, right), *note]


def _row(summed: Summary, row: Row) -> list[object]:
    from gpubench import stats
    from gpubench.analysis.summary import Spread
    from gpubench.base import units

    result, figure = row.result, row.figure
    status = plain(result.status if result.status == "ok" else f"{result.status}: {result.cause}")
    status.append(_labels(row.labels))
    status.stylize(_STYLES[result.status])
    spread = Spread((row,))
    named = _named(result.case.id, figure, summed.beside(spread))
    cells: list[object] = [named, ", ".join(result.devices), "", "", "", "", "", _bound(summed, result), status]
    if figure is not None and result.status == "ok":
        cells[2:6] = [*_figure(figure, figure.interval.low, figure.interval.high), units.percent(figure.noise)]
        cells[6] = _between(summed, spread)
        if figure.samples < 2:  # one value has no interval and no noise
            cells[3] = cells[5] = ""
        elif figure.samples < stats.LEAST_FOR_INTERVAL:
            cells[3] = f"{cells[3]} (range)"
    return cells


def _spread(summed: Summary, spread: Spread) -> list[object]:
    from gpubench.base import units

    medians, figure = spread.medians, spread.figure
    status = plain(", ".join(f"{count} {name}" for name, count in spread.statuses.items()))
    status.append(_labels(spread.labels))
    status.stylize(_STYLES[spread.status])
    named = _named(spread.case.id, figure, summed.beside(spread))
    bound = _bound(summed, spread.row.result)
    cells: list[object] = [named, ", ".join(spread.devices), "", "", "", "", "", bound, status]
    if figure is not None:
        within, between = units.percent(spread.within), _between(summed, spread)
        cells[2:7] = [*_figure(figure, min(medians), max(medians)), within, between]
    return cells


def _named(case_id: str, figure: Figure | None, beside: Sequence[Figure]) -> Text:
    """The case, and of several stages the one whose figure it is, with the others on a line of their own."""
    stage = figure.name.rpartition(".")[0] if figure else ""
    if not stage:
        return plain(case_id)
    stages = [(other.short, other.text) for other in beside[:_MOST_BESIDE]]
    others = ", ".join(f"{name} {text}" for name, text in stages)
    return plain(f"{case_id} {stage}") + Text("\n  ") + plain(others, "dim")


def _between(summed: Summary, spread: Spread) -> str:
    known = summed.reproducibility(spread)
    return known.text if known else ""


def _bound(summed: Summary, result: Result) -> str:
    from gpubench.analysis.case_counters import case_counters

    found = case_counters(summed, result).bound
    return found.label if found else ""


def _figure(figure: Figure, low: float, high: float) -> list[object]:
    from gpubench.base import units

    return [figure.text, units.interval(low, high, figure.unit, figure.interval.centre), figure.shares_text]


def _labels(labels: Sequence[str]) -> Text:
    return plain(f" ({', '.join(labels)})" if labels else "")


def _reasons(results: Sequence[Result]) -> list[str]:
    """Reasons of what is not ok, each once, with the number of cases it holds for."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for result in results:
        if result.status != "ok":
            found.setdefault((result.status, result.reason), {})[result.case.id] = None
    lines = [
        f"{status}: {next(iter(ids))}{f' and {len(ids) - 1} more' if len(ids) > 1 else ''}: {reason}"
        for (status, reason), ids in found.items()
    ]
    rest = len(lines) - _MOST_REASONS
    return lines[:_MOST_REASONS] + ([f"and {rest} more reasons: see the report"] if rest > 0 else [])
