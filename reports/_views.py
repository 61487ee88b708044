"""Compute the data of a suite's charts from points: grids, Pareto pairs, labels and peaks."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gpubench.api import report as gb

Value = str | int | float  # of an axis
_SAME_PEAK = 1.001  # peaks within this ratio count as equal
_MODES = ("hot", "each", "cold", "graph", "rotated", "host", "self")  # how a timing was taken, not its quantity


@dataclass(frozen=True, slots=True)
class Grid:
    """A matrix: its rows and columns in the order of their axes, and the measured points.

    `cells` maps a row and a column to their point."""

    label: str
    rows: tuple[Value, ...]
    columns: tuple[Value, ...]
    cells: dict[tuple[Value, Value], gb.Point]


@dataclass(frozen=True, slots=True)
class Pair:
    """A case on a Pareto chart: the points of its two series, and in `group` its label on the axes `by`."""

    group: str
    across: gb.Point
    up: gb.Point


def grids(points: Sequence[gb.Point], view: gb.View) -> list[Grid]:
    """Return the grids of a matrix view: one for each case name, device set and value of `view.by`.

    Points without a value on `view.x` or `view.y` are left out."""
    name = gb.labeller(points, view)
    grouped: dict[str, dict[tuple[Value, Value], gb.Point]] = {}
    for point in points:
        params = dict(point.case.params)
        if view.x in params and view.y in params:
            grouped.setdefault(name(point), {})[params[view.y], params[view.x]] = point
    return [
        Grid(label, _sorted_values(row for row, _ in cells), _sorted_values(column for _, column in cells), cells)
        for label, cells in grouped.items()
    ]


def _sorted_values(values: Iterable[Value]) -> tuple[Value, ...]:
    """Return the distinct values: sorted if all are numbers, else in the order given."""
    unique = list(dict.fromkeys(values))
    numbers = [value for value in unique if not isinstance(value, str)]
    return tuple(sorted(numbers)) if len(numbers) == len(unique) else tuple(unique)


def pairs(across: Sequence[gb.Point], up: Sequence[gb.Point], view: gb.View) -> list[Pair]:
    """Return the cases that are in both `across` and `up`, the points of the two series of a Pareto view.

    A case with other units than the first case is left out."""
    name = gb.labeller(across, view)
    up_points = {(point.case.id, point.devices): point for point in up}
    common = [
        Pair(name(point), point, up_points[point.case.id, point.devices])
        for point in across
        if (point.case.id, point.devices) in up_points
    ]
    return [pair for pair in common if _pair_units(pair) == _pair_units(common[0])]


def _pair_units(pair: Pair) -> tuple[str, str]:
    return pair.across.figure.unit, pair.up.figure.unit


def frontier(candidates: Sequence[Pair]) -> list[Pair]:
    """Return the Pareto frontier of `candidates`, in the order of the x axis.

    It has the pairs for which no other pair is at least as good in both series and better in one."""
    best_pairs: list[Pair] = []
    for pair in sorted(candidates, key=lambda pair: (-_merit(pair.across), -_merit(pair.up))):
        best = best_pairs[-1] if best_pairs else None
        if best is None or _merit(pair.up) > _merit(best.up) or _merits(pair) == _merits(best):
            best_pairs.append(pair)
    return sorted(best_pairs, key=lambda pair: pair.across.value)


def _merits(pair: Pair) -> tuple[float, float]:
    """Return the merits of a pair's points, as returned by `_merit`."""
    return _merit(pair.across), _merit(pair.up)


def _merit(point: gb.Point) -> float:
    """Return the median of a point, negated if less is better."""
    return point.value if point.figure.better == "more" else -point.value


def group_of(view: gb.View) -> Callable[[gb.Point], str]:
    """Return a function from a point to the text by which its bar is coloured: its values on the axes `view.by`."""
    return lambda point: " · ".join(
        gb.units.axis_value_text(axis, value) for axis, value in point.case.params if axis in view.by
    )


def varying(points: Sequence[gb.Point]) -> Callable[[gb.Point], str]:
    """Return a function that labels a point by the case name, parameters and devices in which `points` differ.

    If they do not differ, the label is the name of the case."""
    values: dict[str, set[Value]] = {}
    for point in points:
        for axis, value in point.case.params:
            values.setdefault(axis, set()).add(value)
    names = len({point.case.name for point in points}) > 1
    devices = len({point.devices for point in points}) > 1

    def label(point: gb.Point) -> str:
        parts = [point.case.name] if names else []
        parts += [gb.units.axis_value_text(axis, value) for axis, value in point.case.params if len(values[axis]) > 1]
        parts += ["+".join(point.devices)] if devices else []
        return " · ".join(parts) or point.case.name

    return label


def common_text(points: Sequence[gb.Point], view: gb.View) -> str:
    """Return the parameters that all points share, for the subtitle of a chart: `size 1GiB, dtype float32`.

    The name of the case stands before them if the view has several cases and all points are of one."""
    if not points:
        return ""
    first = points[0].case
    alone = len(view.cases) > 1 and all(point.case.name == first.name for point in points)
    shared = [pair for pair in first.params if all(pair in point.case.params for point in points)]
    labels = [f"{gb.units.axis_label(axis)} {gb.units.axis_text(axis, value)}" for axis, value in shared]
    return ", ".join([first.name, *labels] if alone else labels)


def data_sheet_peak(point: gb.Point) -> float | None:
    """Return the data sheet's peak with which a point is compared, in SI units; None if it is unknown."""
    share = point.figure.share_of("spec")
    return point.value / share.fraction if share and share.fraction > 0 and point.value > 0 else None


def peak_of_all(points: Sequence[gb.Point]) -> tuple[str, float] | None:
    """Return the name and the SI value of the data sheet's peak that all points share; None if they do not share one.

    Peaks that differ by at most 0.1 % count as equal."""
    peaks = [data_sheet_peak(point) for point in points]
    limits = {point.figure.limit for point in points}
    known_peaks = [peak for peak in peaks if peak is not None]
    if len(limits) != 1 or not known_peaks or len(known_peaks) < len(peaks):
        return None
    if max(known_peaks) > _SAME_PEAK * min(known_peaks):
        return None
    return f"peak (data sheet), {points[0].figure.limit}", max(known_peaks)


def quantity_name(points: Sequence[gb.Point]) -> str:
    """Return the name of the quantity of `points`, at least one: a stage or an observed value; empty for a timing."""
    figure = points[0].figure
    return figure.stage or (figure.name if figure.name not in _MODES else "")
