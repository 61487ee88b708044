"""Derive cache levels and transfer models from the curves of a run, with the sizes that the device reports."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpubench import stats
from gpubench.analysis.summary import Summary
from gpubench.analysis.views import levels, transfer
from gpubench.analysis.views.curves import Curve, by_unit, view_lines, view_points
from gpubench.base import units
from gpubench.knowledge import hardware
from gpubench.model import Device, Run, View
from gpubench.stats import Interval

_CYCLES = "cycles"  # the label of the series in cycles of the device's clock, measured together with the seconds
_FAR = 4.0  # a known size farther from every boundary than this factor belongs to none of them
_DETAILS = {  # sizes of caches and shared memory that backends report, bytes
    "cache.l1": "L1",
    "cache.l2": "L2",
    "cache.l3": "L3",
    "shared.unit_bytes": "shared memory",
}


@dataclass(frozen=True, slots=True)
class KnownSize:
    """A known size of a cache or memory of a device: its name (`L2`), its bytes, and its source in words."""

    name: str
    bytes: float
    source: str


@dataclass(frozen=True, slots=True)
class Step:
    """A level of a staircase in SI units; `smallest` and `largest` are the first and last working set on it in bytes.

    `points` is the number of measured working sets on it. `cycles` is its height in cycles of the device's clock, None
    if they were not measured. `end` is the working set at which the level ends, None for the last one; `known_sizes`
    are the known sizes of the device that are nearest to this end."""

    height: Interval
    unit: str
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
class Staircase:
    """The levels of one curve of a view.

    `title` is that of the view, `axis` the name of its x axis, and `line` the curve."""

    suite: str
    title: str
    axis: str
    line: Curve
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class TransferFit:
    """The transfer model fitted to one curve of a transfer view; such a curve is called a path.

    `sizes` are the places on the x axis (bytes, or counts such as messages), and `seconds` the time of a call at each
    size. `scale` is the number of counted bytes for each unit of size. `unit` is that of the rate. `is_rate` is False
    if the view shows times."""

    line: Curve
    sizes: tuple[float, ...]
    seconds: tuple[Interval, ...]
    model: transfer.TransferModel
    scale: float
    unit: str
    is_rate: bool

    def rate(self, piece: transfer.Piece) -> float:
        """Return β of a piece in the unit of the view; infinite if the time does not grow with size."""
        return piece.beta * self.scale


@dataclass(frozen=True, slots=True)
class Crossover:
    """The size from which the path `above` is faster than the path `below`, which are named by their labels.

    `size` is measured: low and high are the sizes on either side of it. `fitted` is the size at which the models meet,
    None if they do not."""

    below: str
    above: str
    size: Interval
    fitted: float | None


@dataclass(frozen=True, slots=True)
class Transfers:
    """The fits of the curves of one view, which differ in the axes `by`, and the crossovers between them.

    `title` is that of the view, and `axis` the name of its x axis."""

    suite: str
    title: str
    axis: str
    paths: tuple[TransferFit, ...]
    crossovers: tuple[Crossover, ...]
    by: tuple[str, ...] = ()


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


def staircases(summary: Summary) -> list[Staircase]:
    """Return the levels of every curve of the run's staircase views."""
    views = _views(summary.run, "staircase")
    return [staircase for suite, view in views for staircase in staircases_of(summary, suite, view)]


def staircases_of(summary: Summary, suite: str, view: View) -> list[Staircase]:
    """Return the levels of every curve of a suite's staircase view, one staircase for each curve.

    A curve without a level is left out, as is one with fewer than two points above 0 on both axes."""
    cycles = {line.parts: line for line in view_lines(view_points(summary, suite, view, _CYCLES), view)}
    curves = []
    for points in by_unit(view_points(summary, suite, view, view.series)):
        for line in view_lines(points, view):
            steps = _steps(summary, line, cycles.get(line.parts))
            curves += [Staircase(suite, view.title, view.x, line, tuple(steps))] if steps else []
    return curves


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
                level.height,
                points[0][1].figure.unit,
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


def transfers(summary: Summary) -> list[Transfers]:
    """Return the models and crossovers of the run's transfer views."""
    views = _views(summary.run, "transfer")
    return [group for suite, view in views for group in transfers_of(summary, suite, view)]


def transfers_of(summary: Summary, suite: str, view: View) -> list[Transfers]:
    """Return the fitted models of the curves of a suite's transfer view, and their crossovers, one group for each unit.

    A curve needs three sizes with a positive time; a group without such a curve is left out."""
    groups = []
    for points in by_unit(view_points(summary, suite, view, view.series)):
        paths = [path for line in view_lines(points, view) if (path := _fit(line, view))]
        if paths:
            groups.append(Transfers(suite, view.title, view.x, tuple(paths), tuple(_crossovers(paths)), view.by))
    return groups


def _fit(line: Curve, view: View) -> TransferFit | None:
    """Return the transfer model of a curve of a view; None without three sizes that have a positive finite time."""
    timed = [(x, seconds, point) for x, point in line.points if x > 0 and (seconds := point.seconds)]
    timed = [(x, seconds, point) for x, seconds, point in timed if seconds.low > 0 and math.isfinite(seconds.high)]
    sizes, times = tuple(x for x, _, _ in timed), tuple(seconds for _, seconds, _ in timed)
    model = transfer.fit(sizes, [seconds.centre for seconds in times])
    if model is None:
        return None
    scale = stats.median([point.amount / x if point.amount else 1.0 for x, _, point in timed])
    unit = timed[0][2].figure.unit
    if unit != "s":
        return TransferFit(line, sizes, times, model, scale, unit, is_rate=True)
    return TransferFit(line, sizes, times, model, scale, "B/s" if view.x.endswith("_bytes") else "/s", is_rate=False)


def _crossovers(paths: Sequence[TransferFit]) -> Iterator[Crossover]:
    """Yield the crossovers of each pair of paths that differ in only one of the parts of their labels."""
    for first, second in itertools.combinations(paths, 2):
        if sum(a != b for a, b in zip(first.line.parts, second.line.parts, strict=True)) != 1:
            continue
        shared = sorted(set(first.sizes) & set(second.sizes))
        times = [
            [dict(zip(path.sizes, path.seconds, strict=True))[size] for size in shared] for path in (first, second)
        ]
        for is_first_above, size in transfer.crossovers(shared, *times):
            below, above = (second, first) if is_first_above else (first, second)
            pieces = [path.model.piece_at(size.centre, path.sizes) for path in (below, above)]
            yield Crossover(below.line.label, above.line.label, size, transfer.meeting(*pieces))


def _views(run: Run, kind: str) -> Iterator[tuple[str, View]]:
    """Yield pairs of a suite's name and a view of that kind, in the order of the manifest."""
    for suite in run.manifest.suites:
        for view in suite.views:
            if view.kind == kind:
                yield suite.name, view
