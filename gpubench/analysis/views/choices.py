"""Choose the fastest of several measured ways by a model of their times, and compute what each choice would lose.

A view of the kind `choice` names ways that do the same job: cases, values of the axes `by`, or, with the series `*`,
stages of one case. Each point is predicted from the points beside it alone, without itself. A run with replicates is
also replayed: before each replicate the chooser knows only the one before, so that a change of rate shows its cost.

Advise a codec for data and a link, from round trips and the raw rate of the link alone.

Measured transfers that the advice did not use say how much it loses."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gpubench import stats
from gpubench.analysis.summary import Summary
from gpubench.analysis.views import breakeven
from gpubench.analysis.views.breakeven import ChargedSides, CodecRates, Payoff
from gpubench.analysis.views.curves import point_of
from gpubench.analysis.views.table import NO_VALUE, Derived, Table
from gpubench.base import units
from gpubench.model import NamedLink, Params, Result, Series, View

_EQUAL = 0.02  # predictions that differ by less count as equally fast, and the first way in the order of a run wins
_EVERY = "*"
_HEADS = ("choice among", "predicted points", "chosen", "median loss", "worst loss", "always the same: worst loss")
_REPLAY_HEADS = (
    "choice among",
    "replicates",
    "largest change of a time",
    "following: median loss",
    "worst loss",
    "as in the first: median loss",
    "worst loss of these",
)

Times = Mapping[str, Mapping[float, float]]
"""Seconds by way and by place on the x axis."""


def between(times: Mapping[float, float], place: float) -> float | None:
    """Return the seconds at `place` on the straight line through the nearest places on either side, without itself.

    None if one side has no place. A larger place that took less time counts as equally long."""
    low, high = max((x for x in times if x < place), default=None), min((x for x in times if x > place), default=None)
    if low is None or high is None:
        return None
    rise_s = max(times[high] - times[low], 0.0)
    return times[low] + rise_s * (place - low) / (high - low)


def fastest(seconds: Mapping[str, float]) -> str:
    """Return the first way whose seconds are within 2 % of the shortest."""
    least_s = min(seconds.values())
    return next(way for way, taken_s in seconds.items() if taken_s <= (1 + _EQUAL) * least_s)


def loss(way: str, seconds: Mapping[str, float]) -> float:
    """Return the regret of `way`: how much longer it takes than the fastest way, as a share of that time."""
    return seconds[way] / min(seconds.values()) - 1


@dataclass(frozen=True, slots=True)
class Choice:
    """The way that the model chose at one place, and its loss; `losses` has the loss of every way there."""

    RECORD: ClassVar[str] = "at way loss"
    at: float
    way: str
    losses: Mapping[str, float]

    @property
    def loss(self) -> float:
        """The loss of the chosen way."""
        return self.losses[self.way]


def left_out(times: Times) -> list[Choice]:
    """Return the choice at each place that has measured places on both sides, predicted without that place.

    Places where fewer than two ways can be predicted are left out."""
    choices = []
    for place in sorted({place for measured in times.values() for place in measured}):
        predicted = {
            way: seconds
            for way, measured in times.items()
            if place in measured and (seconds := between(measured, place)) is not None
        }
        if len(predicted) > 1:
            actual = {way: times[way][place] for way in predicted}
            choices.append(Choice(place, fastest(predicted), {way: loss(way, actual) for way in actual}))
    return choices


def always_the_same(choices: Sequence[Choice]) -> float | None:
    """Return the worst loss of the single way that loses least at worst; None if no way is measured everywhere."""
    shared = set.intersection(*(set(choice.losses) for choice in choices)) if choices else set()
    return min((max(choice.losses[way] for choice in choices) for way in shared), default=None)


@dataclass(frozen=True, slots=True)
class Replay:
    """Losses of a chooser over the replicates of a run, one for each place and each replicate after the first.

    `following` knows the replicate before, `fixed` only the first one. `change` is the largest
    factor between two consecutive times of one way at one place."""

    RECORD: ClassVar[str] = "replicates change following fixed"
    replicates: int
    change: float
    following: tuple[float, ...]
    fixed: tuple[float, ...]


def replayed(replicates: Sequence[Times]) -> Replay | None:
    """Return the replay of consecutive replicates; None if no place was measured by two ways in two of them."""
    rows: list[tuple[float, float, float]] = []
    for before, now in itertools.pairwise(replicates):
        for place in sorted({place for measured in now.values() for place in measured}):
            first_s, before_s, now_s = (
                {way: measured[place] for way, measured in times.items() if place in measured}
                for times in (replicates[0], before, now)
            )
            ways = [way for way in now_s if way in before_s and way in first_s]
            if len(ways) > 1:
                changes = (max(now_s[way] / before_s[way], before_s[way] / now_s[way]) for way in ways)
                following, fixed = (fastest({way: seconds[way] for way in ways}) for seconds in (before_s, first_s))
                actual = {way: now_s[way] for way in ways}
                rows.append((max(changes), loss(following, actual), loss(fixed, actual)))
    if not rows:
        return None
    change, *losses = zip(*rows, strict=True)
    return Replay(len(replicates), max(change), *losses)


@dataclass(frozen=True, slots=True)
class ChoiceGroup:
    """The choices among ways that do the same job; `label` names what they share, and `ways` are their names."""

    RECORD: ClassVar[str] = "label ways choices replay"
    label: str
    ways: tuple[str, ...]
    choices: tuple[Choice, ...]
    replay: Replay | None

    @property
    def text(self) -> str:
        """What the ways share, and the ways: `cuda:0: engine, kernel`."""
        return f"{self.label}: {', '.join(self.ways)}"


@dataclass(frozen=True, slots=True)
class Choices(Derived):
    """The choices of one view among ways on the axis `axis`, for each group of ways that do the same job."""

    KIND: ClassVar[str] = "choice"
    RECORD: ClassVar[str] = "suite view=title axis groups"
    suite: str
    title: str
    axis: str
    groups: tuple[ChoiceGroup, ...]

    @classmethod
    def of(cls, summary: Summary, suite: str, view: View) -> list[Choices]:
        """Return the choices of a view; groups without a place that can be predicted or replayed are left out."""
        groups = tuple(_groups(summary, suite, view))
        return [cls(suite, view.title, view.x, groups)] if groups else []

    @property
    def tables(self) -> list[Table]:
        """The losses on points that the model did not know, and of the replay of replicates; each if it has rows."""
        place = units.brief_size if self.axis.endswith("_bytes") else "{:.4g}".format
        note = "A loss is the time of the chosen way over the fastest way's, minus 1. Each point is predicted from the "
        note += "points on both sides of it, without itself"
        rows = tuple(_row(group, place) for group in self.groups if group.choices)
        tables = [Table(f"Choice by a model: {self.title}", _HEADS, rows, _HEADS[:3:2], note)] if rows else []
        note = "Before each replicate the choice follows from the replicate before (following), or from the first one"
        if rows := tuple(_replay_row(group, group.replay) for group in self.groups if group.replay):
            title = f"Choice replayed over replicates: {self.title}"
            tables.append(Table(title, _REPLAY_HEADS, rows, _REPLAY_HEADS[:1], note))
        return tables

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the median and the worst loss of each group, and of its replay."""
        line = {"case": f"{self.suite}: {self.title}", "suite": self.suite, "quantity": "derived", "unit": ""}
        for group in self.groups:
            losses = {"loss": tuple(choice.loss for choice in group.choices)}
            if group.replay:
                losses |= {"replayed loss": group.replay.following, "replayed loss, fixed": group.replay.fixed}
            for name, values in losses.items():
                if values:
                    yield {**line, "params": group.text, "series": f"median {name}", "median": stats.median(values)}
                    yield {**line, "params": group.text, "series": f"worst {name}", "median": max(values)}


def _groups(summary: Summary, suite: str, view: View) -> Iterator[ChoiceGroup]:
    """Yield the groups of a view: ways whose other axes and first device are the same."""
    grouped: dict[str, dict[str, dict[float, list[tuple[Result, Series]]]]] = {}
    for result in summary.results_of(suite):
        params = dict(result.case.params)
        place = params.pop(view.x, None)
        if result.status != "ok" or result.case.name not in view.cases or not isinstance(place, int | float):
            continue
        chosen = [result.case.name] if len(view.cases) > 1 else []
        chosen += [units.axis_value_text(axis, params.pop(axis)) for axis in view.by if axis in params]
        label = " · ".join([*(units.axis_value_text(axis, value) for axis, value in params.items()), result.devices[0]])
        for stage, series in _series(result, view):
            way = " · ".join([*chosen, *stage])
            grouped.setdefault(label, {}).setdefault(way, {}).setdefault(float(place), []).append((result, series))
    for label, measured in grouped.items():
        choices = left_out(_times(summary, measured))
        replicates = sorted({result.replicate for result, _ in _pairs(measured)})
        replay = replayed([_times(summary, measured, replicate) for replicate in replicates])
        if choices or replay:
            yield ChoiceGroup(label, tuple(measured), tuple(choices), replay)


def _series(result: Result, view: View) -> Iterator[tuple[list[str], Series]]:
    """Yield the series of a result that the view compares: one, or with `*` each stage with its name."""
    for series in result.series:
        if view.series == _EVERY:
            if series.role == "primary" and series.stage and series.rank == result.series[0].rank:
                yield [series.stage], series
        elif series.label == view.series or not view.series:
            yield [], series
            return


_Measured = Mapping[str, Mapping[float, Sequence[tuple[Result, Series]]]]


def _pairs(measured: _Measured) -> Iterable[tuple[Result, Series]]:
    return (pair for places in measured.values() for pairs in places.values() for pair in pairs)


def _times(summary: Summary, measured: _Measured, replicate: int | None = None) -> dict[str, dict[float, float]]:
    """Return the seconds of each way by place, over all replicates or in one."""
    times: dict[str, dict[float, float]] = {}
    for way, places in measured.items():
        times[way] = {}
        for place, pairs in places.items():
            chosen = [pair for pair in pairs if replicate in (None, pair[0].replicate)]
            seconds = point_of(summary, chosen).seconds if chosen else None
            if seconds and stats.is_drawable(seconds.centre):
                times[way][place] = seconds.centre
    return times


def _row(group: ChoiceGroup, place: Any) -> tuple[str, ...]:
    losses = [choice.loss for choice in group.choices]
    same = always_the_same(group.choices)
    runs = itertools.groupby(group.choices, lambda choice: choice.way)
    return (
        group.text,
        str(len(losses)),
        ", ".join(f"{way} from {place(next(choices).at)}" for way, choices in runs),
        units.percent(stats.median(losses)),
        units.percent(max(losses)),
        units.percent(same) if same is not None else NO_VALUE,
    )


def _replay_row(group: ChoiceGroup, replay: Replay) -> tuple[str, ...]:
    figures = (figure for losses in (replay.following, replay.fixed) for figure in (stats.median(losses), max(losses)))
    return group.text, str(replay.replicates), f"{replay.change:.2f}×", *map(units.percent, figures)


RAW = "raw"  # the advice to send uncompressed data
_LEAST_SAVING = 0.05  # share of the bytes; a codec that saves less does not justify a decoder
_CHUNK_BYTES = 2**16  # the chunks of messages
_OWN_AXES = ("codec", "size_bytes", "chunk_bytes")  # axes in which a message and the round trip of its data differ
_DATA_HEADS = ("data", "device", "fastest", "smallest")
_LOSS_HEADS = ("case", "device", "advised", "best", "loss")

DataKey = tuple[tuple[str, ...], Params]  # devices, and the parameters that name the data


@dataclass(frozen=True, slots=True)
class MeasuredAdvice:
    """The codec that is advised for a message and the best one that was measured; either may be `raw`.

    `loss` is the share of the best measured rate that the advised codec does not reach."""

    case: str
    devices: tuple[str, ...]
    advised: str
    best: str
    loss: float


def best_codec(codecs: Mapping[str, CodecRates], sides: ChargedSides, link: float) -> tuple[str, float]:
    """Return the codec with the highest modelled rate over a link of `link` B/s, or `raw`, and that rate in B/s."""
    rates = {name: coded.pipelined(sides, link) for name, coded in codecs.items()}
    name = max(rates, key=rates.__getitem__, default=RAW)
    return (name, rates[name]) if name != RAW and rates[name] > link else (RAW, link)


def measured_advice(codecs: Sequence[Payoff], transfers: Iterable[Payoff]) -> list[MeasuredAdvice]:
    """Return the advice for each message that was sent, among the codecs that it was sent with and `raw`.

    The advice uses the round trips `codecs` of the same data on the same device, and the raw rate of the link."""
    rates_by_data = _rates_by_data(codecs)
    messages: dict[DataKey, list[Payoff]] = {}
    for transfer in transfers:
        rest = tuple((axis, value) for axis, value in transfer.case.params if axis != "codec")
        messages.setdefault((transfer.devices, (("case", transfer.case.name), *rest)), []).append(transfer)
    advice = []
    for sent in messages.values():
        first, rates = (
            sent[0],
            {_codec(transfer): transfer.overlapped.centre for transfer in sent if transfer.overlapped},
        )
        data = next((data for key, data in rates_by_data.items() if _is_same_data(key, first)), {})
        candidates = {name: data[name] for name in rates if name in data}
        if not candidates or not first.sides:
            continue
        rates[RAW] = max(transfer.raw.centre for transfer in sent if transfer.raw)
        advised, _ = best_codec(candidates, first.sides, rates[RAW])
        best = max(rates, key=rates.__getitem__)
        advice.append(MeasuredAdvice(first.case.id, first.devices, advised, best, 1 - rates[advised] / rates[best]))
    return advice


def tables(
    title: str, codecs: Sequence[Payoff], transfers: Sequence[Payoff], links: Sequence[NamedLink]
) -> list[Table]:
    """Return the table of advice for each data and link, and the table of its losses where transfers were measured."""
    groups = {key: rates for key, rates in _rates_by_data(codecs).items() if len(rates) > 1}
    if not groups:
        return []
    rates_of_links: dict[str, tuple[ChargedSides, float]] = {link.name: ("apart", link.rate) for link in links}
    for transfer in transfers:
        name = str(dict(transfer.case.params).get("link", transfer.case.name))
        if transfer.sides and transfer.raw and transfer.raw.centre > rates_of_links.get(name, ("", 0.0))[1]:
            rates_of_links[name] = (transfer.sides, transfer.raw.centre)
    heads = (*_DATA_HEADS, *(f"over {name}" for name in rates_of_links))
    rows = tuple(_advice_row(key, rates, rates_of_links.values()) for key, rates in groups.items())
    note = "Computed from round trips and the raw rates of the links; fastest: of the codecs that save 5 %"
    advice_tables = [Table(f"Advised codec: {title}", heads, rows, heads, note)]
    if measured := measured_advice(codecs, transfers):
        losses = [advice.loss for advice in measured]
        rows = tuple(
            (advice.case, ", ".join(advice.devices), advice.advised, advice.best, units.percent(advice.loss))
            for advice in measured
        )
        worst, median = units.percent(max(losses)), units.percent(statistics.median(losses))
        note = f"Loss of the measured rate: worst {worst}, median {median}. The advice used none of these transfers"
        advice_tables.append(Table(f"Advice and measured transfers: {title}", _LOSS_HEADS, rows, _LOSS_HEADS[:4], note))
    return advice_tables


def _advice_row(
    key: DataKey, rates: Mapping[str, CodecRates], links: Iterable[tuple[ChargedSides, float]]
) -> tuple[str, ...]:
    devices, params = key
    saving = {name: coded for name, coded in rates.items() if 1 - 1 / coded.ratio >= _LEAST_SAVING}
    fastest = min(saving, key=lambda name: 1 / saving[name].compress + 1 / saving[name].decompress, default=RAW)
    smallest = max(rates, key=lambda name: rates[name].ratio)
    advised = [(*best_codec(rates, sides, link), link) for sides, link in links]
    return (
        ", ".join(units.axis_value_text(axis, value) for axis, value in params),
        ", ".join(devices),
        fastest,
        smallest if rates[smallest].ratio > 1 else RAW,
        *(name if name == RAW else f"{name} {breakeven.times(rate / link)}" for name, rate, link in advised),
    )


def _rates_by_data(codecs: Iterable[Payoff]) -> dict[DataKey, dict[str, CodecRates]]:
    groups: dict[DataKey, dict[str, CodecRates]] = {}
    for payoff in codecs:
        params = dict(payoff.case.params)
        if "codec" in params and params.get("chunk_bytes", _CHUNK_BYTES) == _CHUNK_BYTES:
            data = tuple((axis, value) for axis, value in payoff.case.params if axis not in _OWN_AXES)
            groups.setdefault((payoff.devices, data), {})[_codec(payoff)] = payoff.coded
    return groups


def _is_same_data(key: DataKey, transfer: Payoff) -> bool:
    params: Mapping[str, Any] = dict(transfer.case.params)
    return key[0][0] == transfer.devices[0] and all(params.get(axis) == value for axis, value in key[1])


def _codec(payoff: Payoff) -> str:
    return str(dict(payoff.case.params).get("codec", ""))
