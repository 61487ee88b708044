"""Find the slow components of a fleet by a rule: a pure function of the nodes' digests. docs/fleet.md explains it."""

import math
import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gpubench import stats
from gpubench.analysis.overview import Component, NodeDigest
from gpubench.base import units
from gpubench.judging import outliers
from gpubench.judging.causes import blamed, causes, causes_of_unit, disturbed_cases
from gpubench.judging.fleet import (
    Basis,
    FailedCases,
    FleetCase,
    FleetFinding,
    FleetGroup,
    FleetJudgement,
    NodeMedian,
    Place,
    Standing,
    StandingState,
    Suspect,
    SuspectCase,
    worst_first,
)
from gpubench.judging.fleet_rule_groups import ComparableGroup, Member, all_members, comparable_groups, shortened
from gpubench.judging.fleet_rule_levels import JudgedGroup, Level, judge_levels
from gpubench.judging.outliers import LEAST_COMPONENTS, LEAST_EFFECT, LEAST_SPREAD, Matrix
from gpubench.model.fleet import Fleet

_ALPHA_AGAIN = 0.0075  # the share of healthy fleets of which a second measurement confirms a component by chance
_MOST_SMALL = 7  # the most nodes whose medians are listed one by one


class SecondMeasurement(NamedTuple):
    """The second measurement of a node; `is_control` marks a healthy node that was measured beside a suspect."""

    digest: NodeDigest
    is_control: bool


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
    members, member_notes = all_members(digests)
    groups, setting_notes = comparable_groups(members)
    racks = {node.name: node.rack for node in fleet.nodes}
    findings, described = [*other_findings], []
    fast: list[FleetFinding] = []
    for group in groups:
        judged = judge_levels(group, racks) if group.is_comparable else None
        if judged:
            findings += _findings(group, judged, again)
            fast += _fast(group, judged.levels[-1])
        if not group.settings[0].differences:
            majority = group
        described.append(list(_described(group, judged, majority)))
    compared: list[Basis] = ["others"] if any(group.is_comparable for group in groups) else []
    suspects = _with_cases(blamed(findings, dict(members)), groups)
    standings: list[Standing] = []
    first = 0
    for group, parts in zip(groups, described, strict=True):
        standings += _standings(first, group, suspects)
        first += len(parts)
    incomplete = [
        f"{digest.node}: its run is incomplete; only the completed cases count"
        for digest in digests
        if not digest.complete
    ]
    incomparable = shortened([_incomparable(group) for group in groups if not group.is_comparable], "such groups")
    return FleetJudgement(
        fleet,
        tuple(part for parts in described for part in parts),
        worst_first(suspects),
        tuple(sorted(standings, key=lambda standing: (standing.place.node, standing.place.devices))),
        (*compared, *bases),
        (
            *notes,
            *(() if compared or bases else incomparable),
            *member_notes,
            *setting_notes,
            *_disturbance_notes(members),
            *(incomparable if compared or bases else ()),
            *shortened(incomplete, "incomplete runs"),
        ),
        tuple(failure for group in groups for failure in _failures(group)),
        tuple(sorted(fast, key=lambda finding: finding.slowdown)),
    )


def _incomparable(group: ComparableGroup) -> str:
    members = units.count(len(group.members), f"comparable {group.kind}")
    return (
        f"{members} ({group.settings[0].fingerprint.text}): fewer than {LEAST_COMPONENTS} cannot be compared with each "
        "other; compare them with --baseline or --floor"
    )


def _disturbance_notes(members: Sequence[Member]) -> Iterator[str]:
    """Yield a note for each component that other programs used in half of its cases, or one note if most were."""
    counts = {place: (disturbed_cases(part), len(part.rates)) for place, part in members}
    used = {place: pair for place, pair in counts.items() if 0 < pair[1] <= 2 * pair[0]}
    if 2 * len(used) > len(members) > 1:
        yield f"other programs used {len(used)} of {len(members)} components in half of their cases or more"
        return
    for place, (disturbed, cases) in used.items():
        yield f"{place.text}: other programs used it in {disturbed} of {cases} cases"


def _findings(group: ComparableGroup, judged: JudgedGroup, again: Sequence[SecondMeasurement]) -> list[FleetFinding]:
    """Return the findings of a group; one about a family stands for itself only if none of its cases has a finding."""
    pairs: list[tuple[FleetFinding, list[Place]]] = []
    for level in judged.levels:
        for row, unit in np.argwhere(level.found.is_suspect).tolist():
            columns = level.units.columns(unit)
            finding = _finding(group, level, row, unit)
            pairs.append((finding, [group.members[column].place for column in columns]))
    with_case = {(finding.place, finding.family) for finding, _ in pairs if finding.case}
    distinct = [pair for pair in pairs if pair[0].case or (pair[0].place, pair[0].family) not in with_case]
    accused = {(place, finding.case) for finding, places in distinct for place in places}
    accused |= {(finding.place, finding.case) for finding in _fast(group, judged.levels[-1])}
    return [_measured_again(finding, places, group, accused, again) for finding, places in distinct]


def _finding(group: ComparableGroup, level: Level, row: int, unit: int) -> FleetFinding:
    """Return the finding about a unit of a level in one row."""
    units, (key, family), judged = level.units, level.rows[row], level.found
    slowdown = float(judged.slowdown[row, unit])
    parts = [group.members[column].component for column in units.columns(unit)]
    is_left_out = judged.is_suspect[row] | np.isnan(judged.slowdown[row])
    columns = units.parts[~is_left_out].ravel()
    others = [group.members[column].component for column in columns if 0 <= column < len(group.settings[0].members)]
    place = units.places[unit]
    settings = group.settings[group.part_of(int(units.columns(unit)[0]))].differences
    explained = (
        causes(key, family, slowdown, parts[0], others, settings)
        if units.kind == group.kind
        else causes_of_unit([causes(key, family, slowdown, part, others, settings) for part in parts])
    )
    sizes = -math.expm1(-slowdown), -math.expm1(-float(judged.detectable[row, unit]))
    finding = FleetFinding(
        place, units.kind, family, key.case if key else "", "others", "suspect", *sizes, causes=explained
    )
    if key is None:
        return finding
    value, expected = (
        statistics.median(part.rates[key].value for part in side if key in part.rates) for side in (parts, others)
    )
    return replace(finding, value=value, expected=expected, unit=key.unit, better=key.better)


def _fast(group: ComparableGroup, level: Level) -> Iterator[FleetFinding]:
    """Yield for each component with the settings of most that is implausibly fast its largest excess in each family."""
    largest: dict[tuple[int, str], FleetFinding] = {}
    for row, column in np.argwhere(level.found.is_fast & group.may_refer).tolist():
        key, family = level.rows[row]
        slow, limit = (
            -math.expm1(-float(part[row, column])) for part in (level.found.slowdown, level.found.detectable)
        )
        finding = FleetFinding(
            level.units.places[column], group.kind, family, key.case if key else "", "others", "suspect", slow, limit
        )
        if (column, family) not in largest or finding.slowdown < largest[column, family].slowdown:
            largest[column, family] = finding
    yield from largest.values()


def _shares(group: ComparableGroup) -> dict[str, list[float]]:
    """Return by family the mean rate of each member as a fraction of the median of the majority, NaN if unis_there."""
    centred = group.rates - outliers.medians(np.where(group.may_refer, group.rates, np.nan))
    families = [key.family for key in group.keys]
    shares = {}
    for family in dict.fromkeys(families):
        rows = centred[[name == family for name in families]]
        is_there = np.isfinite(rows)
        means = np.where(is_there, rows, 0.0).sum(axis=0) / np.where(is_there.any(axis=0), is_there.sum(axis=0), np.nan)
        shares[family] = np.exp(means).tolist()
    return shares


def _described(group: ComparableGroup, judged: JudgedGroup | None, majority: ComparableGroup) -> Iterator[FleetGroup]:
    """Yield a description for each of the settings of a group; `majority` has the usual settings of the model."""
    limits = judged.levels[-1].found.detectable if judged else np.full_like(group.rates, math.nan)
    both = group if group is majority else ComparableGroup.of([majority.settings[0], *group.settings])
    of_all = {family: of_family[-len(group.members) :] for family, of_family in _shares(both).items()}
    first = 0
    for part in group.settings:
        columns = slice(first, first := first + len(part.members))
        cases = _cases(group, part.members, limits[: len(group.keys), columns])
        if not part.differences:
            populations = judged.populations if judged else ()
            yield FleetGroup(group.kind, part.fingerprint.text, len(part.members), cases, populations)
            continue
        of_part = [(family, [*filter(math.isfinite, of_family[columns])]) for family, of_family in of_all.items()]
        shares = tuple((family, stats.median(values)) for family, values in of_part if values)
        yield FleetGroup(group.kind, part.fingerprint.text, len(part.members), cases, (), part.differences, shares)


def _measured_again(
    finding: FleetFinding,
    places: Sequence[Place],
    group: ComparableGroup,
    accused: Collection[tuple[Place, str]],
    again: Sequence[SecondMeasurement],
) -> FleetFinding:
    """Return the finding as confirmed or transient if its components, at `places`, were measured again."""
    repeats = [
        (is_control, Place(digest.node, part.devices), part)
        for digest, is_control in again
        for part in digest.components
    ]
    first = dict(group.members)
    pairs = []
    for place, part in ((place, part) for is_control, place, part in repeats if not is_control and place in places):
        for key, rate in part.rates.items():
            if key.family != finding.family or finding.case not in ("", key.case) or key not in first[place].rates:
                continue
            healthy = {  # the first rates of the components without a finding in the case, or, for a family, in any
                other: component.rates[key].log
                for other, component in group.settings[0].members
                if key in component.rates and (other, finding.case) not in accused and (other, key.case) not in accused
            }
            moved = [
                control.rates[key].log - healthy[other]
                for is_control, other, control in repeats
                if is_control and other in healthy and key in control.rates
            ]
            pairs.append(_slowdown_and_limit(rate.log, rate.error, list(healthy.values()), moved, len(accused)))
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
    quantile = float(stats.student_quantile(freedom, 2 * _ALPHA_AGAIN / max(suspects, 1))[0])
    prediction = math.sqrt(1 + 1 / max(count, 1) + (1 / len(moved) if moved else 0.0)) * spread
    expected = statistics.fmean(values or [math.inf]) + (statistics.fmean(moved) if moved else 0.0)
    return expected - log, max(-math.log1p(-LEAST_EFFECT), quantile * prediction)


def _cases(group: ComparableGroup, members: Sequence[Member], detectable: Matrix) -> tuple[FleetCase, ...]:
    """Return the cases of members, with the medians of the nodes of the whole group if these are few."""
    is_first = members[0] == group.members[0]
    nodes = dict.fromkeys(place.node for place, _ in group.members)
    units: dict[Place, list[Component]] = {}
    for place, component in group.members if is_first and len(nodes) <= _MOST_SMALL else ():
        units.setdefault(Place(place.node, ()) if len(nodes) > 1 else place, []).append(component)
    cases = []
    for row, key in enumerate(group.keys):
        values = [part.rates[key].value for _, part in members if key in part.rates]
        if not values:
            continue
        limits = detectable[row][np.isfinite(detectable[row])]
        smallest = -math.expm1(-float(np.median(limits))) if len(limits) else math.nan
        of_units = [
            (place, [part.rates[key].value for part in parts if key in part.rates]) for place, parts in units.items()
        ]
        medians = tuple(NodeMedian(place, stats.median(of_unit)) for place, of_unit in of_units if of_unit)
        medians = medians if 1 < len(medians) <= _MOST_SMALL else ()
        figures = stats.median(values), stats.noise(values), smallest
        cases.append(FleetCase(key.case, key.family, key.unit, len(values), *figures, medians, key.better))
    return tuple(cases)


def _with_cases(suspects: Sequence[Suspect], groups: Sequence[ComparableGroup]) -> list[Suspect]:
    """Return the suspects with all cases of their components, the lowest share of the group's median first."""
    wanted = {place for suspect in suspects for place in suspect.parts}
    cases: dict[Place, list[SuspectCase]] = {}
    for group in groups:
        columns = [column for column, member in enumerate(group.members) if member.place in wanted]
        medians = outliers.medians(np.where(group.may_refer, group.rates, np.nan))[:, 0]
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


def _standings(first: int, group: ComparableGroup, suspects: Sequence[Suspect]) -> Iterator[Standing]:
    """Yield the standing of each member; `first` is the index of the group's first settings."""
    states: dict[Place, StandingState] = {place: suspect.state for suspect in suspects for place in suspect.parts}
    shares = _shares(group)
    for column, (place, component) in enumerate(group.members):
        of_member = tuple((name, of_all[column]) for name, of_all in shares.items() if math.isfinite(of_all[column]))
        clocks = [rate.clock_hz for rate in component.rates.values() if rate.clock_hz > 0] or [math.nan]
        readings = component.temperature_c, component.power_w, statistics.median(clocks)
        state: StandingState = states.get(place, "ok" if group.is_comparable else "not compared")
        part = first + group.part_of(column)
        yield Standing(place, component.kind, part, of_member, *readings, state, component.sick, component.warnings)


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
