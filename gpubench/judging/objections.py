"""Why two sides cannot be weighed, and what else than the code may explain a slow-down. Pure functions of evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpubench import stats
from gpubench.analysis.fingerprint import fingerprint
from gpubench.base import units
from gpubench.judging.effect import Effect
from gpubench.judging.evidence import Evidence, Side
from gpubench.judging.noise import LEAST_REPLICATES
from gpubench.model import Manifest, Verdict

_CONTENDED = frozenset({"shared-device", "loaded", "migrated"})  # labels that speak of neighbours, not of the code
# 8 % on average over five clusters, up to 22 % (Sinha et al., "Not All GPUs Are Created Equal", SC22); of sixteen H200
# that this project has met, four have memory that is 3 to 4 % slower in latency than that of the others.
_CARDS_DIFFER = 0.08
_Devices = tuple[str, ...]
_Sources = tuple[tuple[int, ...], tuple[int, ...], _Devices, _Devices]  # readings of both sides, and their devices


@dataclass(frozen=True, slots=True)
class Objection:
    """What a case ends as without being weighed, or in spite of it: a slug for programs, a reason for people."""

    verdict: Verdict
    cause: str
    reason: str


class Grounds:
    """A baseline and a candidate as a whole: what keeps their sides apart, asked once for each set of runs."""

    def __init__(self, before: Evidence, after: Evidence, allow_mismatch: bool = False) -> None:
        self._before = before
        self._after = after
        self._allow_mismatch = allow_mismatch
        self._machines: dict[_Sources, tuple[str, ...]] = {}
        self._cards: dict[_Sources, bool] = {}
        self._has_data = any(reading.manifest.settings.data for reading in (*before.readings, *after.readings))

    def objection(self, old: Side, new: Side) -> Objection | None:
        """Why these two sides cannot be weighed; None where they can."""
        if reasons := _kind_differences(old, new) or self._data_differences(old, new):
            return Objection(Verdict.NOT_COMPARABLE, "method", "; ".join(reasons))
        if not self._allow_mismatch and (reasons := self.machine_differences(old, new)):
            return Objection(Verdict.NOT_COMPARABLE, "machine", f"unlike the baseline: {'; '.join(reasons)}")
        return _ended(old, new) or _too_little(old, new)

    def machine_differences(self, old: Side, new: Side) -> tuple[str, ...]:
        """What differs, in words, between the machines, drivers and settings that the sides were measured with."""
        sources = _sources(old, new)
        if sources not in self._machines:
            found = [
                reason
                for before, after in self._manifests(old, new)
                for reason in _machine_differences(before, old.devices, after, new.devices)
            ]
            self._machines[sources] = tuple(dict.fromkeys(found))
        return self._machines[sources]

    def of_same_card(self, old: Side, new: Side) -> Side:
        """The baseline's processes of the candidate's own card, where it has enough of them; else all of them."""
        if self.are_other_cards(old, new) and len(set(old.readings)) > 1:
            before, after = self._before.readings, self._after.readings
            cards = {_cards(after[index].manifest, new.devices) for index in new.readings}
            own = old.only({index for index in old.readings if _cards(before[index].manifest, old.devices) in cards})
            return own if len(own.values) >= LEAST_REPLICATES else old
        return old

    def are_other_cards(self, old: Side, new: Side) -> bool:
        """Whether the baseline is of other cards than the candidate, as far as uuids tell."""
        sources = _sources(old, new)
        if sources not in self._cards:
            pairs = self._manifests(old, new)
            cards = [(_cards(before, old.devices), _cards(after, new.devices)) for before, after in pairs]
            self._cards[sources] = any(first and second and first != second for first, second in cards)
        return self._cards[sources]

    def _manifests(self, old: Side, new: Side) -> list[tuple[Manifest, Manifest]]:
        """Each run of the one with each of the other."""
        first = [self._before.readings[reading].manifest for reading in dict.fromkeys(old.readings)]
        second = [self._after.readings[reading].manifest for reading in dict.fromkeys(new.readings)]
        return [(before, after) for before in first for after in second]

    def _data_differences(self, old: Side, new: Side) -> tuple[str, ...]:
        """The user's own data that a case names, where another file has the same label."""
        if not self._has_data:
            return ()
        values = {value for _, value in new.case.params}
        found = (
            f"the data {label} is another file"
            for before, after in self._manifests(old, new)
            for label, digest in _data(before).items()
            if label in values and _data(after).get(label, digest) != digest
        )
        return tuple(dict.fromkeys(found))

    def other_card(self, old: Side, new: Side, found: Effect) -> Objection | None:
        """Another card of the model, where the effect, either way, is one that such cards have; else None."""
        nearest = min(abs(found.low), abs(found.high))
        if nearest > math.log1p(_CARDS_DIFFER) or not self.are_other_cards(old, new):
            return None
        words = f"measured on another card, and cards of one model differ by {units.percent(_CARDS_DIFFER, 0)}"
        return Objection(Verdict.INCONCLUSIVE, "card", f"{words}: use a baseline of this card")

    def explanation(self, old: Side, new: Side, threshold: float) -> Objection | None:
        """What else than the code explains that `new` looks slower; None where nothing does.

        Neighbours that the candidate alone had, and the clock, where it differs between the sides while the cycles
        do not (a matrix product that needs more cycles too is slower all the same).
        """
        if neighbours := (new.usual_labels - old.usual_labels) & _CONTENDED:
            words = ", ".join(sorted(neighbours))
            return Objection(
                Verdict.SUSPECT, "contended", f"only the candidate is labelled {words}: not the code's doing"
            )
        clocks = self._before.clocks(old), self._after.clocks(new)
        if not all(value > 0 for side in clocks for value in side):  # NaN: no clock was read
            return None
        return _slower_clock(old, new, clocks, threshold)


def _sources(old: Side, new: Side) -> _Sources:
    return (old.readings, new.readings, old.devices, new.devices)


def _machine_differences(before: Manifest, old: _Devices, after: Manifest, new: _Devices) -> tuple[str, ...]:
    """Schema, tier (tiers settle and sample differently), and what decides on a device's figures."""
    found = [] if before.schema == after.schema else [f"schema {after.schema}, there {before.schema}"]
    if before.settings.tier != after.settings.tier:
        found.append(f"tier {after.settings.tier}, there {before.settings.tier}")
    try:
        return (*found, *fingerprint(after.facts, new).differences(fingerprint(before.facts, old)))
    except KeyError as error:
        return (*found, f"a device {error} that its run does not describe")


def _cards(manifest: Manifest, devices: _Devices) -> frozenset[str]:
    return frozenset(device.uuid for device in manifest.facts.devices if device.id in devices and device.uuid)


def _data(manifest: Manifest) -> dict[str, str]:
    """The user's own data by label, with its hash: a case's id holds only the label."""
    return {entry.label: entry.sha256 for entry in manifest.settings.data}


def _kind_differences(old: Side, new: Side) -> tuple[str, ...]:
    kinds = tuple(dict.fromkeys((*old.kinds, *new.kinds)))
    found = (reason for kind in kinds[1:] for reason in kinds[0].differences(kind))
    return tuple(dict.fromkeys(found))


def unjudged(side: Side, name: str = "candidate") -> Objection | None:
    """Why one side by itself cannot be weighed; None where it can."""
    return _troubled(name, side) or _unweighable(side.logs, side.logs, side.values)


def _ended(old: Side, new: Side) -> Objection | None:
    """What became of the processes, where one failed or too few are left."""
    return _troubled("candidate", new) or _troubled("baseline", old)


def _troubled(name: str, side: Side) -> Objection | None:
    if name == "candidate" and any(process.status == "failed" for process in side.processes):
        return Objection(Verdict.INVALID, "failed", f"candidate: {side.trouble}")
    if side.trouble and len(side.values) < LEAST_REPLICATES:
        return Objection(Verdict.INVALID, "invalid" if side.is_measured else "skipped", f"{name}: {side.trouble}")
    return None


def _too_little(old: Side, new: Side) -> Objection | None:
    if sorted(old.values) == sorted(new.values):
        return Objection(Verdict.SAME, "identical", "the same figures to the last digit")
    return _unweighable(old.logs, new.logs, (*old.values, *new.values))


def _unweighable(old: Sequence[float], new: Sequence[float], values: Sequence[float]) -> Objection | None:
    if not all(0 < value < math.inf for value in values):
        return Objection(Verdict.INCONCLUSIVE, "no-ratio", "a figure that is not positive has no ratio")
    if min(len(old), len(new)) < LEAST_REPLICATES:
        counts = f"{len(old)} and {len(new)} processes" if old is not new else f"{len(old)} process(es)"
        reason = (
            f"{counts} cannot tell a change from the noise between processes: "
            f"measure with --replicates 5 (at least {LEAST_REPLICATES})"
        )
        return Objection(Verdict.INCONCLUSIVE, "few-processes", reason)
    return None


def _slower_clock(old: Side, new: Side, clocks: Sequence[Sequence[float]], threshold: float) -> Objection | None:
    hertz = [np.log(side) for side in clocks]
    clock = stats.welch(*hertz)
    cycles = stats.welch(*(np.add(side.logs, logs) for side, logs in zip((old, new), hertz, strict=True)))
    if abs(clock.difference) <= clock.reach or cycles.difference - cycles.reach > threshold:
        return None
    words = " to ".join(units.quantity(math.exp(float(logs.mean())), "Hz") for logs in hertz)
    labels = ", ".join(sorted(old.usual_labels ^ new.usual_labels))
    state = f" ({labels} on one side only)" if labels else ""
    reason = f"the clock went from {words}{state}; counted in cycles, it is not slower by the threshold"
    return Objection(Verdict.SUSPECT, "clock", reason)
