"""Who is to blame for the findings in a fleet: a GPU, a whole node, a host, or a link."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gpubench.analysis.digest import Component
from gpubench.judging.causes import SlowCause
from gpubench.judging.fleet import FleetFinding, Place, Suspect

Findings = dict[Place, list[FleetFinding]]


def blamed(findings: Sequence[FleetFinding], components: Mapping[Place, Component]) -> list[Suspect]:
    """Return the suspects: each component with findings, and in place of all GPUs of a node the node itself."""
    by_place: Findings = {}
    for finding in findings:
        by_place.setdefault(finding.place, []).append(finding)
    whole = list(_nodes(by_place, components))
    taken = {(suspect.place.node, device) for suspect in whole for device in suspect.place.devices}
    left = {
        place: theirs
        for place, theirs in by_place.items()
        if components[place].kind != "GPU" or (place.node, place.devices[0]) not in taken
    }
    slow = {(place.node, place.devices[0]) for place in by_place if components[place].kind == "GPU"}
    parts = [
        Suspect(
            components[place].kind,
            place,
            components[place].uuids,
            _slowest_first([_by_device(finding, slow) for finding in theirs]),
        )
        for place, theirs in left.items()
    ]
    return [*whole, *parts]


def _nodes(by_place: Findings, components: Mapping[Place, Component]) -> Iterator[Suspect]:
    """Yield the nodes of which every GPU, of several, has a finding in the same family."""
    gpus: dict[str, list[Place]] = {}
    for place, component in components.items():
        if component.kind == "GPU":
            gpus.setdefault(place.node, []).append(place)
    for node, places in gpus.items():
        families = [{finding.family for finding in by_place.get(place, ())} for place in places]
        if len(places) > 1 and set.intersection(*families):
            theirs = [finding for place in places for finding in by_place[place]]
            uuids = tuple(uuid for place in places for uuid in components[place].uuids)
            devices = tuple(device for place in places for device in place.devices)
            yield Suspect("node", Place(node, devices), uuids, _slowest_first(theirs))


def _by_device(finding: FleetFinding, slow: set[tuple[str, str]]) -> FleetFinding:
    """Return a finding; that of a link is explained by a device of the link that is slow by itself."""
    if finding.kind != "link":
        return finding
    ends = [device for device in finding.place.devices if (finding.place.node, device) in slow]
    more = tuple(SlowCause("device", f"{device} is slow by itself") for device in ends)
    return replace(finding, causes=(*finding.causes, *more))


def _slowest_first(findings: Sequence[FleetFinding]) -> tuple[FleetFinding, ...]:
    return tuple(sorted(findings, key=lambda finding: -finding.slowdown))
