"""Read a fleet, judge it, and follow its components over several days.

The run file of each node is read once, into a digest, with one process per core."""

import contextlib
import itertools
import math
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from gpubench import plugins, stats
from gpubench.analysis.overview import CaseKey, Component, DigestBuilder, NodeDigest
from gpubench.analysis.trend import Line, RunSource, Trend, TrendPoint
from gpubench.base import units
from gpubench.base.clean import tidy
from gpubench.base.errors import FileError, UsageError
from gpubench.judging import effect, fleet_rule, noise, outliers
from gpubench.judging.causes import causes
from gpubench.judging.evidence import Evidence, Side
from gpubench.judging.fleet import Basis, FleetFinding, FleetJudgement, Place, SuspectState
from gpubench.judging.fleet_rule_groups import ambiguous_uuids, identity
from gpubench.judging.judge import Finding, SideFigures, decide
from gpubench.judging.policy import Policy
from gpubench.model import Verdict, store
from gpubench.model.disk import as_file_errors
from gpubench.model.fleet import AGAIN, Fleet, FleetNode, read_fleet
from gpubench.plugins.gate import Gate
from gpubench.tools import rendering
from gpubench.tools.fleet.session import Role
from gpubench.tools.gating import readings, saved

_JUNIT = ".xml"
_REPORTS = {".html": "html", ".md": "md", ".json": "json"}
_MANY_BYTES = 16 * 2**20  # below this total size, starting processes takes longer than they save
_NO_FILE = "its run file is missing"
_MOST_CASES = 40  # cases of a second measurement, the slowest findings, so that it takes about a minute


class _ReadDigest(NamedTuple):
    """The digest of a run file, or None with the reason why the file was refused."""

    digest: NodeDigest | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ReadFleet:
    """A fleet with the digests of its nodes; a node whose file was refused has the status `refused` in `fleet`."""

    fleet: Fleet
    digests: tuple[NodeDigest, ...]
    again: tuple[fleet_rule.SecondMeasurement, ...]
    files: dict[str, Path]
    seconds: float
    notes: tuple[str, ...] = ()  # names that several nodes have


def read(folder: Path) -> ReadFleet:
    """Read the fleet in `folder`: its record, and a digest of each run file of a node that answered."""
    start = time.monotonic()
    fleet = read_fleet(folder)
    with as_file_errors(folder):
        there = {path.name for path in folder.iterdir()}
    nodes = [
        replace(node, status="refused", reason=_NO_FILE, file="") if node.file and node.file not in there else node
        for node in _first_by_name(fleet.nodes)
    ]
    first = [node for node in nodes if node.file and node.status == "answered"]
    second = [entry for entry in fleet.again if entry.file and entry.status == "answered"]
    paths = [*(folder / node.file for node in first), *(folder / AGAIN / entry.file for entry in second)]
    answers = _read_digests(paths, [*(node.name for node in first), *(entry.node for entry in second)])
    reasons = {node.name: answer.reason for node, answer in zip(first, answers, strict=False) if not answer.digest}
    digests = tuple(answer.digest for answer in answers[: len(first)] if answer.digest)
    again = tuple(
        fleet_rule.SecondMeasurement(answer.digest, entry.role == "control")
        for entry, answer in zip(second, answers[len(first) :], strict=True)
        if answer.digest
    )
    nodes = [
        replace(node, status="refused", reason=reasons[node.name], file="") if node.name in reasons else node
        for node in nodes
    ]
    files = {node.name: folder / node.file for node in first if node.name not in reasons}
    kept = {node.name: node.file or node.status for node in nodes}
    notes = tuple(
        f"{count} nodes have the name {name}; only one of them counts ({kept[name]})"
        for name, count in Counter(node.name for node in fleet.nodes).items()
        if count > 1
    )
    return ReadFleet(replace(fleet, nodes=tuple(nodes)), digests, again, files, time.monotonic() - start, notes)


def _first_by_name(nodes: Sequence[FleetNode]) -> list[FleetNode]:
    by_name: dict[str, FleetNode] = {}
    for node in nodes:
        earlier = by_name.get(node.name)
        if earlier is None or (earlier.status != "answered" and node.status == "answered"):
            by_name[node.name] = node
    return list(by_name.values())


def _read_digests(paths: Sequence[Path], names: Sequence[str]) -> list[_ReadDigest]:
    cores = min(len(os.sched_getaffinity(0)), len(paths))
    size_bytes = sum(path.stat().st_size for path in paths if path.exists())
    if cores < 2 or size_bytes < _MANY_BYTES:
        return [_read_digest(path, name) for path, name in zip(paths, names, strict=True)]
    with readings.garbage_collection_off(), ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        return list(pool.map(_read_digest, paths, names, chunksize=max(1, len(paths) // (8 * cores))))


def _read_digest(path: Path, name: str) -> _ReadDigest:
    builder = DigestBuilder()
    try:
        with readings.garbage_collection_off():
            scan = store.scan(path, builder.add)
    except FileError as error:
        return _ReadDigest(None, str(error).removeprefix(f"{path}: "))
    return _ReadDigest(builder.digest(name, scan.complete))


def judge(current: ReadFleet, policy: Policy, baseline: ReadFleet | None = None, floor: bool = False) -> FleetJudgement:
    """Return the judgement of a fleet: its components are compared with each other and, on request, with other figures.

    With `baseline`, each component is also compared with the component of the same UUID in that earlier fleet, with
    `floor` with the least accepted figures of its model. Raises FileError and UsageError for a bad file or table."""
    findings: list[FleetFinding] = []
    bases: list[Basis] = []
    notes: list[str] = []
    if baseline:
        slower, compared = _compared_with_baseline(current, baseline, policy)
        findings += slower
        bases += ["baseline"] if compared else []
        notes += [] if compared else ["no component of this fleet was measured with the same cases in the baseline"]
    if floor:
        slower, compared = _compared_with_floors(current, policy)
        findings += slower
        bases += ["floor"] if compared else []
        notes += [] if compared else ["no floor is known for these models: write [[floor]] tables (docs/gate.md)"]
    judgement = fleet_rule.judge_fleet(current.fleet, current.digests, current.again, findings, bases, notes)
    return replace(judgement, notes=(*judgement.notes, *current.notes))


def read_baseline(folder_or_name: str) -> ReadFleet:
    """Return the fleet in a folder, or in the saved baseline of that name; a folder is tried first."""
    for folder in (Path(folder_or_name), Path(saved.FOLDER) / folder_or_name):
        if folder.is_dir():
            return read(folder)
    names = ", ".join(saved.names()) or "none"
    raise FileError(f"no baseline {folder_or_name!r}: neither the folder of a fleet nor a saved name (saved: {names})")


class _Pair(NamedTuple):
    """One case of one component, at its place in the current fleet, as measured in both fleets."""

    place: Place
    component: Component
    earlier: Component
    before: Side
    after: Side


def _compared_with_baseline(current: ReadFleet, earlier: ReadFleet, policy: Policy) -> tuple[list[FleetFinding], int]:
    """Return the findings on slower components by the statistics of a gate, and the number of compared cases."""
    # A condition that keeps a gate from judging, such as other programs on the device, becomes a cause here.
    pairs = list(_comparable_pairs(current, earlier))
    effects = effect.effects([effect.pair(pair.before, pair.after) for pair in pairs])
    unjudged = []
    for pair in pairs:
        kind, after = pair.after.kinds[0], pair.after
        sides = SideFigures.of(pair.before), SideFigures.of(after)
        what = (after.case, after.devices, Verdict.INCONCLUSIVE, "", "", kind.unit, kind.better)
        unjudged.append(Finding(*what, *sides))
    findings = decide(unjudged, effects, policy.threshold)
    return [
        _fleet_finding(pair.place, pair.component, finding, "baseline", [pair.earlier])
        for pair, finding in zip(pairs, findings, strict=True)
        if finding.verdict is Verdict.SLOWER
    ], len(pairs)


def _compared_with_floors(current: ReadFleet, policy: Policy) -> tuple[list[FleetFinding], int]:
    gate: Gate = plugins.load("gates", "floor")
    slower, compared = [], 0
    for digest in current.digests:
        components = {component.devices: component for component in digest.components}
        findings = gate.judge(Evidence([]), _evidence(current, digest.node), policy).findings
        compared += len(findings)
        slower += [
            _fleet_finding(Place(digest.node, finding.devices), components[finding.devices], finding, "floor", [])
            for finding in findings
            if finding.verdict is Verdict.SLOWER and finding.devices in components
        ]
    return slower, compared


def _evidence(fleet: ReadFleet, node: str) -> Evidence:
    return Evidence([[readings.read(fleet.files[node])]])


def _comparable_pairs(current: ReadFleet, earlier: ReadFleet) -> Iterator[_Pair]:
    """Yield a pair of measurements for each case of each component that both fleets measured with equal settings."""
    useless = {**ambiguous_uuids(current.digests), **ambiguous_uuids(earlier.digests)}
    before_by_key = {
        identity(digest.node, part, useless): (digest.node, part)
        for digest in earlier.digests
        for part in digest.components
    }
    for digest in current.digests:
        parts = ((part, before_by_key.get(identity(digest.node, part, useless))) for part in digest.components)
        matches = [(part, *match) for part, match in parts if match]
        after = _evidence(current, digest.node) if matches else Evidence([])
        before = {node: _evidence(earlier, node) for node in dict.fromkeys(node for _, node, _ in matches)}
        for part, node, former in matches:
            for key in part.rates if former.fingerprint == part.fingerprint else ():
                old = before[node].sides.get((key.case, former.devices))
                new = after.sides.get((key.case, part.devices))
                if old and new and old.kinds == new.kinds and effect.is_judgeable(old) and effect.is_judgeable(new):
                    yield _Pair(Place(digest.node, part.devices), part, former, old, new)


def _fleet_finding(
    place: Place, component: Component, finding: Finding, basis: Basis, others: Sequence[Component]
) -> FleetFinding:
    key = next((key for key in component.rates if key.case == finding.case.id), None)
    family, shift = key.family if key else "", finding.effect.shift if finding.effect else math.nan
    before = finding.before.processes or noise.LEAST_TO_FAIL  # a floor has no processes, because it is not measured
    state: SuspectState = "confirmed" if min(finding.after.processes, before) >= noise.LEAST_TO_FAIL else "suspect"
    sizes = -math.expm1(-shift), -math.expm1(-finding.threshold), finding.after.median, finding.before.median
    what = (place, component.kind, family, finding.case.id, basis, state)
    explained = causes(key, family, shift, component, others)
    return FleetFinding(*what, *sizes, finding.unit, finding.better, causes=explained)


def rendered(path: Path, judgement: FleetJudgement) -> str:
    """Return the judgement in the format that the suffix of `path` selects: .html, .md, .json, or .xml for JUnit."""
    suffix = path.suffix.lower()
    if suffix == _JUNIT:
        text: str = plugins.load("publications", "junit").fleet(tidy(judgement))
        return text
    if suffix not in _REPORTS:
        endings = ", ".join((*_REPORTS, _JUNIT))
        raise UsageError(f"{path}: the ending of the file chooses the form of a report: {endings}")
    document: str = rendering.report(_REPORTS[suffix]).fleet(judgement)
    return document


class SecondMeasurementPlan(NamedTuple):
    """The role of each node to measure again, by name, and the ids of the cases; empty if there is no suspect."""

    roles: dict[str, Role]
    cases: tuple[str, ...]


def plan_second_measurement(judgement: FleetJudgement, draw: random.Random) -> SecondMeasurementPlan:
    """Return what to measure again: suspects' nodes, the same number of healthy ones, at most 40 slow cases."""
    suspects = dict.fromkeys(suspect.place.node for suspect in judgement.suspects)
    answered = [node.name for node in judgement.fleet.nodes if node.status == "answered"]
    healthy = [name for name in answered if name not in suspects]
    controls = draw.sample(healthy, min(len(suspects), len(healthy)))
    roles: dict[str, Role] = {**dict.fromkeys(suspects, "suspect"), **dict.fromkeys(controls, "control")}
    family_cases = [case for group in judgement.groups for case in group.cases]
    cases: dict[str, None] = {}
    findings = [finding for suspect in judgement.suspects for finding in suspect.findings]
    for finding in sorted(findings, key=lambda finding: -finding.slowdown):
        of_family = [case.case for case in family_cases if case.family == finding.family]
        cases |= dict.fromkeys([finding.case] if finding.case else of_family)
    return SecondMeasurementPlan(roles, tuple(cases)[:_MOST_CASES])


_MOVED = outliers.LEAST_EFFECT / 2  # figures that vary less than this between the days are not searched for changes


@dataclass(frozen=True, slots=True)
class WatchedFleet:
    """One measurement of a fleet: its name for people, its time (s since 1970), its digests and its judgement."""

    name: str
    at: float
    digests: tuple[NodeDigest, ...]
    judgement: FleetJudgement


_Day = tuple[WatchedFleet, Place, Component]


@dataclass(frozen=True, slots=True)
class ComponentHistory:
    """A component over several fleets: its latest place and its UUIDs.

    `states` has its state in each fleet that compared it, in order of time, None where it was no suspect. `trends` are
    its cases' trends with a change for the worse, the largest change first."""

    place: Place
    uuids: tuple[str, ...]
    states: tuple[SuspectState | None, ...]
    trends: tuple[Trend, ...]

    @property
    def suspected(self) -> int:
        """The number of fleets in which it was slow, and not only once."""
        return sum(map(_is_slow, self.states))

    @property
    def recovered(self) -> int:
        """The number of times that it was slow in one fleet and fine in the next one that compared it."""
        return sum(_is_slow(before) and not _is_slow(after) for before, after in itertools.pairwise(self.states))

    @property
    def transient(self) -> int:
        """The number of fleets in which it was slow once and not when measured again."""
        return self.states.count("transient")

    @property
    def is_slow_again(self) -> bool:
        """Whether it is slow in the newest fleet, and was in an earlier one."""
        return self.suspected > 1 and _is_slow(self.states[-1])

    @property
    def worst(self) -> float:
        """The largest change for the worse, as a fraction; 0 without one."""
        return _worse(self.trends[0]) if self.trends else 0.0

    @property
    def document(self) -> dict[str, Any]:
        """The history as an object for JSON; `compared`, `slow` and `transient` count fleets."""
        return {
            "node": self.place.node,
            "devices": list(self.place.devices),
            "uuids": list(self.uuids),
            "compared": len(self.states),
            "slow": self.suspected,
            "recovered": self.recovered,
            "transient": self.transient,
            "states": [state or "ok" for state in self.states],
            "changes": [
                {"case": trend.line.case, "fraction": trend.newest_event.effect, "words": newest_event_text(trend)}
                for trend in self.trends
                if trend.newest_event
            ],
        }


def _is_slow(state: SuspectState | None) -> bool:
    return state in ("suspect", "confirmed")


def read_all(folders: Sequence[Path]) -> list[WatchedFleet]:
    """Return the fleet in each folder with its judgement, in order of time; fleets without a date come first."""
    fleets = []
    for index, folder in enumerate(folders):
        current = read(folder)
        judgement = fleet_rule.judge_fleet(current.fleet, current.digests, current.again)
        at = 0.0 if current.fleet.started else float(index)
        with contextlib.suppress(ValueError):  # the text is no date
            at = units.unix_seconds(current.fleet.started)
        fleets.append(WatchedFleet(folder.name, at, current.digests, judgement))
    return sorted(fleets, key=lambda fleet: fleet.at)


def watch(fleets: Sequence[WatchedFleet]) -> list[ComponentHistory]:
    """Return the components that were suspects in any of the fleets or became slower, the most often suspected first.

    `fleets` are in order of time. Components with the same UUIDs, or else the same place, are the same."""
    days_of: dict[tuple[str, ...], list[_Day]] = {}
    useless = {uuid for fleet in fleets for uuid in ambiguous_uuids(fleet.digests)}
    for fleet in fleets:
        for digest in fleet.digests:
            for component in digest.components:
                day = fleet, Place(digest.node, component.devices), component
                days_of.setdefault(identity(digest.node, component, useless), []).append(day)
    states = {
        (id(fleet), suspect.place.node, device): suspect.state
        for fleet in fleets
        for suspect in fleet.judgement.suspects
        for device in suspect.place.devices
    }
    compared = {
        (id(fleet), standing.place)
        for fleet in fleets
        for standing in fleet.judgement.standings
        if standing.state != "not compared"
    }
    histories = []
    for days in days_of.values():
        _, place, component = days[-1]
        judged = [(id(fleet), where) for fleet, where, _ in days if (id(fleet), where) in compared]
        of_days = tuple(states.get((fleet, where.node, where.devices[0])) for fleet, where in judged)
        trends = [trend for key in component.rates if (trend := _trend(key, days)) and _worse(trend)]
        if any(of_days) or trends:
            ordered = tuple(sorted(trends, key=_worse, reverse=True))
            histories.append(ComponentHistory(place, component.uuids, of_days, ordered))
    return sorted(histories, key=lambda history: (-history.suspected, -history.worst, history.place.text))


def _trend(key: CaseKey, days: Sequence[_Day]) -> Trend | None:
    """Return the trend of a case over the days with the newest fingerprint; None if it hardly varies."""
    _, place, component = days[-1]
    newest = component.fingerprint
    measured = [(day, part.rates[key]) for day in days if key in (part := day[2]).rates and part.fingerprint == newest]
    values = [rate.value for _, rate in measured]
    if len(values) < 2 or max(values) - min(values) < _MOVED * statistics.median(values):
        return None
    points = []
    for (fleet, where, _), rate in measured:
        margin = 2 * rate.error * rate.value
        interval = stats.Interval(rate.value - margin, rate.value, rate.value + margin)
        source = RunSource(fleet.name, fleet.name, fleet.at, where.node)
        points.append(TrendPoint(source, 0, interval, 0.0, rate.processes))
    line = Line(key.case, key.version, key.tier, key.series, key.unit, key.better, (place.text,), newest)
    return Trend.of(line, points)


def _worse(trend: Trend) -> float:
    """Return how much worse the figure became at its newest change, as a fraction; 0 if it did not."""
    event = trend.newest_event
    return abs(event.effect) if event is not None and event.is_worse else 0.0


def newest_event_text(trend: Trend) -> str:
    """Return the newest change of a trend, which must have one: `bandwidth/read: 3.1 % less (worse) since monday`."""
    event = trend.newest_event
    assert event is not None  # only trends with a change are kept
    return f"{trend.line.case}: {event.effect_text} since {trend.moments[event.start].source.path}"
