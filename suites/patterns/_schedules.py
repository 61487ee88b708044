"""Plan who sends which block to whom in which step, so that in the end every rank has the block of every rank.

Each topology does the same job, an all-gather: every rank begins with one block and ends with all of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Delivery:
    """One block that one rank sends to another one, in a step that begins when the steps before have ended."""

    step: int
    source: int
    target: int
    block: int


Schedule = tuple[Delivery, ...]


def ring(ranks: int) -> Schedule:
    """Return n − 1 steps in which every rank passes on to the next one the block that it received last."""
    steps = ((step, rank) for step in range(ranks - 1) for rank in range(ranks))
    return tuple(Delivery(step, rank, (rank + 1) % ranks, (rank - step) % ranks) for step, rank in steps)


def mesh(ranks: int) -> Schedule:
    """Return n − 1 steps in which every rank sends its own block to another rank, and receives from one other rank."""
    steps = ((step, rank) for step in range(ranks - 1) for rank in range(ranks))
    return tuple(Delivery(step, rank, (rank + step + 1) % ranks, rank) for step, rank in steps)


def star(ranks: int) -> Schedule:
    """Return two steps: every rank sends its block to rank 0, which then sends every other block to every rank."""
    back = ((target, block) for target in range(1, ranks) for block in range(ranks) if block != target)
    return incast(ranks) + tuple(Delivery(1, 0, target, block) for target, block in back)


def incast(ranks: int) -> Schedule:
    """Return one step: all ranks send their blocks to rank 0 at the same time."""
    return tuple(Delivery(0, rank, 0, rank) for rank in range(1, ranks))


def tree(ranks: int) -> Schedule:
    """Return the steps of a binomial tree: rank 0 gathers all blocks and then sends every rank its missing blocks.

    A rank whose number is a multiple of 2^k and not of 2^(k+1) is a child of the rank 2^k below it."""
    levels = (ranks - 1).bit_length()
    deliveries = []
    for level in range(levels):
        reach = 2**level
        children = range(reach, ranks, 2 * reach)
        for child in children:
            below = range(child, min(child + reach, ranks))
            others = (block for block in range(ranks) if block not in below)
            deliveries += [Delivery(level, child, child - reach, block) for block in below]
            deliveries += [Delivery(2 * levels - 1 - level, child - reach, child, block) for block in others]
    return tuple(sorted(deliveries, key=lambda delivery: delivery.step))


TOPOLOGIES: dict[str, Callable[[int], Schedule]] = {"ring": ring, "star": star, "mesh": mesh, "tree": tree}


def of_rank(schedule: Schedule, rank: int) -> list[tuple[Schedule, frozenset[int]]]:
    """Return for each step, in a list, the deliveries that rank `rank` sends and the ranks from which it receives."""
    steps = 1 + max((delivery.step for delivery in schedule), default=-1)
    return [
        (
            tuple(delivery for delivery in schedule if (delivery.step, delivery.source) == (step, rank)),
            frozenset(delivery.source for delivery in schedule if (delivery.step, delivery.target) == (step, rank)),
        )
        for step in range(steps)
    ]


def unfairness(seconds: Sequence[float]) -> float:
    """Return the longest completion time over the mean of all ranks' times: 1 if all end at the same moment."""
    return max(seconds) * len(seconds) / sum(seconds)
