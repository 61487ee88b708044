"""Fit the transfer model t(n) = α + n/β: latency, bandwidth, half-bandwidth size n½, and crossovers of two paths.

α and β are Hockney's start-up time and asymptotic rate, n½ = α·β his half-performance length (Parallel Computing 20,
1994). The fit minimises relative residuals, because absolute ones would let the largest size decide α."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
    """Return the piece a + b·n with the least squared relative residuals, and the sum of these squares."""
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
