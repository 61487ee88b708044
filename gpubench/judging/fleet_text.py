"""Write the judgement of a fleet as text; the text is the same in the terminal, on the page and in every other form."""

import math
import shlex
import statistics
from collections import Counter as Tally
from collections.abc import Iterator
from typing import NamedTuple

from gpubench.base import units
from gpubench.judging.fleet import FailedCases, FleetFinding, FleetJudgement, Suspect, SuspectState
from gpubench.judging.outliers import LEAST_EFFECT

UNEXPLAINED = "unexplained"
STATES: dict[SuspectState, str] = {
    "confirmed": "confirmed",
    "suspect": "not measured again",
    "transient": "not slow when measured again",
}
_BASES = {"others": "the others", "baseline": "the baseline", "floor": "the floor of its model"}
_MOST_NAMED = 3  # the answer names at most this many suspects; the table has all of them
_MOST_CAUSES = 2
_MOST_MISSING = 20  # lines about nodes that did not answer


def fleet_answer(judgement: FleetJudgement) -> str:
    """Return the judgement as one sentence without a full stop.

    It is about the first of these that applies: sick devices; components with failed cases; the reason why the fleet
    cannot be judged; that no component is slow; the slow components that a second measurement confirmed; the slow
    components that were not measured again. At most three are named."""
    if judgement.sick:
        places = ", ".join(standing.place.text for standing in judgement.sick[:_MOST_NAMED])
        return f"{units.count(len(judgement.sick), 'sick device')}: {places}: {judgement.sick[0].sick[0]}"
    if failed := [failure for failure in judgement.failures if failure.status == "failed"]:
        more = f"; and {len(failed) - 1} more" if len(failed) > 1 else ""
        return f"{units.count(len(failed), 'component')} with failed cases: {failure_text(failed[0])}{more}"
    if not judgement.is_judged:
        why = judgement.notes[0] if judgement.notes else "no node answered"
        return f"cannot be judged: {why}{_largest_difference(judgement)}"
    slow = judgement.of("confirmed") or judgement.of("suspect")
    if not slow:
        components = sum(standing.state != "not compared" for standing in judgement.standings)
        summary = f"no slow component among {components}" if components else "nothing is slower"
        others = "; ".join(setting_sentences(judgement)[:1] + fast_sentences(judgement)[:1])
        return f"{summary}, compared with {compared_with(judgement)}{f'; {others}' if others else ''}"
    names = "; ".join(suspect_text(suspect) for suspect in slow[:_MOST_NAMED])
    more = f"; and {len(slow) - _MOST_NAMED} more" if len(slow) > _MOST_NAMED else ""
    if slow[0].state == "confirmed":
        return f"{units.count(len(slow), 'slow component')}, confirmed: {names}{more}"
    return f"{units.count(len(slow), 'component')} seemed slow once, {STATES[slow[0].state]}: {names}{more}"


def _largest_difference(judgement: FleetJudgement) -> str:
    """Return the case of a small fleet in which two nodes differ most, as a clause after a semicolon, or nothing."""
    cases = [case for group in judgement.groups for case in group.cases if case.nodes]
    if not cases:
        return ""
    case = min(cases, key=lambda case: case.ratio)
    low, high = (side(case.nodes, key=lambda node: node.median).place.text for side in (min, max))
    slow, fast = (low, high) if case.better == "more" else (high, low)
    return f"; the largest difference: {slow} has {units.percent(case.ratio)} of the rate of {fast} in {case.case}"


def suspect_text(suspect: Suspect) -> str:
    """Return a suspect as text: `gpu07 cuda:3: memory 6.7 % below the others (its core clock was 1.4 GHz, …)`."""
    worst = suspect.findings[0]
    families = list(dict.fromkeys(finding.family for finding in suspect.findings))
    named = ", ".join(families[:_MOST_NAMED]) + (", …" if len(families) > _MOST_NAMED else "")
    slowdown = f"{'up to ' if len(suspect.findings) > 1 else ''}{units.percent(worst.slowdown)}"
    return f"{suspect.name}: {named} {slowdown} below {_BASES[worst.basis]} ({causes_text(suspect)})"


def failure_text(failure: FailedCases) -> str:
    """Return failed cases as one line: `gpu07 cuda:3: 2 cases failed, unlike others: gemm/square[…]: wrong answer`."""
    verb = "failed" if failure.status == "failed" else "without a valid result"
    return f"{failure.place.text}: {units.count(failure.count)} {verb}, unlike others: {failure.case}: {failure.reason}"


def causes_text(subject: Suspect | FleetFinding) -> str:
    """Return the causes as text, at most two and the number of the others; `unexplained` if there are none."""
    texts = [cause.text for cause in subject.causes]
    more = f", and {len(texts) - _MOST_CAUSES} more causes" if len(texts) > _MOST_CAUSES else ""
    return f"{', '.join(texts[:_MOST_CAUSES])}{more}" if texts else UNEXPLAINED


def compared_with(judgement: FleetJudgement) -> str:
    """Return what the components were compared with as text: `each other and the baseline`."""
    names = {"others": "each other", "baseline": "the baseline", "floor": "the floors of their models"}
    return " and ".join(names[basis] for basis in judgement.bases)


def devices_text(judgement: FleetJudgement) -> str:
    """Return the GPUs, or else the hosts, and the nodes as text: `64 × NVIDIA H200 in 8 nodes`, `no GPU in 8 nodes`."""
    kind = "GPU" if any(group.kind == "GPU" for group in judgement.groups) else "host"
    models: Tally[str] = Tally()
    for group in judgement.groups:
        models[group.text.split(",")[0]] += group.components * (group.kind == kind)
    models = +models
    answered = sum(node.status == "answered" for node in judgement.fleet.nodes)
    if any(group.kind == "node" for group in judgement.groups):
        return units.count(answered, "node")
    devices = " + ".join(f"{count} × {model}" for model, count in models.items()) or "no GPU"
    return f"{devices} in {units.count(answered, 'node')}"


def detectable_text(judgement: FleetJudgement) -> str:
    """Return for each family the median of the smallest detectable slowdowns: `memory 2.0 %, compute 11.2 %`."""
    limits_by_family: dict[str, list[float]] = {}
    for group in judgement.groups:
        for case in group.cases:
            if math.isfinite(case.detectable):
                limits_by_family.setdefault(case.family, []).append(case.detectable)
    return ", ".join(
        f"{family} {units.percent(statistics.median(values))}" for family, values in limits_by_family.items()
    )


def setting_sentences(judgement: FleetJudgement) -> list[str]:
    """Return a clause for each group with unusual settings: its size, what differs, and the effect.

    At most three are told, the largest first, and the others counted."""
    different = sorted(
        ((group, index) for index, group in enumerate(judgement.groups) if group.differences),
        key=lambda pair: -pair[0].components,
    )
    nodes: dict[int, dict[str, None]] = {}
    for standing in judgement.standings:
        nodes.setdefault(standing.group, {})[standing.place.node] = None
    sentences = []
    for group, index in different[:_MOST_NAMED]:
        names = [*nodes.get(index, ())]
        named = ", ".join(names[:_MOST_NAMED]) + ", …" * (len(names) > _MOST_NAMED)
        effects = [
            f"{family} {units.percent(abs(1 - share))} {'slower' if share < 1 else 'faster'}"
            for family, share in group.shares
            if abs(1 - share) >= LEAST_EFFECT
        ]
        effect = ", ".join(effects) or f"no family differs by {units.percent(LEAST_EFFECT)}"
        sentences.append(
            f"{units.count(group.components, group.kind)} ({named}) with other settings than most: "
            f"{', '.join(group.differences)}: {effect}"
        )
    if more := len(different) - len(sentences):
        sentences.append(f"and {more} more groups with other settings than most")
    return sentences


def fast_sentences(judgement: FleetJudgement) -> list[str]:
    """Return a clause for each implausibly fast component; at most three are told, and the others counted."""
    families: dict[str, list[FleetFinding]] = {}
    for finding in judgement.fast:
        families.setdefault(finding.place.text, []).append(finding)
    sentences = [
        f"{place} is implausibly fast: "
        + ", ".join(f"{finding.family} {units.percent(-finding.slowdown)}" for finding in findings[:_MOST_NAMED])
        + " above the others"
        for place, findings in families.items()
    ]
    more = len(sentences) - _MOST_NAMED
    return [*sentences[:_MOST_NAMED], *([f"and {more} more are implausibly fast"] if more > 0 else [])]


def population_sentences(judgement: FleetJudgement) -> list[str]:
    """Return a clause for each two populations in a group: their sizes, the gap, the cases, and the differences."""
    sentences = []
    for group in judgement.groups:
        for two in group.populations:
            differ = "; ".join(two.differences) or "no known difference between the parts"
            sentences.append(
                f"two populations in {two.family}: {len(two.slower)} of {len(two.slower) + two.faster} components are "
                f"{units.percent(two.gap)} slower in {units.count(len(two.cases))} "
                f"({two.cases[0]}{', …' if two.cases[1:] else ''}): {differ}"
            )
    return sentences


class MediansTable(NamedTuple):
    """The medians of a small fleet: `heads` are a word for the cases and the places, and `rows` the cells of the cases.

    The last cell of a row is the rate of the slowest place as a share of the rate of the fastest."""

    title: str
    heads: tuple[str, ...]
    rows: list[tuple[str, ...]]


def medians_tables(judgement: FleetJudgement) -> Iterator[MediansTable]:
    """Yield for each group in a fleet of two to seven nodes the medians of each node, the largest differences first."""
    for group in judgement.groups:
        cases = sorted((case for case in group.cases if case.nodes), key=lambda case: case.ratio)
        places = list(dict.fromkeys(median.place for case in cases for median in case.nodes))
        if not places:
            continue
        rows = []
        for case in cases:
            medians = {median.place: units.quantity(median.median, case.unit, 4) for median in case.nodes}
            rows.append((case.case, *(medians.get(place, "–") for place in places), units.percent(case.ratio)))
        heads = ("case", *(place.text for place in places), "slowest/fastest")
        unit = group.kind if places[0].devices else f"node, {group.kind}s"
        yield MediansTable(f"medians of each {unit}", heads, rows)


def missing_node_lines(judgement: FleetJudgement) -> list[str]:
    """Return a line for each node that did not answer, with its status and the reason, or for more than 20 at most 20.

    Then nodes with the same status and reason share a line, and the last line counts the nodes without one."""
    missing = [node for node in judgement.fleet.nodes if node.status != "answered"]
    if len(missing) <= _MOST_MISSING:
        return [f"{node.name}: {node.status}{f': {node.reason}' if node.reason else ''}" for node in missing]
    alike: dict[str, list[str]] = {}
    for node in missing:
        alike.setdefault(f"{node.status}{f': {node.reason}' if node.reason else ''}", []).append(node.name)
    largest = sorted(alike.items(), key=lambda item: -len(item[1]))
    listed = largest[: _MOST_MISSING - 1]
    lines = [
        f"{', '.join(names[:_MOST_NAMED])}{f' and {len(names) - _MOST_NAMED} more' * (len(names) > _MOST_NAMED)}: {why}"
        for why, names in listed
    ]
    rest = len(missing) - sum(len(names) for _, names in listed)
    return [*lines, *([f"{units.count(rest, 'node')} more, for other reasons"] if rest else [])]


def next_steps_text(judgement: FleetJudgement) -> list[str]:
    """Return the next step as a sentence: for the first confirmed suspect, or else to measure suspects again."""
    slow = judgement.of("confirmed") or judgement.of("suspect")
    if settings := [cause.text for suspect in slow[:1] for cause in suspect.causes if cause.kind == "setting"]:
        return [f"give {slow[0].name} the settings of the others ({', '.join(settings)}), and measure again"]
    if confirmed := judgement.of("confirmed"):
        place = confirmed[0].place
        if confirmed[0].unit == "rack":
            return [f"have the power and the cooling of rack {place.node} examined"]
        if any(cause.kind == "other programs" for cause in confirmed[0].causes):
            return [f"stop the other programs on {place.text}, or wait until they end, and measure again"]
        if not place.node:
            return [f"have the link from {place.text} examined: cables, switch ports and network adapters"]
        drain = f"scontrol update nodename={shlex.quote(place.node)} state=drain reason='slow, found by gpubench'"
        return [f"take the node out of service and have it examined; with Slurm: {drain}"]
    if judgement.of("suspect"):
        of_pairs = any(group.kind == "node" for group in judgement.groups)
        command = "fleet pairs …" if of_pairs else "fleet run … --confirm"
        return [f"measure the suspects again beside healthy nodes: gpubench {command}"]
    return []
