"""Build the ladder of a case from the evidence of its run: products, kernels on memory, and copies over links."""

import math
from collections.abc import Iterator
from dataclasses import replace

from gpubench import stats
from gpubench.analysis.figure import Spread
from gpubench.analysis.key_figures import key_values
from gpubench.analysis.summary import Summary
from gpubench.base import units
from gpubench.explaining import models
from gpubench.explaining.evidence import PIPES, Evidence, Measured, pipe, tiles, why_not_alone
from gpubench.explaining.ladder import Ladder, NoLadder, Remedy, Rung
from gpubench.knowledge import alone
from gpubench.knowledge.cards import standing
from gpubench.knowledge.key_figures import BUILT_IN_SUITES
from gpubench.model import Measure

_LEAST_TRAFFIC = 1.05  # bytes seen over bytes counted from which the difference is no error of the counter's window
_FULL = 0.98  # the share of a unit's operations per clock from which it is never idle
_LEAST_LOSS = 0.002  # a sibling that is better by less is the same


class Explainer:
    """Builds the ladders of one run's cases; what the cases share is looked up once."""

    def __init__(self, summary: Summary) -> None:
        """Prepare the evidence of the run."""
        self.evidence = Evidence(summary)
        self.summary = summary

    def ladder(self, spread: Spread) -> Ladder | NoLadder:
        """Return the ladder of a case over its ok replicates, or the reason why it has none."""
        case = self.evidence.measured(spread) if spread.status == "ok" or spread.figures else None
        if case is None:
            return NoLadder(spread.case.id, spread.row.result.reason or "it was not measured")
        if whole := models.latency(self.evidence, case) or models.compressed(case):
            return self._finished(case, whole)
        top = _top(case)
        if top is None or not 0 < case.rate < math.inf:
            return NoLadder(case.id, _why_no_top(case))
        peak, source = top
        rungs = [rung for rung in self._rungs(case, peak) if rung.factor > 0]
        unit, scale = case.figure.unit, case.figure.interval.centre / case.rate
        value = case.figure.interval.centre
        ladder = Ladder(case.id, spread.devices, unit, peak * scale, source, value, case.rate / peak, tuple(rungs))
        return self._finished(case, ladder)

    def _finished(self, case: Measured, ladder: Ladder) -> Ladder:
        """Return the ladder with what is missing: evidence that this run could have had."""
        ladder, missing = replace(ladder, width=case.deviation), list(ladder.missing)
        has_pipe = case.device.backend != "host" and bool(pipe(case.series.limit))
        if not self.summary.run.samples:
            missing.append("the run has no counters: no clock over time, traffic or activity")
        elif has_pipe and not ladder.rung("stalls"):
            reason = why_not_alone(case.results[0])
            missing.append(f"counters of activity: {reason or 'fewer than three steady readings'}")
        if has_pipe and not ladder.rung("unit"):
            missing.append(f"the bare instruction of {case.series.limit} was not measured: --measure does it")
        if ladder.unexplained > 1 + ladder.deviation and case.name in (alone.STEP_CASE, alone.PREFILL_CASE):
            missing.append("how much the parts overlap: each was measured alone, and together they take less time")
        version, better = case.spread.case.version, case.figure.better
        others = standing(case.device.name, case.id, version, case.figure.interval.centre, better)
        return replace(ladder, missing=tuple(missing), standing=others)

    def _rungs(self, case: Measured, peak: float) -> Iterator[Rung]:
        """Yield the rungs of a case from the top down; `peak` is in the unit of its rate."""
        clock = list(self._clock(case, peak))
        limit = case.series.limit
        below = (
            self._ways_and_size if limit.startswith("link.") else self._memory if limit == "dram" else self._arithmetic
        )
        unit = list(self._unit(case))
        parts = models.special(self.evidence, case, (*clock, *unit), peak)
        yield from (*clock, *unit, *(below(case) if parts is None else parts))

    def _clock(self, case: Measured, peak: float) -> Iterator[Rung]:
        if case.held is None:
            return
        factor, deviation = case.held.peak / peak, case.held.deviation
        clock = units.quantity(case.held.clock_hz, "Hz")
        if case.series.limit == "dram":
            yield Rung("clock", factor, deviation, f"memory clock {clock}", "")
            return
        reason, who = self.evidence.clock_reason(case)
        remedy: Remedy = "" if factor >= 1 else "user" if who == "user" else "nobody"
        counted, zeros = self.evidence.counted_clock(case), self.evidence.product_of("zeros", case)
        if zeros is None or zeros.held is None:
            yield Rung("clock", factor, deviation, f"clock {clock}: {reason}", remedy, ("data",) * (factor < 1))
            if counted:
                yield Rung("counted clock", counted.value, counted.deviation, counted.by, "nobody")
            return
        free = units.quantity(zeros.held.clock_hz, "Hz")
        yield Rung("clock", zeros.held.peak / peak, zeros.held.deviation, f"clock {free} with zeros", remedy)
        lower, data = self.evidence.counted_clock(zeros), case.held.peak / zeros.held.peak
        if counted and lower:
            yield Rung("counted clock", lower.value, lower.deviation, lower.by, "nobody")
            data *= counted.value / lower.value
            clock = units.quantity(case.held.clock_hz * counted.value, "Hz")
        yield Rung("data", data, deviation, f"{zeros.id}: clock {clock} with the case's data: {reason}", "user")

    def _unit(self, case: Measured) -> Iterator[Rung]:
        """Yield what the unit alone reaches: the bare instruction, a kernel that only reads, or a large plain copy."""
        limit = case.series.limit
        if limit == "dram":
            if read := self.evidence.best(alone.READS, case):
                yield Rung("unit", read.fraction, read.deviation, f"{read.id}, which only reads", "nobody")
        elif limit.startswith("link."):
            headers = self.evidence.link_headers(case)
            if headers:
                yield Rung("headers", headers.value, headers.deviation, headers.by, "nobody")
            if link := self.evidence.best(alone.LINKS, case):
                factor = link.fraction / (headers.value if headers else 1.0)
                together = () if headers else ("headers",)
                yield Rung("unit", factor, link.deviation, f"{link.id}, a large plain copy", "nobody", together)
        elif (bare := self.evidence.instruction(case)) and bare.id != case.id:
            other = bare.series.limit != limit
            equal = f", with as many operations per clock as {limit}" if other else ""
            counted, own = _per_clock(bare), self.evidence.counted_clock(case)
            if counted and own:
                text = f"{bare.id} by its own count of cycles{equal}"
                yield Rung("unit", min(counted, 1.0), bare.deviation, text, "nobody")
                return
            lower = bare.fraction < _FULL < (counted or 0.0)
            why = "; SMs counted a lower clock than the driver's" if lower else ""
            text = f"{bare.id} at its clock{equal}{why}"
            yield Rung("unit", bare.fraction, bare.deviation + 0.004, text, "nobody")

    def _arithmetic(self, case: Measured) -> Iterator[Rung]:
        active = self.evidence.of_busy(case, Measure.SM_ACTIVITY)
        if not active and (size := self._size(case)):
            yield size
            return
        filled = tiles(case)
        note = f"{units.percent(filled[0])} by the library's tiles" if filled else ""
        if active:
            by = f"busy time in which SMs have blocks, {active.by}{f'; {note}' if note else ''}"
            yield Rung("blocks", active.value, active.deviation, by, "author", ("launch and tail",))
        elif filled:
            yield Rung("blocks", filled[0], 0.01, f"whole waves: {note}", "user")
            yield from self._launch(case)
        else:
            yield from self._launch(case)
        if filled and filled[1] < 1:
            yield Rung("edges", filled[1], 0.0, "tiles that reach over the edge, by the library's tile", "user")
        stalls = (
            self.evidence.of_busy(case, measure, Measure.SM_ACTIVITY)
            if (measure := PIPES.get(pipe(case.series.limit)))
            else None
        )
        if stalls and active:
            by = f"time in which busy SMs use the unit, {stalls.by}"
            yield Rung("stalls", stalls.value, stalls.deviation, by, "author")

    def _memory(self, case: Measured) -> Iterator[Rung]:
        read = self.evidence.best(alone.READS, case)
        if read and case.name in alone.WRITE_AS_MUCH and (copy := self.evidence.best(alone.COPIES, case)):
            factor = min(copy.fraction / read.fraction, 1.0)
            yield Rung("kind of access", factor, copy.deviation, f"{copy.id} writes as much as it reads", "nobody")
        traffic = self.evidence.traffic(case)
        if traffic and 1 / traffic.value >= max(_LEAST_TRAFFIC, 1 + traffic.deviation):
            times = units.significant(1 / traffic.value, 3)
            yield Rung("traffic", traffic.value, traffic.deviation, f"{times} times the bytes ({traffic.by})", "author")
        yield from self._ways_and_size(case)

    def _ways_and_size(self, case: Measured) -> Iterator[Rung]:
        """Yield the loss by the chosen way, by few blocks and by size, from the other points of the same case."""
        best = case
        for axis, who in alone.WAYS.items():
            others = [other for other in self.evidence.siblings(case, axis) if axis in case.params]
            other = max(others, key=lambda other: other.fraction, default=None)
            if other and other.fraction > best.fraction * (1 + _LEAST_LOSS):
                text = f"{axis} {case.params[axis]} instead of {other.params[axis]}: {other.id}"
                yield Rung(
                    "way",
                    best.fraction / other.fraction,
                    _apart(best, other),
                    text,
                    "user" if who == "user" else "author",
                )
                best = other
        for axis in alone.BLOCKS:
            others = [other for other in self.evidence.siblings(best, axis) if _more(other, best, axis)]
            if other := max(others, key=lambda other: other.fraction, default=None):
                text = f"{axis} {best.params[axis]} instead of {other.params[axis]}: {other.id}"
                yield Rung("blocks", best.fraction / other.fraction, _apart(best, other), text, "user")
                best = other
        if size := self._size(best):
            yield size
        else:
            yield from self._launch(case)

    def _size(self, case: Measured) -> Rung | None:
        """Return the loss against larger sizes of the same case; None if no larger one was measured to be better."""
        larger = [
            other
            for axis in alone.SIZES
            if axis in case.params
            for other in self.evidence.siblings(case, axis)
            if _more(other, case, axis)
        ]
        best = max(larger, key=lambda other: other.fraction, default=None)
        if best is None:
            return None
        together = ("launch and tail",)
        text = f"{best.id} reaches {units.percent(best.fraction)} of the peak at its clock"
        return Rung("size", case.fraction / best.fraction, _apart(case, best), text, "user", together)

    def _launch(self, case: Measured) -> Iterator[Rung]:
        launch_s = self.summary.empty_kernels.seconds(case.device.id, case.series.mode)
        if launch_s and case.call_s > launch_s and case.device.backend != "host":
            evidence = f"an empty kernel takes {units.quantity(launch_s, 's')} of {units.quantity(case.call_s, 's')}"
            yield Rung("launch", 1 - launch_s / case.call_s, 0.002, evidence, "user")


def key_ladders(summary: Summary) -> list[tuple[str, Ladder]]:
    """Return title and ladder of the key figures of a run that have one, in their order."""
    explainer = Explainer(summary)
    spreads = {(spread.case.id, spread.devices): spread for spread in summary.spreads()}
    ladders = [
        (value.title, explainer.ladder(spreads[value.case_id, value.devices]))
        for value in key_values(summary)
        if not value.series and value.case_id.partition("/")[0] in BUILT_IN_SUITES
    ]
    return [(title, ladder) for title, ladder in ladders if isinstance(ladder, Ladder)]


def _per_clock(bare: Measured) -> float | None:
    """Return a bare instruction's share of its operations per clock by the cycles that it counted itself."""
    counted = next((series for series in bare.results[0].series if series.name == "per_clock"), None)
    if counted is None or bare.held is None:
        return None
    return stats.median(counted.values) * bare.device.units * bare.held.clock_hz / bare.held.peak


def _top(case: Measured) -> tuple[float, str] | None:
    """Return the peak at the top in the unit of the case's rate, of the data sheet or at the nominal clock, and why."""
    if case.spec:
        return case.spec.value, case.spec.source
    nominal = dict(case.device.details).get("clock.sm_hz", "")
    if case.held and case.series.limit != "dram" and nominal.replace(".", "", 1).isdigit():
        peak = case.held.peak * float(nominal) / case.held.clock_hz
        return peak, f"operations per clock at the nominal {units.quantity(float(nominal), 'Hz')}"
    return None


def _why_no_top(case: Measured) -> str:
    if case.device.backend == "imported":
        return "an imported figure names no peak, and its run has no samples and no counters"
    if not case.series.limit:
        return "no peak of the hardware bounds this case; `gpubench compare` tells why it differs from another run"
    if case.device.backend == "host" and not case.spec:
        return f"the peak of a host is what {alone.HOST_UNITS} reaches on all cores: measure both in one run"
    if _top(case):
        return f"it counts no work towards its peak {case.series.limit}"
    return f"no data sheet of {case.device.name} states a peak for {case.series.limit}, and no clock was read for it"


def _more(other: Measured, case: Measured, axis: str) -> bool:
    """Return whether another point has a larger number on an axis and a better share of the peak."""
    value, other_value = case.params.get(axis), other.params.get(axis)
    if isinstance(value, str) or isinstance(other_value, str) or value is None or other_value is None:
        return False
    return other_value > value and other.fraction > case.fraction * (1 + _LEAST_LOSS)


def _apart(first: Measured, second: Measured) -> float:
    return math.hypot(first.deviation, second.deviation)
