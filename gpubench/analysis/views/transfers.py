"""Fit transfer models to the curves of a run: crossovers of their paths, and the fastest path at each size.

The fastest path is a choice on the first axis of the view's `by`: for copies of blocks, the way to submit them. Paths
that differ in no other axis are compared with each other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gpubench import stats
from gpubench.analysis.records import record
from gpubench.analysis.summary import Summary
from gpubench.analysis.views import transfer
from gpubench.analysis.views.curves import Curve, Value, by_unit, view_lines, view_points
from gpubench.analysis.views.table import NO_VALUE, Derived, Table
from gpubench.base import units
from gpubench.model import View
from gpubench.stats import Interval

_PATH_HEADS = ("path", "sizes", "α", "β", "n½ = α·β", "n½ measured", "residual")
_CROSSOVER_HEADS = ("faster below", "faster above", "crossover", "measured between", "crossover of the models")


@dataclass(frozen=True, slots=True)
class FittedPiece:
    """A piece of a path's model between the sizes `first` and `last`: α in s, β in the unit of the path, n½ = α·β.

    β and n½ are infinite if the time does not grow with size."""

    RECORD: ClassVar[str] = "from=first to=last alpha_s beta half"
    first: float
    last: float
    alpha_s: float
    beta: float
    half: float


@dataclass(frozen=True, slots=True)
class TransferFit:
    """The transfer model fitted to one curve of a transfer view, a path; `params` are its values on the axes `by`.

    `sizes` are places on the x axis (bytes or counts), and `seconds` the time of a call at each. `scale` is the number
    of counted bytes for each unit of size, `unit` the rate's unit. `is_rate` is False if the view shows times."""

    RECORD: ClassVar[str] = (
        "line=line.label params rate_unit=unit residual=model.residual half=model.half pieces=fitted_pieces"
    )
    line: Curve
    params: Mapping[str, Value]
    sizes: tuple[float, ...]
    seconds: tuple[Interval, ...]
    model: transfer.TransferModel
    scale: float
    unit: str
    is_rate: bool

    def rate(self, piece: transfer.Piece) -> float:
        """Return β of a piece in the unit of the view; infinite if the time does not grow with size."""
        return piece.beta * self.scale

    @property
    def fitted_pieces(self) -> list[FittedPiece]:
        """The pieces of the model with the sizes that they hold for."""
        return [
            FittedPiece(self.sizes[piece.first], self.sizes[piece.last], piece.alpha_s, self.rate(piece), piece.half)
            for piece in self.model.pieces
        ]

    @property
    def times(self) -> dict[float, Interval]:
        """The time of a call at each size."""
        return dict(zip(self.sizes, self.seconds, strict=True))

    def height(self, size: float, seconds: float) -> float:
        """Return the time of a call as the view shows it: as a rate, or as the time itself."""
        return size * self.scale / seconds if self.is_rate else seconds

    @property
    def text(self) -> str:
        """The latency and the asymptotic rate of the model: `4.1 µs, 52.3 GB/s`; no rate if it is infinite."""
        rate = self.rate(self.model.pieces[-1])
        beta = f", {units.quantity(rate, self.unit)}" if math.isfinite(rate) else ""
        return f"{units.quantity(self.model.pieces[0].alpha_s, 's')}{beta}"


@dataclass(frozen=True, slots=True)
class Crossover:
    """The measured size from which the path `above` is faster than the path `below`, which are named by their labels.

    `size` lies between the sizes on either side of it. `fitted` is where the models meet, None if they do not."""

    RECORD: ClassVar[str] = "below above *size fitted"
    below: str
    above: str
    size: Interval
    fitted: float | None

    @property
    def text(self) -> str:
        """The crossover as a sentence, with the measured sizes between which it lies."""
        low, at, high = map(units.brief_size, (self.size.low, self.size.centre, self.size.high))
        return f"{self.above} is faster than {self.below} from {at} on (measured between {low} and {high})"


@dataclass(frozen=True, slots=True)
class Transfers(Derived):
    """The fits of the curves of one view, which differ in the axes `by`, and the crossovers between them.

    `title` is the view's title, and `axis` the name of its x axis."""

    KIND: ClassVar[str] = "transfer"
    RECORD: ClassVar[str] = "suite view=title axis paths crossovers fastest"
    suite: str
    title: str
    axis: str
    paths: tuple[TransferFit, ...]
    crossovers: tuple[Crossover, ...]
    by: tuple[str, ...] = ()

    @classmethod
    def of(cls, summary: Summary, suite: str, view: View) -> list[Transfers]:
        """Return the fitted models of a view's curves and their crossovers, one group for each unit.

        A curve needs three sizes with a positive time; a group without such a curve is left out."""
        groups = []
        for points in by_unit(view_points(summary, suite, view, view.series)):
            paths = [path for line in view_lines(points, view) if (path := _fit(line, view))]
            if paths:
                groups.append(cls(suite, view.title, view.x, tuple(paths), tuple(_crossovers(paths)), view.by))
        return groups

    @property
    def fastest(self) -> list[FastestChoices]:
        """The fastest choices of each group of two or more paths that differ only in the first axis of `by`."""
        groups: dict[tuple[object, ...], list[TransferFit]] = {}
        for path in self.paths if self.by else ():
            point = path.line.points[0][1]
            if self.by[0] in path.params:
                key = (point.case.name, point.devices, *(path.params.get(axis) for axis in self.by[1:]))
                groups.setdefault(key, []).append(path)
        return [
            FastestChoices(_others(group[0], self.by), group[0].line.points[0][1].devices, self.by[0], tuple(choices))
            for group in groups.values()
            if len(group) > 1 and (choices := list(_choices(self.by[0], group)))
        ]

    @property
    def tables(self) -> list[Table]:
        """The fastest path by size, the fitted models, and the crossovers; the first and the last if they have rows."""
        is_size = self.axis.endswith("_bytes")
        rows = tuple(row for path in self.paths for row in _path_rows(path, is_size))
        tables = [Table(f"Transfer model: {self.title}", _PATH_HEADS, rows, _PATH_HEADS[:1])]
        if self.crossovers:
            crossed = tuple(_crossover_row(crossover, is_size) for crossover in self.crossovers)
            tables.append(Table(f"Crossovers: {self.title}", _CROSSOVER_HEADS, crossed, _CROSSOVER_HEADS[:2]))
        if fastest := tuple(group.row(is_size) for group in self.fastest if len(group.choices) > 1):
            heads = (f"{units.axis_label(self.by[0])} among", "fastest")
            tables.insert(0, Table(f"Fastest by {units.axis_label(self.axis)}: {self.title}", heads, fastest, heads))
        return tables

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield α (s), β, n½ and the residual of each model, then the crossovers."""
        shared = {"case": f"{self.suite}: {self.title}", "suite": self.suite, "quantity": "derived"}
        for path in self.paths:
            line = {**shared, "params": path.line.label}
            for number, piece in enumerate(path.fitted_pieces, 1):
                name = f"piece {number}" if len(path.model.pieces) > 1 else "model"
                yield {**line, "series": f"{name} alpha", "unit": "s", "median": record(piece.alpha_s)}
                yield {**line, "series": f"{name} beta", "unit": path.unit, "median": record(piece.beta)}
            if path.model.half:
                yield {**line, "series": "half rate", "unit": "B", **record(path.model.half)}
            yield {**line, "series": "residual", "unit": "", "median": record(path.model.residual)}
        for crossover in self.crossovers:
            name = f"crossover {crossover.below} to {crossover.above}"
            yield {**shared, "params": "", "series": name, "unit": "B", **record(crossover.size)}


@dataclass(frozen=True, slots=True)
class Choice:
    """The value of an axis that is the fastest one from the size `above` in bytes (or another count) on.

    The first starts at the smallest measured size; the start of a later one is interpolated between two sizes."""

    RECORD: ClassVar[str] = "from=above fastest=value"
    value: Value
    above: float


@dataclass(frozen=True, slots=True)
class FastestChoices:
    """The fastest values of `axis` by size, ascending, among paths with the same devices and other parameters."""

    params: Mapping[str, Value]
    devices: tuple[str, ...]
    axis: str
    choices: tuple[Choice, ...]

    def row(self, is_size: bool) -> tuple[str, str]:
        """Return the parameters and devices, and the choices with their sizes: `bulk from 4KiB, loop from 1MiB`."""
        shared = [units.axis_value_text(axis, value) for axis, value in self.params.items()]
        place = units.brief_size if is_size else "{:.4g}".format
        steps = [f"{choice.value} from {place(choice.above)}" for choice in self.choices]
        return " · ".join((*shared, *self.devices)), ", ".join(steps)


def _others(path: TransferFit, by: Sequence[str]) -> dict[str, Value]:
    return {axis: path.params[axis] for axis in by[1:] if axis in path.params}


def _choices(axis: str, paths: Sequence[TransferFit]) -> Iterator[Choice]:
    """Yield the fastest choice at the smallest size that all paths share, then each change to a faster one."""
    timed = [path.times for path in paths]
    values = [path.params[axis] for path in paths]
    shared = sorted(set.intersection(*(set(times) for times in timed)))
    chosen: list[int] = []
    for size in shared:
        at_size = [times[size] for times in timed]
        best = min(range(len(paths)), key=lambda index: at_size[index].centre)
        if chosen and not transfer.is_apart(at_size[chosen[-1]], at_size[best]):
            best = chosen[-1]
        chosen.append(best)
    if chosen:
        yield Choice(values[chosen[0]], shared[0])
    for index, (before, after) in enumerate(itertools.pairwise(chosen)):
        if before != after:
            before_times, after_times = ([timed[path][size] for size in shared] for path in (before, after))
            low, high = shared[index : index + 2]
            sizes = (size for _, size in transfer.crossovers(shared, before_times, after_times))
            crossover = next((size for size in sizes if size.low <= low and high <= size.high), None)
            yield Choice(values[after], crossover.centre if crossover else math.sqrt(low * high))


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
    rate_unit = unit if unit != "s" else "B/s" if view.x.endswith("_bytes") else "/s"
    values = dict(line.points[0][1].case.params)
    params = {axis: values[axis] for axis in view.by if axis in values}
    return TransferFit(line, params, sizes, times, model, scale, rate_unit, is_rate=unit != "s")


def _crossovers(paths: Sequence[TransferFit]) -> Iterator[Crossover]:
    """Yield the crossovers of each pair of paths that differ in only one of the parts of their labels."""
    for first, second in itertools.combinations(paths, 2):
        if sum(a != b for a, b in zip(first.line.parts, second.line.parts, strict=True)) != 1:
            continue
        shared = sorted(set(first.sizes) & set(second.sizes))
        times = [[path.times[size] for size in shared] for path in (first, second)]
        for is_first_above, size in transfer.crossovers(shared, *times):
            below, above = (second, first) if is_first_above else (first, second)
            pieces = [path.model.piece_at(size.centre, path.sizes) for path in (below, above)]
            yield Crossover(below.line.label, above.line.label, size, transfer.meeting(*pieces))


def _crossover_row(crossover: Crossover, is_size: bool) -> tuple[str, ...]:
    size = crossover.size
    return (
        crossover.below,
        crossover.above,
        _place(size.centre, is_size),
        f"{_place(size.low, is_size)} – {_place(size.high, is_size)}",
        _place(crossover.fitted, is_size) if crossover.fitted else NO_VALUE,
    )


def _path_rows(path: TransferFit, is_size: bool) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each piece of a path's model; the first row also has the values of the whole path."""
    half = _place(path.model.half.centre, is_size) if path.model.half else NO_VALUE
    for index, piece in enumerate(path.fitted_pieces):
        of_path = (half, units.percent(path.model.residual)) if index == 0 else ("", "")
        yield (
            path.line.label if index == 0 else "",
            f"{_place(piece.first, is_size)} – {_place(piece.last, is_size)}",
            units.quantity(piece.alpha_s, "s"),
            units.quantity(piece.beta, path.unit) if math.isfinite(piece.beta) else NO_VALUE,
            _place(piece.half, is_size) if math.isfinite(piece.half) else NO_VALUE,
            *of_path,
        )


def _place(value: float, is_size: bool) -> str:
    """Return a place on the x axis as text: bytes as KiB, MiB or GiB if `is_size`, else a plain number."""
    return units.brief_size(value) if is_size else units.significant(value)
