"""Assign the findings of a fleet to the component that is to blame: a GPU, a whole node, a host, or a link."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gpubench.analysis.digest import Component
from gpubench.judging.causes import SlowCause
from gpubench.judging.fleet import FleetFinding, Place, Suspect

Findings = dict[Place, list[FleetFinding]]


def blamed(findings: Sequence[FleetFinding], components: Mapping[Place, Component]) -> list[Suspect]:
    """Return the suspects: each component with findings, or the whole node if all GPUs of a node are slow.

    `components` has every component of the fleet by place."""
    by_place: Findings = {}
    for finding in findings:
        by_place.setdefault(finding.place, []).append(finding)
    slow_nodes = list(_slow_nodes(by_place, components))
    devices_of_slow_nodes = {(suspect.place.node, device) for suspect in slow_nodes for device in suspect.place.devices}
    other_findings = {
        place: place_findings
        for place, place_findings in by_place.items()
        if components[place].kind != "GPU" or (place.node, place.devices[0]) not in devices_of_slow_nodes
    }
    slow = {(place.node, place.devices[0]) for place in by_place if components[place].kind == "GPU"}
    parts = [
        Suspect(
            components[place].kind,
            place,
            components[place].uuids,
            _slowest_first([_with_slow_devices(finding, slow) for finding in place_findings]),
        )
        for place, place_findings in other_findings.items()
    ]
    return [*slow_nodes, *parts]


def _slow_nodes(by_place: Findings, components: Mapping[Place, Component]) -> Iterator[Suspect]:
    """Yield each node with at least two GPUs in which every GPU has a finding in the same family."""
    gpus: dict[str, list[Place]] = {}
    for place, component in components.items():
        if component.kind == "GPU":
            gpus.setdefault(place.node, []).append(place)
    for node, places in gpus.items():
        families = [{finding.family for finding in by_place.get(place, ())} for place in places]
        if len(places) > 1 and set.intersection(*families):
            node_findings = [finding for place in places for finding in by_place[place]]
            uuids = tuple(uuid for place in places for uuid in components[place].uuids)
            devices = tuple(device for place in places for device in place.devices)
            yield Suspect("node", Place(node, devices), uuids, _slowest_first(node_findings))


def _with_slow_devices(finding: FleetFinding, slow: set[tuple[str, str]]) -> FleetFinding:
    """Return the finding; on a link, with the slow ends among its causes."""
    if finding.kind != "link":
        return finding
    ends = [device for device in finding.place.devices if (finding.place.node, device) in slow]
    more = tuple(SlowCause("device", f"{device} is slow by itself") for device in ends)
    return replace(finding, causes=(*finding.causes, *more))


def _slowest_first(findings: Sequence[FleetFinding]) -> tuple[FleetFinding, ...]:
    """Return the findings with the largest slowdown first."""
    return tuple(sorted(findings, key=lambda finding: -finding.slowdown))
