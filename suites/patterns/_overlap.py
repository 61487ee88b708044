"""Compute how much of a transfer a computation hides: overlap efficiency, and its upper bound."""

from collections.abc import Sequence
from dataclasses import dataclass

_GROWTH = 16  # the rounds of a computation grow by at most this factor in one step of the calibration


@dataclass(frozen=True, slots=True)
class OverlapTimes:
    """Seconds of a computation alone, of a transfer alone, and of both together in a pipeline.

    The last two fields are the seconds in which the computation and the transfer were busy while both ran together."""

    compute_s: float
    transfer_s: float
    together_s: float
    compute_busy_s: float
    transfer_busy_s: float

    @property
    def efficiency(self) -> float:
        """Return the hidden share of the shorter part, (compute + transfer − together) / min(compute, transfer).

        It is limited to 0 … 1."""
        hidden_s = self.compute_s + self.transfer_s - self.together_s
        return min(max(hidden_s / min(self.compute_s, self.transfer_s), 0.0), 1.0)

    @property
    def compute_slowdown(self) -> float:
        """Return the busy seconds of the computation beside the transfer divided by its seconds alone."""
        return self.compute_busy_s / self.compute_s

    @property
    def transfer_slowdown(self) -> float:
        """Return the busy seconds of the transfer beside the computation divided by its seconds alone."""
        return self.transfer_busy_s / self.transfer_s


def bound(chunks: int) -> float:
    """Return the highest overlap efficiency of a pipeline of `chunks` chunks, 1 − 1 / chunks.

    Nothing runs beside the transfer of the first chunk and the computation of the last chunk."""
    return 1 - 1 / chunks


@dataclass(frozen=True, slots=True)
class CalibrationPoint:
    """A number of rounds of a computation, and the seconds that they took."""

    rounds: int
    seconds: float


def next_rounds(tried: Sequence[CalibrationPoint], wanted_s: float) -> int:
    """Return the rounds of a computation that take `wanted_s`, by the line through the first and last point of `tried`.

    With one point, or where the line does not rise, seconds are taken to be proportional to rounds."""
    first, last = tried[0], tried[-1]
    rise_s, run = last.seconds - first.seconds, last.rounds - first.rounds
    if run and rise_s / run > 0:
        rounds = last.rounds + (wanted_s - last.seconds) * run / rise_s
    else:
        rounds = last.rounds * wanted_s / last.seconds
    return max(1, min(round(rounds), _GROWTH * last.rounds))
