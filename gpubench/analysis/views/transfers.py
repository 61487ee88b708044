"""Fit transfer models to the curves of a run: crossovers of their paths, and the fastest path at each size.

The fastest path is a choice on the first axis of the view's `by`: for copies of blocks, the way to submit them. Paths
that differ in no other axis are compared with each other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from gpubench import stats
from gpubench.analysis.records import record
from gpubench.analysis.summary import Summary
from gpubench.analysis.views.curves import Curve, Value, by_unit, view_lines, view_points
from gpubench.analysis.views.table import NO_VALUE, Derived, Table
from gpubench.base import units
from gpubench.model import View
from gpubench.stats import Interval

MOST_PIECES = 4
_LEAST_POINTS = 3  # the fewest points of a piece, which has two parameters
_FLOOR = 0.03  # a piece that fits to 3 % is not cut further: a protocol's switch changes the time by more
_NEGLIGIBLE = 0.01  # a term that is nowhere 1 % of a piece's time cannot be distinguished from 0
_APART = 0.02  # two paths closer than this are equal, however narrow their intervals

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Piece:
    """The time α + n/β over the points `first` to `last` (indices): α in s, β in sizes per second.

    β is infinite if the time does not grow with size."""

    first: int
    last: int
    alpha_s: float
    beta: float

    def seconds(self, size: float) -> float:
        """Return the modelled time for a size in seconds."""
        return self.alpha_s + size / self.beta

    @property
    def half(self) -> float:
        """n½ = α·β: the size that reaches half of β; infinite if the time does not grow."""
        return self.alpha_s * self.beta if self.alpha_s else 0.0


@dataclass(frozen=True, slots=True)
class TransferModel:
    """The model of one path: its pieces in order of size, and the root mean square of its relative residuals.

    `half` is n½ on the measured curve: the size at which half of the last piece's β is reached, between the two
    measured sizes `low` and `high`; None if it is reached before the first size, or if time is flat to the end."""

    pieces: tuple[Piece, ...]
    residual: float
    half: Interval | None

    def piece_at(self, size: float, sizes: Sequence[float]) -> Piece:
        """Return the piece of the model for a size: the last one that begins at or below the size, else the first.

        `sizes` are the measured sizes to which the model was fitted."""
        return next((piece for piece in reversed(self.pieces) if sizes[piece.first] <= size), self.pieces[0])


def fit(sizes: Sequence[float], seconds: Sequence[float]) -> TransferModel | None:
    """Return the model of positive times over ascending positive sizes; None for fewer than three sizes.

    The number of pieces, at most four, minimises n·ln(σ²) + p·ln n (Yao, Statistics & Probability Letters 6, 1988), and
    the cuts are found by dynamic programming (Bai & Perron, Journal of Applied Econometrics 18, 2003). A piece has at
    least three points; α or n/β is set to 0 if it is nowhere 1 % of the time, and σ is taken as at least 3 %."""
    count = len(sizes)
    if count < _LEAST_POINTS:
        return None
    n, t = np.asarray(sizes, dtype=float), np.asarray(seconds, dtype=float)
    fits = {
        (first, last): _fitted(n, t, first, last)
        for first in range(count)
        for last in range(first + _LEAST_POINTS - 1, count)
    }
    best = min(
        (cut for most in range(1, MOST_PIECES + 1) if (cut := _best_cut(fits, count, most))),
        key=lambda cut: _criterion(cut, count),
    )
    pieces = tuple(piece for piece, _ in best)
    residual = math.sqrt(sum(squares for _, squares in best) / count)
    return TransferModel(pieces, residual, _half_bandwidth_size(n, t, pieces[-1].beta))


def _fitted(n: Floats, t: Floats, first: int, last: int) -> tuple[Piece, float]:
    inside = slice(first, last + 1)
    u, v = 1 / t[inside], n[inside] / t[inside]
    uu, uv, vv = float(u @ u), float(u @ v), float(v @ v)
    su, sv = float(u.sum()), float(v.sum())
    determinant = uu * vv - uv * uv
    a, b = ((su * vv - sv * uv) / determinant, (sv * uu - su * uv) / determinant) if determinant else (0.0, sv / vv)
    if a <= _NEGLIGIBLE * t[first]:
        a, b = 0.0, sv / vv
    elif b * n[last] <= _NEGLIGIBLE * t[last]:
        a, b = su / uu, 0.0
    squares = float(((a * u + b * v - 1) ** 2).sum())
    return Piece(first, last, a, 1 / b if b > 0 else math.inf), squares


_Fits = dict[tuple[int, int], tuple[Piece, float]]


def _best_cut(fits: _Fits, count: int, pieces: int) -> list[tuple[Piece, float]]:
    """Return the best model of exactly `pieces` pieces, each with its squared residuals; empty for too few points."""
    if count < pieces * _LEAST_POINTS:
        return []
    best: list[dict[int, tuple[float, list[tuple[Piece, float]]]]] = [{0: (0.0, [])}]
    for _ in range(pieces):
        best_by_end: dict[int, tuple[float, list[tuple[Piece, float]]]] = {}
        for start, (squares, before) in best[-1].items():
            for last in range(start + _LEAST_POINTS - 1, count):
                piece = fits[start, last]
                total = squares + piece[1]
                if last + 1 not in best_by_end or total < best_by_end[last + 1][0]:
                    best_by_end[last + 1] = total, [*before, piece]
        best.append(best_by_end)
    return best[-1][count][1] if count in best[-1] else []


def _criterion(cut: list[tuple[Piece, float]], count: int) -> float:
    """Return Schwarz' criterion of a model of `count` points; a piece has two parameters and each cut one."""
    variance = max(sum(squares for _, squares in cut) / count, _FLOOR**2)
    return count * math.log(variance) + (3 * len(cut) - 1) * math.log(count)


def _half_bandwidth_size(n: Floats, t: Floats, beta: float) -> Interval | None:
    """Return n½: the first size at which the measured rate n/t reaches β/2, with the two sizes around it."""
    if not math.isfinite(beta):
        return None
    excess = np.log(2 * n / t / beta)
    reached = np.flatnonzero(excess >= 0)
    if not len(reached) or reached[0] == 0:
        return None
    return _crossing(n, excess, int(reached[0]) - 1, int(reached[0]))


def _crossing(n: Floats, excess: Floats, low: int, high: int) -> Interval:
    """Return the size between the points `low` and `high` at which `excess` is 0, with the sizes of both points."""
    share = float(excess[low] / (excess[low] - excess[high]))
    return Interval(float(n[low]), float(n[low] * (n[high] / n[low]) ** share), float(n[high]))


def crossovers(
    sizes: Sequence[float], first: Sequence[Interval], second: Sequence[Interval]
) -> list[tuple[bool, Interval]]:
    """Return each crossover of two paths: whether `first` is faster above it, and the size with its bounds.

    `first` and `second` are the times of the paths (s) at the ascending `sizes`."""
    n = np.asarray(sizes, dtype=float)
    excess = np.asarray([math.log(b.centre / a.centre) for a, b in zip(first, second, strict=True)])
    significant = [index for index, (a, b) in enumerate(zip(first, second, strict=True)) if is_apart(a, b)]
    crossings = []
    for low, high in itertools.pairwise(significant):
        if (excess[low] > 0) != (excess[high] > 0):
            turn = next(at for at in range(low, high) if (excess[at] > 0) != (excess[at + 1] > 0))
            centre = _crossing(n, excess, turn, turn + 1).centre
            crossings.append((bool(excess[high] > 0), Interval(float(n[low]), centre, float(n[high]))))
    return crossings


def is_apart(first: Interval, second: Interval) -> bool:
    """Return whether two times differ significantly: their intervals do not touch, and their centres are 2 % apart."""
    is_disjoint = first.high < second.low or second.high < first.low
    return is_disjoint and abs(math.log(second.centre / first.centre)) > math.log1p(_APART)


def meeting(first: Piece, second: Piece) -> float | None:
    """Return the size at which two pieces take the same time; None if there is none."""
    difference = 1 / first.beta - 1 / second.beta
    size = (second.alpha_s - first.alpha_s) / difference if difference else math.nan
    return size if math.isfinite(size) and size > 0 else None


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
    model: TransferModel
    scale: float
    unit: str
    is_rate: bool

    def rate(self, piece: Piece) -> float:
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
        if chosen and not is_apart(at_size[chosen[-1]], at_size[best]):
            best = chosen[-1]
        chosen.append(best)
    if chosen:
        yield Choice(values[chosen[0]], shared[0])
    for index, (before, after) in enumerate(itertools.pairwise(chosen)):
        if before != after:
            before_times, after_times = ([timed[path][size] for size in shared] for path in (before, after))
            low, high = shared[index : index + 2]
            sizes = (size for _, size in crossovers(shared, before_times, after_times))
            crossover = next((size for size in sizes if size.low <= low and high <= size.high), None)
            yield Choice(values[after], crossover.centre if crossover else math.sqrt(low * high))


def _fit(line: Curve, view: View) -> TransferFit | None:
    """Return the transfer model of a curve of a view; None without three sizes that have a positive finite time."""
    timed = [(x, seconds, point) for x, point in line.points if x > 0 and (seconds := point.seconds)]
    timed = [(x, seconds, point) for x, seconds, point in timed if seconds.low > 0 and math.isfinite(seconds.high)]
    sizes, times = tuple(x for x, _, _ in timed), tuple(seconds for _, seconds, _ in timed)
    model = fit(sizes, [seconds.centre for seconds in times])
    if model is None:
        return None
    scale = stats.median([point.amount / x if point.amount else 1.0 for x, _, point in timed])
    unit = timed[0][2].figure.unit
    rate_unit = unit if unit != "s" else "B/s" if view.x.endswith("_bytes") else "/s"
    values = dict(line.points[0][1].case.params)
    params = {axis: values[axis] for axis in view.by if axis in values}
    return TransferFit(line, params, sizes, times, model, scale, rate_unit, is_rate=unit != "s")


def _crossovers(paths: Sequence[TransferFit]) -> Iterator[Crossover]:
    for first, second in itertools.combinations(paths, 2):
        if sum(a != b for a, b in zip(first.line.parts, second.line.parts, strict=True)) != 1:
            continue
        shared = sorted(set(first.sizes) & set(second.sizes))
        times = [[path.times[size] for size in shared] for path in (first, second)]
        for is_first_above, size in crossovers(shared, *times):
            below, above = (second, first) if is_first_above else (first, second)
            pieces = [path.model.piece_at(size.centre, path.sizes) for path in (below, above)]
            yield Crossover(below.line.label, above.line.label, size, meeting(*pieces))


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
