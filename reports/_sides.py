"""Show runs side by side: key figures, environments and cases, with verdicts if the runs are judged."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from markupsafe import Markup

from gpubench.api import report as gb

from . import _svg as svg
from ._blocks import LINES
from ._charts import Chart
from ._texts import Anchors, link, share_text, suite_anchor, trust_text

_DRAWN = 12  # findings in a chart: one chart has the worst, another the best
_ROW, _TOP = 34.0, 6.0
_LEFT, _RIGHT = 12.0, svg.WIDTH - 12
_LEAST_REACH = 0.02  # the smallest extent of the axis on either side, so that noise does not fill the picture
_STEPS = (1e8, 1e6, 1e4, 1e3, 100.0, 10.0, 2.0, 1.25, 1.1, 1.05, 1.02, 1.01, 1.005)  # ratios at the ticks
STYLES = {
    gb.Verdict.SLOWER: "bad",
    gb.Verdict.INVALID: "warning",
    gb.Verdict.NOT_COMPARABLE: "warning",
    gb.Verdict.INCONCLUSIVE: "unsure",
    gb.Verdict.SUSPECT: "unsure",
    gb.Verdict.FASTER: "good",
    gb.Verdict.SAME: "unsure",
}


def changes(findings: Sequence[gb.Finding]) -> list[Chart]:
    """Return charts of all changes except verdicts of `same`, in the order of the table.

    Up to twelve changes fill one chart."""
    changed = [finding for finding in findings if finding.verdict is not gb.Verdict.SAME]
    drawable = [finding for finding in changed if gb.comparison.ratio(finding) > 0]
    if len(drawable) <= _DRAWN:
        parts = [("Changes, in the order of the table", drawable)] if drawable else []
    else:
        last = drawable[-min(_DRAWN, len(drawable) - _DRAWN) :][::-1]
        first = drawable[:_DRAWN]
        parts = [("Changes, in the order of the table", first), ("Changes, at the end of the table", last)]
    ends = [end for _, findings in parts for finding in findings for end in _ends(finding)]
    reach = max(*map(abs, ends), _LEAST_REACH, 0.0) * 1.08
    return [_chart(title, findings, reach) for title, findings in parts]


def _chart(title: str, findings: Sequence[gb.Finding], reach: float) -> Chart:
    height = _TOP + _ROW * len(findings) + 40
    parts = [*_axis(reach, height), *(_draw_finding(finding, row, reach) for row, finding in enumerate(findings))]
    description = "; ".join(
        f"{finding.case.id} {finding.verdict} {gb.finding_cells(finding).change}" for finding in findings
    )
    note = "how many times as good as A; line: 95 % confidence interval; ring: no interval"
    return Chart(title, note, svg.picture(f"{title}: {description}", height, *parts))


def _ends(finding: gb.Finding) -> tuple[float, float]:
    """Return the logarithms of both ends of the 95 % interval of the ratio, positive for an improvement."""
    if not finding.effect:
        return _log(finding), _log(finding)
    low, high = map(math.log1p, finding.bounds)
    return (low, high) if finding.better == "more" else (-high, -low)


def _log(finding: gb.Finding) -> float:
    """Return the logarithm of how many times as good the figure became."""
    return math.log(gb.comparison.ratio(finding))


def _x(log: float, reach: float) -> float:
    """Return the x, in drawing units, of the logarithm of a ratio; the axis goes from -`reach` to `reach`."""
    return _LEFT + (log + reach) / (2 * reach) * (_RIGHT - _LEFT)


def _axis(reach: float, height: float) -> Iterator[Markup]:
    """Yield the vertical lines and the labels of the axis of ratios, and below them the words for its directions."""
    bottom = height - 36
    for ratio in _ticks(reach):
        x = _x(math.log(ratio), reach)
        yield svg.line(x, _TOP, x, bottom, "axis" if ratio == 1 else "grid")
        label = "½×" if ratio == 0.5 else f"{ratio:g}×"
        half = svg.width_of(label) / 2
        yield svg.text(min(max(x, half), svg.WIDTH - half), bottom + 15, label, "middle")
    yield svg.text(_LEFT, bottom + 31, "← worse", class_="name")
    yield svg.text(_RIGHT, bottom + 31, "better →", "end", "name")


def _ticks(reach: float) -> list[float]:
    """Return the ratios at the ticks: one, and round ratios on either side whose labels do not touch."""
    apart = svg.width_of("0.0001×") * 2 * reach / (_RIGHT - _LEFT)
    last, ticks = math.inf, [1.0]
    for step in _STEPS:
        below = 2 - step if step < 1.2 else 1 / step
        if last - math.log(step) >= apart <= math.log(step) and -math.log(below) <= 0.93 * reach:
            last, ticks = math.log(step), [*ticks, below, step]
    return sorted(ticks)


def _draw_finding(finding: gb.Finding, row: int, reach: float) -> Markup:
    """Draw a finding in row `row`, counted from 0: the case, the change as text, its 95 % interval, and a dot."""
    y = _TOP + _ROW * row
    style = STYLES[finding.verdict]
    texts = gb.finding_cells(finding)
    tooltip = f"{finding.case.id}: {texts.verdict}, {texts.change} ({texts.interval})"
    ratio = f"{gb.comparison.ratio(finding):.4g}×"  # as the axis counts
    most = int((_RIGHT - _LEFT - svg.width_of(ratio)) / svg.LETTER) - 2
    parts = [
        svg.text(_LEFT, y + 10, svg.shorten(finding.case.id, most), class_="named"),
        svg.text(_RIGHT, y + 10, ratio, "end", "named"),
    ]
    if finding.effect:
        low, high = (_x(end, reach) for end in _ends(finding))
        parts.append(svg.line(low, y + 22, high, y + 22, f"effect {style}"))
    parts.append(
        svg.dot(_x(_log(finding), reach), y + 22, 3.6, f"effect {style}" + ("" if finding.effect else " open"), tooltip)
    )
    return svg.join(parts)


_SEEN = 0.0005  # a smaller change has no digit to show
_MANY = 3  # findings: a reason that more of them share is written once, in the answer above them
_MOST_ROWS = 8_000  # the most findings of a page, which keep it below 5 MB; the others are counted
_MEAN_STYLES = {1: "good", 0: "unsure", -1: "bad"}  # by the direction of all decided changes of a suite
_SHARES = "Of data sheet: the share of the peak in the vendor's data sheet."
_PLAIN = "Changes are between the medians and run A; the command gpubench compare decides which are more than noise."
_JUDGED = "Changes from run A have their 95 % confidence interval, if at least three processes measured, and a verdict."

_Key = tuple[str, tuple[str, ...]]  # the title of a key figure or the id of a case, and the devices


@dataclass(frozen=True, slots=True)
class Side:
    """The head of a run: its letter (`A` for the first run), its name, which may be the letter, devices and conditions.

    `trust` is a sentence on whether to trust its figures, `limitations` are further ones; empty if only its figures are
    known."""

    letter: str
    name: str
    devices: tuple[str, ...]
    conditions: tuple[str, ...]
    trust: str = ""
    is_trusted: bool = True
    limitations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure of one run, or empty texts if the run does not have it.

    `text` is the median, `note` its share of peak or how the case ended, `change` the change from the first run with
    its interval, and `verdict` the verdict on it, with a class of the style sheet."""

    text: str = ""
    note: str = ""
    change: str = ""
    verdict: str = ""
    style: str = ""


class Row(NamedTuple):
    """A key figure or a case, with a cell for each run; `anchor` is the id of a case's row, `link` leads to the row."""

    title: str
    device: str
    anchor: str
    link: str
    cells: tuple[Cell, ...]


class FindingRow(NamedTuple):
    """The verdict on a case as cells of texts; `device` is empty if all cases are of one device set."""

    finding: gb.Finding
    cells: Any
    style: str
    device: str
    explanation: str


@dataclass(frozen=True, slots=True)
class Judged:
    """One run against the first: `same` are the rows with the verdict `same`, `notable` the others, worst first.

    `counts` pairs the number of a verdict (`3 slower`) with a class of the style sheet, and `means` a suite with it."""

    side: Side
    answer: Any
    reasons: tuple[str, ...]
    counts: tuple[tuple[str, str], ...]
    means: tuple[tuple[Any, str], ...]
    charts: tuple[Chart, ...]
    notable: tuple[FindingRow, ...]
    same: tuple[FindingRow, ...]
    left_out: int
    tally: str


@dataclass(frozen=True, slots=True)
class Sides:
    """The content of the page; `left_out` is the number of cases beyond the 2000 that it lists by suite."""

    title: str
    sides: tuple[Side, ...]
    differences: tuple[gb.comparison.Difference, ...]
    judged: tuple[Judged, ...]
    key_figures: tuple[Row, ...]
    suites: tuple[tuple[str, str, tuple[Row, ...]], ...]  # name, anchor, a row for each case
    left_out: int
    note: str


class _RunFigure(NamedTuple):
    """A figure of one run for a cell of a row; `figure` is None if the case has none in that run."""

    case_id: str
    devices: tuple[str, ...]
    figure: gb.Figure | None
    note: str


def side_by_side(comparison: gb.Comparison) -> Sides:
    """Return the runs of a comparison side by side; run A is the first, and the others are judged if it judges them.

    The texts must be free of control characters: the template only escapes them."""
    summaries = [gb.Summary(run) for run in comparison.runs]
    heads = [gb.overview(summary) for summary in summaries]
    listed = [
        {(case.case_id, case.spread.devices): case for suite in gb.listing(summary) for case in suite.cases}
        for summary in summaries
    ]
    keys = list(dict.fromkeys(key for cases in listed for key in cases))
    anchors = Anchors(len({devices for _, devices in keys}) > 1)
    findings = [{finding.key: finding for finding in against.judgement.findings} for against in comparison.against]
    sides = tuple(_sides(comparison, heads))
    cells = partial(_cells, findings=findings)
    suites: dict[str, list[Row]] = {}
    for key in keys[:LINES]:
        cases = [cases.get(key) for cases in listed]
        suite, _, name = key[0].partition("/")
        anchor = anchors.case(*key)
        figures = [_RunFigure(*key, case.spread.figure, case.ended) if case else None for case in cases]
        row = Row(name, _device(key, anchors), anchor, link(anchor), tuple(cells(figures)))
        suites.setdefault(suite, []).append(row)
    return Sides(
        _title(comparison, heads),
        sides,
        tuple(map(_readable_difference, comparison.differences)),
        tuple(_judged(comparison, index, sides[index + 1]) for index in range(len(comparison.against))),
        tuple(
            Row(key[0], _device(key, anchors), "", link(anchors.case(first.case_id, key[1])), tuple(cells(figures)))
            for key, figures in _key_figures(heads).items()
            for first in [next(figure for figure in figures if figure)]
        ),
        tuple((name, suite_anchor(name), tuple(rows)) for name, rows in suites.items()),
        max(len(keys) - LINES, 0),
        f"{_JUDGED if comparison.against else _PLAIN} {_SHARES}",
    )


def _title(comparison: gb.Comparison, heads: Sequence[gb.Overview]) -> str:
    """Return the title: the candidates against the baseline if they are judged and named, else the devices."""
    baseline, *candidates = (column.name for column in comparison.columns)
    if comparison.against and baseline != gb.comparison.letter(0):
        return f"{', '.join(candidates)} against {baseline}"
    models = ", ".join(dict.fromkeys(device.partition(" (")[0] for head in heads for device in head.devices))
    return f"{len(comparison.columns)} runs: {models or 'no device'}"


def _sides(comparison: gb.Comparison, heads: Sequence[gb.Overview]) -> Iterator[Side]:
    for index, column in enumerate(comparison.columns):
        name = gb.comparison.letter(index), column.name
        if heads:
            head = heads[index]
            devices = head.devices or ("No device",)
            yield Side(*name, devices, head.conditions, trust_text(head), not head.doubts, head.notes)
        else:
            count = gb.units.count(column.results, "result")
            yield Side(*name, column.devices, tuple(filter(None, (column.started, count))))


def _readable_difference(difference: gb.comparison.Difference) -> gb.comparison.Difference:
    """Return a difference of the environment with its values in readable units: `128 GiB` instead of bytes."""
    values = [gb.units.fact(difference.name, value) for value in difference.values]
    return gb.comparison.Difference(min((name for name, _ in values), key=len), tuple(value for _, value in values))


def _key_figures(heads: Sequence[gb.Overview]) -> dict[_Key, list[_RunFigure | None]]:
    by_run = [{(value.title, value.devices): value for value in head.values} for head in heads]
    return {
        key: [
            _RunFigure(value.case_id, value.devices, value.figure, _of_data_sheet(value.of_spec)) if value else None
            for value in (values.get(key) for values in by_run)
        ]
        for key in dict.fromkeys(key for values in by_run for key in values)
    }


def _device(key: _Key, anchors: Anchors) -> str:
    """Return the devices of a row, joined by `+`; empty if all rows are of the same device set."""
    return "+".join(key[1]) if anchors.with_devices else ""


def _of_data_sheet(share: float | None) -> str:
    return f"{share_text(share)} of data sheet" if share is not None else ""


def _cells(figures: Sequence[_RunFigure | None], findings: Sequence[Mapping[_Key, gb.Finding]]) -> Iterator[Cell]:
    """Yield a cell for each run, an empty one for None; `findings` has the findings of each run after the first."""
    ids = {figure.case_id for figure in figures if figure}
    first = figures[0]
    for index, figure in enumerate(figures):
        if figure is None:
            yield Cell()
            continue
        note = "; ".join(filter(None, (figure.note, figure.case_id if len(ids) > 1 else "")))
        text = figure.figure.text if figure.figure else ""
        finding = findings[index - 1].get((figure.case_id, figure.devices)) if index and findings else None
        if finding is None or len(ids) > 1:
            yield Cell(text, note, _change_text(first, figure) if index else "")
            continue
        texts = gb.finding_cells(finding)
        change = texts.change if math.isfinite(finding.observed_change) else ""
        change += f" ({texts.interval})" if finding.effect else ""
        yield Cell(text, note, change, texts.verdict, STYLES[finding.verdict])


def _change_text(first: _RunFigure | None, later: _RunFigure) -> str:
    """Return the change of the median from the first run; empty if the two cannot be compared."""
    if first is None or first.figure is None or later.figure is None or first.case_id != later.case_id:
        return ""
    if first.figure.unit != later.figure.unit or not first.figure.interval.centre:
        return ""
    ratio = later.figure.interval.centre / first.figure.interval.centre - 1
    if not math.isfinite(ratio):
        return ""
    return f"{100 * ratio:+.1f} %" if abs(ratio) >= _SEEN else "0.0 %"


def _judged(comparison: gb.Comparison, index: int, side: Side) -> Judged:
    against = comparison.against[index]
    answer = gb.comparison.answer(against, side.letter)
    rows = finding_rows(against.judgement.findings, answer.reasons)
    listed = rows[: _MOST_ROWS // len(comparison.against)]
    return Judged(
        side,
        answer,
        (*answer.reasons, *gb.comparison.one_sided_cases(comparison, against)),
        tuple((f"{count} {verdict}", STYLES[verdict]) for verdict, count in against.judgement.counts().items()),
        tuple((mean, _MEAN_STYLES[mean.direction]) for mean in against.geomeans),
        tuple(changes(against.judgement.findings)),
        tuple(row for row in listed if row.finding.verdict != gb.Verdict.SAME),
        tuple(row for row in listed if row.finding.verdict == gb.Verdict.SAME),
        len(rows) - len(listed),
        against.tally,
    )


def finding_rows(findings: Sequence[gb.Finding], reasons: Sequence[str]) -> list[FindingRow]:
    """Return a row for each finding, in their order, which puts the worst first.

    An explanation is left empty if more than three rows share it and one of `reasons` ends with it."""
    with_devices = len({finding.devices for finding in findings}) > 1
    cells = [gb.finding_cells(finding) for finding in findings]
    counts = Counter(texts.explanation for texts in cells)
    repeated = {
        text for text, count in counts.items() if count > _MANY and any(reason.endswith(text) for reason in reasons)
    }
    return [
        FindingRow(
            finding,
            texts,
            STYLES[finding.verdict],
            "+".join(finding.devices) if with_devices else "",
            "" if texts.explanation in repeated else texts.explanation,
        )
        for finding, texts in zip(findings, cells, strict=True)
    ]
