"""Choose a codec for given data, by pure functions of the figures that were measured for each codec."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

GOALS = ("speed", "ratio", "end-to-end")
RAW = "raw"  # the choice to send uncompressed data
LEAST_SAVING = 0.05  # share of the bytes; a codec that saves less does not justify a decoder


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a codec on `nbytes` of data: its ratio (uncompressed over compressed bytes), and its times.

    `compress_s` and `decompress_s` are the seconds to compress and to restore all of them."""

    name: str
    nbytes: int
    ratio: float
    compress_s: float
    decompress_s: float

    @property
    def saves(self) -> bool:
        """Whether the codec makes the data at least 5 % smaller."""
        return 1 - 1 / self.ratio >= LEAST_SAVING

    def cost(self, goal: str, link: float) -> float:
        """Return the cost of the codec by one of `GOALS`; only costs of the same goal can be compared.

        `speed`: seconds of a round trip per byte, infinite for a codec that saves less than 5 %."""
        busy = (self.compress_s + self.decompress_s) / self.nbytes
        if goal == "speed":
            return busy if self.saves else float("inf")
        if goal == "ratio":
            return 1 / self.ratio
        return busy + 1 / (self.ratio * link)


def raw(nbytes: int) -> Figures:
    """Return the figures of `nbytes` of data that are left uncompressed: ratio 1, no time."""
    return Figures(RAW, nbytes, 1.0, 0.0, 0.0)


def choose(goal: str, figures: Iterable[Figures], link: float) -> str:
    """Return the name of the codec with the lowest cost by `goal`, or `raw` if none costs less than uncompressed data.

    `link` is the rate of the link in bytes per second; only the goal `end-to-end` uses it."""
    candidates = list(figures)
    if not candidates:
        return RAW
    best = min([*candidates, raw(candidates[0].nbytes)], key=lambda candidate: candidate.cost(goal, link))
    return best.name if best.cost(goal, link) != float("inf") else RAW


def regret(goal: str, chosen: str, all_figures: Mapping[str, Figures], link: float) -> float:
    """Return the relative extra cost of the codec `chosen` over the best one, by `goal`: 0.05 is 5 % more.

    `all_figures` has the figures of every codec on all of the data, keyed by name; `link` is in bytes per second."""
    best = all_figures.get(choose(goal, all_figures.values(), link))
    picked = all_figures.get(chosen)
    nbytes = next(iter(all_figures.values())).nbytes
    least, paid = ((figures or raw(nbytes)).cost(goal, link) for figures in (best, picked))
    if best is picked or paid == least:
        return 0.0
    return min(1.0, paid / least - 1) if goal == "speed" else paid / least - 1
