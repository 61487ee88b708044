"""Six collectives as data: which words of which ranks each rank ends up with, and the factor of bus bandwidth.

The same description is what the host computes from and what every answer is checked against.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

WORD_BYTES = 4  # float32


@dataclass(frozen=True, slots=True)
class Segment:
    """`count` received words from `offset` on: the sum of words `first` + i that ranks [low, high) sent."""

    offset: int
    count: int
    low: int
    high: int
    first: int


@dataclass(frozen=True, slots=True)
class Collective:
    """One operation over `world` ranks; sizes follow nccl-tests: S is the whole array (doc/PERFORMANCE.md there).

    `sends`, `receives`: words of one rank, of an array of `words`. `factor` is bus over algorithm bandwidth.
    `segments` is what rank `rank` ends up with.
    """

    name: str
    factor: Callable[[int], float]
    counts: str
    sends: Callable[[int, int], int]
    receives: Callable[[int, int], int]
    segments: Callable[[int, int, int], list[Segment]]


def _whole(words: int, world: int) -> int:
    del world
    return words


def _part(words: int, world: int) -> int:
    return words // world


def _each(words: int, world: int) -> list[tuple[int, int]]:
    """The parts of an array: rank and length."""
    return [(rank, words // world) for rank in range(world)]


def _partly(world: int) -> float:
    return (world - 1) / world


def _once(world: int) -> float:
    del world
    return 1.0


COLLECTIVES = {
    found.name: found
    for found in (
        Collective(
            "all_reduce",
            lambda world: 2 * _partly(world),
            "busbw = S/t · 2(n−1)/n",
            _whole,
            _whole,
            lambda words, world, _rank: [Segment(0, words, 0, world, 0)],
        ),
        Collective(
            "all_gather",
            _partly,
            "busbw = S/t · (n−1)/n",
            _part,
            _whole,
            lambda words, world, _rank: [Segment(of * part, part, of, of + 1, 0) for of, part in _each(words, world)],
        ),
        Collective(
            "reduce_scatter",
            _partly,
            "busbw = S/t · (n−1)/n",
            _whole,
            _part,
            lambda words, world, rank: [Segment(0, words // world, 0, world, rank * (words // world))],
        ),
        Collective(
            "broadcast",
            _once,
            "busbw = S/t",
            _whole,
            _whole,
            lambda words, _world, _rank: [Segment(0, words, 0, 1, 0)],
        ),
        Collective(
            "all_to_all",
            _partly,
            "busbw = S/t · (n−1)/n",
            _whole,
            _whole,
            lambda words, world, rank: [
                Segment(of * part, part, of, of + 1, rank * part) for of, part in _each(words, world)
            ],
        ),
        Collective(
            "send_recv",
            _once,
            "busbw = S/t, each rank sends to the next",
            _whole,
            _whole,
            lambda words, world, rank: [Segment(0, words, (rank - 1) % world, (rank - 1) % world + 1, 0)],
        ),
    )
}
