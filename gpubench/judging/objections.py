"""Find reasons why two sides cannot be compared, and explanations of a slowdown other than the code.

All are pure functions of evidence."""

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
from gpubench.judging.evidence import Evidence, Kind, Side
from gpubench.judging.noise import LEAST_REPLICATES
from gpubench.judging.sessions import SessionSpreads
from gpubench.model import Manifest, Measure, Verdict

# If other work disturbed this share of a side's processes or more, that work may decide the verdict. With a smaller
# share, the interval lies beyond the threshold only if undisturbed processes do too.
_DISTURBED = 1 / 3
# Limits for which the compute units do a fixed amount of work per clock cycle. Latencies of memory, of the L2 and of
# launches are not among them: they shrink less than the clock period, so at a faster clock they take more cycles.
_PER_CLOCK = ("tensor.", "float", "int", "shared")
_LEAST_FOR_CYCLES = 5  # processes per side that a case needs to be called slower by its cycles alone
# How much cards of one model differ, by quantity: the widest range of a case over up to eight H200 whose recordings the
# tests and this project's sessions hold, rounded up. Elsewhere 8 %, the mean of five clusters (Sinha et al., "Not All
# GPUs Are Created Equal", SC22).
_CARDS_DIFFER = {"dram": 0.02, "tensor": 0.02, "link": 0.07, "B/s": 0.03, "FLOP/s": 0.03, "s": 0.04, "host": 0.5}
_CARDS_DIFFER_ELSEWHERE = 0.08
_Devices = tuple[str, ...]
_Sources = tuple[tuple[int, ...], tuple[int, ...], _Devices, _Devices]  # readings of both sides, and their devices


def cards_differ(kind: Kind) -> float:
    """Return by which fraction cards of one model differ in the quantity of a figure."""
    if kind.unit == "s" and "host" in kind.series:
        return _CARDS_DIFFER["host"]
    quantity = kind.limit.partition(".")[0]
    return _CARDS_DIFFER.get(quantity, _CARDS_DIFFER.get(kind.unit, _CARDS_DIFFER_ELSEWHERE))


@dataclass(frozen=True, slots=True)
class Objection:
    """A verdict that replaces the verdict of the figures, or stands where the figures cannot be compared.

    `cause` is a slug for programs, and `reason` a clause for people."""

    verdict: Verdict
    cause: str
    reason: str


class Grounds:
    """The whole baseline and the whole candidate, which decide whether their sides are comparable.

    The answers are computed once for each set of runs, because many cases share one."""

    def __init__(self, before: Evidence, after: Evidence, allow_mismatch: bool = False) -> None:
        """Set up comparisons of sides of the baseline `before` with sides of the candidate `after`."""
        self.before = before
        self.after = after
        self.spreads = SessionSpreads(before.sides.values())
        self._allow_mismatch = allow_mismatch
        self._machines: dict[_Sources, tuple[str, ...]] = {}
        self._cards: dict[_Sources, bool] = {}
        self._has_data = any(reading.manifest.settings.data for reading in (*before.readings, *after.readings))

    def objection(self, old: Side, new: Side) -> Objection | None:
        """Return the reason why the sides of one case cannot be compared; None if they can.

        The verdict is `same` if both sides have identical figures."""
        if reasons := _kind_differences(old, new) or self._data_differences(old, new):
            return Objection(Verdict.NOT_COMPARABLE, "method", "; ".join(reasons))
        if not self._allow_mismatch and (reasons := self.machine_differences(old, new)):
            return Objection(
                Verdict.NOT_COMPARABLE, "machine", f"not comparable with the baseline: {'; '.join(reasons)}"
            )
        return _process_objection(old, new) or _figure_objection(old, new)

    def machine_differences(self, old: Side, new: Side) -> tuple[str, ...]:
        """Return the differences between the machines, drivers and settings of the two sides, as clauses, each once.

        It is empty if there are none."""
        sources = _cache_key(old, new)
        if sources not in self._machines:
            reasons = [
                reason
                for before, after in self._manifests(old, new)
                for reason in _machine_differences(before, old.devices, after, new.devices)
            ]
            self._machines[sources] = tuple(dict.fromkeys(reasons))
        return self._machines[sources]

    def of_same_card(self, old: Side, new: Side) -> Side:
        """Return the baseline's side with only the processes that ran on the cards of the candidate.

        The whole side is returned if fewer than three of these processes are ok, or if all its processes ran on
        these cards."""
        if self.are_other_cards(old, new) and len(set(old.readings)) > 1:
            before, after = self.before.readings, self.after.readings
            cards = {_card_uuids(after[index].manifest, new.devices) for index in new.readings}
            same_card = old.only(
                {index for index in old.readings if _card_uuids(before[index].manifest, old.devices) in cards}
            )
            return same_card if len(same_card.values) >= LEAST_REPLICATES else old
        return old

    def are_other_cards(self, old: Side, new: Side) -> bool:
        """Return whether any run of the baseline has other cards than any run of the candidate, by their UUIDs.

        Runs without known UUIDs do not count."""
        sources = _cache_key(old, new)
        if sources not in self._cards:
            pairs = self._manifests(old, new)
            cards = [(_card_uuids(before, old.devices), _card_uuids(after, new.devices)) for before, after in pairs]
            self._cards[sources] = any(first and second and first != second for first, second in cards)
        return self._cards[sources]

    def card_allowance(self, old: Side, new: Side) -> float:
        """Return by how much the candidate's card may differ from the baseline's, a logarithm; 0 for the same card."""
        # Not even a baseline of three cards shows it: a fourth H200 had 3.7 % more latency than three that were alike.
        return math.log1p(cards_differ(new.kinds[0])) if self.are_other_cards(old, new) else 0.0

    def _manifests(self, old: Side, new: Side) -> list[tuple[Manifest, Manifest]]:
        """Return the manifest of each run of `old` paired with the manifest of each run of `new`."""
        first = [self.before.readings[reading].manifest for reading in dict.fromkeys(old.readings)]
        second = [self.after.readings[reading].manifest for reading in dict.fromkeys(new.readings)]
        return [(before, after) for before in first for after in second]

    def _data_differences(self, old: Side, new: Side) -> tuple[str, ...]:
        """Return a clause for each data file of the user that the case names and that differs between the two sides."""
        if not self._has_data:
            return ()
        values = {value for _, value in new.case.params}
        reasons = (
            f"the data {label} is another file"
            for before, after in self._manifests(old, new)
            for label, digest in _data_hashes(before).items()
            if label in values and _data_hashes(after).get(label, digest) != digest
        )
        return tuple(dict.fromkeys(reasons))

    def other_card(self, old: Side, new: Side, effect: Effect) -> Objection | None:
        """Return an objection if the sides have different cards and the effect may be a difference of cards; else None.

        It may be one if an end of its 95 % interval is closer to 0 than cards of a model differ in this quantity."""
        differ = self.card_allowance(old, new)
        if not differ or min(abs(effect.low), abs(effect.high)) > differ:
            return None
        share = units.percent(math.expm1(differ), 0)
        reason = f"measured on another card, and cards of one model differ by {share} in this quantity"
        return Objection(Verdict.INCONCLUSIVE, "card", f"{reason}: use a baseline of this card")

    def explanation(self, old: Side, new: Side, verdict: Verdict, threshold: float, effect: Effect) -> Objection | None:
        """Return an explanation of `verdict` other than the code, or a slowdown that a faster clock hides; else None.

        `threshold` is the finding's threshold, a logarithm. Other work explains a slowdown up to the difference that
        sessions of the machine, or the disturbed processes of the baseline, have shown."""
        if verdict in (Verdict.SAME, Verdict.INCONCLUSIVE):
            return self._hidden_slowdown(old, new, threshold)
        if disturbed := _disturbance_text(old, new):
            bound = max(self.spreads.bound(old), _disturbed_by(old))
            if verdict is Verdict.SLOWER and effect.low > bound:
                doubt = f"{disturbed}; that explains at most {units.percent(math.expm1(bound))}"
                return Objection(Verdict.SLOWER, "contended", doubt)
            return Objection(_verdict_if_explained(verdict), "contended", disturbed)
        explained = self._explained_by_clock(old, new, verdict, threshold)
        return explained or (self._hidden_slowdown(old, new, threshold) if verdict is Verdict.SUSPECT else None)

    def slowed_by_clock(self, old: Side, new: Side) -> float:
        """Return by how much a lower clock slowed a case, a logarithm: the fall of the clock beyond its noise, or 0."""
        change = self._clock_change(old, new)
        fall = -float(change.clock.difference) if change else 0.0
        return fall if change and fall > change.clock.margin else 0.0

    def by_clock(self, old: Side, new: Side) -> tuple[tuple[str, float], ...]:
        """Return the rung `clock` with the change that follows from the clock alone, a logarithm of the rate.

        The result is empty where the figure is not proportional to a clock that both sides have read."""
        limit = new.kinds[0].limit if new.kinds else ""
        if limit == "dram":
            clocks = [side.clocks(of, Measure.MEMORY_CLOCK) for side, of in ((self.before, old), (self.after, new))]
        elif limit.startswith(_PER_CLOCK):
            clocks = [old.watched_clocks, new.watched_clocks]
        else:
            return ()
        read_clocks = [[hertz for hertz in of_side if hertz > 0] for of_side in clocks]
        if not all(read_clocks):
            return ()
        return (("clock", math.log(stats.median(read_clocks[1]) / stats.median(read_clocks[0]))),)

    def _explained_by_clock(self, old: Side, new: Side, verdict: Verdict, threshold: float) -> Objection | None:
        """Return the change of the clock as an objection if it explains the change of the figure; else None."""
        change = self._clock_change(old, new)
        if change is None or abs(change.clock.difference) <= change.clock.margin:
            return None
        is_faster = verdict is Verdict.FASTER
        cycles = -change.cycles.difference if is_faster else change.cycles.difference
        if cycles - change.cycles.margin > threshold:
            return None
        reason = f"{change.text}; counted in cycles, it is not {'faster' if is_faster else 'slower'} by the threshold"
        return Objection(_verdict_if_explained(verdict), "clock", reason)

    def _hidden_slowdown(self, old: Side, new: Side, threshold: float) -> Objection | None:
        """Return a slowdown in cycles of arithmetic or shared memory that a faster clock hides in the times."""
        # Not at the power cap: there the clock depends on the code itself, because code that draws less power has a
        # faster clock.
        if not new.kinds[0].limit.startswith(_PER_CLOCK) or min(len(old.ok), len(new.ok)) < _LEAST_FOR_CYCLES:
            return None
        change = _clock_and_cycles("clock", old, new, old.watched_clocks, new.watched_clocks)
        if (
            change is None or change.cycles.difference <= threshold
        ):  # this test comes first because it needs no interval, which takes long
            return None
        cycles, margin = float(change.cycles.difference), float(change.cycles.margin)
        if cycles - margin <= max(threshold, margin):  # the second bound demands about four standard errors
            return None
        if change.clock.difference <= change.clock.margin:
            return None
        if "power-capped" in old.usual_labels | new.usual_labels:
            return None
        if self.are_other_cards(old, new) or _disturbance_text(old, new):
            return None
        share = units.percent(math.expm1(cycles))
        reason = f"{change.text} and hides a slow-down; counted in cycles, it is {share} slower"
        return Objection(Verdict.SLOWER, "clock", reason)

    def _clock_change(self, old: Side, new: Side) -> _ClockChange | None:
        """Return the change of the clock that the figure depends on; None without such a clock or enough readings."""
        limit = new.kinds[0].limit
        if limit.startswith("link."):  # the clock of a link is not measured
            return None
        watched = old.watched_clocks, new.watched_clocks
        if limit != "dram" and all(map(_have_enough_clocks, watched)):
            return _clock_and_cycles("clock", old, new, *watched)
        measure, name = (Measure.MEMORY_CLOCK, "memory clock") if limit == "dram" else (Measure.CORE_CLOCK, "clock")
        return _clock_and_cycles(name, old, new, self.before.clocks(old, measure), self.after.clocks(new, measure))


@dataclass(frozen=True, slots=True)
class _ClockChange:
    """The candidate's clock and cycles compared with the baseline's, on logarithms.

    `text` describes the change of the clock."""

    clock: stats.Welch
    cycles: stats.Welch
    text: str


def _clock_and_cycles(
    name: str, old: Side, new: Side, old_hz: Sequence[float], new_hz: Sequence[float]
) -> _ClockChange | None:
    """Return the change of clock and cycles from `old` to `new`."""
    if len({*old_hz, *new_hz}) == 1 or not (_have_enough_clocks(old_hz) and _have_enough_clocks(new_hz)):
        return None
    before, after = _with_clock(old, old_hz), _with_clock(new, new_hz)
    clock = stats.welch(before[:, 1], after[:, 1])
    labels = ", ".join(sorted(old.usual_labels ^ new.usual_labels))
    state = f" ({labels} on one side only)" if labels else ""
    ends = " to ".join(units.quantity(math.exp(float(logs[:, 1].mean())), "Hz") for logs in (before, after))
    return _ClockChange(
        clock, stats.welch(before.sum(axis=1), after.sum(axis=1)), f"the {name} went from {ends}{state}"
    )


def _have_enough_clocks(hertz: Sequence[float]) -> bool:
    """Return whether at least half of the processes, and at least two, have a clock; one alone has no variance."""
    count = sum(clock > 0 for clock in hertz)
    return count >= 2 and 2 * count >= len(hertz)


def _with_clock(side: Side, hertz: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return the logarithms of the figure and the clock, shape (n, 2), for the processes that have a clock."""
    return np.array([(log, math.log(clock)) for log, clock in zip(side.logs, hertz, strict=True) if clock > 0])


def _verdict_if_explained(verdict: Verdict) -> Verdict:
    """Return the verdict on an explained change: a suspect if it looked slower, which is worth measuring again."""
    return Verdict.INCONCLUSIVE if verdict is Verdict.FASTER else Verdict.SUSPECT


def _disturbed_by(side: Side) -> float:
    """Return how much slower the disturbed processes of a side are than its others; 0 if all or none are disturbed."""
    disturbed = [bool(side.processes[index].neighbours) for index in side.ok]
    groups = [[log for log, bad in zip(side.logs, disturbed, strict=True) if bad is state] for state in (True, False)]
    return max(float(np.median(groups[0]) - np.median(groups[1])), 0.0) if all(groups) else 0.0


def _disturbance_text(old: Side, new: Side) -> str:
    """Return a clause about the processes that other work disturbed; empty if they are below a third of each side."""
    sides = (("baseline", old), ("candidate", new))
    if not any(len(side.neighbours) >= _DISTURBED * len(side.ok) > 0 for _, side in sides):
        return ""
    counts = " and ".join(f"{len(side.neighbours)} of {len(side.ok)} {name} processes" for name, side in sides)
    labels = sorted({label for _, side in sides for process in side.neighbours for label in process})
    return f"other work disturbed {counts} ({', '.join(labels)}): from a third of a side on, no change is judged"


def _cache_key(old: Side, new: Side) -> _Sources:
    """Return the readings and devices of both sides, by which answers are cached."""
    return (old.readings, new.readings, old.devices, new.devices)


def _machine_differences(before: Manifest, old: _Devices, after: Manifest, new: _Devices) -> tuple[str, ...]:
    """Return the differences of schema, tier and device fingerprints between two runs, as clauses."""
    differences = [] if before.schema == after.schema else [f"schema {after.schema} instead of {before.schema}"]
    if before.settings.tier != after.settings.tier:
        differences.append(f"tier {after.settings.tier} instead of {before.settings.tier}")
    try:
        return (*differences, *fingerprint(after.facts, new).differences(fingerprint(before.facts, old)))
    except KeyError as error:
        return (*differences, f"a device {error} that its run does not describe")


def _card_uuids(manifest: Manifest, devices: _Devices) -> frozenset[str]:
    """Return the UUIDs of these devices, without unknown ones."""
    return frozenset(device.uuid for device in manifest.facts.devices if device.id in devices and device.uuid)


def _data_hashes(manifest: Manifest) -> dict[str, str]:
    """Return the hash of each of the user's data files by its label, because a case's id holds only the label."""
    return {entry.label: entry.sha256 for entry in manifest.settings.data}


def _kind_differences(old: Side, new: Side) -> tuple[str, ...]:
    """Return the differences between the methods of two sides, as phrases, each once."""
    if old.kinds == new.kinds and len(old.kinds) < 2:
        return ()
    kinds = tuple(dict.fromkeys((*old.kinds, *new.kinds)))
    reasons = (reason for kind in kinds[1:] for reason in kinds[0].differences(kind))
    return tuple(dict.fromkeys(reasons))


def unjudged(side: Side, name: str = "candidate") -> Objection | None:
    """Return the reason why a side by itself cannot be compared with an expected figure; None if it can.

    `name` is `baseline` or `candidate`, which stands in the reason; a failed process is an objection only for the
    latter."""
    return _side_objection(name, side) or _logarithm_objection(side.logs, side.logs, side.values)


def _process_objection(old: Side, new: Side) -> Objection | None:
    """Return an objection if a process of the candidate `new` failed, or if a side has processes that are not ok."""
    return _side_objection("candidate", new) or _side_objection("baseline", old)


def _side_objection(name: str, side: Side) -> Objection | None:
    """Return an objection if a process failed, or if processes are not ok and fewer than three are; else None."""
    if len(side.ok) == len(side.processes):
        return None
    if name == "candidate" and any(process.status == "failed" for process in side.processes):
        return Objection(Verdict.INVALID, "failed", f"candidate: {side.problem}")
    if side.problem and len(side.values) < LEAST_REPLICATES:
        return Objection(Verdict.INVALID, "invalid" if side.is_measured else "skipped", f"{name}: {side.problem}")
    return None


def _figure_objection(old: Side, new: Side) -> Objection | None:
    """Return an objection if the figures are identical or cannot be compared; else None."""
    if {*old.values} == {*new.values} and sorted(old.values) == sorted(new.values):
        return Objection(Verdict.SAME, "identical", "the same figures to the last digit")
    return _logarithm_objection(old.logs, new.logs, (*old.values, *new.values))


def _logarithm_objection(old: Sequence[float], new: Sequence[float], values: Sequence[float]) -> Objection | None:
    """Return an objection if a figure is not positive and finite, or a side has fewer than three ok processes."""
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
