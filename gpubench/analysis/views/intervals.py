"""Compute after how many steps to save a snapshot, or to exchange results, from measured times, and what that loses.

Sources of the best number of steps between two snapshots: Young, "A first order approximation to the optimum
checkpoint interval", CACM 17 (1974), 530–531; Daly, "A higher order estimate of the optimum checkpoint interval for
restart dumps", FGCS 22 (2006), 303–312, equations 20 and 37."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gpubench import stats
from gpubench.analysis.quantities import series_labelled
from gpubench.analysis.summary import Summary
from gpubench.analysis.views.choices import between
from gpubench.analysis.views.curves import point_of
from gpubench.analysis.views.table import NO_VALUE, Derived, Table
from gpubench.base import units
from gpubench.model import Result, Series, View

_RESUME = "resume.self"  # the stage that restarts from a snapshot; a case without it exchanges results
_MTBF_S = {"a failure every 1 h": 3600.0, "a failure every 1 d": 86400.0}
_MOST_SHARE = 0.05  # share of the time that exchanges may add
_MOST_EXPONENT = 700.0  # the exponential of a larger exponent would exceed the largest float
_HEADS = ("case", "for", "step", "cost", "steps between", "adds", "steps predicted without it", "loss")


def young_s(save_s: float, mtbf_s: float) -> float:
    """Return the optimal seconds of work between snapshots by Young's first-order formula, √(2 · save_s · mtbf_s)."""
    return math.sqrt(2 * save_s * mtbf_s)


def daly_s(save_s: float, mtbf_s: float) -> float:
    """Return the optimal seconds of work between snapshots by Daly's higher-order formula (equation 37).

    `save_s` is the time δ to save one, and `mtbf_s` the mean time M between failures."""
    if save_s >= 2 * mtbf_s:
        return mtbf_s
    share = save_s / (2 * mtbf_s)
    return young_s(save_s, mtbf_s) * (1 + math.sqrt(share) / 3 + share / 9) - save_s


@dataclass(frozen=True, slots=True)
class SnapshotCosts:
    """Seconds of a step, of saving a snapshot, of restarting from one, and the mean time between failures."""

    step_s: float
    cost_s: float
    restart_s: float
    mtbf_s: float

    def slowdown(self, steps: int) -> float:
        """Return the expected time with a snapshot after every `steps` steps, over the time of the steps alone.

        Failures are exponentially distributed (equation 20)."""
        work_s = steps * self.step_s
        segments = math.expm1(min((work_s + self.cost_s) / self.mtbf_s, _MOST_EXPONENT))
        return self.mtbf_s * math.exp(min(self.restart_s / self.mtbf_s, _MOST_EXPONENT)) * segments / work_s

    def best_steps(self) -> int:
        """Return the steps between two snapshots, at least 1: Daly's formula, rounded as `slowdown` prefers."""
        steps = max(1, math.floor(daly_s(self.cost_s, self.mtbf_s) / self.step_s))
        return min((steps, steps + 1), key=self.slowdown)


@dataclass(frozen=True, slots=True)
class ExchangeCosts:
    """Seconds of a step, and of an exchange that no step hides."""

    step_s: float
    cost_s: float

    def slowdown(self, steps: int) -> float:
        """Return the time with an exchange after every `steps` steps, over the time of the steps alone."""
        return 1 + self.cost_s / (steps * self.step_s)

    def best_steps(self) -> int:
        """Return the fewest steps between two exchanges, at least 1, with which these add at most 5 %.

        Fewer exchanges let the ranks drift apart, so that no larger interval than needed is chosen."""
        return max(1, math.ceil(self.cost_s / (_MOST_SHARE * self.step_s) - 1e-9))


@dataclass(frozen=True, slots=True)
class Interval:
    """The best `steps` of one case by its measured `costs`; `label` says of what, and `purpose` for what.

    `predicted` are the steps by the cases on both sides of it alone, None without these."""

    RECORD: ClassVar[str] = "case=label for=purpose steps adds predicted loss"
    label: str
    purpose: str
    costs: SnapshotCosts | ExchangeCosts
    predicted: int | None

    @property
    def steps(self) -> int:
        """The advised steps between two snapshots or exchanges, by the case's own times."""
        return self.costs.best_steps()

    @property
    def adds(self) -> float:
        """The time that these add, as a share of the time of the steps."""
        return self.costs.slowdown(self.steps) - 1

    @property
    def loss(self) -> float | None:
        """The expected time with the predicted steps over the time with the best ones, minus 1, at least 0."""
        if self.predicted is None:
            return None
        return max(self.costs.slowdown(self.predicted) / self.costs.slowdown(self.steps) - 1, 0.0)

    @property
    def row(self) -> tuple[str, ...]:
        """The cells of its row."""
        seconds = (units.quantity(value, "s") for value in (self.costs.step_s, self.costs.cost_s))
        loss = NO_VALUE if self.loss is None else units.percent(self.loss, 2)
        predicted = NO_VALUE if self.predicted is None else str(self.predicted)
        return self.label, self.purpose, *seconds, str(self.steps), units.percent(self.adds, 2), predicted, loss


@dataclass(frozen=True, slots=True)
class Intervals(Derived):
    """The intervals of one view: the axis `x` has its sizes, `series` the cost, and `y` is the series of a step."""

    KIND: ClassVar[str] = "interval"
    RECORD: ClassVar[str] = "suite view=title intervals"
    suite: str
    title: str
    intervals: tuple[Interval, ...]

    @classmethod
    def of(cls, summary: Summary, suite: str, view: View) -> list[Intervals]:
        """Return the intervals of a view's cases, in the order measured."""
        intervals = tuple(_intervals(summary, suite, view))
        return [cls(suite, view.title, intervals)] if intervals else []

    @property
    def losses(self) -> list[float]:
        """The losses of the cases that the others predict."""
        return [interval.loss for interval in self.intervals if interval.loss is not None]

    @property
    def tables(self) -> list[Table]:
        """The intervals with what they add, and the loss if the cases of other sizes predict them."""
        note = "Snapshots by Daly's formula (FGCS 22, 2006); exchanges may add 5 %"
        if self.losses:
            median, worst = units.percent(stats.median(self.losses), 2), units.percent(max(self.losses), 2)
            note += f"; cases left out: {len(self.losses)}, median loss {median}, worst loss {worst}"
        rows = tuple(interval.row for interval in self.intervals)
        return [Table(f"Best interval: {self.title}", _HEADS, rows, _HEADS[:2], note)]

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the steps of each interval, and the median and the worst loss."""
        line = {"case": f"{self.suite}: {self.title}", "suite": self.suite, "quantity": "derived"}
        for interval in self.intervals:
            series = f"steps for {interval.purpose}"
            yield {**line, "params": interval.label, "series": series, "unit": "steps", "median": interval.steps}
        if self.losses:
            yield {**line, "params": "", "series": "median loss", "unit": "", "median": stats.median(self.losses)}
            yield {**line, "params": "", "series": "worst loss", "unit": "", "median": max(self.losses)}


def _intervals(summary: Summary, suite: str, view: View) -> Iterator[Interval]:
    """Yield the intervals of a view: the times of a group follow from each other over the axis `x`."""
    grouped: dict[str, dict[float, list[Result]]] = {}
    for result in summary.results_of(suite):
        params = dict(result.case.params)
        place = params.pop(view.x, None)
        if result.status == "ok" and result.case.name in view.cases and isinstance(place, int | float):
            parts = [*(units.axis_value_text(axis, value) for axis, value in params.items()), result.devices[0]]
            grouped.setdefault(" · ".join(parts), {}).setdefault(float(place), []).append(result)
    for label, results in grouped.items():
        times: list[dict[float, float]] = [
            {place: seconds for place, same in results.items() if (seconds := _seconds(summary, same, name))}
            for name in (view.y, view.series, _RESUME)
        ]
        for place in (place for place in results if place in times[0] and place in times[1]):
            text = f"{units.axis_value_text(view.x, int(place))} · {label}"
            beside = [between(measured, place) for measured in times]
            for purpose, costs in _costs([measured.get(place) for measured in times]).items():
                predicted = _costs(beside).get(purpose)
                yield Interval(text, purpose, costs, predicted.best_steps() if predicted else None)


def _seconds(summary: Summary, results: list[Result], name: str) -> float | None:
    """Return the seconds of a series over the replicates of a case; None unless it is a positive time or rate."""
    pairs: list[tuple[Result, Series]] = [
        (result, series) for result in results if (series := series_labelled(result, name))
    ]
    seconds = point_of(summary, pairs).seconds if pairs else None
    return seconds.centre if seconds and seconds.centre > 0 and stats.is_drawable(seconds.centre) else None


def _costs(times: list[float | None]) -> Mapping[str, SnapshotCosts | ExchangeCosts]:
    """Return the costs by purpose from the seconds of a step, of its cost, and of a restart (None for exchanges)."""
    step_s, cost_s, restart_s = times
    if not step_s or not cost_s:
        return {}
    if restart_s is None:
        return {"exchanges that add at most 5 %": ExchangeCosts(step_s, cost_s)}
    return {name: SnapshotCosts(step_s, cost_s, restart_s, mtbf_s) for name, mtbf_s in _MTBF_S.items()}
