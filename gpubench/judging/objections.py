"""Why two sides cannot be weighed, and what else than the code may explain a slow-down. Pure functions of evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpubench import stats
from gpubench.analysis.fingerprint import fingerprint
from gpubench.base import units
from gpubench.judging.effect import Effect
from gpubench.judging.evidence import Evidence, Side
from gpubench.judging.noise import LEAST_REPLICATES
from gpubench.model import Manifest, Measure, Verdict

# The share of a side's processes beside other work from which on that work may decide the verdict: where it is smaller,
# the interval lies beyond the threshold only if quiet processes do too.
_DISTURBED = 1 / 3
# Limits of which a clock of the compute units does a fixed amount. Latencies of memory, of the L2 and of launches
# shrink less than the period of the clock: at a faster clock the same code takes more cycles.
_PER_CLOCK = ("tensor.", "float", "int", "shared")
_LEAST_FOR_CYCLES = 5  # processes on each side that call a case slower by its cycles alone
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

    def explanation(self, old: Side, new: Side, verdict: Verdict, threshold: float) -> Objection | None:
        """Return what else than the code explains a verdict, or a slow-down that the clock hides from it, or None.

        What looks slower or faster is explained by other work beside either side, and by a clock that differs between
        the sides where the cycles do not (a matrix product that needs more cycles too is slower all the same).
        """
        if verdict in (Verdict.SAME, Verdict.INCONCLUSIVE):
            return self._hidden(old, new, threshold)
        if disturbed := _disturbed(old, new):
            return Objection(_undecided(verdict), "contended", disturbed)
        explained = self._explained_by_clock(old, new, verdict, threshold)
        return explained or (self._hidden(old, new, threshold) if verdict is Verdict.SUSPECT else None)

    def _explained_by_clock(self, old: Side, new: Side, verdict: Verdict, threshold: float) -> Objection | None:
        change = self._clock_change(old, new)
        if change is None or abs(change.clock.difference) <= change.clock.reach:
            return None
        is_faster = verdict is Verdict.FASTER
        cycles = -change.cycles.difference if is_faster else change.cycles.difference
        if cycles - change.cycles.reach > threshold:
            return None
        reason = f"{change.text}; counted in cycles, it is not {'faster' if is_faster else 'slower'} by the threshold"
        return Objection(_undecided(verdict), "clock", reason)

    def _hidden(self, old: Side, new: Side, threshold: float) -> Objection | None:
        """Return a slow-down in cycles of arithmetic, or of shared memory, that a faster clock makes up for in time.

        None at the power cap, where the clock is no circumstance but the code's own doing: code that draws less power
        has a faster clock.
        """
        if not new.kinds[0].limit.startswith(_PER_CLOCK) or min(len(old.ok), len(new.ok)) < _LEAST_FOR_CYCLES:
            return None
        change = _change("clock", old, new, old.watched_clocks, new.watched_clocks)
        if change is None or change.cycles.difference <= threshold:  # asked first, as intervals take long
            return None
        cycles, reach = float(change.cycles.difference), float(change.cycles.reach)
        if cycles - reach <= max(threshold, reach):  # the second of them asks for four standard errors
            return None
        if change.clock.difference <= change.clock.reach:
            return None
        if "power-capped" in old.usual_labels | new.usual_labels:
            return None
        if self.are_other_cards(old, new) or _disturbed(old, new):
            return None
        share = units.percent(math.expm1(cycles))
        reason = f"{change.text} and hides a slow-down; counted in cycles, it is {share} slower"
        return Objection(Verdict.SLOWER, "clock", reason)

    def _clock_change(self, old: Side, new: Side) -> _ClockChange | None:
        """Return the change of the clock that the figure follows, None if it follows none or too few were read.

        Both sides' clocks are of one kind: those that the workers read after their samples, or in runs of older
        versions those of the sampling process.
        """
        limit = new.kinds[0].limit
        if limit.startswith("link."):  # a link has a clock of its own, which nobody reads
            return None
        watched = old.watched_clocks, new.watched_clocks
        if limit != "dram" and all(map(_are_enough, watched)):
            return _change("clock", old, new, *watched)
        measure, name = (Measure.MEMORY_CLOCK, "memory clock") if limit == "dram" else (Measure.CORE_CLOCK, "clock")
        return _change(name, old, new, self._before.clocks(old, measure), self._after.clocks(new, measure))


@dataclass(frozen=True, slots=True)
class _ClockChange:
    """The clock and the cycles of the candidate against those of the baseline, on logarithms, in words as `text`."""

    clock: stats.Welch
    cycles: stats.Welch
    text: str


def _change(name: str, old: Side, new: Side, old_hz: Sequence[float], new_hz: Sequence[float]) -> _ClockChange | None:
    """Return the change between the processes that have a clock; None if fewer than half of a side's have one.

    None also where all processes had one clock, so that the common case costs nothing.
    """
    if len({*old_hz, *new_hz}) == 1 or not (_are_enough(old_hz) and _are_enough(new_hz)):
        return None
    before, after = _with_clock(old, old_hz), _with_clock(new, new_hz)
    clock = stats.welch(before[:, 1], after[:, 1])
    labels = ", ".join(sorted(old.usual_labels ^ new.usual_labels))
    state = f" ({labels} on one side only)" if labels else ""
    ends = " to ".join(units.quantity(math.exp(float(logs[:, 1].mean())), "Hz") for logs in (before, after))
    return _ClockChange(
        clock, stats.welch(before.sum(axis=1), after.sum(axis=1)), f"the {name} went from {ends}{state}"
    )


def _are_enough(hertz: Sequence[float]) -> bool:
    """Return whether half of the processes have a clock, and two of them, without which there is no variance."""
    count = sum(clock > 0 for clock in hertz)
    return count >= 2 and 2 * count >= len(hertz)


def _with_clock(side: Side, hertz: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return the logarithms of the figure and of the clock, shape (n, 2), of the processes that have a clock."""
    return np.array([(log, math.log(clock)) for log, clock in zip(side.logs, hertz, strict=True) if clock > 0])


def _undecided(verdict: Verdict) -> Verdict:
    """Return what an explained verdict becomes: only what looks slower is worth measuring again."""
    return Verdict.INCONCLUSIVE if verdict is Verdict.FASTER else Verdict.SUSPECT


def _disturbed(old: Side, new: Side) -> str:
    """Return how many processes ran beside other work, if they are a third of either side or more; else nothing."""
    sides = (("baseline", old), ("candidate", new))
    if not any(len(side.neighbours) >= _DISTURBED * len(side.ok) > 0 for _, side in sides):
        return ""
    counts = " and ".join(f"{len(side.neighbours)} of {len(side.ok)} {name} processes" for name, side in sides)
    labels = sorted({label for _, side in sides for process in side.neighbours for label in process})
    return f"other work disturbed {counts} ({', '.join(labels)}): from a third of a side on, no change is judged"


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
            f"{counts} do not show the noise between processes: "
            f"measure with --replicates 5 (at least {LEAST_REPLICATES})"
        )
        return Objection(Verdict.INCONCLUSIVE, "few-processes", reason)
    return None
