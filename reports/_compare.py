"""A comparison as every form of it shows it: rows of words, what they add up to, and a drawing of the effects."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from gpubench.api.report import Against, Column, Comparison, Finding, Verdict
from gpubench.api.report import comparison as comparing

from . import _svg as svg
from ._charts import Chart

_MANY = 3  # findings: a reason of more stands once, above them
_DRAWN = 12  # of the worst and of the best
_ROW, _TOP = 31.0, 6.0
_LEFT, _RIGHT = 12.0, svg.WIDTH - 12
_LEAST_REACH = 0.02  # of the axis on either side, on logarithms: noise does not fill the picture
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


def rows(against: Against) -> list[Row]:
    """Every finding, the worst first; a reason that many share stands in `shared_reasons` instead."""
    devices = len({finding.devices for finding in against.judgement.findings}) > 1
    found = [_row(finding, devices) for finding in against.judgement.findings]
    shared = _shared(found)
    return [replace(row, why="") if (row.verdict, row.why) in shared else row for row in found]


def shared_reasons(against: Against) -> list[str]:
    """The reasons that many findings share, each once: `84 inconclusive: …`."""
    found = _shared([_row(finding, False) for finding in against.judgement.findings])
    return [f"{count} {verdict}: {why}" for (verdict, why), count in found.items()]


def _shared(found: Sequence[Row]) -> dict[tuple[str, str], int]:
    counts = Counter((row.verdict, row.why) for row in found if row.why)
    return {reason: count for reason, count in counts.items() if count > _MANY}


def _row(finding: Finding, devices: bool) -> Row:
    words = comparing.words(finding)
    return Row(
        str(finding.verdict),
        STYLES[finding.verdict],
        finding.case.id,
        "+".join(finding.devices) if devices else "",
        words.before,
        words.after,
        words.change,
        words.interval,
        words.why,
    )


def suites(against: Against) -> list[Suite]:
    """The geometric mean of each suite, in words."""
    return [
        Suite(
            mean.suite,
            comparing.times_words(mean.ratio),
            f"{mean.cases} case{'' if mean.cases == 1 else 's'}",
            "good" if mean.ratio > 1.01 else "bad" if mean.ratio < 0.99 else "unsure",
        )
        for mean in against.geomeans
    ]


def effects(against: Against) -> list[Chart]:
    """The worst and the best cases with their intervals, on one axis; nothing where all are the same."""
    told = [finding for finding in against.judgement.findings if finding.verdict is not Verdict.SAME]
    known = sorted((each for each in told if comparing.ratio(each) > 0), key=comparing.ratio)
    if len(known) <= _DRAWN:
        parts = [("Effects", known)] if known else []
    else:
        best = known[-min(_DRAWN, len(known) - _DRAWN) :][::-1]
        parts = [("The worst", known[:_DRAWN]), ("The best", best)]
    ends = [end for _, found in parts for finding in found for end in _ends(finding)]
    reach = max(*map(abs, ends), _LEAST_REACH, 0.0) * 1.08
    return [_chart(title, found, reach) for title, found in parts]


def _chart(title: str, shown: Sequence[Finding], reach: float) -> Chart:
    height = _TOP + _ROW * len(shown) + 26
    parts = [*_axis(reach, height), *(_drawn(finding, row, reach) for row, finding in enumerate(shown))]
    words = "; ".join(f"{each.case.id} {comparing.times_words(comparing.ratio(each))}" for each in shown)
    note = "how many times as good, worse to the left; a line is the 95 % interval, a ring was not weighed"
    return Chart(title, note, svg.picture(f"{title}: {words}", height, *parts))


def _ends(finding: Finding) -> tuple[float, float]:
    """The interval on logarithms, better to the right."""
    if finding.effect:
        return -finding.effect.high, -finding.effect.low
    here = math.log(comparing.ratio(finding))
    return here, here


def _x(value: float, reach: float) -> float:
    return _LEFT + (value + reach) / (2 * reach) * (_RIGHT - _LEFT)


def _axis(reach: float, height: float) -> Iterator[Markup]:
    bottom = height - 22
    for value in _ticks(reach):
        x = _x(math.log1p(value), reach)
        yield svg.line(x, _TOP, x, bottom, "axis" if value == 0 else "grid")
        anchor = "start" if x < _LEFT + 14 else "end" if x > _RIGHT - 14 else "middle"
        yield svg.text(
            x, bottom + 15, f"{value:+.1%}".replace("-", "−").replace("%", " %") if value else "same", anchor
        )


def _ticks(reach: float) -> list[float]:
    """Round percentages on both sides: as many as there is room for."""
    steps = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0, 9.0)
    step = next((step for step in steps if math.log1p(step) * 2.5 > reach), steps[-1])
    found = [-step * 2, -step, 0.0, step, step * 2]
    return [value for value in found if value > -0.95 and abs(math.log1p(value)) <= reach]


def _drawn(finding: Finding, row: int, reach: float) -> Markup:
    y = _TOP + _ROW * row
    place = _x(math.log(comparing.ratio(finding)), reach)
    style = STYLES[finding.verdict]
    said = comparing.words(finding)
    words = f"{finding.case.id}: {finding.verdict}, {said.change} ({said.interval})"
    parts = [svg.text(_LEFT, y + 10, svg.shorten(finding.case.id, 64), class_="named")]
    if finding.effect:
        low, high = (_x(end, reach) for end in _ends(finding))
        parts.append(svg.line(low, y + 19, high, y + 19, f"effect {style}"))
    parts.append(svg.dot(place, y + 19, 3.6, f"effect {style}" + ("" if finding.effect else " open"), words))
    return svg.join(parts)
