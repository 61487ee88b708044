"""What may explain that a component of a fleet is slow: evidence from its run, beside that of the others."""

from __future__ import annotations

import math
import statistics
from collections import Counter as Tally
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gpubench.analysis.digest import CaseKey, CaseRate, Component
from gpubench.base import units

CauseKind = Literal["thermal", "power", "clock", "link width", "health", "other programs", "NUMA", "device"]
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
_USUAL = 0.5  # of the others: a state that so many share explains no difference between them
_CLOCK_SHARE = 0.5  # of the slowdown: from here on a lower clock explains it
_OF_LINKS = ("host link",)


@dataclass(frozen=True, slots=True)
class SlowCause:
    """Something that explains a slow component: its kind for counting, and a sentence without the full stop."""

    kind: CauseKind
    text: str


def causes(
    key: CaseKey | None, family: str, slowdown: float, component: Component, others: Sequence[Component]
) -> tuple[SlowCause, ...]:
    """Return what explains that a component is slow in a case, or without a case in a family; empty if nothing does.

    `slowdown` is a natural logarithm.
    """
    keys = [key] if key else [each for each in component.rates if each.family == family]
    found: list[SlowCause] = [SlowCause("health", text) for text in (*component.sick, *component.warnings)]
    for each in keys:
        own = component.rates[each]
        beside = [other.rates[each] for other in others if each in other.rates]
        found += [*_states(own, beside), *_clock(own, beside, slowdown)]
    if family in _OF_LINKS or component.kind == "link":
        found += _links(component, others)
    return tuple(dict.fromkeys(found))


def _states(own: CaseRate, others: Sequence[CaseRate]) -> list[SlowCause]:
    usual = Tally(state for other in others for state in other.states)
    return [
        SlowCause(*_STATES[state])
        for state in sorted(own.states)
        if state in _STATES and usual[state] <= _USUAL * len(others)
    ]


def _clock(own: CaseRate, others: Sequence[CaseRate], slowdown: float) -> list[SlowCause]:
    clocks = [other.clock_hz for other in others if other.clock_hz > 0]
    if not clocks or not own.clock_hz > 0:
        return []
    usual = statistics.median(clocks)
    if math.log(usual / own.clock_hz) < _CLOCK_SHARE * slowdown:
        return []
    here, there = units.quantity(own.clock_hz, "Hz", 3), units.quantity(usual, "Hz", 3)
    return [SlowCause("clock", f"its core clock was {here}, that of the others {there}")]


def _links(component: Component, others: Sequence[Component]) -> list[SlowCause]:
    found = []
    for name, value in component.details:
        values = Tally(dict(other.details).get(name, value) for other in others)
        usual = values.most_common(1)[0][0] if values else value
        if value.isdigit() and usual.isdigit() and int(value) < int(usual):
            found.append(
                SlowCause("link width", f"its {name.replace('.', ' ')} is {value}, that of the others {usual}")
            )
    return found


def disturbed_cases(component: Component) -> int:
    """Return in how many of its cases other programs used the component or its host."""
    others = {state for state, (kind, _) in _STATES.items() if kind == "other programs"}
    return sum(bool(rate.states & others) for rate in component.rates.values())
