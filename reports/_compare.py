"""A comparison as every form of it shows it: rows of words, what they add up to, and a drawing of the changes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from gpubench.api.report import Against, Answer, Column, Comparison, Finding, Verdict, change, finding_words
from gpubench.api.report import comparison as comparing

from . import _svg as svg
from ._charts import Chart

_MANY = 3  # findings: a reason of more stands once, above them
_DRAWN = 12  # of the worst and of the best
_ROW, _TOP = 31.0, 6.0
_LEFT, _RIGHT = 12.0, svg.WIDTH - 12
_LEAST_REACH = 0.02  # of the axis on either side: noise does not fill the picture
STYLES = {
    Verdict.SLOWER: "bad",
    Verdict.INVALID: "odd",
    Verdict.NOT_COMPARABLE: "odd",
    Verdict.INCONCLUSIVE: "unsure",
    Verdict.SUSPECT: "unsure",
    Verdict.FASTER: "good",
    Verdict.SAME: "unsure",
}


@dataclass(frozen=True, slots=True)
class Row:
    """A finding in words; `style` is a class of the style sheet."""

    verdict: str
    style: str
    case: str
    device: str
    before: str
    after: str
    change: str
    interval: str
    threshold: str
    why: str


@dataclass(frozen=True, slots=True)
class Suite:
    """What a suite's cases add up to."""

    name: str
    words: str
    cases: str
    style: str


def title(comparison: Comparison) -> str:
    """`now against before`."""
    first, *others = (column.name for column in comparison.columns)
    return f"{', '.join(others)} against {first}"


def column_words(column: Column) -> str:
    """`NVIDIA H200 · 2026-11-20 · 93 results`."""
    count = f"{column.results} result{'' if column.results == 1 else 's'}"
    return " · ".join(word for word in (", ".join(column.devices), column.started, count) if word)


def rows(against: Against, answer: Answer) -> list[Row]:
    """Return every finding, the worst first; a reason that many share stands in the answer instead."""
    devices = len({finding.devices for finding in against.judgement.findings}) > 1
    found = [_row(finding, devices) for finding in against.judgement.findings]
    counts = Counter(row.why for row in found)
    said = {why for why, count in counts.items() if count > _MANY and any(map(_ends_with(why), answer.why))}
    return [replace(row, why="") if row.why in said else row for row in found]


def _ends_with(words: str) -> Callable[[str], bool]:
    return lambda line: line.endswith(words)


def _row(finding: Finding, devices: bool) -> Row:
    words = finding_words(finding)
    return Row(
        words.verdict,
        STYLES[finding.verdict],
        finding.case.id,
        "+".join(finding.devices) if devices else "",
        words.before,
        words.after,
        words.change,
        words.interval,
        words.threshold,
        words.why,
    )


def suites(against: Against) -> list[Suite]:
    """Return the geometric mean of each suite, in words; it has a colour only if the decided changes go its way."""
    styles = {1: "good", 0: "unsure", -1: "bad"}
    return [Suite(mean.suite, mean.words, mean.counts, styles[mean.direction]) for mean in against.geomeans]


def changes(against: Against) -> list[Chart]:
    """Return drawings of the changes with their intervals, in the order of the table, without what is the same."""
    told = [finding for finding in against.judgement.findings if finding.verdict is not Verdict.SAME]
    known = [each for each in told if comparing.ratio(each) > 0]
    if len(known) <= _DRAWN:
        parts = [("Changes, in the order of the table", known)] if known else []
    else:
        rest = known[-min(_DRAWN, len(known) - _DRAWN) :][::-1]
        parts = [("Changes, in the order of the table", known[:_DRAWN]), ("Changes, from the end of the table", rest)]
    ends = [end for _, found in parts for finding in found for end in _ends(finding)]
    reach = max(*map(_spread, map(abs, ends)), _LEAST_REACH, 0.0) * 1.08
    return [_chart(title, found, reach) for title, found in parts]


def _chart(title: str, shown: Sequence[Finding], reach: float) -> Chart:
    height = _TOP + _ROW * len(shown) + 26
    parts = [*_axis(reach, height), *(_drawn(finding, row, reach) for row, finding in enumerate(shown))]
    words = "; ".join(f"{each.case.id} {each.verdict} {finding_words(each).change}" for each in shown)
    note = "change of the figure, worse to the left; a line is the 95 % interval, a ring has no interval"
    return Chart(title, note, svg.picture(f"{title}: {words}", height, *parts))


def _better(finding: Finding) -> float:
    """Return the change as the table shows it, turned so that more is better."""
    return change(finding) if finding.better == "more" else -change(finding)


def _ends(finding: Finding) -> tuple[float, float]:
    """Return the ends of the interval as the table shows them, turned so that more is better."""
    if not finding.effect:
        return _better(finding), _better(finding)
    low, high = finding.bounds
    return (low, high) if finding.better == "more" else (-high, -low)


def _spread(size: float) -> float:
    """Return where a change stands on the axis, on which large changes are drawn together."""
    return math.copysign(math.log1p(abs(size)), size)


def _x(size: float, reach: float) -> float:
    return _LEFT + (_spread(size) + reach) / (2 * reach) * (_RIGHT - _LEFT)


def _axis(reach: float, height: float) -> Iterator[Markup]:
    bottom = height - 22
    for value in _ticks(reach):
        x = _x(value, reach)
        yield svg.line(x, _TOP, x, bottom, "axis" if value == 0 else "grid")
        anchor = "start" if x < _LEFT + 30 else "end" if x > _RIGHT - 30 else "middle"
        side = "worse" if value < 0 else "better"
        yield svg.text(x, bottom + 15, f"{abs(value) * 100:g} % {side}" if value else "no change", anchor)


def _ticks(reach: float) -> list[float]:
    """Round percentages on both sides: as many as there is room for."""
    steps = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0, 9.0)
    step = next((step for step in steps if math.log1p(step) * 2.5 > reach), steps[-1])
    return [value for value in (-step * 2, -step, 0.0, step, step * 2) if math.log1p(abs(value)) <= reach]


def _drawn(finding: Finding, row: int, reach: float) -> Markup:
    y = _TOP + _ROW * row
    style = STYLES[finding.verdict]
    said = finding_words(finding)
    words = f"{finding.case.id}: {said.verdict}, {said.change} ({said.interval})"
    parts = [
        svg.text(_LEFT, y + 10, svg.shorten(finding.case.id, 46), class_="named"),
        svg.text(_RIGHT, y + 10, said.change, "end", "named"),
    ]
    if finding.effect:
        low, high = (_x(end, reach) for end in _ends(finding))
        parts.append(svg.line(low, y + 19, high, y + 19, f"effect {style}"))
    parts.append(
        svg.dot(
            _x(_better(finding), reach), y + 19, 3.6, f"effect {style}" + ("" if finding.effect else " open"), words
        )
    )
    return svg.join(parts)
