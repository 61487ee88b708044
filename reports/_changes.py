"""Draw the changes between two runs as charts, with the 95 % confidence interval of each."""

import math
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from gpubench.api import report as gb

from . import _svg as svg
from ._charts import Chart

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
