"""Place the cases of a suite's views on curves, one point for all replicates of a case."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from gpubench import stats
from gpubench.analysis.figure import Figure
from gpubench.analysis.quantities import series_labelled
from gpubench.analysis.summary import Summary
from gpubench.base import units
from gpubench.model import Case, Result, Series, View

Value = str | int | float


@dataclass(frozen=True, slots=True)
class Point:
    """One case on one device set: its figure over all replicates (median of medians).

    `amount` is the counted work of one call in bytes or operations; 0 if the figure is not a rate of it."""

    case: Case
    devices: tuple[str, ...]
    figure: Figure
    amount: float = 0.0

    @property
    def value(self) -> float:
        """The median in SI units."""
        return self.figure.interval.centre

    @property
    def seconds(self) -> stats.Interval | None:
        """The time of one call in seconds with its interval; None for a figure that is neither a time nor a rate."""
        interval = self.figure.interval
        if self.figure.unit == "s":
            return interval
        if not self.amount or not interval.low > 0:
            return None
        return stats.Interval(self.amount / interval.high, self.amount / interval.centre, self.amount / interval.low)


@dataclass(frozen=True, slots=True)
class Curve:
    """The points of one curve of a view, each with its place on the x axis, in ascending order.

    `parts` are the texts that distinguish this curve from the others of its view; `label` joins them."""

    label: str
    points: tuple[tuple[float, Point], ...]
    parts: tuple[str, ...] = ()


def view_points(summary: Summary, suite: str, view: View, series: str) -> list[Point]:
    """Return a point for each ok case of a view of a suite, with replicates joined, in the order measured.

    `series` is the label of the series that gives the figure; empty means the first series of a case. Cases without
    this series are left out, as are values beyond 1e±100, which no axis can show."""
    grouped: dict[tuple[str, tuple[str, ...]], list[tuple[Result, Series]]] = {}
    for result in summary.results_of(suite):
        if result.case.name in view.cases and result.status == "ok":
            chosen = series_labelled(result, series)
            if chosen is not None:
                grouped.setdefault((result.case.id, result.devices), []).append((result, chosen))
    return [point for group in grouped.values() if (point := _drawable_point(summary, group))]


def _drawable_point(summary: Summary, group: Sequence[tuple[Result, Series]]) -> Point | None:
    """Return the point of a case, which is made once for all views; None if no axis can show it."""
    key = id(group[0][0]), id(group[0][1])
    if key not in summary.points:
        point = point_of(summary, group)
        interval = point.figure.interval
        ends = interval.low, interval.centre, interval.high
        summary.points[key] = point if all(map(stats.is_drawable, ends)) else None
    drawable: Point | None = summary.points[key]
    return drawable


def point_of(summary: Summary, group: Sequence[tuple[Result, Series]]) -> Point:
    """Return the point of a case from `group`: for each replicate, at least one, its result and the series to show."""
    result, series = group[0]
    figure = Figure.over_replicates([summary.figure(replicate, chosen) for replicate, chosen in group])
    amount = float(getattr(series.work, series.quantity, 0.0)) if figure.unit in ("B/s", "FLOP/s", "OP/s") else 0.0
    return Point(result.case, result.devices, figure, amount)


def by_unit(points: Iterable[Point]) -> list[list[Point]]:
    """Return the points grouped by unit, because seconds and rates have no common axis; the order is kept.

    Integer and floating-point operations per second share an axis."""
    grouped: dict[str, list[Point]] = {}
    for point in points:
        grouped.setdefault(point.figure.unit.replace("FLOP/s", "OP/s"), []).append(point)
    return list(grouped.values())


def view_lines(points: Sequence[Point], view: View) -> list[Curve]:
    """Return the curves of a view through these points; if several cases of a curve have the same x, the best one.

    A point whose case has no number on the axis `view.x` is left out."""
    parts_of = _parts_function(points, view)
    grouped: dict[tuple[str, ...], dict[float, Point]] = {}
    for point in points:
        x = dict(point.case.params).get(view.x)
        if isinstance(x, int | float) and stats.is_drawable(x):
            line = grouped.setdefault(parts_of(point), {})
            line[float(x)] = _best(line[x], point) if x in line else point
    return [
        Curve(_label(parts, next(iter(line.values()))), tuple(sorted(line.items(), key=itemgetter(0))), parts)
        for parts, line in grouped.items()
    ]


def _best(first: Point, second: Point) -> Point:
    if first.figure.better == "more":
        return max(first, second, key=lambda point: point.value)
    return min(first, second, key=lambda point: point.value)


def labeller(points: Sequence[Point], view: View) -> Callable[[Point], str]:
    """Return a function that labels a point by the case name, the axes `by` and the devices, as far as they differ."""
    parts_of = _parts_function(points, view)
    return lambda point: _label(parts_of(point), point)


def _label(parts: Sequence[str], point: Point) -> str:
    return " · ".join(part for part in parts if part) or point.case.name


def _parts_function(points: Sequence[Point], view: View) -> Callable[[Point], tuple[str, ...]]:
    names = len({point.case.name for point in points}) > 1
    devices = len({point.devices for point in points}) > 1

    def parts(point: Point) -> tuple[str, ...]:
        """Return the texts of a point: its case name, the values of the axes `by`, and its devices."""
        params = dict(point.case.params) if view.by else {}
        by = [units.axis_value_text(axis, params[axis]) if axis in params else "" for axis in view.by]
        return (point.case.name if names else "", *by, "+".join(point.devices) if devices else "")

    return parts
