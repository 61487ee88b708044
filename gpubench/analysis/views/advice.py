"""Advise a codec for data and a link, from round trips and the raw rate of the link alone.

Measured transfers that the advice did not use say how much it loses."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpubench.analysis.views import breakeven
from gpubench.analysis.views.breakeven import ChargedSides, CodecRates, Payoff
from gpubench.analysis.views.table import Table
from gpubench.base import units
from gpubench.model import NamedLink, Params

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
    rows = tuple(_row(key, rates, rates_of_links.values()) for key, rates in groups.items())
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


def _row(key: DataKey, rates: Mapping[str, CodecRates], links: Iterable[tuple[ChargedSides, float]]) -> tuple[str, ...]:
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
