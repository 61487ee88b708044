"""Find the slow components of a fleet by a rule: a pure function of the nodes' digests. docs/fleet.md explains it."""

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from gpubench import stats
from gpubench.analysis.overview import CaseKey, Component, ComponentKind, NodeDigest
from gpubench.judging import outliers
from gpubench.judging.causes import blamed, causes, disturbed_cases
from gpubench.judging.finding_text import plural
from gpubench.judging.fleet import (
    Basis,
    FailedCases,
    FleetCase,
    FleetFinding,
    FleetGroup,
    FleetJudgement,
    Place,
    Standing,
    StandingState,
    Suspect,
    SuspectCase,
    TwoPopulations,
    worst_first,
)
from gpubench.judging.outliers import LEAST_COMPONENTS, LEAST_EFFECT, LEAST_SPREAD, Matrix
from gpubench.model.fleet import Fleet

_LEAST_CASES = 2  # a family with one case needs no row, because the mean of one case is that case


class Member(NamedTuple):
    """A component with its place."""

    place: Place
    component: Component


class SecondMeasurement(NamedTuple):
    """The second measurement of a node; `is_control` marks a healthy node that was measured beside a suspect."""

    digest: NodeDigest
    is_control: bool


class _Row(NamedTuple):
    """One row of a judged matrix: a case, or a family if `key` is None."""

    key: CaseKey | None
    family: str


@dataclass(frozen=True, slots=True)
class ComparableGroup:
    """Comparable members with their rates and the standard errors of these, both as natural logarithms.

    The matrices have a row for each case (`keys`) and a column for each member, NaN where a member has no rate. The
    logarithm of a time is negated, so that a smaller value is always slower."""

    members: tuple[Member, ...]
    keys: tuple[CaseKey, ...]
    rates: Matrix
    errors: Matrix

    @classmethod
    def of(cls, members: Sequence[Member]) -> "ComparableGroup":
        """Return the group of these members; its cases are all that any member has."""
        keys = tuple(dict.fromkeys(key for member in members for key in member.component.rates))
        missing = (math.nan, math.nan)
        table = [
            [(rate.log, rate.error) if (rate := part.rates.get(key)) else missing for _, part in members]
            for key in keys
        ]
        both = np.array(table, float).reshape(len(keys), len(members), 2)
        return cls(tuple(members), keys, both[:, :, 0], both[:, :, 1])

    @property
    def is_comparable(self) -> bool:
        """Whether the group has enough members to compare them with each other."""
        return len(self.members) >= LEAST_COMPONENTS

    @property
    def kind(self) -> ComponentKind:
        return self.members[0].component.kind

    @property
    def text(self) -> str:
        return self.members[0].component.fingerprint.text


def judge_fleet(
    fleet: Fleet,
    digests: Sequence[NodeDigest],
    again: Sequence[SecondMeasurement] = (),
    other_findings: Sequence[FleetFinding] = (),
    bases: Sequence[Basis] = (),
    notes: Sequence[str] = (),
) -> FleetJudgement:
    """Judge a fleet by the digests of its nodes.

    `again` are the second measurements of suspects and of healthy controls. `other_findings` are findings against the
    baselines and floors that `bases` names. `notes` come before the notes of the rule."""
    members, duplicate_notes = _members(digests)
    by_kind: dict[tuple[str, str], list[Member]] = {}
    for member in members:
        by_kind.setdefault((member.component.kind, member.component.fingerprint.id), []).append(member)
    groups = [ComparableGroup.of(parts) for parts in by_kind.values()]
    judged = [_judge_group(group, again) for group in groups]
    findings = [*(finding for of_group, _ in judged for finding in of_group), *other_findings]
    compared: list[Basis] = ["others"] if any(group.is_comparable for group in groups) else []
    suspects = _with_cases(blamed(findings, dict(members)), groups)
    standings = [standing for index, group in enumerate(groups) for standing in _standings(index, group, suspects)]
    incomplete = [digest.node for digest in digests if not digest.complete]
    return FleetJudgement(
        fleet,
        tuple(described for _, described in judged),
        worst_first(suspects),
        tuple(sorted(standings, key=lambda standing: (standing.place.node, standing.place.devices))),
        (*compared, *bases),
        (
            *notes,
            *duplicate_notes,
            *_disturbance_notes(members),
            *(
                f"{plural(len(group.members), f'comparable {group.kind}')} ({group.text}): fewer than "
                f"{LEAST_COMPONENTS} cannot be compared with each other; compare them with --baseline or --floor"
                for group in groups
                if not group.is_comparable
            ),
            *(f"{node}: its run is incomplete; only the completed cases count" for node in incomplete),
        ),
        tuple(failure for group in groups for failure in _failures(group)),
    )


def _members(digests: Sequence[NodeDigest]) -> tuple[list[Member], list[str]]:
    """Return every component once, by the first node that reports its UUIDs, and a note for each GPU reported twice."""
    node_of_uuid: dict[str, str] = {}
    members, notes = [], []
    for digest in digests:
        for component in digest.components:
            uuids = [uuid for uuid in component.uuids if uuid]
            if twice := [uuid for uuid in uuids if node_of_uuid.get(uuid, digest.node) != digest.node]:
                first = node_of_uuid[twice[0]]
                notes.append(
                    f"{digest.node} and {first} both measured {component.model} {twice[0]}; it counts once, as {first}"
                )
                continue
            node_of_uuid |= dict.fromkeys(uuids, digest.node)
            members.append(Member(Place(digest.node, component.devices), component))
    return members, list(dict.fromkeys(notes))


def _disturbance_notes(members: Sequence[Member]) -> Iterator[str]:
    """Yield a note for each component that other programs used in half of its cases, or one note if most were."""
    counts = {place: (disturbed_cases(part), len(part.rates)) for place, part in members}
    used = {place: pair for place, pair in counts.items() if 0 < pair[1] <= 2 * pair[0]}
    if 2 * len(used) > len(members) > 1:
        yield f"other programs used {len(used)} of {len(members)} components in half of their cases or more"
        return
    for place, (disturbed, cases) in used.items():
        yield f"{place.text}: other programs used it in {disturbed} of {cases} cases"


def _judge_group(group: ComparableGroup, again: Sequence[SecondMeasurement]) -> tuple[list[FleetFinding], FleetGroup]:
    """Return the findings of a group and its description; a group of fewer than five members has no findings."""
    described = FleetGroup(group.kind, group.text, len(group.members), ())
    if not group.is_comparable:
        return [], replace(described, cases=_cases(group, np.full_like(group.rates, math.nan)))
    rows, rates, errors, populations = judged_rows(group)
    judged = outliers.find(rates, errors)
    described = replace(described, cases=_cases(group, judged.detectable), populations=populations)
    findings = [
        _finding(group, rows[row], int(column), rates[row], judged, int(row))
        for row, column in np.argwhere(judged.is_suspect)
    ]
    with_case = {(finding.place, finding.family) for finding in findings if finding.case}
    distinct = [finding for finding in findings if finding.case or (finding.place, finding.family) not in with_case]
    components = dict(group.members)
    accused = {(finding.place, finding.case) for finding in distinct}
    return [_measured_again(finding, components, accused, again) for finding in distinct], described


def judged_rows(group: ComparableGroup) -> tuple[list[_Row], Matrix, Matrix, tuple[TwoPopulations, ...]]:
    """Return the rows to judge, their rates and standard errors as matrices, and the cases that have two populations.

    The rows are the cases, then the slower population of each case with two populations, then the families. In a case
    with two populations, its own row keeps only the faster one."""
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
    families, of_families, their_errors = _family_rows(group, rates)
    matrix = np.vstack([rates, *extra, of_families])
    return [*rows, *families], matrix, np.vstack([errors, their_errors]), _populations(group, split)


def _family_rows(group: ComparableGroup, rates: Matrix) -> tuple[list[_Row], Matrix, Matrix]:
    """Return a row for each family of two cases or more, the weighted means of its rates, and their standard errors."""
    rows, means, errors = [], [], []
    for family in dict.fromkeys(key.family for key in group.keys):
        chosen = [
            row for row, key in enumerate(group.keys) if key.family == family and np.isfinite(rates[row]).sum() > 1
        ]
        if len(chosen) < _LEAST_CASES:
            continue
        centred = rates[chosen] - np.nanmedian(rates[chosen], axis=1, keepdims=True)
        spread = np.maximum(np.nanstd(rates[chosen], axis=1, keepdims=True, ddof=1), LEAST_SPREAD)
        weight = np.where(np.isfinite(centred), spread**-2.0, 0.0)
        total = weight.sum(axis=0)
        whole = np.isfinite(centred).sum(axis=0) == len(chosen)  # means over different sets of cases are not comparable
        with np.errstate(invalid="ignore"):
            mean = np.nansum(weight * np.nan_to_num(centred), axis=0) / total
            error = np.sqrt(np.nansum((weight * np.nan_to_num(group.errors[chosen])) ** 2, axis=0)) / total
        rows.append(_Row(None, family))
        means.append(np.where(whole, mean, math.nan))
        errors.append(error)
    shape = (len(rows), rates.shape[1])
    return rows, np.array(means).reshape(shape), np.array(errors).reshape(shape)


def _populations(group: ComparableGroup, split: np.ndarray) -> tuple[TwoPopulations, ...]:
    """Return the cases with two populations; cases with the same slower components stand together."""
    parts: dict[tuple[int, ...], list[int]] = {}
    for row in np.nonzero(split)[0]:
        parts.setdefault(tuple(sorted(np.argsort(group.rates[row])[: split[row]].tolist())), []).append(int(row))
    described = []
    for slower, rows in parts.items():
        is_slower = np.isin(np.arange(len(group.members)), slower)
        gaps = [np.nanmedian(group.rates[row][~is_slower]) - np.nanmedian(group.rates[row][is_slower]) for row in rows]
        slow, fast = ([group.members[column] for column in np.flatnonzero(mask)] for mask in (is_slower, ~is_slower))
        names = dict.fromkeys(name for member in (*slow, *fast) for name, _ in member.component.details)
        differences = []
        for name in names:
            here, there = ({dict(part.details).get(name, "unknown") for _, part in members} for members in (slow, fast))
            if not here & there:
                slower_ones, faster_ones = ", ".join(sorted(here)), ", ".join(sorted(there))
                label = name.replace(".", " ")
                differences.append(f"{label} {slower_ones} in the slower part, {faster_ones} in the other")
        cases, places = tuple(group.keys[row].case for row in rows), tuple(member.place for member in slow)
        gap = -math.expm1(-float(np.median(gaps)))
        described.append(TwoPopulations(cases, places, len(fast), gap, tuple(differences)))
    return tuple(described)


def _finding(
    group: ComparableGroup, row: _Row, column: int, rates: Matrix, judged: outliers.Outliers, index: int
) -> FleetFinding:
    """Return the finding about the member `column` in one row, which is row `index` of the `judged` matrices."""
    place, component = group.members[column]
    slowdown = float(judged.slowdown[index, column])
    others = [
        member.component
        for position, member in enumerate(group.members)
        if position != column and np.isfinite(rates[position]) and not judged.is_suspect[index, position]
    ]
    finding = FleetFinding(
        place,
        component.kind,
        row.family,
        row.key.case if row.key else "",
        "others",
        "suspect",
        -math.expm1(-slowdown),
        -math.expm1(-float(judged.detectable[index, column])),
        causes=causes(row.key, row.family, slowdown, component, others),
    )
    if row.key is None:
        return finding
    expected = statistics.median(other.rates[row.key].value for other in others)
    value = component.rates[row.key].value
    return replace(finding, value=value, expected=expected, unit=row.key.unit, better=row.key.better)


def _measured_again(
    finding: FleetFinding,
    first: Mapping[Place, Component],
    suspects: Collection[tuple[Place, str]],
    again: Sequence[SecondMeasurement],
) -> FleetFinding:
    """Return the finding as confirmed or transient if its component was measured again, and otherwise unchanged."""
    suspect_nodes = [digest for digest, is_control in again if not is_control and digest.node == finding.place.node]
    parts = [part for digest in suspect_nodes for part in digest.components if part.devices == finding.place.devices]
    controls = [
        (Place(repeat.digest.node, part.devices), part)
        for repeat in again
        for part in (repeat.digest.components if repeat.is_control else ())
    ]
    pairs = []
    for key, rate in parts[0].rates.items() if parts else ():
        if key.family != finding.family or finding.case not in ("", key.case) or key not in first[finding.place].rates:
            continue
        healthy = {  # the first rates of the components without a finding in the case, or, for a family, in any family
            place: component.rates[key].log
            for place, component in first.items()
            if key in component.rates and not {(place, finding.case), (place, key.case)} & set(suspects)
        }
        moved = [
            part.rates[key].log - healthy[place] for place, part in controls if place in healthy and key in part.rates
        ]
        pairs.append(_slowdown_and_limit(rate.log, rate.error, list(healthy.values()), moved, len(suspects)))
    if not pairs:
        return finding
    slowdown, limit = (statistics.fmean(column) for column in zip(*pairs, strict=True))
    return replace(finding, state="confirmed" if slowdown > limit else "transient", again=-math.expm1(-slowdown))


def _slowdown_and_limit(
    log: float, error: float, values: Sequence[float], moved: Sequence[float], suspects: int
) -> tuple[float, float]:
    """Return the slowdown of a second measurement against the healthy `values`, and its limit, as logarithms."""
    count = len(values)
    spread = max(statistics.stdev(values) if count > 1 else 0.0, error, LEAST_SPREAD)
    freedom = np.array([max(count - 1, 1)], dtype=float)
    quantile = float(stats.student_quantile(freedom, 2 * outliers.ALPHA / max(suspects, 1))[0])
    prediction = math.sqrt(1 + 1 / max(count, 1) + (1 / len(moved) if moved else 0.0)) * spread
    expected = statistics.fmean(values or [math.inf]) + (statistics.fmean(moved) if moved else 0.0)
    return expected - log, max(-math.log1p(-LEAST_EFFECT), quantile * prediction)


def _cases(group: ComparableGroup, detectable: Matrix) -> tuple[FleetCase, ...]:
    cases = []
    for row, key in enumerate(group.keys):
        values = [part.rates[key].value for _, part in group.members if key in part.rates]
        limits = detectable[row][np.isfinite(detectable[row])]
        smallest = -math.expm1(-float(np.median(limits))) if len(limits) else math.nan
        cases.append(
            FleetCase(key.case, key.family, key.unit, len(values), stats.median(values), stats.noise(values), smallest)
        )
    return tuple(cases)


def _with_cases(suspects: Sequence[Suspect], groups: Sequence[ComparableGroup]) -> list[Suspect]:
    """Return the suspects with all cases of their components, the lowest share of the group's median first."""
    wanted = {place for suspect in suspects for place in suspect.parts}
    cases: dict[Place, list[SuspectCase]] = {}
    for group in groups:
        columns = [column for column, member in enumerate(group.members) if member.place in wanted]
        medians = np.nanmedian(group.rates, axis=1) if columns and group.keys else np.array([])
        for column in columns:
            place, component = group.members[column]
            for key, middle, log in zip(group.keys, medians.tolist(), group.rates[:, column].tolist(), strict=True):
                if key in component.rates:
                    median = math.exp(middle if key.better == "more" else -middle)
                    figures = component.rates[key].value, median, math.exp(log - middle)
                    case = SuspectCase(place, key.case, key.family, key.unit, *figures)
                    cases.setdefault(place, []).append(case)
    listed = [[case for place in suspect.parts for case in cases.get(place, ())] for suspect in suspects]
    by_share = [tuple(sorted(of_suspect, key=lambda case: case.share)) for of_suspect in listed]
    return [replace(suspect, cases=of_suspect) for suspect, of_suspect in zip(suspects, by_share, strict=True)]


def _standings(index: int, group: ComparableGroup, suspects: Sequence[Suspect]) -> Iterator[Standing]:
    states: dict[Place, StandingState] = {place: suspect.state for suspect in suspects for place in suspect.parts}
    families = list(dict.fromkeys(key.family for key in group.keys))
    centred = group.rates - np.nanmedian(group.rates, axis=1, keepdims=True) if len(group.keys) else group.rates
    for column, (place, component) in enumerate(group.members):
        shares = []
        for family in families:
            values = [float(centred[row, column]) for row, key in enumerate(group.keys) if key.family == family]
            if there := list(filter(math.isfinite, values)):
                shares.append((family, math.exp(statistics.fmean(there))))
        clocks = [rate.clock_hz for rate in component.rates.values() if rate.clock_hz > 0] or [math.nan]
        readings = component.temperature_c, component.power_w, statistics.median(clocks)
        state: StandingState = states.get(place, "ok" if group.is_comparable else "not compared")
        health = component.sick, component.warnings
        yield Standing(place, component.kind, index, tuple(shares), *readings, state, *health)


def _failures(group: ComparableGroup) -> Iterator[FailedCases]:
    """Yield for each member its failed cases, and its invalid ones, in which another member has a result, if any."""
    valid = {key.case for key in group.keys}
    for place, component in group.members:
        for status in ("failed", "invalid"):
            failures = [
                failure
                for failure in component.failures
                if failure.status == status and (failure.case in valid or len(group.members) == 1)
            ]
            if failures:
                count = len({failure.case for failure in failures})
                yield FailedCases(place, failures[0].status, count, failures[0].case, failures[0].reason)
