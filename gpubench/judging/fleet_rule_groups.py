"""Sort the components of a fleet into groups that can be compared with each other, and say how the groups differ."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpubench.analysis.fingerprint import Fingerprint
from gpubench.analysis.overview import CaseKey, Component, ComponentKind, NodeDigest
from gpubench.judging.fleet import Place
from gpubench.judging.outliers import LEAST_COMPONENTS, MOST_SHARE, Mask, Matrix

_MOST_CLAIMS = 2  # a UUID that more nodes report identifies no GPU
_MOST_NOTES = 3


class Member(NamedTuple):
    """A component with its place."""

    place: Place
    component: Component


class Settings(NamedTuple):
    """Members with the same settings, and how these differ from the usual settings of their model; empty for these."""

    members: tuple[Member, ...]
    fingerprint: Fingerprint
    differences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ComparableGroup:
    """Comparable members with their rates and standard errors as natural logarithms, of times negated, NaN if unknown.

    The first of `settings` are the usual ones; members with others are compared, but nothing is compared with them. The
    matrices have a row for each case (`keys`) and a column for each member; a smaller rate is always slower."""

    settings: tuple[Settings, ...]
    members: tuple[Member, ...]
    keys: tuple[CaseKey, ...]
    rates: Matrix
    errors: Matrix

    @classmethod
    def of(cls, settings: Sequence[Settings]) -> "ComparableGroup":
        """Return the group of the members with these settings; its cases are all that any of them has."""
        members = tuple(member for part in settings for member in part.members)
        keys = {key: row for row, key in enumerate(dict.fromkeys(key for _, part in members for key in part.rates))}
        rates = np.full((len(keys), len(members)), math.nan)
        errors = rates.copy()
        for column, (_, component) in enumerate(members):
            rows = [keys[key] for key in component.rates]
            rates[rows, column] = [rate.log for rate in component.rates.values()]
            errors[rows, column] = [rate.error for rate in component.rates.values()]
        return cls(tuple(settings), members, tuple(keys), rates, errors)

    @property
    def may_refer(self) -> Mask:
        """A mask of the members with the settings of the majority, shape (members,)."""
        return np.arange(len(self.members)) < len(self.settings[0].members)

    @property
    def is_comparable(self) -> bool:
        """Whether the group has enough members to compare them with each other."""
        return len(self.settings[0].members) >= LEAST_COMPONENTS

    @property
    def kind(self) -> ComponentKind:
        return self.members[0].component.kind

    def part_of(self, column: int) -> int:
        """Return the index in `settings` of the settings of a member."""
        return int(np.searchsorted(np.cumsum([len(part.members) for part in self.settings]), column, "right"))


def all_members(digests: Sequence[NodeDigest]) -> tuple[list[Member], list[str]]:
    """Return every component once, by the first node that reports its UUIDs, and notes on UUIDs that are not unique."""
    useless = ambiguous_uuids(digests)
    node_of_uuid: dict[str, str] = {}
    members, notes = (
        [],
        [
            f"{len(nodes)} nodes report the UUID {uuid}, which identifies no component"
            for uuid, nodes in useless.items()
        ],
    )
    for digest in digests:
        for component in digest.components:
            uuids = [uuid for uuid in component.uuids if uuid and uuid not in useless]
            if twice := [uuid for uuid in uuids if node_of_uuid.get(uuid, digest.node) != digest.node]:
                first = node_of_uuid[twice[0]]
                notes.append(
                    f"{digest.node} and {first} both measured {component.model} {twice[0]}; it counts once, as {first}"
                )
                continue
            node_of_uuid |= dict.fromkeys(uuids, digest.node)
            members.append(Member(Place(digest.node, component.devices), component))
    return members, shortened(list(dict.fromkeys(notes)), "components that two nodes measured")


def ambiguous_uuids(digests: Sequence[NodeDigest]) -> dict[str, tuple[str, ...]]:
    """Return the UUIDs that identify no component, with their nodes: three or more nodes report them, or one twice."""
    nodes: dict[str, list[str]] = {}
    for digest in digests:
        for component in digest.components:
            for uuid in component.uuids if len(component.uuids) == 1 else ():
                nodes.setdefault(uuid, []).append(digest.node)
    return {
        uuid: tuple(dict.fromkeys(names))
        for uuid, names in nodes.items()
        if uuid and (len(set(names)) > _MOST_CLAIMS or len(set(names)) < len(names))
    }


def identity(node: str, component: Component, useless: Collection[str]) -> tuple[str, ...]:
    """Return what a component has in every fleet: its UUIDs, or its place if they are missing or among `useless`."""
    is_known = all(component.uuids) and not any(uuid in useless for uuid in component.uuids)
    return component.uuids if is_known else (node, *component.devices)


def comparable_groups(members: Sequence[Member]) -> tuple[list[ComparableGroup], list[str]]:
    """Return the groups of comparable members, and notes on settings that some run files do not tell.

    Members with settings of fewer than five or of less than a fifth are compared with the usual ones of their model;
    others are a group by themselves. An unknown setting is no difference."""
    by_model: dict[tuple[str, ...], list[Member]] = {}
    for member in members:
        pairs = dict(member.component.fingerprint.pairs)
        same = (member.component.kind, *(pairs.get(name, "") for name in ("model", "units", "devices")))
        by_model.setdefault(same, []).append(member)
    groups, notes = [], []
    for of_model in by_model.values():
        settings, unknown = _settings(of_model)
        notes += unknown
        majority, *others = settings
        most = max(LEAST_COMPONENTS - 1, MOST_SHARE * len(of_model))
        compared = [part for part in others if len(part.members) <= most]
        groups.append(ComparableGroup.of([majority, *compared]))
        groups += [ComparableGroup.of([part]) for part in others if part not in compared]
    return groups, shortened(notes, "components with unknown settings")


def _settings(members: Sequence[Member]) -> tuple[list[Settings], list[str]]:
    """Return the settings of members of one model, the most frequent first, and a note for each incomplete one."""
    parts: dict[Fingerprint, list[Member]] = {}
    for member in members:
        parts.setdefault(member.component.fingerprint, []).append(member)
    names = {name for fingerprint in parts for name, _ in fingerprint.pairs}
    notes = []
    for fingerprint in [fingerprint for fingerprint in parts if len(fingerprint.pairs) < len(names)]:
        pairs = set(fingerprint.pairs)
        fitting = [other for other in parts if pairs < set(other.pairs)]
        if fitting:
            unknown = names - {name for name, _ in pairs}
            same = max(fitting, key=lambda other: len(parts[other]))
            less = parts.pop(fingerprint)
            places = ", ".join(member.place.text for member in less[:_MOST_NOTES]) + ", …" * (len(less) > _MOST_NOTES)
            notes.append(f"{places}: {' and '.join(sorted(unknown))} unknown; compared as if the same as of the others")
            parts[same] += less
    ordered = sorted(parts.items(), key=lambda item: -len(item[1]))
    usual = ordered[0][0]
    settings = [Settings(tuple(part), fingerprint, fingerprint.differences(usual)) for fingerprint, part in ordered]
    return settings, notes


def shortened(notes: Sequence[str], things: str) -> list[str]:
    """Return at most three notes, and one that counts the others as `things`."""
    more = len(notes) - _MOST_NOTES
    return [*notes[:_MOST_NOTES], *([f"and {more} more {things}"] if more > 0 else [])]
