"""Show the serving capacity of language models: a chart of first-token latency over query rate."""

from collections.abc import Sequence

from markupsafe import Markup

from gpubench.api import report as gb

from . import _svg as svg
from ._charts import BOTTOM, HEIGHT, TOP, Chart, legend_of
from ._svg import Axis, axis

_RIGHT = svg.WIDTH - 26

Line = list[tuple[float, float]]


def served(summary: gb.Summary, suite: str, view: gb.View) -> list[Chart]:
    """Return the chart of a serving view in a list: the simulated p99 of the first-token latency over the query rate.

    Each model has a line; a rate with too few queries for a p99 has no point. The list is empty if no rate has one."""
    (served_models,) = gb.Servings.of(summary, suite, view)
    models = [capacity for model in served_models.models for capacity in model.curves]
    lines = [[(point.rate, point.first_token_s[1]) for point in model.points] for model in models]
    drawn = [[(rate, seconds) for rate, seconds in line if seconds] for line in lines]
    if not any(drawn):
        return []
    limits = [objectives.first_token_s for objectives, _ in models[0].knees]
    up = axis([seconds for line in drawn for _, seconds in line] + limits, "s", BOTTOM, TOP, log=True, room=1.3)
    across = axis([rate for line in drawn for rate, _ in line], "query/s", svg.left_of(up), _RIGHT)
    parts = [
        svg.frame(across, up, "rate of queries", "p99 of the first token"),
        *_limit_lines(served_models, across, up),
    ]
    parts += [_line(line, svg.colour(index), across, up) for index, line in enumerate(drawn)]
    highest_rates = "; ".join(model.text for model in models)
    drawing = svg.picture(f"{view.title}: {highest_rates}", HEIGHT, *parts)
    legend = legend_of([", ".join((model.label, *model.devices)) for model in models])
    return [Chart(view.title, highest_rates, drawing, legend, tuple(served_models.tables), full=True)]


def _line(line: Sequence[tuple[float, float]], colour: str, across: Axis, up: Axis) -> Markup:
    """Draw a line through `line`, pairs of a rate in query/s and a latency in seconds."""
    places = [(across.place(rate), up.place(seconds)) for rate, seconds in line]
    return svg.join([svg.polyline(places, f"line {colour}"), *(svg.dot(x, y, 2.6, colour, "") for x, y in places)])


def _limit_lines(served_models: gb.Servings, across: Axis, up: Axis) -> list[Markup]:
    parts = []
    for objectives, _ in served_models.models[0].knees:
        y = up.place(objectives.first_token_s)
        label = f"{objectives.name}: {gb.units.quantity(objectives.first_token_s, 's')}"
        parts += [
            svg.line(across.start, y, across.end, y, "peak"),
            svg.text(across.start + 4, y - 5, label, "start", "label"),
        ]
    return parts
