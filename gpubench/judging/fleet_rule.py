"""The rule that finds the slow components of a fleet: a pure function of the nodes' digests."""

from __future__ import annotations

import math
import statistics
from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from gpubench.analysis.digest import CaseKey, CaseRate, Component, NodeDigest
from gpubench.judging import outliers
from gpubench.judging.blame import blamed
from gpubench.judging.causes import causes
from gpubench.judging.fleet import (
    Basis,
    FleetCase,
    FleetFinding,
    FleetGroup,
    FleetJudgement,
    Place,
    Standing,
    Suspect,
    TwoPopulations,
    worst_first,
)
from gpubench.judging.fleet_again import Again, measured_again
from gpubench.judging.outliers import LEAST_COMPONENTS, LEAST_SPREAD, Matrix
from gpubench.model.fleet import Fleet

_LEAST_CASES = 2  # of a family: the mean of one case is that case


class Member(NamedTuple):
    """A component with its place."""

    place: Place
    component: Component


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of a group's matrix: a case, or (without a key) a family, for some of the group's columns."""

    key: CaseKey | None
    family: str


@dataclass(frozen=True, slots=True)
class _Group:
    """Comparable members with the natural logarithms of their rates: a row for each case, a column for each member."""

    members: tuple[Member, ...]
    keys: tuple[CaseKey, ...]
    rates: Matrix
    errors: Matrix

    @property
    def is_comparable(self) -> bool:
        """Whether the group has enough members to be compared with each other."""
        return len(self.members) >= LEAST_COMPONENTS


def judge_fleet(
    fleet: Fleet,
    digests: Sequence[NodeDigest],
    again: Sequence[Again] = (),
    elsewhere: Sequence[FleetFinding] = (),
    bases: Sequence[Basis] = (),
    notes: Sequence[str] = (),
) -> FleetJudgement:
    """Judge a fleet by the digests of its nodes.

    `again` are second measurements. `elsewhere` are findings against baselines and floors, which `bases` names. `notes`
    stand before those of the rule.
    """
    members, twice = _members(digests)
    groups = [_group(each) for each in _comparable(members)]
    findings: list[FleetFinding] = []
    shown: list[FleetGroup] = []
    for group in groups:
        found, described = _judged(group, again)
        findings += found
        shown.append(described)
    findings += elsewhere
    compared: list[Basis] = ["others"] if any(group.is_comparable for group in groups) else []
    suspects = blamed(findings, {member.place: member.component for member in members})
    standings = [standing for index, group in enumerate(groups) for standing in _standings(index, group, suspects)]
    return FleetJudgement(
        fleet,
        tuple(shown),
        worst_first(suspects),
        tuple(sorted(standings, key=lambda each: (each.place.node, each.place.devices))),
        (*compared, *bases),
        (*notes, *twice, *_too_few(groups), *_partial(digests)),
    )


def _members(digests: Sequence[NodeDigest]) -> tuple[list[Member], list[str]]:
    """Return every component once, and a note for each GPU that two nodes claim to have."""
    seen: dict[str, str] = {}
    members, notes = [], []
    for digest in digests:
        for component in digest.components:
            twice = [uuid for uuid in component.uuids if uuid and seen.get(uuid, digest.node) != digest.node]
            if twice:
                names = f"{digest.node} and {seen[twice[0]]}"
                notes.append(f"{names} both measured {component.model} {twice[0]}; it counts once, as {seen[twice[0]]}")
                continue
            seen |= dict.fromkeys((uuid for uuid in component.uuids if uuid), digest.node)
            members.append(Member(Place(digest.node, component.devices), component))
    return members, list(dict.fromkeys(notes))


def _comparable(members: Sequence[Member]) -> list[list[Member]]:
    groups: dict[tuple[str, str], list[Member]] = {}
    for member in members:
        groups.setdefault((member.component.kind, member.component.fingerprint.id), []).append(member)
    return list(groups.values())


def _group(members: Sequence[Member]) -> _Group:
    keys = tuple(dict.fromkeys(key for member in members for key in member.component.rates))
    found = [[member.component.rates.get(key) for member in members] for key in keys]
    rates = [[rate.log if rate else math.nan for rate in row] for row in found]
    errors = [[rate.error if rate else math.nan for rate in row] for row in found]
    shape = (len(keys), len(members))
    return _Group(tuple(members), keys, np.array(rates).reshape(shape), np.array(errors).reshape(shape))


def _judged(group: _Group, again: Sequence[Again]) -> tuple[list[FleetFinding], FleetGroup]:
    first = group.members[0].component
    described = FleetGroup(first.kind, first.fingerprint.words, len(group.members), ())
    if not group.is_comparable:
        nothing = np.full_like(group.rates, math.nan)
        return [], replace(described, cases=_cases(group, nothing))
    rows, rates, errors, populations = _rows(group)
    found = outliers.find(rates, errors)
    detectable = found.detectable[: len(group.keys)]
    described = replace(described, cases=_cases(group, detectable), populations=populations)
    findings = [
        _finding(group, rows[row], int(column), rates[row], found, int(row))
        for row, column in np.argwhere(found.is_suspect)
    ]
    kept = _without_repeats(findings)
    components = {member.place: member.component for member in group.members}
    accused = {(finding.place, finding.case) for finding in kept}
    return [measured_again(finding, components, accused, again) for finding in kept], described


def _rows(group: _Group) -> tuple[list[_Row], Matrix, Matrix, tuple[TwoPopulations, ...]]:
    """Return the rows to judge: cases, the slower part of those that fall into two populations, then families."""
    rows = [_Row(key, key.family) for key in group.keys]
    rates, errors = group.rates.copy(), group.errors
    split = outliers.populations(rates)
    extra: list[Matrix] = []
    for row in np.nonzero(split)[0]:
        slower = np.argsort(group.rates[row])[: split[row]]
        part = np.full_like(rates[row], math.nan)
        part[slower], rates[row, slower] = rates[row, slower], math.nan
        extra.append(part)
        rows.append(_Row(group.keys[row], group.keys[row].family))
        errors = np.vstack([errors, group.errors[row]])
    rates = np.vstack([rates, *extra])
    families, of_families, their_errors = _family_rows(group, rates[: len(group.keys)])
    populations = _populations(group, split)
    return [*rows, *families], np.vstack([rates, of_families]), np.vstack([errors, their_errors]), populations


def _family_rows(group: _Group, rates: Matrix) -> tuple[list[_Row], Matrix, Matrix]:
    """Return for each family the mean of its cases, each weighted by how close together the components lie in it.

    Averages of several noisy cases see smaller slowdowns than each of them. What the cases of a component have in
    common stays in the average, and so in the deviation that the rule compares with.
    """
    rows, means, errors = [], [], []
    for family in dict.fromkeys(key.family for key in group.keys):
        chosen = [
            row for row, key in enumerate(group.keys) if key.family == family and np.isfinite(rates[row]).sum() > 1
        ]
        if len(chosen) < _LEAST_CASES:
            continue
        part = rates[chosen]
        centred = part - np.nanmedian(part, axis=1, keepdims=True)
        spread = np.maximum(1.4826 * np.nanmedian(np.abs(centred), axis=1, keepdims=True), LEAST_SPREAD)
        weight = np.where(np.isfinite(centred), spread**-2.0, 0.0)
        total = weight.sum(axis=0)
        whole = np.isfinite(centred).sum(axis=0) == len(chosen)  # a mean of other cases is not comparable
        with np.errstate(invalid="ignore"):
            mean = np.nansum(weight * np.nan_to_num(centred), axis=0) / total
            error = np.sqrt(np.nansum((weight * np.nan_to_num(group.errors[chosen])) ** 2, axis=0)) / total
        rows.append(_Row(None, family))
        means.append(np.where(whole, mean, math.nan))
        errors.append(error)
    width = rates.shape[1]
    return rows, np.array(means).reshape(len(rows), width), np.array(errors).reshape(len(rows), width)


def _finding(
    group: _Group, row: _Row, column: int, rates: Matrix, found: outliers.Outliers, index: int
) -> FleetFinding:
    place, component = group.members[column]
    slowdown = float(found.slowdown[index, column])
    others = [
        member.component
        for place_of, member in enumerate(group.members)
        if place_of != column and np.isfinite(rates[place_of]) and not found.is_suspect[index, place_of]
    ]
    finding = FleetFinding(
        place,
        component.kind,
        row.family,
        row.key.case if row.key else "",
        "others",
        "suspect",
        -math.expm1(-slowdown),
        -math.expm1(-float(found.detectable[index, column])),
        causes=causes(row.key, row.family, slowdown, component, others),
    )
    if row.key is None:
        return finding
    expected = statistics.median(other.rates[row.key].value for other in others)
    value = component.rates[row.key].value
    return replace(finding, value=value, expected=expected, unit=row.key.unit, better=row.key.better)


def _without_repeats(findings: Sequence[FleetFinding]) -> list[FleetFinding]:
    """Leave out a family's finding where a case of the family says the same of that component."""
    cases = {(finding.place, finding.family) for finding in findings if finding.case}
    return [finding for finding in findings if finding.case or (finding.place, finding.family) not in cases]


def _cases(group: _Group, detectable: Matrix) -> tuple[FleetCase, ...]:
    found = []
    for row, key in enumerate(group.keys):
        rates: list[CaseRate] = [each.component.rates[key] for each in group.members if key in each.component.rates]
        logs = [rate.log for rate in rates]
        middle = statistics.median(logs)
        spread = 1.4826 * statistics.median(abs(log - middle) for log in logs)
        limits = detectable[row][np.isfinite(detectable[row])]
        smallest = -math.expm1(-float(np.median(limits))) if len(limits) else math.nan
        median = statistics.median(rate.value for rate in rates)
        found.append(FleetCase(key.case, key.family, key.unit, len(rates), median, spread, smallest))
    return tuple(found)


def _populations(group: _Group, split: np.ndarray) -> tuple[TwoPopulations, ...]:
    """Return the cases that fall into the same two parts together."""
    parts: dict[tuple[int, ...], list[int]] = {}
    for row in np.nonzero(split)[0]:
        parts.setdefault(tuple(sorted(np.argsort(group.rates[row])[: split[row]].tolist())), []).append(int(row))
    return tuple(_two(group, slower, rows) for slower, rows in parts.items())


def _two(group: _Group, slower: tuple[int, ...], rows: Sequence[int]) -> TwoPopulations:
    is_slower = np.zeros(len(group.members), dtype=bool)
    is_slower[list(slower)] = True
    gaps = [np.nanmedian(group.rates[row][~is_slower]) - np.nanmedian(group.rates[row][is_slower]) for row in rows]
    ends = [[each for each, low in zip(group.members, is_slower, strict=True) if low is side] for side in (True, False)]
    slow, fast = ([member.component for member in end] for end in ends)
    return TwoPopulations(
        tuple(group.keys[row].case for row in rows),
        tuple(group.members[column].place for column in slower),
        len(fast),
        -math.expm1(-float(np.median(gaps))),
        tuple(_differences(slow, fast)),
    )


def _differences(slow: Sequence[Component], fast: Sequence[Component]) -> Iterator[str]:
    """Yield the details that all of one part have, and the other part has otherwise."""
    for name in dict.fromkeys(name for component in (*slow, *fast) for name, _ in component.details):
        here, there = (Tally(dict(each.details).get(name, "unknown") for each in part) for part in (slow, fast))
        if not here.keys() & there.keys():
            slower, faster = ", ".join(sorted(here)), ", ".join(sorted(there))
            yield f"{name.replace('.', ' ')} {slower} in the slower part, {faster} in the other"


def _standings(index: int, group: _Group, suspects: Sequence[Suspect]) -> Iterator[Standing]:
    states = {(each.place.node, device): each.state for each in suspects for device in each.place.devices}
    families = list(dict.fromkeys(key.family for key in group.keys))
    centred = group.rates - np.nanmedian(group.rates, axis=1, keepdims=True) if len(group.keys) else group.rates
    for column, (place, component) in enumerate(group.members):
        shares = []
        for family in families:
            values = [centred[row, column] for row, key in enumerate(group.keys) if key.family == family]
            there = [float(value) for value in values if math.isfinite(value)]
            if there:
                shares.append((family, math.exp(statistics.fmean(there))))
        clocks = [rate.clock_hz for rate in component.rates.values() if rate.clock_hz > 0]
        found = next((states[place.node, device] for device in place.devices if (place.node, device) in states), None)
        yield Standing(
            place,
            component.kind,
            index,
            tuple(shares),
            component.temperature_c,
            component.power_w,
            statistics.median(clocks) if clocks else math.nan,
            found or ("ok" if group.is_comparable else "not compared"),
            component.sick,
            component.warnings,
        )


def _too_few(groups: Sequence[_Group]) -> Iterator[str]:
    for group in groups:
        if not group.is_comparable:
            first, count = group.members[0].component, len(group.members)
            kind = {"GPU": "GPUs", "host": "hosts", "link": "links"}[first.kind]
            yield (
                f"{count} comparable {kind} ({first.fingerprint.words}): fewer than {LEAST_COMPONENTS} cannot be "
                "compared with each other; compare them with --baseline or --floor"
            )


def _partial(digests: Sequence[NodeDigest]) -> Iterator[str]:
    for digest in digests:
        if not digest.complete:
            yield f"{digest.node}: its run ended early; the cases that it finished count"
