"""Show the trends of a history in the terminal: one series in full with its changes, or a row for each of many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from gpubench.analysis.trend import Trend
    from gpubench.cli._findings import Part

_WIDTH = 60  # characters of a sparkline
_LEAST = 10  # characters of a sparkline on the narrowest terminal
NARROW = 24  # characters of a sparkline in a list of many series


def trend_rows(trends: Sequence[Trend], judged: bool, width: int) -> list[Part]:
    """Return the rows of the series, one each, for a terminal of `width` columns.

    A line above names the device if all series are of one device. If `judged`, the rows have the newest change, and
    series whose newest change is for the worse come first."""
    from gpubench.cli import _print
    from gpubench.cli._layout import NamedRow, named_rows

    several = len({trend.line.devices for trend in trends}) > 1
    where = [_print.plain(f"on {'+'.join(trends[0].line.devices)}", "dim")] if trends and not several else []
    heads = ("state", "case", "runs", "newest", "trend", *(["newest change"] if judged else []))
    ordered = sorted(trends, key=_rank) if judged else trends
    rows = [NamedRow(*_row(trend, judged, several)) for trend in ordered]
    return [*where, *named_rows(heads, rows, width)]


def _rank(trend: Trend) -> int:
    """Return the sort key of a series: 0 if the newest change is for the worse, 1 if for the better, 2 if none."""
    event = trend.newest_event
    return 2 if event is None else 0 if event.is_worse else 1


def trend_lines(trend: Trend) -> list[Text]:
    """Return the text on one series: case, verdict, next step, fingerprint, sparkline of the runs, and each change."""
    from gpubench.analysis.sparkline import sparkline
    from gpubench.base import units
    from gpubench.cli import _print

    line, values = trend.line, trend.values
    newest, event = trend.moments[-1], trend.newest_event
    low, high = (units.quantity(value, line.unit) for value in (min(values), max(values)))
    room = _print.out().width - len(low) - len(high) - 2
    bars, marks = sparkline(trend, max(min(_WIDTH, room), _LEAST))
    newest_text = (
        f"newest {units.quantity(values[-1], line.unit)} ({_date_text(newest.source.at)}, {newest.source.path})"
    )
    texts = [
        _print.plain(line.case, "bold"),
        _print.plain(trend.verdict_text, "bold red" if event and event.is_worse else "bold"),
        *_next_step(trend),
        _print.plain(line.text, "dim"),
        _print.plain(f"{low} {bars} {high}"),
    ]
    if marks:
        texts.append(_print.plain(" " * (len(low) + 1) + marks))
    texts.append(_print.plain(f"{len(values)} {'run' if len(values) == 1 else 'runs'}, {newest_text}"))
    return [*texts, *_events(trend)]


def _next_step(trend: Trend) -> list[Text]:
    import shlex

    from gpubench.cli import _print

    event = trend.newest_event
    if event is None or not event.start:
        return []
    files = [shlex.quote(trend.moments[index].source.path) for index in (event.start - 1, event.start)]
    return [_print.plain(f"next: gpubench compare {' '.join(files)}")]


def _events(trend: Trend) -> Iterator[Text]:
    from gpubench.base import units
    from gpubench.cli import _print

    lines: list[tuple[int, str, bool]] = []
    for change in trend.changes:
        sides = " → ".join(units.quantity(value, trend.line.unit) for value in (change.before, change.after))
        text = f"^ {_date_text(trend.moments[change.index].source.at)}: {sides}, {change.text}"
        lines.append((change.index, text, change.is_worse))
    for drift in trend.drifts:
        sides = " → ".join(units.quantity(value, trend.line.unit) for value in (drift.before, drift.after))
        times = " to ".join(_date_text(trend.moments[index].source.at) for index in (drift.start, drift.end - 1))
        lines.append((drift.start, f"~ {times}: {sides}, {drift.text}", drift.is_worse))
    return (_print.plain(text, "red" if is_worse else "green") for _, text, is_worse in sorted(lines))


def _row(trend: Trend, is_judged: bool, several: bool) -> tuple[str, str, tuple[str, ...], str]:
    from gpubench.analysis.sparkline import sparkline
    from gpubench.base import units

    line = trend.line
    name = f"{line.case} on {'+'.join(line.devices)}" if several else line.case
    figures = (str(len(trend.moments)), units.quantity(trend.values[-1], line.unit), sparkline(trend, NARROW)[0])
    if not is_judged:
        return "", name, figures, ""
    event = trend.newest_event
    return trend.state, name, (*figures, _newest_event(trend)), "bold red" if event and event.is_worse else ""


def _newest_event(trend: Trend) -> str:
    """Return the step or drift that began last as text; – if there is none."""
    event = trend.newest_event
    if event is None:
        return trend.newest_comparison.partition(" than")[0] if trend.state == "too few runs" else "–"
    return f"{event.effect_text}, {_date_text(trend.moments[event.start].source.at, '%Y-%m-%d')}"


def _date_text(at: float, form: str = "%Y-%m-%d %H:%M UTC") -> str:
    return f"{datetime.fromtimestamp(at, UTC):{form}}"
