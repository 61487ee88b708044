"""Name the component of a fleet that is to blame for findings, and the causes that may explain why it is slow."""

import math
import statistics
from collections import Counter as Tally
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gpubench.analysis.overview import CaseKey, CaseRate, Component
from gpubench.base import units
from gpubench.judging.fleet import CauseKind, FleetFinding, Place, SlowCause, Suspect

_STATES: dict[str, tuple[CauseKind, str]] = {
    "thermal": ("thermal", "heat slowed it down"),
    "hw-slowdown": ("thermal", "the hardware slowed it down"),
    "power-brake": ("power", "the power supply slowed it down"),
    "power-capped": ("power", "the power cap limited it"),
    "low-clock": ("clock", "its clock was low for an unknown reason"),
    "shared-device": ("other programs", "other programs used the device"),
    "foreign-process": ("other programs", "other programs used the device"),
    "loaded": ("other programs", "other programs kept the host busy"),
    "steal": ("other programs", "other virtual machines took processor time"),
    "migrated": ("NUMA", "the system moved threads between NUMA nodes"),
}
_USUAL = 0.5  # a state that more than this share of the other components has explains no difference from them
_CLOCK_SHARE = 0.5  # a lower clock explains a slowdown if it accounts for at least this share of it
_OF_LINKS = ("host link",)
_MOST_OTHERS = 256  # with more, only some of the others are looked at

_Findings = dict[Place, list[FleetFinding]]


def causes(
    key: CaseKey | None,
    family: str,
    slowdown: float,
    component: Component,
    others: Sequence[Component],
    settings: Sequence[str] = (),
) -> tuple[SlowCause, ...]:
    """Return the causes that explain why a component is slow in a case, or in a family if `key` is None.

    `family` is the family of the case, and `settings` are the differences from the settings of the others."""
    keys = [key] if key else [case_key for case_key in component.rates if case_key.family == family]
    others = others[:: 1 + len(others) // _MOST_OTHERS]
    explanations: list[SlowCause] = [SlowCause("setting", text) for text in settings]
    explanations += [SlowCause("health", text) for text in (*component.sick, *component.warnings)]
    for case_key in (case_key for case_key in keys if case_key in component.rates):
        rate = component.rates[case_key]
        other_rates = [other.rates[case_key] for other in others if case_key in other.rates]
        explanations += [*_disturbances(rate, other_rates), *_lower_clock(rate, other_rates, slowdown)]
    if family in _OF_LINKS or component.kind == "link":
        explanations += _narrower_links(component, others)
    heat = _heat(component, others)
    with_heat = (replace(cause, text=cause.text + heat) if cause.kind == "thermal" else cause for cause in explanations)
    return tuple(dict.fromkeys(with_heat))


def causes_of_unit(parts: Sequence[Sequence[SlowCause]]) -> tuple[SlowCause, ...]:
    """Return the causes of the components of a node or a rack, one of each kind that at least half of them have."""
    usual = Tally(kind for causes_of_part in parts for kind in {cause.kind for cause in causes_of_part})
    of_kind = {cause.kind: cause for causes_of_part in reversed(parts) for cause in reversed(causes_of_part)}
    return tuple(cause for kind, cause in of_kind.items() if usual[kind] >= _USUAL * len(parts))


def _heat(component: Component, others: Sequence[Component]) -> str:
    """Return the temperatures as text, like ` (88 °C, the others 61 °C)`; empty if one is unknown."""
    usual = [other.temperature_c for other in others if math.isfinite(other.temperature_c)]
    if not usual or not math.isfinite(component.temperature_c):
        return ""
    return f" ({component.temperature_c:.0f} °C, the others {statistics.median(usual):.0f} °C)"


def _disturbances(rate: CaseRate, others: Sequence[CaseRate]) -> list[SlowCause]:
    """Return the disturbances during the measurement of `rate` that at most half of the rates `others` had too."""
    usual = Tally(state for other in others for state in other.states)
    return [
        SlowCause(*_STATES[state])
        for state in sorted(rate.states)
        if state in _STATES and usual[state] <= _USUAL * len(others)
    ]


def _lower_clock(rate: CaseRate, others: Sequence[CaseRate], slowdown: float) -> list[SlowCause]:
    """Return the core clock as a cause if it was low enough to explain half of the slowdown or more; else nothing."""
    clocks = [other.clock_hz for other in others if other.clock_hz > 0]
    if not clocks or not rate.clock_hz > 0:
        return []
    usual = statistics.median(clocks)
    if math.log(usual / rate.clock_hz) < _CLOCK_SHARE * slowdown:
        return []
    here, there = units.quantity(rate.clock_hz, "Hz", 3), units.quantity(usual, "Hz", 3)
    return [SlowCause("clock", f"its core clock was {here}, that of the others {there}")]


def _narrower_links(component: Component, others: Sequence[Component]) -> list[SlowCause]:
    """Return each link setting, such as the PCIe width, whose number is below the most frequent one in `others`."""
    narrower = []
    for name, value in component.details:
        values = Tally(dict(other.details).get(name, value) for other in others)
        usual = values.most_common(1)[0][0] if values else value
        if value.isdigit() and usual.isdigit() and int(value) < int(usual):
            narrower.append(
                SlowCause("link width", f"its {name.replace('.', ' ')} is {value}, that of the others {usual}")
            )
    return narrower


def disturbed_cases(component: Component) -> int:
    """Return the number of cases of the component in which other programs used it or its host."""
    others = {state for state, (kind, _) in _STATES.items() if kind == "other programs"}
    return sum(bool(rate.states & others) for rate in component.rates.values())


def blamed(findings: Sequence[FleetFinding], components: Mapping[Place, Component]) -> list[Suspect]:
    """Return the suspects: each rack, node or component with findings, or the node whose GPUs all are slow.

    `components` has every component of the fleet by place. A finding on a link names the slow GPUs at its ends."""
    by_place: _Findings = {}
    for finding in findings:
        by_place.setdefault(finding.place, []).append(finding)
    slow = {
        (place.node, device)
        for place, (first, *_) in by_place.items()
        if first.kind != "link"
        for device in place.devices
    }
    nodes = list(_slow_nodes(by_place, components))
    in_slow_nodes = {part for suspect in nodes for part in suspect.parts}
    parts = []
    for place, of_place in by_place.items():
        kind = of_place[0].kind
        if place in in_slow_nodes or any(place == suspect.place for suspect in nodes):
            continue
        if kind == "link":
            ends = [device for device in place.devices if (place.node, device) in slow]
            more = tuple(SlowCause("device", f"{device} is slow by itself") for device in ends)
            of_place = [replace(finding, causes=(*finding.causes, *more)) for finding in of_place]
        members = [components[part] for part in Suspect(kind, place, (), ()).parts if part in components]
        uuids = tuple(uuid for member in members for uuid in member.uuids)
        parts.append(Suspect(kind, place, uuids, _slowest_first(of_place)))
    return [*nodes, *parts]


def _slow_nodes(by_place: _Findings, components: Mapping[Place, Component]) -> Iterator[Suspect]:
    """Yield each node with at least two GPUs in which every GPU has a finding in the same family."""
    gpus: dict[str, list[Place]] = {}
    for place, component in components.items():
        if component.kind == "GPU":
            gpus.setdefault(place.node, []).append(place)
    for node, places in gpus.items():
        devices = tuple(device for place in places for device in place.devices)
        families = [{finding.family for finding in by_place.get(place, ())} for place in places]
        if len(places) > 1 and set.intersection(*families):
            whole = Place(node, devices)
            node_findings = [finding for place in (whole, *places) for finding in by_place.get(place, ())]
            uuids = tuple(uuid for place in places for uuid in components[place].uuids)
            yield Suspect("node", whole, uuids, _slowest_first(node_findings))


def _slowest_first(findings: Sequence[FleetFinding]) -> tuple[FleetFinding, ...]:
    """Return the findings with the largest slowdown first."""
    return tuple(sorted(findings, key=lambda finding: -finding.slowdown))
