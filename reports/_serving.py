"""Show the serving capacity of language models: a chart of first-token latency over query rate, and records."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from gpubench.api import report as gb

from . import _svg as svg
from ._charts import BOTTOM, HEIGHT, TOP, Chart, legend_of
from ._ticks import Axis, axis

_RIGHT = svg.WIDTH - 26

Line = list[tuple[float, float]]


def served(summary: gb.Summary, suite: str, view: gb.View) -> list[Chart]:
    """Return the chart of a serving view in a list: the simulated p99 of the first-token latency over the query rate.

    Each model has a line; a rate with too few queries for a p99 has no point. The list is empty if no rate has one."""
    models = gb.served_of(summary, suite, view)
    lines = [[(point.rate, point.first_token_s[1]) for point in model.points] for model in models]
    drawn = [[(rate, seconds) for rate, seconds in line if seconds] for line in lines]
    if not any(drawn):
        return []
    limits = [objectives.first_token_s for objectives in gb.OBJECTIVES]
    up = axis([seconds for line in drawn for _, seconds in line] + limits, "s", BOTTOM, TOP, log=True, room=1.3)
    across = axis([rate for line in drawn for rate, _ in line], "query/s", svg.left_of(up), _RIGHT)
    parts = [svg.frame(across, up, "rate of queries", "p99 of the first token"), *_limit_lines(across, up)]
    parts += [_line(line, svg.colour(index), across, up) for index, line in enumerate(drawn)]
    highest_rates = "; ".join(map(_highest_rate_text, models))
    drawing = svg.picture(f"{view.title}: {highest_rates}", HEIGHT, *parts)
    legend = legend_of([", ".join((model.label, *model.devices)) for model in models])
    tables = (*gb.serving_tables(models), *gb.energy_tables(gb.energies_of(summary, suite, view)))
    return [Chart(view.title, highest_rates, drawing, legend, tables, full=True)]


def serving_record(model: gb.Serving) -> dict[str, Any]:
    """Return the record of a model: the highest rate (query/s) within each objective, and its measured sessions.

    `highest_rates` maps the name of the objectives to the rate, None if no rate meets them."""
    return {
        "view": model.title,
        "label": model.label,
        "devices": list(model.devices),
        "prompt": model.load.prompt,
        "output": model.load.output,
        "highest_rates": {objectives.name: point.rate if point else None for objectives, point in model.knees},
        "sessions": [_session_record(session) for session in model.sessions],
    }


def _session_record(session: gb.SessionCheck) -> dict[str, Any]:
    """Return the record of a measured session, with `p50` and `p99` in seconds; `p99` is None for too few queries."""
    percentiles = {"p50": session.p50, "p99": session.p99}
    records = {name: _percentile_record(value) if value else None for name, value in percentiles.items()}
    return {"case": session.case, "queries": session.queries, "time": session.time, **records}


def _percentile_record(percentile: gb.SimulatedPercentile) -> dict[str, Any]:
    """Return the record of a percentile in seconds, measured and simulated; `error` is the simulation's."""
    errors = list(percentile.errors) if percentile.errors else None
    return {**dataclasses.asdict(percentile), "error": percentile.error, "errors": errors}


def _line(line: Sequence[tuple[float, float]], colour: str, across: Axis, up: Axis) -> Markup:
    """Draw a line through `line`, pairs of a rate in query/s and a latency in seconds."""
    places = [(across.place(rate), up.place(seconds)) for rate, seconds in line]
    return svg.join([svg.polyline(places, f"line {colour}"), *(svg.dot(x, y, 2.6, colour, "") for x, y in places)])


def _limit_lines(across: Axis, up: Axis) -> list[Markup]:
    """Draw the limit of each objective on the time to the first token as a horizontal line with its name."""
    parts = []
    for objectives in gb.OBJECTIVES:
        y = up.place(objectives.first_token_s)
        label = f"{objectives.name}: {gb.units.quantity(objectives.first_token_s, 's')}"
        parts += [
            svg.line(across.start, y, across.end, y, "peak"),
            svg.text(across.start + 4, y - 5, label, "start", "label"),
        ]
    return parts


def _highest_rate_text(model: gb.Serving) -> str:
    """Return the highest rate of a model within each objective as text."""
    knees = [
        f"{objectives.name} up to {gb.units.quantity(point.rate, 'query/s')}" if point else f"{objectives.name} never"
        for objectives, point in model.knees
    ]
    return f"{model.label}: {', '.join(knees)}"
