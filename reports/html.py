"""Write a run as one self-contained web page: no network, light and dark, readable without script and in print."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from markupsafe import Markup

from gpubench.api import report as gb

from . import _svg as svg
from ._charts import Chart
from ._fleet_page import fleet_page
from ._page import count_text, page
from ._sides import side_by_side
from ._svg import Axis, axis
from ._web import read_files, web_page

_WIDTH, _HEIGHT = 760.0, 250.0
_LEFT, _TOP, _BOTTOM = 34.0, 22.0, _HEIGHT - 30
_MOST_DOTS = 150  # the most dots; more would merge into a band
_MOST_TICKS = 6
_MINUTE, _DAY = "%Y-%m-%d %H:%M", "%Y-%m-%d"


def trend_page(trends: Sequence[gb.Trend]) -> dict[str, Any]:
    """Return the values of a page of trends and the functions that write them; each trend must have a run."""
    only = trends[0].line.case if len(trends) == 1 else f"{len(trends)} series"
    return {
        "title": f"History of {only}",
        "blocks": [(trend, _chart(trend), _newest_event(trend)) for trend in trends],
        "time": _time_of,
        "quantity": gb.units.quantity,
        "interval": lambda ends, unit: gb.units.interval(ends.low, ends.high, unit, ends.centre),
        "file": lambda path: PurePath(path).name,
    }


def _newest_event(trend: gb.Trend) -> tuple[str, str]:
    event = trend.newest_event
    if event is None:
        return trend.state, "quiet"
    return f"{event.noted_text} from {_time_of(trend, event.start)}", "bad" if event.is_worse else "good"


def _time_of(trend: gb.Trend, index: int) -> str:
    return gb.units.utc(trend.moments[index].source.at, _MINUTE)


def _chart(trend: gb.Trend) -> Chart:
    """Return the drawing of a series over its runs: medians, 95 % intervals, steps, and levels if it has changed."""
    line, moments = trend.line, trend.moments
    ends = [end for moment in moments for end in (moment.interval.low, moment.interval.high)]
    up = axis(ends, line.unit, _BOTTOM, _TOP, zero=False)
    across = _runs_axis(trend, _WIDTH - svg.left_of(up))
    parts = [_frame(across, up)]
    steps = [across.place(change.index - 0.5) for change in trend.changes]  # half way between two runs
    parts += [svg.line(x, _TOP, x, _BOTTOM, "change") for x in steps]
    parts += _intervals(trend, across, up)
    parts += [svg.polyline([(across.place(x), up.place(y)) for x, y in enumerate(trend.values)], "line c0")]
    ends_of_levels = [(level.start, level.end, level.first, level.last) for level in trend.levels]
    parts += [_level(*ends, across, up) for ends in ends_of_levels if trend.changes or trend.drifts or trend.states]
    parts += _dots(trend, across, up)
    span = f"{len(moments)} runs from {_time_of(trend, 0)} to {_time_of(trend, -1)}"
    newest = gb.units.quantity(trend.values[-1], line.unit)
    note = "one point per run, in order of time (UTC): the median and, where large enough to see, its 95 % interval"
    description = f"{line.case}: {span}, newest {newest}; {_counts(trend)}"
    return Chart(f"newest {newest}", note, svg.picture(description, _HEIGHT, *parts, width=_WIDTH))


def _frame(across: Axis, up: Axis) -> Markup:
    end = across.end + 10
    parts = [svg.line(_LEFT - 10, up.place(value), end, up.place(value), "grid") for value, _ in up.ticks]
    parts += [svg.text(end + 6, up.place(value) + 4, label) for value, label in up.ticks]
    parts += [svg.line(_LEFT - 10, up.start, end, up.start, "axis"), svg.text(end + 6, 11.0, up.unit, "start", "name")]
    for value, label in across.ticks:
        x = across.place(value)
        anchor, shift = ("start", 12 - x) if x < _LEFT + 8 else ("middle", 0.0)  # the first date is not cut off
        parts += [svg.line(x, up.start, x, up.start + 4, "axis"), svg.text(x + shift, up.start + 17, label, anchor)]
    return svg.join(parts)


def _runs_axis(trend: gb.Trend, right: float) -> Axis:
    """Return the x axis, on which the runs have equal distances, up to the x `right`; at most seven dates are ticks."""
    moments = trend.moments
    last = len(moments) - 1
    stride = max(-(-last // _MOST_TICKS), 1)
    one_day = gb.units.utc(moments[0].source.at, _DAY) == gb.units.utc(moments[-1].source.at, _DAY)
    places = range(0, last + 1, stride)
    form = "%H:%M" if one_day else _DAY
    ticks = tuple((float(place), gb.units.utc(moments[place].source.at, form)) for place in places)
    return Axis(0.0, max(float(last), 1.0), _LEFT, right - 10, False, ticks, "")


def _intervals(trend: gb.Trend, across: Axis, up: Axis) -> Iterator[Markup]:
    """Yield a line over each run's 95 % interval that is taller than 5 drawing units; none for more than 150 runs."""
    for x, moment in enumerate(trend.moments if len(trend.moments) <= _MOST_DOTS else ()):
        low, high = up.place(moment.interval.low), up.place(moment.interval.high)
        if low - high > 5:
            yield svg.line(across.place(x), low, across.place(x), high, "spread")


def _level(start: int, end: int, first: float, last: float, across: Axis, up: Axis) -> Markup:
    """Draw a level, or a drift from the value `first` to `last`, over the runs from `start` up to but without `end`."""
    return svg.line(across.place(start - 0.4), up.place(first), across.place(end - 0.6), up.place(last), "level")


def _counts(trend: gb.Trend) -> str:
    """Return the numbers of steps and drifts as text: `1 step, 0 drifts`."""
    return f"{count_text(len(trend.changes), 'step')}, {count_text(len(trend.drifts), 'drift')}"


def _dots(trend: gb.Trend, across: Axis, up: Axis) -> Iterator[Markup]:
    """Yield a dot for each run; of more than 150 runs, only for the first run after each step."""
    marked = {change.index: "bad" if change.is_worse else "good" for change in trend.changes}
    for x, moment in enumerate(trend.moments):
        if x in marked or len(trend.moments) <= _MOST_DOTS:
            tooltip = f"{_time_of(trend, x)}: {gb.units.quantity(moment.value, trend.line.unit)}"
            radius, judged = (4.2, f"mark {marked[x]}") if x in marked else (2.6, "c0")
            yield svg.dot(across.place(x), up.place(moment.value), radius, judged, tooltip)


def site_page(site: gb.Site) -> dict[str, Any]:
    """Return the values of the index of a site; the runs of a device must be in order, the newest first.

    The texts of the site must be free of control characters: the template only escapes them."""
    count = sum(len(device.runs) for device in site.devices)
    models = f"{len(site.devices)} models of device" if len(site.devices) != 1 else site.devices[0].name
    spans = [(device.runs[-1].run.date, device.runs[0].run.date) for device in site.devices]
    leads = [oldest if oldest == newest else f"{oldest} to {newest}" for oldest, newest in spans]
    return {
        "title": f"{count_text(count, 'run')} on {models}" if count else "No runs",
        "devices": [
            (
                device,
                f"{count_text(len(device.runs), 'run')}, {lead}",
                [(listed, dict(listed.run.figures)) for listed in device.runs],
            )
            for device, lead in zip(site.devices, leads, strict=True)
        ],
        "refused": site.refused,
    }


def catalogue_page(catalogue: gb.CataloguePage) -> dict[str, Any]:
    """Return the values of a page of the catalogue: each row with its figures, its runs and its method as texts.

    On the page of a case, a strip has a dot and an interval for each run with the newest version of the case."""
    rows = []
    for row in catalogue.rows:
        newest = row.figures[0][2]
        alike = [entry for entry in row.figures if (entry[2].unit, entry[2].version) == (newest.unit, newest.version)]
        values = [figure.median for *_, figure in alike]
        samples = sum(figure.samples for *_, figure in alike)
        method = f"{newest.series}, {newest.better} is better, version {newest.version}, {samples} samples"
        numbers = [gb.units.quantity(of(values), newest.unit) for of in (statistics.median, min, max)]
        runs = [(page, f"{date}: {gb.units.quantity(figure.median, newest.unit)}") for date, page, figure in alike]
        strip = _strip([(figure.low, figure.median, figure.high) for *_, figure in alike]) if catalogue.is_case else ""
        rows.append((row, numbers, method, runs, strip))
    suites = {row.figures[0][2].suite for row in catalogue.rows}
    lead = suites.pop() if len(suites) == 1 else ""
    return {"title": catalogue.title, "rows": rows, "lead": lead, "is_case": catalogue.is_case}


def _strip(intervals: Sequence[tuple[float, float, float]]) -> Markup:
    """Draw the 95 % intervals of runs, each the low end, the median and the high end, on one line."""
    across = axis([end for low, _, high in intervals for end in (low, high)], "", 6.0, 234.0, zero=False)
    lines = [f"M{across.place(low):.0f} 10H{across.place(high):.0f}" for low, _, high in intervals]
    dots = [f"M{across.place(median):.0f} 10h0" for _, median, _ in intervals]
    return Markup('<svg viewBox="0 0 240 20"><path d="{}"/><path d="{}"/></svg>').format("".join(lines), "".join(dots))


@dataclass(frozen=True, slots=True)
class HtmlReport:
    """Writes pages.

    The security policy of a page allows its own style sheet and scripts, by their hashes, and nothing else."""

    summary: str = "one self-contained web page with charts, tables and counters over time"

    def render(self, run: gb.Run) -> str:
        """Return the page of a run."""
        return _render_page(page(run))

    def enclose(self, run: gb.Run, enclosure: gb.Enclosure) -> str:
        """Return the page of a run that carries its results for download."""
        return _render_page(page(run, enclosure))

    def trends(self, trends: Sequence[gb.Trend]) -> str:
        """Return the page of trends: each series over its runs, with its changes."""
        return web_page("trend.html", "html.css", "trend.css", page=trend_page(trends))

    def compare(self, comparison: gb.Comparison) -> str:
        """Return the page that shows several runs side by side."""
        return web_page("sides.html", "html.css", "sides.css", scripts=("page.js",), page=side_by_side(comparison))

    def index(self, site: gb.Site) -> str:
        """Return the page that lists the runs of a site."""
        return web_page("site.html", linked="site.css", page=site_page(site))

    def catalogue(self, page: gb.CataloguePage) -> str:
        """Return the page of a card with its cases, or of a case with its cards."""
        return web_page("catalogue.html", linked="../site.css", page=catalogue_page(page))

    def style(self) -> str:
        """Return the style sheet of the index and of the catalogue, `site.css`."""
        return read_files(("html.css", "site.css"))

    def fleet(self, judgement: gb.FleetJudgement) -> str:
        """Return the page of a fleet's judgement."""
        return web_page("fleet.html", "html.css", "fleet.css", scripts=("fleet.js",), page=fleet_page(judgement))


def _render_page(content: dict[str, Any]) -> str:
    zoom = ("uplot.LICENSE", "uplot.js") if content["zoom"] else ()
    sheets = ("html.css", "uplot.css") if content["zoom"] else ("html.css",)
    scripts = (*zoom, "page.js", *(["zoom.js"] if content["zoom"] else []))
    return web_page("html.html", *sheets, scripts=scripts, page=content)


report = HtmlReport()
