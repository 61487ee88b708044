"""Find the slow components of a fleet by a rule: a pure function of the nodes' digests."""

import math
import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np

from gpubench import stats
from gpubench.analysis.digest import CaseFailure, CaseRate, NodeDigest
from gpubench.judging import outliers
from gpubench.judging.blame import blamed
from gpubench.judging.causes import causes, disturbed_cases
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
    Suspect,
    worst_first,
)
from gpubench.judging.fleet_again import SecondMeasurement, measured_again
from gpubench.judging.fleet_cases import with_cases
from gpubench.judging.fleet_rows import ComparableGroup, FleetRow, Member, fleet_rows
from gpubench.judging.outliers import LEAST_COMPONENTS, Matrix
from gpubench.model.fleet import Fleet


def judge_fleet(
    fleet: Fleet,
    digests: Sequence[NodeDigest],
    again: Sequence[SecondMeasurement] = (),
    other_findings: Sequence[FleetFinding] = (),
    bases: Sequence[Basis] = (),
    notes: Sequence[str] = (),
) -> FleetJudgement:
    members, duplicate_notes = _members(digests)
    groups = [_group(members) for members in _comparable(members)]
    findings: list[FleetFinding] = []
    judged_groups: list[FleetGroup] = []
    for group in groups:
        group_findings, described = _judge_group(group, again)
        findings += group_findings
        judged_groups.append(described)
    findings += other_findings
    compared: list[Basis] = ["others"] if any(group.is_comparable for group in groups) else []
    suspects = with_cases(blamed(findings, {member.place: member.component for member in members}), groups)
    standings = [standing for index, group in enumerate(groups) for standing in _standings(index, group, suspects)]
    return FleetJudgement(
        fleet,
        tuple(judged_groups),
        worst_first(suspects),
        tuple(sorted(standings, key=lambda standing: (standing.place.node, standing.place.devices))),
        (*compared, *bases),
        (*notes, *duplicate_notes, *_disturbance_notes(members), *_too_few_notes(groups), *_partial_run_notes(digests)),
        tuple(failure for group in groups for failure in _failures(group)),
    )


def _members(digests: Sequence[NodeDigest]) -> tuple[list[Member], list[str]]:
    """Return every component once, and a note for each GPU that two nodes report."""
    node_of_uuid: dict[str, str] = {}
    members, notes = [], []
    for digest in digests:
        for component in digest.components:
            twice = [uuid for uuid in component.uuids if uuid and node_of_uuid.get(uuid, digest.node) != digest.node]
            if twice:
                names = f"{digest.node} and {node_of_uuid[twice[0]]}"
                notes.append(
                    f"{names} both measured {component.model} {twice[0]}; it counts once, as {node_of_uuid[twice[0]]}"
                )
                continue
            node_of_uuid |= dict.fromkeys((uuid for uuid in component.uuids if uuid), digest.node)
            members.append(Member(Place(digest.node, component.devices), component))
    return members, list(dict.fromkeys(notes))


def _disturbance_notes(members: Sequence[Member]) -> Iterator[str]:
    """Yield a note for each component that other programs used in at least half of its cases."""
    counts = {member.place: (disturbed_cases(member.component), len(member.component.rates)) for member in members}
    used = {
        place: disturbed_of_cases
        for place, disturbed_of_cases in counts.items()
        if 0 < disturbed_of_cases[1] <= 2 * disturbed_of_cases[0]
    }
    if 2 * len(used) > len(members) > 1:
        yield f"other programs used {len(used)} of {len(members)} components in half of their cases or more"
        return
    for place, (disturbed, cases) in used.items():
        yield f"{place.text}: other programs used it in {disturbed} of {cases} cases"


def _comparable(members: Sequence[Member]) -> list[list[Member]]:
    """Return the members in groups of comparable ones, which have the same kind and the same fingerprint."""
    groups: dict[tuple[str, str], list[Member]] = {}
    for member in members:
        groups.setdefault((member.component.kind, member.component.fingerprint.id), []).append(member)
    return list(groups.values())


def _group(members: Sequence[Member]) -> ComparableGroup:
    """Return the members as a group with the logarithms of their rates; the cases are all that any member has."""
    keys = tuple(dict.fromkeys(key for member in members for key in member.component.rates))
    rows = [[member.component.rates.get(key) for member in members] for key in keys]
    rates = [[rate.log if rate else math.nan for rate in row] for row in rows]
    errors = [[rate.error if rate else math.nan for rate in row] for row in rows]
    shape = (len(keys), len(members))
    return ComparableGroup(tuple(members), keys, np.array(rates).reshape(shape), np.array(errors).reshape(shape))


def _judge_group(group: ComparableGroup, again: Sequence[SecondMeasurement]) -> tuple[list[FleetFinding], FleetGroup]:
    """Return the findings of a group and its description; a group of fewer than five members has no findings."""
    first = group.members[0].component
    described = FleetGroup(first.kind, first.fingerprint.text, len(group.members), ())
    if not group.is_comparable:
        no_limits = np.full_like(group.rates, math.nan)
        return [], replace(described, cases=_cases(group, no_limits))
    rows, rates, errors, populations = fleet_rows(group)
    judged = outliers.find(rates, errors)
    detectable = judged.detectable[: len(group.keys)]
    described = replace(described, cases=_cases(group, detectable), populations=populations)
    findings = [
        _finding(group, rows[row], int(column), rates[row], judged, int(row))
        for row, column in np.argwhere(judged.is_suspect)
    ]
    distinct = _without_repeats(findings)
    components = {member.place: member.component for member in group.members}
    accused = {(finding.place, finding.case) for finding in distinct}
    return [measured_again(finding, components, accused, again) for finding in distinct], described


def _finding(
    group: ComparableGroup, row: FleetRow, column: int, rates: Matrix, judged: outliers.Outliers, index: int
) -> FleetFinding:
    """Return the finding about one member in one row of the judged matrix."""
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


def _without_repeats(findings: Sequence[FleetFinding]) -> list[FleetFinding]:
    """Return the findings without those on a family in which the same component has a finding on a single case."""
    cases = {(finding.place, finding.family) for finding in findings if finding.case}
    return [finding for finding in findings if finding.case or (finding.place, finding.family) not in cases]


def _cases(group: ComparableGroup, detectable: Matrix) -> tuple[FleetCase, ...]:
    """Return the cases of a group with their medians, their spread and the smallest detectable slowdowns."""
    cases = []
    for row, key in enumerate(group.keys):
        rates: list[CaseRate] = [
            member.component.rates[key] for member in group.members if key in member.component.rates
        ]
        values = [rate.value for rate in rates]
        limits = detectable[row][np.isfinite(detectable[row])]
        smallest = -math.expm1(-float(np.median(limits))) if len(limits) else math.nan
        cases.append(
            FleetCase(key.case, key.family, key.unit, len(values), stats.median(values), stats.noise(values), smallest)
        )
    return tuple(cases)


def _standings(index: int, group: ComparableGroup, suspects: Sequence[Suspect]) -> Iterator[Standing]:
    states = {place: suspect.state for suspect in suspects for place in suspect.parts}
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
        yield Standing(
            place,
            component.kind,
            index,
            tuple(shares),
            component.temperature_c,
            component.power_w,
            statistics.median(clocks) if clocks else math.nan,
            states.get(place, "ok" if group.is_comparable else "not compared"),
            component.sick,
            component.warnings,
        )


def _too_few_notes(groups: Sequence[ComparableGroup]) -> Iterator[str]:
    """Yield a note for each group that has too few members to be compared."""
    for group in groups:
        if not group.is_comparable:
            first, count = group.members[0].component, len(group.members)
            yield (
                f"{plural(count, f'comparable {first.kind}')} ({first.fingerprint.text}): fewer than "
                f"{LEAST_COMPONENTS} cannot be compared with each other; compare them with --baseline or --floor"
            )


def _partial_run_notes(digests: Sequence[NodeDigest]) -> Iterator[str]:
    """Yield a note for each node whose run ended early."""
    for digest in digests:
        if not digest.complete:
            yield f"{digest.node}: its run is incomplete; only the completed cases count"


def _failures(group: ComparableGroup) -> Iterator[FailedCases]:
    """Yield for each member its informative failures: one record for all failed cases, and one for all invalid ones."""
    valid = {key.case for key in group.keys}
    for place, component in group.members:
        for status in ("failed", "invalid"):
            member_failures = [
                failure
                for failure in component.failures
                if failure.status == status and _is_informative(failure, group, valid)
            ]
            if member_failures:
                cases = dict.fromkeys(failure.case for failure in member_failures)
                yield FailedCases(
                    place, member_failures[0].status, len(cases), member_failures[0].case, member_failures[0].reason
                )


def _is_informative(failure: CaseFailure, group: ComparableGroup, valid: Collection[str]) -> bool:
    """Return whether a failure says something about its component: another member has a result."""
    return failure.case in valid or len(group.members) == 1
