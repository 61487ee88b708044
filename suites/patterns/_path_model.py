"""Predict by a model which path, chunk size and depth sends a message fastest, and compute the regret of such choices.

Each way to send has a transfer model t(n) = α + n/β in pieces, one piece between two neighbouring measured sizes."""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpubench.api import suite as gb

# Ways whose predicted times differ by less count as equally good, and the first one listed is the simplest.
_EQUAL = 0.02


@dataclass(frozen=True, slots=True)
class WayToSend:
    """A path, the bytes of its chunks (0 for a message in one piece) and how many chunks are in flight."""

    path: str
    chunk_bytes: int = 0
    depth: int = 1

    @property
    def text(self) -> str:
        """Return the path, with depth and chunk size if the message is cut: `socket` or `memory, 4 × 64 KiB`."""
        return f"{self.path}, {self.depth} × {self.chunk_bytes >> 10} KiB" if self.chunk_bytes else self.path


@dataclass(frozen=True, slots=True)
class SendPiece:
    """t(n) = α + n/β from `first_bytes` on; `per_byte_s` is 1/β."""

    first_bytes: float
    alpha_s: float
    per_byte_s: float

    def seconds(self, nbytes: float) -> float:
        """Return the predicted seconds of a message."""
        return self.alpha_s + nbytes * self.per_byte_s


@dataclass(frozen=True, slots=True)
class SendModel:
    """The pieces of one way to send, in order of size."""

    pieces: tuple[SendPiece, ...]

    @classmethod
    def through(cls, sizes: Sequence[int], seconds: Sequence[float]) -> SendModel:
        """Return the model through the measured `seconds` of messages of `sizes` bytes: two or more, ascending.

        Each piece is the line between two neighbouring sizes."""
        rising = list(itertools.accumulate(seconds, max))
        pieces = []
        for (low, high), (short_s, long_s) in zip(itertools.pairwise(sizes), itertools.pairwise(rising), strict=True):
            per_byte_s = (long_s - short_s) / (high - low)
            pieces.append(SendPiece(low, short_s - low * per_byte_s, per_byte_s))
        return cls(tuple(pieces))

    @property
    def text(self) -> str:
        """Return the model as text, `α 1.2 µs, β 9.8 GB/s`: α of the smallest messages and β of the largest."""
        first, last = self.pieces[0], self.pieces[-1]
        rate = gb.units.quantity(1 / last.per_byte_s, "B/s") if last.per_byte_s else "unlimited"
        return f"α {gb.units.quantity(max(first.alpha_s, 0.0), 's')}, β {rate}"

    def seconds(self, nbytes: int) -> float:
        """Return the predicted seconds of a message of `nbytes`.

        Beyond the measured sizes the nearest piece is extended."""
        index = bisect.bisect_right([piece.first_bytes for piece in self.pieces], nbytes) - 1
        return self.pieces[max(index, 0)].seconds(nbytes)


Models = Mapping[WayToSend, SendModel]


def choose(models: Models, nbytes: int) -> WayToSend:
    """Return the first way in the order of `models` whose predicted time for `nbytes` is within 2 % of the shortest."""
    predicted = {way: model.seconds(nbytes) for way, model in models.items()}
    least_s = min(predicted.values())
    return next(way for way, seconds in predicted.items() if seconds <= (1 + _EQUAL) * least_s)


@dataclass(frozen=True, slots=True)
class Regrets:
    """How much longer the chosen ways take than the fastest way, as a fraction of its time: one value for each size.

    `fixed_worst` is for comparison: the worst regret of the single way whose worst regret is smallest, the best that
    a sender without a model can reach."""

    by_size: tuple[float, ...]
    fixed_worst: float

    @property
    def median(self) -> float:
        """Return the median over sizes."""
        return statistics.median(self.by_size)

    @property
    def worst(self) -> float:
        """Return the largest value over sizes."""
        return max(self.by_size)


def regrets(models: Models, measured: Mapping[int, Mapping[WayToSend, float]]) -> Regrets:
    """Return the regrets of the ways that `choose` picks by `models`, in the order of the sizes in `measured`.

    `measured` has the seconds of every way by size in bytes."""
    shares = {
        nbytes: {way: seconds / min(times.values()) - 1 for way, seconds in times.items()}
        for nbytes, times in measured.items()
    }
    chosen = tuple(ways[choose(models, nbytes)] for nbytes, ways in shares.items())
    fixed = min(max(ways[way] for ways in shares.values()) for way in models)
    return Regrets(chosen, fixed)
