"""Build what all forms of a comparison share: rows of texts, the mean of each suite, and charts of the changes."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from gpubench.api import report as gb

from . import _svg as svg
from ._charts import Chart

_MANY = 3  # findings: a reason that more of them share is written once, in the answer above them
_DRAWN = 12  # findings in a chart: one chart has the worst, another the best
_ROW, _TOP = 31.0, 6.0
_LEFT, _RIGHT = 12.0, svg.WIDTH - 12
_LEAST_REACH = 0.02  # the smallest extent of the axis on either side, so that noise does not fill the picture
STYLES = {
    gb.Verdict.SLOWER: "bad",
    gb.Verdict.INVALID: "warning",
    gb.Verdict.NOT_COMPARABLE: "warning",
    gb.Verdict.INCONCLUSIVE: "unsure",
    gb.Verdict.SUSPECT: "unsure",
    gb.Verdict.FASTER: "good",
    gb.Verdict.SAME: "unsure",
}


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """The verdict on one case as texts; `style` is a class of the style sheet.

    `device` is empty if all cases of the comparison are of one device set."""

    verdict: str
    style: str
    case: str
    device: str
    before: str
    after: str
    change: str
    interval: str
    threshold: str
    explanation: str


@dataclass(frozen=True, slots=True)
class SuiteMean:
    """The geometric mean of a suite's changes in `text`, and the number of decided cases in `cases`.

    An example of `cases` is `1 of 12 cases decided`."""

    name: str
    text: str
    cases: str
    style: str


def title(comparison: gb.Comparison) -> str:
    """Return the title of a comparison: the candidates, then the baseline, as in `new.jsonl against old.jsonl`."""
    baseline, *candidates = (column.name for column in comparison.columns)
    return f"{', '.join(candidates)} against {baseline}"


def column_text(column: gb.comparison.Column) -> str:
    """Return the description of a run in one line: `NVIDIA H200 · 2026-11-20 · 93 results`."""
    count = f"{column.results} result{'' if column.results == 1 else 's'}"
    return " · ".join(part for part in (", ".join(column.devices), column.started, count) if part)


def rows(against: gb.comparison.RunComparison, reasons: Sequence[str]) -> list[ComparisonRow]:
    """Return a row for each finding, in the order of the judgement, which puts the worst first.

    An explanation is left empty if more than three rows share it and one of `reasons` ends with it."""
    with_devices = len({finding.devices for finding in against.judgement.findings}) > 1
    all_rows = [_row(finding, with_devices) for finding in against.judgement.findings]
    counts = Counter(row.explanation for row in all_rows)
    in_answer = {text for text, count in counts.items() if count > _MANY and any(map(_ends_with(text), reasons))}
    return [replace(row, explanation="") if row.explanation in in_answer else row for row in all_rows]


def _ends_with(ending: str) -> Callable[[str], bool]:
    """Return a function that tells whether a line ends with the text `ending`."""
    return lambda line: line.endswith(ending)


def _row(finding: gb.Finding, with_devices: bool) -> ComparisonRow:
    """Return a finding as texts; the device is empty unless `with_devices`."""
    texts = gb.finding_cells(finding)
    return ComparisonRow(
        texts.verdict,
        STYLES[finding.verdict],
        finding.case.id,
        "+".join(finding.devices) if with_devices else "",
        texts.before,
        texts.after,
        texts.change,
        texts.interval,
        texts.threshold,
        texts.explanation,
    )


def suites(against: gb.comparison.RunComparison) -> list[SuiteMean]:
    """Return the geometric mean of the changes of each suite.

    Its style is `good` or `bad` only if the decided changes of single cases have the same direction, else `unsure`."""
    styles = {1: "good", 0: "unsure", -1: "bad"}
    return [SuiteMean(mean.suite, mean.text, mean.counts, styles[mean.direction]) for mean in against.geomeans]


def changes(against: gb.comparison.RunComparison) -> list[Chart]:
    """Return charts of all changes except those with the verdict `same`, in the order of the table.

    Up to twelve changes fill one chart."""
    changed = [finding for finding in against.judgement.findings if finding.verdict is not gb.Verdict.SAME]
    drawable = [finding for finding in changed if gb.comparison.ratio(finding) > 0]
    if len(drawable) <= _DRAWN:
        parts = [("Changes, in the order of the table", drawable)] if drawable else []
    else:
        last = drawable[-min(_DRAWN, len(drawable) - _DRAWN) :][::-1]
        first = drawable[:_DRAWN]
        parts = [("Changes, in the order of the table", first), ("Changes, at the end of the table", last)]
    ends = [end for _, findings in parts for finding in findings for end in _ends(finding)]
    reach = max(*map(_compressed, map(abs, ends)), _LEAST_REACH, 0.0) * 1.08
    return [_chart(title, findings, reach) for title, findings in parts]


def _chart(title: str, findings: Sequence[gb.Finding], reach: float) -> Chart:
    height = _TOP + _ROW * len(findings) + 26
    parts = [*_axis(reach, height), *(_draw_finding(finding, row, reach) for row, finding in enumerate(findings))]
    description = "; ".join(
        f"{finding.case.id} {finding.verdict} {gb.finding_cells(finding).change}" for finding in findings
    )
    note = "change of the figure, worse to the left; line: 95 % confidence interval; ring: no interval"
    return Chart(title, note, svg.picture(f"{title}: {description}", height, *parts))


def _better(finding: gb.Finding) -> float:
    """Return the change as a fraction; it is positive if the figure became better."""
    return finding.observed_change if finding.better == "more" else -finding.observed_change


def _ends(finding: gb.Finding) -> tuple[float, float]:
    """Return both ends of the change's 95 % interval as fractions of the baseline, positive for an improvement."""
    if not finding.effect:
        return _better(finding), _better(finding)
    low, high = finding.bounds
    return (low, high) if finding.better == "more" else (-high, -low)


def _compressed(size: float) -> float:
    """Return sign(size) · ln(1 + |size|): the place of a change (a fraction) on an axis that compresses large ones."""
    return math.copysign(math.log1p(abs(size)), size)


def _x(size: float, reach: float) -> float:
    """Return the x, in drawing units, of a change given as a fraction; the axis goes from -`reach` to `reach`."""
    return _LEFT + (_compressed(size) + reach) / (2 * reach) * (_RIGHT - _LEFT)


def _axis(reach: float, height: float) -> Iterator[Markup]:
    """Yield the vertical lines and the labels of the axis of changes, which goes from -`reach` to `reach`."""
    bottom = height - 22
    for value in _ticks(reach):
        x = _x(value, reach)
        yield svg.line(x, _TOP, x, bottom, "axis" if value == 0 else "grid")
        anchor = "start" if x < _LEFT + 30 else "end" if x > _RIGHT - 30 else "middle"
        side = "worse" if value < 0 else "better"
        yield svg.text(x, bottom + 15, f"{abs(value) * 100:g} % {side}" if value else "no change", anchor)


def _ticks(reach: float) -> list[float]:
    """Return the ticks as fractions: zero, and one or two round percentages on either side, up to `reach`."""
    steps = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0, 9.0)
    step = next((step for step in steps if math.log1p(step) * 2.5 > reach), steps[-1])
    return [value for value in (-step * 2, -step, 0.0, step, step * 2) if math.log1p(abs(value)) <= reach]


def _draw_finding(finding: gb.Finding, row: int, reach: float) -> Markup:
    """Draw a finding in row `row`, counted from 0: the case, the change as text, its 95 % interval, and a dot."""
    y = _TOP + _ROW * row
    style = STYLES[finding.verdict]
    texts = gb.finding_cells(finding)
    tooltip = f"{finding.case.id}: {texts.verdict}, {texts.change} ({texts.interval})"
    parts = [
        svg.text(_LEFT, y + 10, svg.shorten(finding.case.id, 46), class_="named"),
        svg.text(_RIGHT, y + 10, texts.change, "end", "named"),
    ]
    if finding.effect:
        low, high = (_x(end, reach) for end in _ends(finding))
        parts.append(svg.line(low, y + 19, high, y + 19, f"effect {style}"))
    parts.append(
        svg.dot(
            _x(_better(finding), reach), y + 19, 3.6, f"effect {style}" + ("" if finding.effect else " open"), tooltip
        )
    )
    return svg.join(parts)
