"""Compute what collectives would take on 8 to 576 GPUs, from the latency and the rate that a run measured for one hop.

A pure model: no GPU beyond the run's took part. Steps follow one another, each as long as its busiest link. Contention,
stragglers, reductions inside a switch and the limits of a library's protocols are left out. Sources: Thakur,
Rabenseifner & Gropp, "Optimization of Collective Communication Operations in MPICH" (International Journal of High
Performance Computing Applications 19, 2005); Bruck et al. (IEEE Transactions on Parallel and Distributed Systems 8,
1997)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from gpubench import stats
from gpubench.analysis.summary import Summary
from gpubench.analysis.views.curves import point_of
from gpubench.analysis.views.table import NO_VALUE, Derived, Table
from gpubench.base import units
from gpubench.model import Result, View

COUNTS = (8, 72, 576)  # GPUs of a node, of a rack, and of eight racks
FABRICS = ("ring", "mesh", "switch", "tree")
_SIZES = (2**13, 2**30)  # bytes per GPU: dominated by latency, and by rate
_HEADS = ("operation", "bytes per GPU", "GPUs", *FABRICS)
_ERROR_HEADS = ("case", "measured", "model", "error")


@dataclass(frozen=True, slots=True)
class Hop:
    """One hop: `alpha_s` seconds per message, and `beta` bytes per second that a GPU sends, over all its links."""

    alpha_s: float
    beta: float

    def seconds(self, messages: float, nbytes: float) -> float:
        """Return the time of `messages` messages in a row that carry `nbytes` bytes together."""
        return messages * self.alpha_s + nbytes / self.beta


def _depth(gpus: int) -> int:
    """Return ⌈log2 p⌉: the number of steps that double, and the depth of a binary tree of p GPUs."""
    return (gpus - 1).bit_length()


def all_reduce(hop: Hop, fabric: str, gpus: int, nbytes: float) -> float:
    """Return the seconds of a sum of `nbytes` per GPU that every GPU receives.

    A mesh exchanges parts at once, a switch halves and doubles, a tree moves data up and down at the same time."""
    # a ring has half of the data in either direction; in a tree a GPU has three links
    both_ways = 2 * (gpus - 1) / gpus * nbytes
    return {
        "ring": hop.seconds(2 * (gpus - 1), both_ways),
        "mesh": hop.seconds(2, both_ways),
        "switch": hop.seconds(2 * _depth(gpus), both_ways),
        "tree": hop.seconds(2 * _depth(gpus), 3 * nbytes),
    }[fabric]


def all_to_all(hop: Hop, fabric: str, gpus: int, nbytes: float) -> float:
    """Return the seconds in which every GPU sends another part of its `nbytes` to each GPU.

    A switch sends parts one after another or, if that is faster, half of the data in each of log2 p steps."""
    # on a ring a part travels p/4 hops on average; in a tree half of all parts cross the root's link
    direct = hop.seconds(gpus - 1, (gpus - 1) / gpus * nbytes)
    return {
        "ring": hop.seconds(gpus // 2, gpus / 4 * nbytes),
        "mesh": hop.seconds(1, (gpus - 1) / gpus * nbytes),
        "switch": min(direct, hop.seconds(_depth(gpus), _depth(gpus) * nbytes / 2)),
        "tree": hop.seconds(2 * _depth(gpus), 3 * gpus / 4 * nbytes),
    }[fabric]


def message(hop: Hop, fabric: str, gpus: int, _: float = 0.0) -> float:
    """Return the seconds of a message without data between the two GPUs that are furthest apart, on idle links."""
    hops = {"ring": gpus // 2, "mesh": 1, "switch": 1, "tree": 2 * _depth(gpus)}
    return hop.seconds(hops[fabric], 0.0)


OPERATIONS = {"all-reduce": all_reduce, "all-to-all": all_to_all}


def all_gather(hop: Hop, topology: str, ranks: int, block_bytes: float) -> float:
    """Return the seconds of an all-gather of one block per rank by the schedules of the suite `patterns`.

    In `star` and `tree` rank 0 gathers all blocks and then sends what each rank does not have."""
    others, levels = ranks - 1, _depth(ranks)
    return {
        "ring": hop.seconds(others, others * block_bytes),
        "mesh": hop.seconds(others, others * block_bytes),
        "star": hop.seconds(2, others * ranks * block_bytes),
        "tree": hop.seconds(2 * levels, levels * ranks * block_bytes),
    }[topology]


@dataclass(frozen=True, slots=True)
class Scaling(Derived):
    """The hop that a run measured, and `errors` of the model: case, measured seconds, model's seconds."""

    KIND: ClassVar[str] = "scaling"
    RECORD: ClassVar[str] = "suite view=title alpha_s beta errors"
    suite: str
    title: str
    alpha_s: float
    beta: float
    errors: tuple[tuple[str, float, float], ...]

    @classmethod
    def of(cls, summary: Summary, suite: str, view: View) -> list[Scaling]:
        """Return the model of a view: its first case has a single hop where all its counts are 1, its second checks."""
        hops = dict(_points(summary, suite, view, view.cases[0]))
        singles = {
            size: seconds
            for (size, params), (_, seconds) in hops.items()
            if all(value == 1 for _, value in params if isinstance(value, int | float))
        }
        if len(singles) < 2:  # one size cannot tell latency from rate
            return []
        (small, low_s), *_, (large, high_s) = sorted(singles.items())
        if high_s <= low_s:
            return []
        beta = (large - small) / (high_s - low_s)
        hop = Hop(max(low_s - small / beta, 0.0), beta)
        errors = []
        for case in view.cases[1:]:
            for (size, params), (result, seconds) in _points(summary, suite, view, case):
                axes = dict(params)
                ranks = len(result.devices) if len(result.devices) > 1 else int(axes.get("of", 2))
                errors.append((result.case.id, seconds, all_gather(hop, str(axes[view.by[0]]), ranks, size)))
        return [cls(suite, view.title, hop.alpha_s, hop.beta, tuple(errors))]

    @property
    def error(self) -> float:
        """The median relative error of the model on the measured cases; NaN if there are none."""
        shares = [abs(model / measured - 1) for _, measured, model in self.errors]
        return stats.median(shares) if shares else math.nan

    @property
    def tables(self) -> list[Table]:
        """The computed times, and the model beside what the run measured."""
        hop, texts = Hop(self.alpha_s, self.beta), []
        for name, operation in OPERATIONS.items():
            for nbytes in _SIZES:
                for gpus in COUNTS:
                    cells = (units.quantity(operation(hop, fabric, gpus, nbytes), "s") for fabric in FABRICS)
                    texts.append((name, units.brief_size(nbytes), str(gpus), *cells))
        for gpus in COUNTS:
            cells = (units.quantity(message(hop, fabric, gpus), "s") for fabric in FABRICS)
            texts.append(("message", NO_VALUE, str(gpus), *cells))
        error = f"; its median error on this run's cases is {units.percent(self.error)}" if self.errors else ""
        note = f"Computed, not measured: α = {units.quantity(self.alpha_s, 's')} per message, "
        note += f"β = {units.quantity(self.beta, 'B/s')} per GPU, from single hops of this run{error}"
        tables = [Table(self.title, _HEADS, tuple(texts), _HEADS[:1], note)]
        if rows := tuple(_error_row(*compared) for compared in self.errors):
            tables.append(Table(f"Model and measured times: {self.title}", _ERROR_HEADS, rows, _ERROR_HEADS[:1]))
        return tables

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the median error of the model, if the run has cases to compare it with."""
        if self.errors:
            line = {"case": f"{self.suite}: {self.title}", "suite": self.suite, "quantity": "derived", "unit": ""}
            yield {**line, "series": "median error", "median": self.error}


def _error_row(case: str, measured_s: float, model_s: float) -> tuple[str, ...]:
    times = (units.quantity(seconds, "s") for seconds in (measured_s, model_s))
    return (case, *times, units.percent(model_s / measured_s - 1))


_Place = tuple[float, tuple[tuple[str, str | int | float], ...]]


def _points(summary: Summary, suite: str, view: View, case: str) -> Iterator[tuple[_Place, tuple[Result, float]]]:
    """Yield each measured point of a case: its size and other parameters, and its result with the median seconds."""
    for result in summary.results_of(suite):
        params = dict(result.case.params)
        size = params.pop(view.x, None)
        if result.status != "ok" or result.case.name != case or not isinstance(size, int | float) or not result.series:
            continue
        seconds = point_of(summary, [(result, result.series[0])]).seconds
        if seconds and stats.is_drawable(seconds.centre):
            yield (float(size), tuple(params.items())), (result, seconds.centre)
