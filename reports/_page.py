"""Collect the values that the template of a run's page shows: texts and drawings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpubench.api import report as gb

from ._amortisation import amortisation
from ._blocks import Blocks
from ._cases import heads
from ._charts import FEWEST_POINTS, Chart, bars, curve, pareto
from ._environment import environment, environment_text
from ._matrix import matrix
from ._payoffs import breakeven
from ._results import results
from ._roofline import rooflines
from ._room import room_for
from ._serving import served
from ._staircase import staircase
from ._texts import Notice, counts_by_level, legend_text, measured, notices
from ._timeline import timelines
from ._transfers import transfer
from ._verdict import head, suite_anchor
from ._web import packed

_DRAW: dict[str, Callable[[gb.Summary, str, gb.View], list[Chart]]] = {
    "curve": curve,
    "bars": bars,
    "matrix": matrix,
    "pareto": pareto,
    "staircase": staircase,
    "transfer": transfer,
    "breakeven": breakeven,
    "serving": served,
    "amortisation": amortisation,
}
_TOPICS = ("phases", "links", "soak")
_OPEN_CHARTS = 2  # the open charts of a suite: the others are folded away


@dataclass(frozen=True, slots=True)
class Fold:
    """Charts that stand open, and charts that are folded away under a line with their titles."""

    shown: tuple[Chart, ...]
    folded: tuple[Chart, ...]

    @property
    def names(self) -> str:
        """The titles of the folded charts, each once."""
        return ", ".join(dict.fromkeys(chart.title for chart in self.folded))


def page(run: gb.Run, enclosure: gb.Enclosure | None = None) -> dict[str, Any]:
    """Return the content of the page of a run; with an enclosure it also holds the results for download.

    Without one (None), the page offers no download."""
    summary = gb.Summary(run)
    spreads = summary.spreads()
    room = room_for(spreads)
    drawn, blocks = timelines(summary), Blocks(summary, room)
    by_topic = {topic: tuple(table for table in gb.tables(summary) if table.topic == topic) for topic in _TOPICS}
    all_notices = [
        *notices(summary, [spread.row for spread in spreads]),
        *([Notice("note", room.left_out)] if room.left_out else []),
    ]
    names = ", ".join(dict.fromkeys(device.name for device in measured(summary))) or "no device"
    tables = blocks.tables()
    return {
        "title": ", ".join(part for part in (names, run.manifest.started[:10]) if part),
        "index": enclosure.index if enclosure else "",
        "head": head(summary),
        "notices": tuple(all_notices),
        "counts_by_level": counts_by_level(all_notices),
        "has_errors": any(notice.level == "error" for notice in all_notices),
        "suites": tuple(_suite(summary, name, table) for name, table in tables.items()),
        "phases": by_topic["phases"],
        "rooflines": tuple(rooflines(summary)),
        "links": by_topic["links"],
        "soak": by_topic["soak"],
        "timelines": [
            (timeline, _fold(timeline.charts, 0 if index else _OPEN_CHARTS))
            for index, timeline in enumerate(drawn.devices)
        ],
        "zoom": packed(drawn.zoom) if drawn.zoom else "",
        "thinned": drawn.thinned,
        "details": packed(blocks.packed) if blocks.packed else "",
        "results": results(summary, enclosure) if enclosure else None,
        "environment": tuple(environment(run)),
        "environment_text": environment_text(run),
        "heads": heads(summary),
        "legend": legend_text(summary),
    }


def _suite(summary: gb.Summary, name: str, table: dict[str, Any]) -> dict[str, Any]:
    """Return the section of a suite; `undrawn` are sentences on why views have no chart."""
    info = next((info for info in summary.run.manifest.suites if info.name == name), None)
    views = sorted(info.views if info else (), key=lambda view: _is_of_host(summary, name, view))
    drawn = [(view, draw(summary, name, view)) for view in views]
    undrawn = [view for view, charts in drawn if not charts]
    return {
        "name": name,
        "anchor": suite_anchor(name),
        "summary": info.summary if info else "",
        "charts": _fold([chart for _, charts in drawn for chart in charts], _OPEN_CHARTS),
        "undrawn": _undrawn(summary, name, undrawn),
        "undrawn_count": len(undrawn),
        "table": table,
    }


def _is_of_host(summary: gb.Summary, suite: str, view: gb.View) -> bool:
    """Return True if the results of a view used the host processor and no other device."""
    timed = [result for result in summary.results_of(suite) if result.case.name in view.cases and result.devices]
    used = {device for result in timed for device in map(summary.device, result.devices)}
    return bool(used) and all(device is not None and device.backend == "host" for device in used)


def _fold(charts: Sequence[Chart], open_count: int) -> Fold:
    """Return the charts with the first `open_count` open, the others folded away."""
    count = 1 if open_count and charts and charts[0].full else open_count
    return Fold(tuple(charts[:count]), tuple(charts[count:]))


def draw(summary: gb.Summary, suite: str, view: gb.View) -> list[Chart]:
    """Return the charts of a view; an empty list if its kind is unknown or it has too few points."""
    kind = _DRAW.get(view.kind)
    return kind(summary, suite, view) if kind else []


def _undrawn(summary: gb.Summary, suite: str, views: Sequence[gb.View]) -> list[str]:
    """Return sentences with the titles of `views`."""
    too_few = [view.title for view in views if gb.view_points(summary, suite, view, view.series)]
    unmeasured = [view.title for view in views if view.title not in too_few]
    sentences = (
        [f"Fewer than {FEWEST_POINTS} points, so no chart: {', '.join(dict.fromkeys(too_few))}."] if too_few else []
    )
    return sentences + ([f"Nothing measured for: {', '.join(dict.fromkeys(unmeasured))}."] if unmeasured else [])
