"""Show several runs as columns side by side, without a verdict: their heads, key figures and cases."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpubench.api import report as gb

from ._room import LINES
from ._verdict import Anchors, link, share_text, suite_anchor, trust_text

_NO_CHANGE = ""
_SEEN = 0.0005  # a smaller change has no digit to show
NOTE = (
    "Changes are those of the medians against run A; the command gpubench compare decides which of them are more than "
    "noise. Of data sheet: the share of the peak in the vendor's data sheet."
)


@dataclass(frozen=True, slots=True)
class RunColumn:
    """The head of a run: its letter (`A` for the first run), devices, conditions, and whether to trust its figures.

    `trust` is a sentence, and `limitations` are further sentences about the figures."""

    letter: str
    devices: tuple[str, ...]
    conditions: tuple[str, ...]
    trust: str
    is_trusted: bool
    limitations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ColumnCell:
    """A figure of one run, or three empty texts if the run does not have it.

    `text` is the median with its unit, `note` a remark on it, `change` its change from the first run (`+1.2 %`)."""

    text: str = ""
    note: str = ""
    change: str = _NO_CHANGE


@dataclass(frozen=True, slots=True)
class ColumnRow:
    """One key figure or one case, with a cell for each run, in the order of the runs.

    `anchor` is the id of a case's row in the page, empty for a key figure; `link` leads to the row of the case."""

    title: str
    device: str
    anchor: str
    link: str
    cells: tuple[ColumnCell, ...]


@dataclass(frozen=True, slots=True)
class SuiteColumns:
    """The cases of a suite that at least one of the runs has; `anchor` is the id of its section in the page."""

    name: str
    anchor: str
    rows: tuple[ColumnRow, ...]


@dataclass(frozen=True, slots=True)
class Columns:
    """Several runs side by side; `left_out` is the number of cases beyond the 2000 that a page lists.

    `differences` are the facts of the environment that differ between the runs, and `note` explains the changes."""

    title: str
    runs: tuple[RunColumn, ...]
    key_figures: tuple[ColumnRow, ...]
    differences: tuple[gb.comparison.Difference, ...]
    suites: tuple[SuiteColumns, ...]
    left_out: int
    note: str = NOTE


_Key = tuple[str, tuple[str, ...]]  # the title of a key figure or the id of a case, and the devices


@dataclass(frozen=True, slots=True)
class _RunFigure:
    """A figure of one run for a cell of a row; `figure` is None if the case has none in that run."""

    case_id: str
    figure: gb.Figure | None
    note: str


def columns(runs: Sequence[gb.Run]) -> Columns:
    """Return the runs side by side, in the order given; run A is the first.

    Their texts must be free of control characters."""
    summaries = [gb.Summary(run) for run in runs]
    heads = [gb.overview(summary) for summary in summaries]
    listed = [
        {(case.case_id, case.spread.devices): case for suite in gb.listing(summary) for case in suite.cases}
        for summary in summaries
    ]
    keys = list(dict.fromkeys(key for cases in listed for key in cases))
    anchors = Anchors(len({devices for _, devices in keys}) > 1)
    suites = _by_suite(listed, keys[:LINES], anchors)
    models = ", ".join(dict.fromkeys(device.partition(" (")[0] for head in heads for device in head.devices))
    return Columns(
        f"{len(runs)} runs: {models or 'no device'}",
        tuple(_head(index, head) for index, head in enumerate(heads)),
        tuple(_key_figures(heads, anchors)),
        tuple(map(_readable_difference, gb.comparison.differences([run.manifest for run in runs]))),
        tuple(SuiteColumns(name, suite_anchor(name), rows) for name, rows in suites.items()),
        max(len(keys) - LINES, 0),
    )


def _head(index: int, run_overview: gb.Overview) -> RunColumn:
    """Return the head of a run; `index` is its place among the runs, from 0, which gives its letter."""
    return RunColumn(
        gb.comparison.letter(index),
        run_overview.devices or ("No device",),
        run_overview.conditions,
        trust_text(run_overview),
        not run_overview.doubts,
        run_overview.limitations,
    )


def _readable_difference(difference: gb.comparison.Difference) -> gb.comparison.Difference:
    """Return a difference of the environment with its values in readable units: `128 GiB` instead of bytes."""
    values = [gb.units.fact(difference.name, value) for value in difference.values]
    return gb.comparison.Difference(min((name for name, _ in values), key=len), tuple(value for _, value in values))


def _key_figures(heads: Sequence[gb.Overview], anchors: Anchors) -> Iterator[ColumnRow]:
    """Yield a row for each key figure and device set that any run has."""
    figures_by_run: list[dict[_Key, _RunFigure]] = [
        {
            (value.title, value.devices): _RunFigure(value.case_id, value.figure, _of_data_sheet(value.of_spec))
            for value in head.values
        }
        for head in heads
    ]
    for key in dict.fromkeys(key for values in figures_by_run for key in values):
        cells = [values.get(key) for values in figures_by_run]
        first = next(cell for cell in cells if cell)
        anchor = anchors.case(first.case_id, key[1])
        yield ColumnRow(key[0], _device(key, anchors), "", link(anchor), tuple(_cells(cells)))


def _device(key: _Key, anchors: Anchors) -> str:
    """Return the devices of a row, joined by `+`; empty if all rows are of the same device set."""
    return "+".join(key[1]) if anchors.with_devices else ""


def _of_data_sheet(share: float | None) -> str:
    """Return a share of the data sheet's peak (a fraction) as text: `87.7 % of data sheet`; empty for None."""
    return f"{share_text(share)} of data sheet" if share is not None else ""


def _by_suite(
    listed: Sequence[dict[_Key, gb.ListedCase]], keys: Sequence[_Key], anchors: Anchors
) -> dict[str, tuple[ColumnRow, ...]]:
    rows: dict[str, list[ColumnRow]] = {}
    for key in keys:
        cases = [cases.get(key) for cases in listed]
        suite, _, name = key[0].partition("/")
        anchor = anchors.case(*key)
        cells = [_RunFigure(key[0], case.spread.figure, case.ended) if case else None for case in cases]
        row = ColumnRow(name, _device(key, anchors), anchor, link(anchor), tuple(_cells(cells)))
        rows.setdefault(suite, []).append(row)
    return {suite: tuple(suite_rows) for suite, suite_rows in rows.items()}


def _cells(figures: Sequence[_RunFigure | None]) -> Iterator[ColumnCell]:
    """Yield a cell for each run, an empty one for None."""
    ids = {figure.case_id for figure in figures if figure}
    first = figures[0]
    for index, figure in enumerate(figures):
        if figure is None:
            yield ColumnCell()
            continue
        parts = [figure.note, figure.case_id if len(ids) > 1 else ""]
        change = _change_text(first, figure) if index else _NO_CHANGE
        text = figure.figure.text if figure.figure else ""
        yield ColumnCell(text, "; ".join(part for part in parts if part), change)


def _change_text(first: _RunFigure | None, later: _RunFigure) -> str:
    if first is None or first.figure is None or later.figure is None or first.case_id != later.case_id:
        return _NO_CHANGE
    if first.figure.unit != later.figure.unit or not first.figure.interval.centre:
        return _NO_CHANGE
    ratio = later.figure.interval.centre / first.figure.interval.centre - 1
    if not math.isfinite(ratio):
        return _NO_CHANGE
    return f"{100 * ratio:+.1f} %" if abs(ratio) >= _SEEN else "0.0 %"
