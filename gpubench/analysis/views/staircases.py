"""Derive the levels of caches from the curves of a run, with the sizes that the device reports."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from gpubench import stats
from gpubench.analysis.records import record
from gpubench.analysis.summary import Summary
from gpubench.analysis.views.curves import Curve, by_unit, view_lines, view_points
from gpubench.analysis.views.table import NO_VALUE, Derived, Table
from gpubench.base import units
from gpubench.knowledge import hardware
from gpubench.model import Device, View
from gpubench.stats import Interval
from gpubench.stats.stretches import cheapest_parts

LEAST_OCTAVES = 0.5  # the smallest width of a level of three points or more; a level of two points needs twice that
_LEAST_SCATTER = 0.01  # a level is flat to a per cent at best: pages and hashed addresses differ between rings
_MOST_SCATTER = 0.05
_LEAN = 0.01  # a level may lean: the standard deviation of its slope's prior, per octave (translation grows slowly)
_MOST_LEAN = 0.03  # per octave: a significantly steeper line is a ramp, not a level
_MOST_SPAN = 1.5  # the highest point of a level over its lowest: next caches lie 2 or more apart, memories 1.3 or more
_LEVEL_PARAMETERS = 2  # the parameters of a level: its height and its end
_LEAST_RANGE = math.log(2)  # smallest range of the logarithm of a free point's height, also in a nearly flat curve
_SAME = 3.0  # neighbouring levels that are fewer scatters apart are one level
_QUARTILE = 0.31863936396437514  # Φ⁻¹(5/8): a quarter of |N(0,1)| lies below
_OUTSIDE = 0.025  # probability on either side of a boundary's 95 % interval

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StaircaseLevel:
    """A level: the points `first` to `last` of the curve (indices), its height, and its end.

    `height` is the median of its points with its interval; the highest point is at most 1.5 times the lowest."""

    first: int
    last: int
    height: Interval
    end: Interval | None


def levels(
    sizes: Sequence[float], heights: Sequence[float], half_widths: Sequence[float] = ()
) -> tuple[StaircaseLevel, ...]:
    """Return the levels of a curve of positive heights over ascending positive sizes; empty below two points.

    `half_widths` are the half-widths of the heights' 95 % intervals as fractions; without them the heights are exact.
    Each point is on a level or free. A level has three or more points over half an octave, or two over one octave, on a
    nearly flat line in log–log. The result is the likeliest partition, with a penalty of ln n for each parameter of a
    level: optimal partitioning (Jackson et al., IEEE Signal Processing Letters 12, 2005) under Schwarz' criterion (Yao,
    Statistics & Probability Letters 6, 1988). The interval of an end follows from its likelihood with the other ends
    held fixed (Siegmund, International Statistical Review 56, 1988)."""
    if len(sizes) < 2:
        return ()
    curve = _Curve.of(sizes, heights, half_widths)
    costs = curve.costs.copy()
    np.fill_diagonal(costs, curve.free)
    parts = [(first, last) for first, last in cheapest_parts(costs) if last > first]  # the others are free points
    segments = _joined_levels(parts, curve)
    return tuple(
        StaircaseLevel(first, last, stats.median_interval(list(heights[first : last + 1])), curve.end(segments, index))
        for index, (first, last) in enumerate(segments)
    )


@dataclass(frozen=True, slots=True)
class _Curve:
    """A curve: octaves of sizes, natural logarithms of heights, and `costs[i, j]` of a level from point i to point j.

    `sizes`, `octaves` and `logs` have shape (n,), `costs` (n, n)."""

    sizes: Floats
    octaves: Floats
    logs: Floats
    scatter: float
    costs: Floats
    free: float

    @classmethod
    def of(cls, sizes: Sequence[float], heights: Sequence[float], half_widths: Sequence[float]) -> _Curve:
        """Return the curve that the arguments of `levels` describe, with the costs of all possible levels."""
        grid = np.asarray(sizes, dtype=float)
        octaves, logs = np.log2(grid), np.log(np.asarray(heights, dtype=float))
        scatter = _scatter(logs)
        sigmas = np.hypot(scatter, np.asarray(half_widths, dtype=float) / 1.96 if len(half_widths) else 0.0)
        costs = _costs(octaves, logs, np.broadcast_to(sigmas, logs.shape))
        return cls(grid, octaves, logs, scatter, costs, _free_cost(logs, scatter))

    def end(self, segments: Sequence[tuple[int, int]], index: int) -> Interval | None:
        """Return the end of the level `segments[index]` with its 95 % interval; None if it reaches the curve's end."""
        (first, last), final = segments[index], len(self.logs) - 1
        if last == final:
            return None
        follows = segments[index + 1] if index + 1 < len(segments) else None
        low, high = self._likely_ends(first, follows)
        grid, beyond = self.sizes, follows[0] if follows else final + 1
        height = float(np.median(self.logs[first : last + 1]))
        # the last point of the level may be the first point of the ramp
        is_ramp = last > first and self.logs[last] - height > self.scatter
        centre = min(max(self._ramp_start(last, beyond, height), grid[last - is_ramp]), grid[last + 1])
        below = int(np.searchsorted(grid, centre, "right")) - 1
        return Interval(float(grid[min(low, below, last)]), float(centre), float(grid[max(high, last) + 1]))

    def _likely_ends(self, first: int, follows: tuple[int, int] | None) -> tuple[int, int]:
        """Return the first and the last likely end of a level as indices of points: its 95 % interval."""
        last = len(self.logs) - 1
        if follows is None:
            ends = np.arange(first, last)
            costs = self.costs[first, ends] + self.free * (last - ends)
        else:
            ends = np.arange(first, follows[1])
            starts = np.arange(first + 1, follows[1] + 1)
            ramps = self.free * (starts[None, :] - ends[:, None] - 1.0) + self.costs[starts, follows[1]][None, :]
            ramps[starts[None, :] <= ends[:, None]] = np.inf
            costs = self.costs[first, ends] - 2 * np.logaddexp.reduce(-ramps / 2, axis=1)
        shares = np.cumsum(np.exp((costs.min() - costs) / 2))
        low, high = np.searchsorted(shares / shares[-1], (_OUTSIDE, 1 - _OUTSIDE))
        return int(ends[low]), int(ends[min(int(high), len(ends) - 1)])

    def _ramp_start(self, last: int, beyond: int, height: float) -> float:
        """Return the size at which the ramp after point `last` leaves the level."""
        after = last + 1
        if after + 1 < beyond and self.logs[after + 1] != self.logs[after]:
            slope = (self.octaves[after + 1] - self.octaves[after]) / (self.logs[after + 1] - self.logs[after])
            return float(2.0 ** (self.octaves[after] - slope * (self.logs[after] - height)))
        return float(2.0 ** ((self.octaves[last] + self.octaves[min(after, len(self.logs) - 1)]) / 2))


def _scatter(logs: Floats) -> float:
    """Return the random scatter of the points of a level: a standard deviation of natural logarithms, 0.01 to 0.05."""
    quartile = float(np.quantile(np.abs(np.diff(logs)), 0.25))
    return min(max(quartile / _QUARTILE / math.sqrt(2), _LEAST_SCATTER), _MOST_SCATTER)


def _free_cost(logs: Floats, scatter: float) -> float:
    return 2 * math.log(max(float(np.ptp(logs)), _LEAST_RANGE) / (scatter * math.sqrt(2 * math.pi)))


def _costs(octaves: Floats, logs: Floats, sigmas: Floats) -> Floats:
    """Return the costs of all levels, shape (n, n): `costs[i, j]` is the cost of a level from point i to point j."""
    count = len(logs)
    costs = np.full((count, count), np.inf)
    weights = 1 / sigmas**2
    for first in range(count):
        w = np.cumsum(weights[first:])
        u, y = octaves[first:] - octaves[first], logs[first:] - logs[first]
        wu, wy = np.cumsum(weights[first:] * u), np.cumsum(weights[first:] * y)
        uu = np.cumsum(weights[first:] * u * u) - wu * wu / w
        uy = np.cumsum(weights[first:] * u * y) - wu * wy / w
        yy = np.cumsum(weights[first:] * y * y) - wy * wy / w
        residual = np.maximum(yy - uy * uy / (uu + 1 / _LEAN**2), 0.0)
        leans = np.abs(uy) - 2 * np.sqrt(uu) > _MOST_LEAN * uu  # the slope uy/uu has the standard error 1/√uu
        spans = np.maximum.accumulate(y) - np.minimum.accumulate(y)
        agrees = spans <= math.log(_MOST_SPAN)  # however wide the intervals of its points are
        wide = u >= np.where(np.arange(len(u)) < 2, 2, 1) * LEAST_OCTAVES - 1e-9
        costs[first, first:] = np.where(wide & ~leans & agrees, residual, np.inf)
    return costs + _LEVEL_PARAMETERS * math.log(count)


def _joined_levels(segments: Sequence[tuple[int, int]], curve: _Curve) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for first, last in segments:
        is_same = joined and abs(_height(curve, first, last) - _height(curve, *joined[-1])) < _SAME * curve.scatter
        if is_same and np.ptp(curve.logs[joined[-1][0] : last + 1]) <= math.log(_MOST_SPAN):
            joined[-1] = joined[-1][0], last
        else:
            joined.append((first, last))
    return joined


def _height(curve: _Curve, first: int, last: int) -> float:
    """Return the median logarithm of the points `first` to `last`."""
    return float(np.median(curve.logs[first : last + 1]))


_CYCLES = "cycles"  # the label of the series in cycles of the device's clock, measured together with the seconds
_FAR = 4.0  # a known size farther from every boundary than this factor belongs to none of them
_DETAILS = {  # sizes of caches and shared memory that backends report, bytes
    "cache.l1": "L1",
    "cache.l2": "L2",
    "cache.l3": "L3",
    "shared.unit_bytes": "shared memory",
}
_HEADS = (
    "level",
    "95 % interval",
    "cycles",
    "working sets",
    "ends at",
    "95 % interval of the end",
    "device reports",
)


@dataclass(frozen=True, slots=True)
class KnownSize:
    """A known size of a cache or memory of a device: its name (`L2`), its bytes, and its source in words."""

    name: str
    bytes: float
    source: str


@dataclass(frozen=True, slots=True)
class Step:
    """A level of a staircase: its height in SI units, and in cycles if known; its working sets in bytes, `points` many.

    `end` is the working set at which it ends, None for the last level, and `known_sizes` are the device's sizes nearest
    to it."""

    RECORD: ClassVar[str] = "unit *height cycles points smallest largest end known=known_sizes"
    unit: str
    height: Interval
    cycles: float | None
    points: int
    smallest: float
    largest: float
    end: Interval | None
    known_sizes: tuple[KnownSize, ...]

    @property
    def text(self) -> str:
        """The height as text: 142.2 ns."""
        return units.quantity(self.height.centre, self.unit)


@dataclass(frozen=True, slots=True)
class Staircase(Derived):
    """The levels of one curve of a view; `title` is the view's, `axis` the name of its x axis, `line` the curve."""

    KIND: ClassVar[str] = "staircase"
    RECORD: ClassVar[str] = "suite view=title line=line.label levels=steps"
    suite: str
    title: str
    axis: str
    line: Curve
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, summary: Summary, suite: str, view: View) -> list[Staircase]:
        """Return the levels of every curve of a suite's view, one staircase for each curve.

        A curve without a level is left out, as is one with fewer than two points above 0 on both axes."""
        cycles = {line.parts: line for line in view_lines(view_points(summary, suite, view, _CYCLES), view)}
        curves = []
        for points in by_unit(view_points(summary, suite, view, view.series)):
            for line in view_lines(points, view):
                steps = _steps(summary, line, cycles.get(line.parts))
                curves += [cls(suite, view.title, view.x, line, tuple(steps))] if steps else []
        return curves

    @property
    def unit(self) -> str:
        """The unit of the heights."""
        return self.steps[0].unit

    @property
    def tables(self) -> list[Table]:
        """The table of the levels, a row for each, from the first cache to memory; its note gives sources of sizes."""
        label = "" if self.line.label in self.title else f", {self.line.label}"
        sources = [f"{size.name}: {size.source}" for step in self.steps for size in step.known_sizes]
        note = "; ".join(["A level ends at the largest working set that it holds", *sources])
        rows = tuple(map(_row, self.steps))
        return [Table(f"Levels: {self.title}{label}", _HEADS, rows, _HEADS[-1:], note)]

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the height of each level, its cycles and its end."""
        line = {"case": f"{self.suite}: {self.title}", "suite": self.suite, "params": self.line.label}
        line |= {"quantity": "derived"}
        for number, step in enumerate(self.steps, 1):
            yield {**line, "series": f"level {number}", "unit": step.unit, **record(step.height)}
            if step.cycles is not None:
                yield {**line, "series": f"level {number} cycles", "unit": "cycles", "median": record(step.cycles)}
            if step.end:
                yield {**line, "series": f"level {number} end", "unit": "B", **record(step.end)}


def known_sizes(device: Device) -> list[KnownSize]:
    """Return the known cache sizes of a device, in ascending order, as the driver or a table of gpubench gives them."""
    sizes = [
        KnownSize(name, float(text), f"{key}, reported by the driver of {device.id}")
        for key, name in _DETAILS.items()
        if (text := dict(device.details).get(key, "")).isdigit() and int(text)
    ]
    first = hardware.first_cache(device)
    if first:
        sizes.append(KnownSize("L1", first.value, first.source))
    if device.cache_bytes and device.cache_bytes not in {size.bytes for size in sizes}:
        sizes.append(KnownSize("last-level cache", float(device.cache_bytes), f"reported by the driver of {device.id}"))
    return sorted(sizes, key=lambda size: size.bytes)


def _steps(summary: Summary, line: Curve, cycles: Curve | None) -> list[Step]:
    """Return the levels of a curve, each with the known sizes nearest to its end; empty for too few points."""
    points = [(x, point) for x, point in line.points if x > 0 and point.figure.interval.low > 0]
    sizes = [x for x, _ in points]
    intervals = [point.figure.interval for _, point in points]
    heights = [interval.centre for interval in intervals]
    curve_levels = levels(sizes, heights, [interval.half_width for interval in intervals])
    known_sizes_by_end = _known_sizes_by_end(summary, line, [level.end for level in curve_levels])
    counted = {x: point.value for x, point in cycles.points} if cycles else {}
    steps = []
    for level, known_of_end in zip(curve_levels, known_sizes_by_end, strict=True):
        sizes_of_level = sizes[level.first : level.last + 1]
        cycles_of_level = [counted[size] for size in sizes_of_level if size in counted]
        steps.append(
            Step(
                points[0][1].figure.unit,
                level.height,
                stats.median(cycles_of_level) if cycles_of_level else None,
                len(sizes_of_level),
                sizes_of_level[0],
                sizes_of_level[-1],
                level.end,
                known_of_end,
            )
        )
    return steps


def _known_sizes_by_end(summary: Summary, line: Curve, ends: Sequence[Interval | None]) -> list[tuple[KnownSize, ...]]:
    """Return for each of `ends` (bytes) the known sizes of the curve's device that are nearer to it than to others."""
    sizes_by_end: list[list[KnownSize]] = [[] for _ in ends]
    for size in known_sizes(summary.device(line.points[0][1].devices[0])):
        apart = [abs(math.log(size.bytes / end.centre)) if end else math.inf for end in ends]
        nearest = min(range(len(ends)), key=apart.__getitem__, default=0)
        if apart and apart[nearest] <= math.log(_FAR):
            sizes_by_end[nearest].append(size)
    return [tuple(sizes) for sizes in sizes_by_end]


def _row(step: Step) -> tuple[str, ...]:
    height, end = step.height, step.end
    return (
        step.text,
        units.interval(height.low, height.high, step.unit, height.centre),
        units.significant(step.cycles) if step.cycles is not None else NO_VALUE,
        f"{units.brief_size(step.smallest)} – {units.brief_size(step.largest)} ({units.count(step.points, 'point')})",
        units.brief_size(end.centre) if end else "not reached",
        f"{units.brief_size(end.low)} – {units.brief_size(end.high)}" if end else NO_VALUE,
        "; ".join(_known_size_texts(step, end)) or NO_VALUE,
    )


def _known_size_texts(step: Step, end: Interval | None) -> Iterator[str]:
    for size in step.known_sizes:
        ratio = f", × {end.centre / size.bytes:.2f}" if end else ""
        yield f"{size.name} {units.brief_size(size.bytes)}{ratio}"
