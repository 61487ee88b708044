"""Collect the values that the template of a fleet's page shows: texts, and drawings as markup."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from gpubench.api import report as gb

from ._fleet_map import FleetMap, fleet_map, layer_data, overview, range_text, readings_text, tables
from ._markdown import clipped
from ._web import packed

_MOST_SUSPECTS, _MOST_FINDINGS, _MOST_CASES, _MOST_LINES = 300, 1000, 2000, 200
_FEW_SUSPECTS = 5  # with no more suspects, their cases are open from the start
_NONE = "–"
_BASES = {"others": "the others", "baseline": "the baseline", "floor": "the floor"}
_REST = "`gpubench fleet judge … -o fleet.json` lists all"


@dataclass(frozen=True, slots=True)
class FindingLine:
    """A case in which a component is slow as texts, with a dash for an unknown figure.

    `basis` names what it was compared with, and `again` is the slowdown in the second measurement."""

    place: str
    case: str
    value: str
    expected: str
    basis: str
    slowdown: str
    detectable: str
    again: str
    state: str
    cause: str


@dataclass(frozen=True, slots=True)
class EvidenceLine:
    """A case of a suspect as texts, with the median of comparable components and the share of that median."""

    place: str
    case: str
    value: str
    median: str
    share: str


@dataclass(frozen=True, slots=True)
class SuspectLine:
    """A suspect as texts.

    `findings` are the cases in which it is slow, `cases` all its cases, `more` counts those left out."""

    anchor: str
    unit: str
    place: str
    worst: FindingLine
    family: str
    state: str
    style: str
    cause: str
    uuids: str
    readings: tuple[str, ...]
    findings: tuple[FindingLine, ...]
    cases: tuple[EvidenceLine, ...]
    more: int


@dataclass(frozen=True, slots=True)
class CaseLine:
    """A case of a group as texts: the median, the relative spread, and the smallest detectable slowdown."""

    case: str
    family: str
    components: int
    median: str
    spread: str
    detectable: str


@dataclass(frozen=True, slots=True)
class GroupSection:
    """A group of comparable components with its cases; `title` counts them, `text` says in what they agree."""

    title: str
    text: str
    cases: tuple[CaseLine, ...]


@dataclass(frozen=True, slots=True)
class SmallMap:
    """A small drawing of one layer of the map; `index` is the place of the layer in the map."""

    index: int
    name: str
    value_range: str
    drawing: Markup


@dataclass(frozen=True, slots=True)
class FleetPage:
    """The content of the page.

    `style` is the class of the verdict."""

    title: str
    style: str
    verdict: str
    reasons: tuple[str, ...]
    next_steps: tuple[str, ...]
    map: FleetMap
    tables: Markup
    legend: tuple[str, ...]
    small: tuple[SmallMap, ...]
    data: str
    suspects: tuple[SuspectLine, ...]
    are_open: bool
    more_suspects: int
    missing: tuple[tuple[str, str, str, str], ...]
    more_missing: int
    groups: tuple[GroupSection, ...]
    failures: tuple[str, ...]
    notes: tuple[str, ...]


def fleet_page(judgement: gb.FleetJudgement) -> FleetPage:
    """Return the page of a judgement, with at most 300 suspects and 200 missing nodes; the others are counted.

    The texts of the judgement must be free of control characters: the template only escapes them."""
    anchors = _anchors(judgement.suspects)
    tile_map = fleet_map(judgement, anchors)
    suspects = _suspects(judgement)
    missing = [node for node in judgement.fleet.nodes if node.status != "answered"]
    small = [
        SmallMap(index, layer.name, range_text(layer), overview(tile_map, layer))
        for index, layer in enumerate(tile_map.layers)
        if not all(map(math.isnan, layer.values))
    ]
    return FleetPage(
        title=gb.fleet_text.devices_text(judgement),
        style=_style(judgement),
        verdict=clipped(gb.fleet_text.fleet_answer(judgement)),
        reasons=tuple(_reasons(judgement)),
        next_steps=tuple(gb.fleet_text.next_steps_text(judgement)),
        map=tile_map,
        tables=tables(tile_map),
        legend=tuple(tile_map.layers[tile_map.shown].legend) if tile_map.layers else (),
        small=tuple(small),
        data=packed({"devices": tile_map.columns, "layers": layer_data(tile_map.layers)}),
        suspects=suspects,
        are_open=len(suspects) <= _FEW_SUSPECTS,
        more_suspects=len(judgement.suspects) - len(suspects),
        missing=tuple((node.name, node.rack, node.status, clipped(node.reason)) for node in missing[:_MOST_LINES]),
        more_missing=max(len(missing) - _MOST_LINES, 0),
        groups=tuple(_group(group) for group in judgement.groups),
        failures=tuple(clipped(gb.fleet_text.failure_text(failure)) for failure in judgement.failures[:_MOST_LINES]),
        notes=_notes(judgement, tile_map),
    )


def _style(judgement: gb.FleetJudgement) -> str:
    """Return the style class of the verdict."""
    if judgement.sick or judgement.of("confirmed") or any(failure.status == "failed" for failure in judgement.failures):
        return "bad"
    return "warning" if judgement.of("suspect") or not judgement.is_judged else "good"


def _reasons(judgement: gb.FleetJudgement) -> list[str]:
    """Return sentences below the verdict: how many nodes answered, what was compared, the smallest detectable slowdown.

    Sentences on sick components and on groups of two populations follow, at most 200 of each.
    """
    answered = len(judgement.fleet.nodes) - len(judgement.missing_nodes)
    sentences = [f"{answered} of {len(judgement.fleet.nodes)} nodes answered."]
    if judgement.is_judged:
        sentences.append(f"Components were compared with {gb.fleet_text.compared_with(judgement)}.")
    if detectable := gb.fleet_text.detectable_text(judgement):
        sentences.append(f"The smallest detectable slowdown: {detectable}.")
    sentences += [
        f"Sick: {standing.place.text}: {clipped('; '.join(standing.sick))}" for standing in judgement.sick[:_MOST_LINES]
    ]
    sentences += [_sentence(clipped(line)) for line in gb.fleet_text.population_sentences(judgement)[:_MOST_LINES]]
    return sentences


def _sentence(phrase: str) -> str:
    """Return a phrase with its first letter as a capital and a full stop at its end."""
    return f"{phrase[:1].upper()}{phrase[1:]}."


def _anchors(suspects: Sequence[gb.Suspect]) -> dict[tuple[str, str], tuple[str, str]]:
    """Return the anchor and the state of the suspect to which a tile of the map links, keyed by node and device."""
    anchors: dict[tuple[str, str], tuple[str, str]] = {}
    numbered = list(enumerate(suspects[:_MOST_SUSPECTS], 1))
    for number, suspect in sorted(numbered, key=lambda pair: pair[1].unit == "link"):
        for device in suspect.place.devices:
            anchors.setdefault((suspect.place.node, device), (f"suspect-{number}", suspect.state))
    return anchors


def _suspects(judgement: gb.FleetJudgement) -> tuple[SuspectLine, ...]:
    """Return a line for each of the first 300 suspects; together they list at most 2000 cases and about 1000 findings.

    Every suspect has at least its slowest finding."""
    standings = {standing.place: standing for standing in judgement.standings}
    lines, findings_left, cases_left = [], _MOST_FINDINGS, _MOST_CASES
    for number, suspect in enumerate(judgement.suspects[:_MOST_SUSPECTS], 1):
        findings = suspect.findings[: max(findings_left, 1)]
        cases = suspect.cases[: max(cases_left, 0)]
        findings_left, cases_left = findings_left - len(findings), cases_left - len(cases)
        lines.append(_suspect(number, suspect, findings, cases, standings))
    return tuple(lines)


def _suspect(
    number: int,
    suspect: gb.Suspect,
    findings: Sequence[gb.FleetFinding],
    cases: Sequence[gb.SuspectCase],
    standings: dict[gb.Place, gb.Standing],
) -> SuspectLine:
    """Return a suspect as texts; `number`, from 1, gives its anchor."""
    parts = [standings[place] for place in suspect.parts if place in standings]
    worst = suspect.findings[0]
    return SuspectLine(
        anchor=f"suspect-{number}",
        unit=suspect.unit,
        place=suspect.place.node if suspect.unit == "node" else suspect.place.text,
        worst=_finding(worst),
        family=worst.family,
        state=gb.fleet_text.STATES[suspect.state],
        style=suspect.state,
        cause=clipped(gb.fleet_text.causes_text(suspect)),
        uuids=", ".join(filter(None, suspect.uuids)),
        readings=tuple(f"{standing.place.text}: {readings_text(standing)}" for standing in parts),
        findings=tuple(map(_finding, findings)),
        cases=tuple(map(_evidence, cases)),
        more=len(suspect.findings) - len(findings) + len(suspect.cases) - len(cases),
    )


def _finding(finding: gb.FleetFinding) -> FindingLine:
    """Return a finding, a slow case or family of cases, as texts; a figure that is not finite is a dash."""
    return FindingLine(
        place=finding.place.text,
        case=finding.case or f"all cases of {finding.family} together",
        value=_quantity(finding.value, finding.unit),
        expected=_quantity(finding.expected, finding.unit),
        basis=_BASES[finding.basis],
        slowdown=_percent(finding.slowdown),
        detectable=_percent(finding.detectable),
        again=_percent(finding.again),
        state=gb.fleet_text.STATES[finding.state],
        cause=clipped(gb.fleet_text.causes_text(finding)),
    )


def _evidence(case: gb.SuspectCase) -> EvidenceLine:
    """Return a case of a suspect as texts, with the median of comparable components."""
    value, median = (_quantity(rate, case.unit) for rate in (case.value, case.median))
    return EvidenceLine(case.place.text, case.case, value, median, _percent(case.share))


def _group(group: gb.FleetGroup) -> GroupSection:
    """Return a group of comparable components as texts, with a title such as `64 GPUs` and a line for each case."""
    cases = tuple(
        CaseLine(
            case.case,
            case.family,
            case.components,
            _quantity(case.median, case.unit),
            _percent(case.spread),
            _percent(case.detectable),
        )
        for case in group.cases
    )
    return GroupSection(f"{group.components} {group.kind}{'' if group.components == 1 else 's'}", group.text, cases)


def _notes(judgement: gb.FleetJudgement, tile_map: FleetMap) -> tuple[str, ...]:
    """Return at most 200 notes of the judgement, and a sentence about each list that the page cuts short."""
    notes = [clipped(note) for note in judgement.notes[:_MOST_LINES]]
    if (more := len(judgement.notes) - len(notes)) > 0:
        notes.append(f"{more} more notes are left out: {_REST}")
    if (more := len(judgement.failures) - _MOST_LINES) > 0:
        notes.append(f"{more} more components with failed cases are left out: {_REST}")
    if tile_map.left_out:
        notes.append(f"{tile_map.left_out} nodes that answered and have no finding are left out of the map: {_REST}")
    return tuple(notes)


def _quantity(value: float, unit: str) -> str:
    """Return a value in SI units as text with its unit; a dash if it is not finite."""
    return gb.units.quantity(value, unit) if math.isfinite(value) else _NONE


def _percent(fraction: float) -> str:
    """Return a fraction in per cent; a dash if it is not finite."""
    return gb.units.percent(fraction) if math.isfinite(fraction) else _NONE
