"""Derive the levels of caches from the curves of a run, with the sizes that the device reports."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gpubench import stats
from gpubench.analysis.records import record
from gpubench.analysis.summary import Summary
from gpubench.analysis.views import levels
from gpubench.analysis.views.curves import Curve, by_unit, view_lines, view_points
from gpubench.analysis.views.table import NO_VALUE, Derived, Table
from gpubench.base import units
from gpubench.knowledge import hardware
from gpubench.model import Device, View
from gpubench.stats import Interval

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
    curve_levels = levels.levels(sizes, heights, [interval.half_width for interval in intervals])
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
    points = "1 point" if step.points == 1 else f"{step.points} points"
    return (
        step.text,
        units.interval(height.low, height.high, step.unit, height.centre),
        units.significant(step.cycles) if step.cycles is not None else NO_VALUE,
        f"{units.brief_size(step.smallest)} – {units.brief_size(step.largest)} ({points})",
        units.brief_size(end.centre) if end else "not reached",
        f"{units.brief_size(end.low)} – {units.brief_size(end.high)}" if end else NO_VALUE,
        "; ".join(_known_size_texts(step, end)) or NO_VALUE,
    )


def _known_size_texts(step: Step, end: Interval | None) -> Iterator[str]:
    """Yield each size that the device reports near the end of a level, and the end over that size."""
    for size in step.known_sizes:
        ratio = f", × {end.centre / size.bytes:.2f}" if end else ""
        yield f"{size.name} {units.brief_size(size.bytes)}{ratio}"
