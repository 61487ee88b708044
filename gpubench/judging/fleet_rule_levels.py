"""Judge the racks, the nodes and the components of a group, one level after the other, by the same rule.

A rack is as slow as three quarters of its components at least are, and so is a node. What a slow rack explains is taken
out of the rates of its components before the nodes are judged, and what a slow node explains before the components
are. So a slow rack neither hides a slow GPU in it nor accuses its nodes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpubench.analysis.overview import CaseKey, ComponentKind
from gpubench.judging import outliers
from gpubench.judging.fleet import Place, TwoPopulations
from gpubench.judging.fleet_rule_groups import ComparableGroup
from gpubench.judging.outliers import (
    LEAST_COMPONENTS,
    LEAST_EFFECT,
    LEAST_SPREAD,
    Indices,
    Limits,
    Mask,
    Matrix,
    Outliers,
    Vector,
)

_LEAST_CASES = 2  # a family with one case needs no row, because the mean of one case is that case
_LEAST_KNOWN = 0.4  # the least share of the weight of a family's cases, or of a unit's parts, that must be known
_MIDDLE = 0.42  # the weighted median is the mean of this quantile and of its mirror, so that none needs equal weights
_QUARTER = 0.25
_SCOUT_ALPHA = 0.05  # the share of healthy fleets in which a component is no reference although nothing is wrong
_LEAST_UNITS = 3  # racks or nodes: with two it is unknown which one is wrong
_EFFECT_OF_RACKS = LEAST_EFFECT / 2  # a rack concerns many GPUs
_MOST_NAMED = 3


class Row(NamedTuple):
    """One row of a judged matrix: a case, or a family if `key` is None."""

    key: CaseKey | None
    family: str


@dataclass(frozen=True, slots=True)
class Units:
    """The units of one kind: each has the components in the columns `parts`, shape (units, most parts), -1 for none."""

    kind: ComponentKind
    places: tuple[Place, ...]
    parts: Indices

    def columns(self, unit: int) -> list[int]:
        """Return the columns of the components of a unit."""
        return [column for column in self.parts[unit].tolist() if column >= 0]


class Level(NamedTuple):
    """Units as they are judged: `found` has a row for each of `rows` and a column for each unit."""

    units: Units
    rows: tuple[Row, ...]
    found: Outliers


class JudgedGroup(NamedTuple):
    """The judged levels of a group, the racks first and the components last, and its cases with two populations."""

    levels: tuple[Level, ...]
    populations: tuple[TwoPopulations, ...]


def judge_levels(group: ComparableGroup, racks: Mapping[str, str]) -> JudgedGroup:
    """Return the judged levels of a group; `racks` has the rack of each node whose rack is known."""
    medians = outliers.medians(np.where(group.may_refer, group.rates, np.nan))
    rates = group.rates - medians
    may_refer = np.isfinite(rates) & group.may_refer
    levels: list[Level] = []
    for units in _units(group, racks):
        values, errors, refer = (_of_units(units, matrix) for matrix in (rates, group.errors, may_refer.astype(float)))
        effect = _EFFECT_OF_RACKS if units.kind == "rack" else LEAST_EFFECT
        limits = Limits(effect, LEAST_SPREAD / 2, _LEAST_UNITS)
        is_small = len(units.places) < LEAST_COMPONENTS
        rows, judged = _judge_rows(group.keys, values, errors, refer > 0, limits, is_small)
        levels.append(Level(units, rows, _without_shared(judged, units, levels)))
        _lift(group.keys, levels[-1], rates, may_refer)
    own = Units(group.kind, tuple(place for place, _ in group.members), np.arange(len(group.members))[:, None])
    divided, errors, extra, split = _divided(rates, group.errors, may_refer)
    keys = (*group.keys, *(group.keys[row] for row in extra))
    may_refer = np.vstack([may_refer, may_refer[extra]])
    rows, judged = _judge_rows(keys, divided, errors, may_refer, Limits(), False)
    levels.append(Level(own, rows, _without_shared(judged, own, levels)))
    return JudgedGroup(tuple(levels), _populations(group, rates, split, racks))


def _units(group: ComparableGroup, racks: Mapping[str, str]) -> Iterator[Units]:
    """Yield the racks if there are three or more, if these have several nodes, and likewise the nodes."""
    nodes = [place.node for place, _ in group.members]
    of_racks = [racks.get(node, "") for node in nodes]
    if len(set(nodes)) > len(set(of_racks)) > 1 and all(of_racks):
        yield from _of_kind("rack", of_racks, [Place(rack, ()) for rack in of_racks], nodes)
    if group.kind == "GPU":
        devices: dict[str, list[str]] = {}
        for place, _ in group.members:
            devices.setdefault(place.node, []).extend(place.devices)
        yield from _of_kind("node", nodes, [Place(node, tuple(devices[node])) for node in nodes], range(len(nodes)))


def _of_kind(
    kind: ComponentKind, names: Sequence[str], places: Sequence[Place], members: Sequence[object]
) -> Iterator[Units]:
    """Yield the units `names` of the components that have two or more different `members`."""
    columns: dict[str, list[int]] = {}
    for column, name in enumerate(names):
        columns.setdefault(name, []).append(column)
    units = [of_unit for of_unit in columns.values() if len({members[column] for column in of_unit}) > 1]
    if len(units) < _LEAST_UNITS:
        return
    parts = np.full((len(units), max(map(len, units))), -1)
    for unit, of_unit in enumerate(units):
        parts[unit, : len(of_unit)] = of_unit
    yield Units(kind, tuple(places[of_unit[0]] for of_unit in units), parts)


def _of_units(units: Units, matrix: Matrix) -> Matrix:
    """Return for each unit the value that a quarter of its parts reach or exceed; NaN if most of them are unknown."""
    values = np.where(units.parts >= 0, matrix[:, units.parts], np.nan)
    ordered = np.sort(values, axis=2)  # NaN last
    count = np.isfinite(values).sum(axis=2)
    place = np.maximum(np.ceil((1 - _QUARTER) * (count - 1)), 0).astype(int)
    is_known = (count > 0) & (count >= _LEAST_KNOWN * (units.parts >= 0).sum(axis=1))
    of_units: Matrix = np.where(is_known, np.take_along_axis(ordered, place[:, :, None], axis=2)[:, :, 0], np.nan)
    return of_units


def _judge_rows(
    keys: Sequence[CaseKey], rates: Matrix, errors: Matrix, may_refer: Mask, limits: Limits, pools_all: bool
) -> tuple[tuple[Row, ...], Outliers]:
    """Return the rows of cases and of families with two or more, and the outliers; `pools_all` pools all variances."""
    names = [key.family for key in keys]
    pools = [""] * len(names) if pools_all else names
    cases = outliers.find(rates, errors, pools, may_refer, limits)
    families = _family_rows(keys, rates, errors, may_refer, cases.spread)
    limits_of_middles = replace(limits, spread=limits.spread / 2)
    # what looks like an outlier of a family at a lower limit is no reference in this family
    scouted = families.outliers(slice(None), pools_all, replace(limits_of_middles, alpha=_SCOUT_ALPHA))
    strange = scouted.is_suspect | scouted.is_fast
    if strange.any():
        for row, units in zip(families.rows, strange, strict=True):
            may_refer = may_refer & ~(np.array([name == row.family for name in names])[:, None] & units)
        cases = outliers.find(rates, errors, pools, may_refer, limits)
    families = families._replace(refer=families.refer & ~strange)
    judged, curves = cases, (outliers.curves_of_medians(cases.curves), cases.curves)
    for part, of_part in zip((slice(families.medians), slice(families.medians, None)), curves, strict=True):
        alpha = limits.alpha * len(families.rows[part]) / max(1, len(families.rows))
        limits_of_part = replace(limits_of_middles, alpha=alpha, curves=of_part)
        judged = judged.above(families.outliers(part, pools_all, limits_of_part))
    return (*(Row(key, key.family) for key in keys), *families.rows), judged


class _Families(NamedTuple):
    """A row for each family of two cases or more: a median for the first `medians`, a mean for families of two."""

    rows: list[Row]
    middles: Matrix
    errors: Matrix
    refer: Mask
    medians: int

    def outliers(self, part: slice, pools_all: bool, limits: Limits) -> Outliers:
        """Return the outliers in these rows."""
        pools = ["" if pools_all else row.family for row in self.rows[part]]
        return outliers.find(self.middles[part], self.errors[part], pools, self.refer[part], limits)


def _family_rows(keys: Sequence[CaseKey], rates: Matrix, errors: Matrix, may_refer: Mask, spread: Matrix) -> _Families:
    """Return the families with their medians or means, the errors of these, and a mask of the references."""
    known = np.isfinite(rates)
    of_families: dict[str, list[int]] = {}
    for row, key in enumerate(keys):
        if known[row].sum() > 1:
            of_families.setdefault(key.family, []).append(row)
    families = [(family, chosen) for family, chosen in of_families.items() if len(chosen) >= _LEAST_CASES]
    families.sort(key=lambda item: len(item[1]) == _LEAST_CASES)
    middles, middle_errors, refer = [], [], []
    for _, chosen in families:
        is_reference = may_refer[chosen] & known[chosen]
        centred = rates[chosen] - outliers.medians(np.where(is_reference, rates[chosen], np.nan))
        weight = np.where(known[chosen], spread[chosen] ** -2.0, 0.0)
        total = np.where(weight.any(axis=0), weight.sum(axis=0), 1.0)
        is_known = weight.sum(axis=0) >= _LEAST_KNOWN * (spread[chosen] ** -2.0).sum()
        if len(chosen) > _LEAST_CASES:
            second = np.sort(weight, axis=0)[-2]
            middle = _weighted_medians(centred, np.minimum(weight, second))  # no case decides alone
            is_known &= second > 0
        else:
            middle = (weight * np.nan_to_num(centred)).sum(axis=0) / total
        # a few medians can be closer together by chance than the noise of their cases makes means
        distances = np.abs(centred / spread[chosen])[is_reference]
        least = outliers.MAD_TO_SIGMA * float(np.median(distances)) if len(distances) else 0.0
        error = np.sqrt(((weight * np.nan_to_num(errors[chosen])) ** 2).sum(axis=0)) / total
        middles.append(np.where(is_known, middle, np.nan))
        middle_errors.append(np.maximum(error, least / np.sqrt(total)))
        refer.append(may_refer[chosen].any(axis=0))
    shape = (len(families), rates.shape[1])
    both = np.array([middles, middle_errors], float).reshape(2, *shape)
    medians = sum(len(chosen) > _LEAST_CASES for _, chosen in families)
    rows = [Row(None, family) for family, _ in families]
    return _Families(rows, both[0], both[1], np.array(refer, bool).reshape(shape), medians)


def _weighted_medians(values: Matrix, weights: Matrix) -> Vector:
    """Return the weighted median of each column, which no single value can move far.

    It is the mean of the two quantiles beside the middle, or, where one value has the weight to be one of them, the
    quantile nearer to zero."""
    order = np.argsort(np.where(weights > 0, values, np.inf), axis=0)
    shares = np.take_along_axis(weights, order, axis=0).cumsum(axis=0)
    total = shares[-1]
    places = (shares >= _MIDDLE * total).argmax(axis=0), (shares > (1 - _MIDDLE) * total).argmax(axis=0)
    low, high = (np.take_along_axis(values, np.take_along_axis(order, at[None, :], 0), 0)[0] for at in places)
    nearer = np.where(np.abs(low) < np.abs(high), low, high)
    middles: Vector = np.where(weights.max(axis=0) < _MIDDLE * total, (low + high) / 2, nearer)
    return middles


def _without_shared(found: Outliers, units: Units, larger: Sequence[Level]) -> Outliers:
    """Return the outliers without suspects like three quarters of their node or rack: that level decides on these."""
    is_suspect = found.is_suspect.copy()
    for level in larger:
        for unit in range(len(level.units.places) if len(level.units.places) >= LEAST_COMPONENTS else 0):
            inside = np.flatnonzero(np.isin(units.parts[:, 0], level.units.columns(unit)))
            rows = np.flatnonzero(found.is_suspect[:, inside].sum(axis=1) >= (1 - _QUARTER) * len(inside))
            is_suspect[np.ix_(rows, inside)] = False
    return replace(found, is_suspect=is_suspect)


def _lift(keys: Sequence[CaseKey], level: Level, rates: Matrix, may_refer: Mask) -> None:
    """Take the slowdowns of suspects out of the rates of their components, which are references no more."""
    for row, unit in np.argwhere(level.found.is_suspect).tolist():
        key, family = level.rows[row]
        cases = [index for index, of_row in enumerate(keys) if (of_row == key if key else of_row.family == family)]
        where = np.ix_(np.array(cases), np.array(level.units.columns(unit)))
        before = rates[where]
        rates[where] = np.fmin(before + level.found.slowdown[row, unit], np.fmax(before, 0.0))  # not above the median
        may_refer[where] = False


def _divided(rates: Matrix, errors: Matrix, may_refer: Mask) -> tuple[Matrix, Matrix, list[int], npt.NDArray[np.intp]]:
    """Return the matrices with each slower population in a row below the others, its cases, and the sizes for all."""
    split = outliers.populations(np.where(may_refer, rates, np.nan))
    extra = np.flatnonzero(split).tolist()
    slower = np.zeros_like(may_refer)
    for row in extra:
        border = np.sort(rates[row][may_refer[row]])[split[row] - 1]
        slower[row] = rates[row] <= border
    whole = np.vstack([np.where(slower, np.nan, rates), np.where(slower, rates, np.nan)[extra]])
    return whole, np.vstack([errors, errors[extra]]), extra, split


def _populations(
    group: ComparableGroup, rates: Matrix, split: npt.NDArray[np.intp], racks: Mapping[str, str]
) -> tuple[TwoPopulations, ...]:
    """Return the cases with two populations by family and slower components, the largest gap first."""
    parts: dict[tuple[str, bytes], list[int]] = {}
    for row in np.flatnonzero(split):
        is_slower = rates[row] <= np.sort(rates[row][np.isfinite(rates[row]) & group.may_refer])[split[row] - 1]
        parts.setdefault((group.keys[row].family, is_slower.tobytes()), []).append(int(row))
    described = []
    for (family, mask), rows in parts.items():
        is_slower = np.frombuffer(mask, dtype=bool)
        gaps = [np.nanmedian(rates[row][~is_slower]) - np.nanmedian(rates[row][is_slower]) for row in rows]
        slow, fast = ([group.members[column] for column in np.flatnonzero(part)] for part in (is_slower, ~is_slower))
        sides = [
            [{**dict(part.details), "rack": racks.get(place.node, ""), "node": place.node} for place, part in members]
            for members in (slow, fast)
        ]
        cases, places = tuple(group.keys[row].case for row in rows), tuple(member.place for member in slow)
        gap = -math.expm1(-float(np.median(gaps)))
        described.append(TwoPopulations(family, cases, places, len(fast), gap, tuple(_differences(*sides))))
    return tuple(sorted(described, key=lambda two: -two.gap))


def _differences(slow: Sequence[Mapping[str, str]], fast: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield the details in which no slower component is like a faster one; the nodes only if nothing else differs."""
    is_told = False
    for name in dict.fromkeys(name for details in (*slow, *fast) for name in details):
        here, there = ({details.get(name) or "unknown" for details in side} for side in (slow, fast))
        if here & there or (name == "node" and is_told):
            continue
        is_told = True
        slower, faster = (
            ", ".join(sorted(values)[:_MOST_NAMED]) + ", …" * (len(values) > _MOST_NAMED) for values in (here, there)
        )
        yield f"{name.replace('.', ' ')} {slower} in the slower part, {faster} in the other"
