"""Describe collectives as data: the words that each rank receives from each rank, and the factor of bus bandwidth.

The host's collectives and the checks of every result use the same description."""

from collections.abc import Callable
from dataclasses import dataclass

WORD_BYTES = 4  # float32


@dataclass(frozen=True, slots=True)
class Segment:
    """`count` received words from word `offset` on, and the sum that they must be.

    Received word offset + i is the sum of the sent words first + i of the ranks low, …, high − 1."""

    offset: int
    count: int
    low: int
    high: int
    first: int


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective; sizes are defined as in nccl-tests, where S is the whole array (doc/PERFORMANCE.md there).

    `sends(words, world)` and `receives(words, world)` return the number of words that one rank sends and receives, and
    `segments(words, world, rank)` what the rank `rank` receives; `words` is the number of words of the whole array.
    `factor(world)` is the bus bandwidth over the algorithm bandwidth, and `counts` says so in a note."""

    name: str
    factor: Callable[[int], float]
    counts: str
    sends: Callable[[int, int], int]
    receives: Callable[[int, int], int]
    segments: Callable[[int, int, int], list[Segment]]


def _whole(elements: int, world: int) -> int:
    """Return the words of the whole array."""
    del world
    return elements


def _part(elements: int, world: int) -> int:
    """Return the words of one rank's part of the array."""
    return elements // world


def _parts(elements: int, world: int) -> list[tuple[int, int]]:
    """Return (rank, number of words) for the part of each rank in an array of `elements` words."""
    return [(rank, elements // world) for rank in range(world)]


def _share_of_others(world: int) -> float:
    """Return (n − 1)/n, the share of an array that a rank does not have itself."""
    return (world - 1) / world


def _factor_one(world: int) -> float:
    """Return 1: the bus bandwidth is the algorithm bandwidth."""
    del world
    return 1.0


COLLECTIVES = {
    operation.name: operation
    for operation in (
        Collective(
            "all_reduce",
            lambda world: 2 * _share_of_others(world),
            "busbw = S/t · 2(n−1)/n",
            _whole,
            _whole,
            lambda words, world, _rank: [Segment(0, words, 0, world, 0)],
        ),
        Collective(
            "all_gather",
            _share_of_others,
            "busbw = S/t · (n−1)/n",
            _part,
            _whole,
            lambda words, world, _rank: [Segment(of * part, part, of, of + 1, 0) for of, part in _parts(words, world)],
        ),
        Collective(
            "reduce_scatter",
            _share_of_others,
            "busbw = S/t · (n−1)/n",
            _whole,
            _part,
            lambda words, world, rank: [Segment(0, words // world, 0, world, rank * (words // world))],
        ),
        Collective(
            "broadcast",
            _factor_one,
            "busbw = S/t",
            _whole,
            _whole,
            lambda words, _world, _rank: [Segment(0, words, 0, 1, 0)],
        ),
        Collective(
            "all_to_all",
            _share_of_others,
            "busbw = S/t · (n−1)/n",
            _whole,
            _whole,
            lambda words, world, rank: [
                Segment(of * part, part, of, of + 1, rank * part) for of, part in _parts(words, world)
            ],
        ),
        Collective(
            "send_recv",
            _factor_one,
            "busbw = S/t, each rank sends to the next",
            _whole,
            _whole,
            lambda words, world, rank: [Segment(0, words, (rank - 1) % world, (rank - 1) % world + 1, 0)],
        ),
    )
}

# This is not a collective: rank 0 sends its array to rank 1, which sends it back.
MESSAGE = Collective(
    "message",
    _factor_one,
    "one direction: half of the round trip",
    _whole,
    _whole,
    lambda words, _world, _rank: [Segment(0, words, 0, 1, 0)],
)
