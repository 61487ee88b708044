"""Predict which split of a transformer layer is fastest, by curves through times that the same run has measured.

The models are curves through measured times: of products over their operations, of attention over its operations,
and of each collective over its numbers."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

UNSPLIT, DATA, TENSOR, SEQUENCE, PIPELINE = "unsplit", "data", "tensor", "sequence", "pipeline"
SPLITS = (UNSPLIT, DATA, TENSOR, SEQUENCE, PIPELINE)
TOPOLOGIES = ("ring", "tree", "mesh")
_LEAST_S = 1e-9  # least time between two message sizes, because noise can make the longer one seem as fast
_EQUAL = 0.02  # predictions that differ by less count as equally good


@dataclass(frozen=True, slots=True)
class TimeCurve:
    """Predicted seconds by amount of work: straight lines between measured points, extended beyond the last ones.

    `amounts` ascend, and `measured_s` has their seconds."""

    amounts: tuple[float, ...]
    measured_s: tuple[float, ...]

    @classmethod
    def through(cls, times: Mapping[float, float]) -> TimeCurve:
        """Return the curve through `times`, seconds by amount, of two points or more.

        A time below the time of a smaller amount is raised to it, so that time never falls with the amount."""
        amounts = tuple(sorted(times))
        return cls(amounts, tuple(itertools.accumulate((times[amount] for amount in amounts), max)))

    def seconds(self, amount: float) -> float:
        """Return the predicted seconds of `amount`, at least 0.

        They lie on the straight line through the two measured points around `amount`, or, outside them, the two
        nearest ones."""
        last = len(self.amounts) - 1
        high = min(max(bisect.bisect_right(self.amounts, amount), 1), last)
        (left, right), (left_s, right_s) = self.amounts[high - 1 : high + 1], self.measured_s[high - 1 : high + 1]
        return max(left_s + (amount - left) * (right_s - left_s) / (right - left), 0.0)


@dataclass(frozen=True, slots=True)
class LayerShape:
    """A transformer layer of `width` numbers on `batch` sequences of `length` tokens; the hidden layer is 4 × wide."""

    batch: int
    length: int
    width: int
    heads: int

    @property
    def tokens(self) -> int:
        """The tokens of all sequences."""
        return self.batch * self.length

    @property
    def numbers(self) -> int:
        """The numbers of the input, and of the output."""
        return self.tokens * self.width

    @property
    def first_products(self) -> tuple[float, float]:
        """The operations of the products for queries, keys and values in one, and of the attention's output."""
        return 6.0 * self.numbers * self.width, 2.0 * self.numbers * self.width

    @property
    def last_products(self) -> tuple[float, float]:
        """The operations of the two products of the feed-forward network."""
        return 8.0 * self.numbers * self.width, 8.0 * self.numbers * self.width

    @property
    def attention(self) -> float:
        """The operations of scores and weighted sums, without a mask."""
        return 4.0 * self.numbers * self.length

    @property
    def flops(self) -> float:
        """All operations."""
        return sum(self.first_products) + sum(self.last_products) + self.attention


@dataclass(frozen=True, slots=True)
class RunModels:
    """Measured times of a run: seconds of products and attention by operations, of collectives by numbers per rank.

    `product` is of products with fewer rows (tokens), `columns` of products with fewer columns (weights)."""

    product: TimeCurve
    columns: TimeCurve
    attention: TimeCurve
    all_reduce: TimeCurve
    all_gather: TimeCurve
    send: TimeCurve

    def _halves(self, shape: LayerShape, parts: int, product: TimeCurve) -> tuple[float, float]:
        """Return the predicted seconds of attention with its products, and of the network."""
        first = sum(product.seconds(flops / parts) for flops in shape.first_products)
        last = sum(product.seconds(flops / parts) for flops in shape.last_products)
        return first + self.attention.seconds(shape.attention / parts), last

    def predicted(self, split: str, shape: LayerShape, ranks: int) -> Prediction:
        """Return the predicted times of the layer `shape`, split over `ranks` ranks by `split` (one of SPLITS).

        The computation is the sum of one rank's products and attention, the communication the sum of its collectives;
        an unsplit layer has no communication."""
        part = shape.numbers / ranks
        if split == UNSPLIT:
            return Prediction(sum(self._halves(shape, 1, self.product)), 0.0)
        if split == PIPELINE:
            first, last = self._halves(shape, shape.batch, self.product)
            steps_s = first + last + (shape.batch - 1) * max(first, last)
            between = self.send.seconds(shape.numbers / shape.batch) + self.send.seconds(shape.numbers)
            return Prediction(steps_s, between)
        compute_s = sum(self._halves(shape, ranks, self.columns if split == TENSOR else self.product))
        if split == DATA:
            return Prediction(compute_s, self.all_gather.seconds(part))
        if split == TENSOR:
            return Prediction(compute_s, 2 * self.all_reduce.seconds(shape.numbers))
        return Prediction(compute_s, self.all_gather.seconds(2 * part) + self.all_gather.seconds(part))


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds of one rank's computation, and of the communication that no computation hides."""

    compute_s: float
    communicate_s: float

    @property
    def seconds(self) -> float:
        """The sum of both, in seconds."""
        return self.compute_s + self.communicate_s


def possible_splits(shape: LayerShape, ranks: int) -> tuple[str, ...]:
    """Return the splits that divide the layer evenly over `ranks` ranks, in the order of SPLITS.

    `unsplit` is always there. A pipeline has two stages, so that it needs exactly two ranks."""
    fits = {
        UNSPLIT: True,
        DATA: shape.batch % ranks == 0,
        TENSOR: shape.heads % ranks == 0,
        SEQUENCE: shape.length % ranks == 0,
        PIPELINE: ranks == 2,
    }
    return tuple(split for split in SPLITS if fits[split])


def choose(models: RunModels, shape: LayerShape, ranks: int) -> str:
    """Return the split with the shortest predicted time that divides the layer evenly over `ranks` ranks."""
    return min(possible_splits(shape, ranks), key=lambda split: models.predicted(split, shape, ranks).seconds)


def regret(chosen: str, measured_s: Mapping[str, float]) -> float:
    """Return (t − shortest) / shortest, where t is the measured seconds of the split `chosen`."""
    return measured_s[chosen] / min(measured_s.values()) - 1


def message_model(send: TimeCurve, itemsize: int) -> tuple[float, float]:
    """Return α in seconds and β in bytes per second, so that a message of n bytes takes α + n/β.

    They follow from the smallest and the largest message in `send`, seconds by numbers sent, of `itemsize` bytes
    each; α is at least 0."""
    (low, *_, high), (low_s, *_, high_s) = send.amounts, send.measured_s
    per_item_s = max(high_s - low_s, _LEAST_S) / (high - low)
    return max(low_s - low * per_item_s, 0.0), itemsize / per_item_s


def topology_s(topology: str, nbytes: float, ranks: int, alpha_s: float, bytes_per_s: float) -> float:
    """Return the predicted seconds of an all-reduce of `nbytes` over `ranks` ranks by `topology` (one of TOPOLOGIES).

    A message of n bytes takes α + n/β: `alpha_s` is α, `bytes_per_s` is β. With N bytes and r ranks, a ring takes 2(r −
    1)(α + N/rβ), a tree 2⌈log₂ r⌉(α + N/β), up and down, and a mesh 2(α + (r − 1)N/rβ), every part straight to its
    owner, and the sums back. Sources: Thakur, Rabenseifner & Gropp, IJHPCA 19 (2005), §4; a mesh is their pairwise
    exchange with all messages in flight at once."""
    part_s = nbytes / ranks / bytes_per_s
    if topology == "ring":
        return 2 * (ranks - 1) * (alpha_s + part_s)
    if topology == "tree":
        return 2 * math.ceil(math.log2(ranks)) * (alpha_s + nbytes / bytes_per_s)
    return 2 * (alpha_s + (ranks - 1) * part_s)


def best_topology(topologies: Iterable[str], nbytes: float, ranks: int, alpha_s: float, bytes_per_s: float) -> str:
    """Return the element of `topologies` with the shortest predicted time.

    The other arguments are the same as for `topology_s`."""
    return min(topologies, key=lambda topology: topology_s(topology, nbytes, ranks, alpha_s, bytes_per_s))


def sync_interval(step_s: float, exposed_s: float, most_share: float) -> int:
    """Return ⌈exposed_s / (most_share · step_s)⌉, at least 1: the fewest steps between two synchronisations.

    Fewer synchronisations let the ranks' weights drift apart, so that no larger interval than needed is chosen."""
    return max(1, math.ceil(exposed_s / (most_share * step_s)))


def best_ranks(seconds: Mapping[int, float]) -> int:
    """Return the smallest number of ranks whose predicted time is within 2 % of the shortest.

    `seconds` maps a number of ranks to the predicted seconds."""
    least_s = min(seconds.values())
    return min(ranks for ranks, predicted_s in seconds.items() if predicted_s <= (1 + _EQUAL) * least_s)


def balanced(items: int, item_s: Sequence[float]) -> tuple[int, ...]:
    """Return the number of items of each rank, in rank order, such that the last rank ends earliest.

    The `items` items are equal, and `item_s` is the seconds per item of each rank."""
    shares = [0] * len(item_s)
    for _ in range(items):
        rank = min(range(len(item_s)), key=lambda candidate: (shares[candidate] + 1) * item_s[candidate])
        shares[rank] += 1
    return tuple(shares)
