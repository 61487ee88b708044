"""Compile the ledger of a soak: wrong results, the rates over the passes, and the reports of the devices."""

import math
from bisect import bisect_right
from collections import Counter as Tally
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpubench import stats
from gpubench.analysis import counters, quantities, trust
from gpubench.analysis.summary import Summary
from gpubench.analysis.views.table import Table
from gpubench.base import units
from gpubench.model import Measure, Remark, Result, Run

DIGEST = "soak.digest"  # the note of a case that names the bits of its result
LOAD = "soak.load"  # the note of a case that loads products and memory: `constant` or `pulse`
_BESIDE = "beside"  # the series of the bytes per second that memory passes move beside products
_WRONG, _UNHEALTHY = 3, 6  # exit statuses
_HEADS = ("case", "device", "passes", "compared", "first", "lowest", "last", "drift")
_DEVICE_HEADS = ("device", "over the whole soak")
_COMPARED_HEADS = (
    "device",
    "mean power",
    "memory compared",
    "lowest against the others",
    "lowest against its first pass",
)
_FINDING_HEADS = ("finding",)
_UNPROVEN_HEADS = ("case", "reason")
_NOTE = (
    "Each pass is a replicate in a process of its own. Compared: samples whose every bit was right. First, lowest and "
    "last are the medians of passes, and the drift is that of the last from the first"
)
_COMPARED_NOTE = (
    "Mean power: of the board during each load. Memory compared: bytes that were read and compared in an hour of the "
    "soak. Against the others: the median rate of a case over the rate of the other devices of the model; against its "
    "first pass: the lowest rate of a later pass"
)
_ERRORS = "errors"  # the unit of all counters of errors
_GAUGES = {  # the gauges of a device that the ledger shows, with the unit of a reading
    Measure.TEMPERATURE: "°C",
    Measure.MEMORY_TEMPERATURE: "°C",
    Measure.CORE_CLOCK: "Hz",
    Measure.BOARD_POWER: "W",
}


@dataclass(frozen=True, slots=True)
class SoakedCase:
    """One case on one device set over the passes of a soak, each of which is a replicate.

    `medians` are the medians of the ok passes in `unit` (SI) in their order, `compared` is the number of samples whose
    every bit was right, and `ended` the number of passes by status."""

    case_id: str
    devices: tuple[str, ...]
    unit: str
    medians: tuple[float, ...]
    compared: int
    ended: tuple[tuple[str, int], ...]

    @property
    def drift(self) -> float:
        """The change of the last pass's median against the first, a fraction; 0 with fewer than two passes."""
        return self.medians[-1] / self.medians[0] - 1 if len(self.medians) > 1 else 0.0

    @property
    def row(self) -> tuple[str, ...]:
        """The cells of a table row as texts: case, devices, passes by status, samples compared, rates, and drift.

        The rates are the first, the lowest and the last median of the ok passes."""
        rates = [units.quantity(rate, self.unit) for rate in self._rates()]
        ended = ", ".join(f"{count} {status}" for status, count in self.ended)
        drift = f"{self.drift:+.1%}" if len(self.medians) > 1 else ""
        return (self.case_id, "+".join(self.devices), ended, str(self.compared), *rates, drift)

    def _rates(self) -> Sequence[float]:
        return (self.medians[0], min(self.medians), self.medians[-1]) if self.medians else (float("nan"),) * 3


@dataclass(frozen=True, slots=True)
class SoakedDevice:
    """The counters of a device over the whole soak, as texts: its gauges, throttle reasons and counters of errors."""

    device: str
    gauges: tuple[str, ...]
    throttled: tuple[str, ...]
    errors: tuple[str, ...]

    @property
    def lines(self) -> tuple[str, ...]:
        """A line for each gauge, one for the throttle reasons, and one for the counters of errors."""
        throttled = (f"throttled: {', '.join(self.throttled)}",) if self.throttled else ()
        errors = (f"errors: {', '.join(self.errors)}",) if self.errors else ()
        return (*self.gauges, *throttled, *errors)


@dataclass(frozen=True, slots=True)
class SoakLedger:
    """The outcome of a soak.

    `passes` is the number of replicates and `seconds` the time from the first to the last result."""

    passes: int
    seconds: float
    cases: tuple[SoakedCase, ...]
    devices: tuple[SoakedDevice, ...]
    compared_devices: tuple[tuple[str, ...], ...]
    wrong: tuple[str, ...]
    unproven: tuple[tuple[str, str], ...]
    sick: tuple[str, ...]

    @property
    def compared(self) -> int:
        """The number of results that were compared bit by bit and were right."""
        return sum(case.compared for case in self.cases)

    @property
    def exit_status(self) -> int:
        """6 if a device is unhealthy, 3 if a result was wrong or nothing could be compared, else 0."""
        return _UNHEALTHY if self.sick else _WRONG if self.wrong or not self.compared else 0

    @property
    def verdict(self) -> str:
        """The outcome in one line: `3 passes in 10 min, 4096 samples compared: no wrong bit was found`."""
        passes = f"{units.count(self.passes, 'pass')} in {units.duration(self.seconds)}"
        count = len(self.wrong)
        without_findings = "no wrong bit was found" if self.compared else "nothing could be compared"
        outcome = units.count(count, "finding") if count else without_findings
        health = ", and a device is unhealthy" if self.sick else ""
        return f"{passes}, {self.compared} samples compared: {outcome}{health}"


def ledger_of(run: Run) -> SoakLedger:
    """Return the ledger of a soak: its wrong results, its rates over the passes, and the reports of its devices.

    In the run of a soak, each pass is a replicate."""
    results = run.results
    grouped: dict[tuple[str, tuple[str, ...]], list[Result]] = {}
    for result in results:
        grouped.setdefault(result.key[:2], []).append(result)
    cases = [_case(sorted(group, key=lambda result: result.replicate)) for group in grouped.values()]
    spans = [result.window for result in results if result.window[1] > result.window[0]]
    whole = (min(begin for begin, _ in spans), max(end for _, end in spans)) if spans else (0.0, 0.0)
    return SoakLedger(
        len({result.replicate for result in results}),
        whole[1] - whole[0],
        tuple(cases),
        tuple(_soaked_devices(run, results, whole)),
        tuple(_compared_devices(run, cases, results)),
        (*_failures(results), *_deviating_digests(run, results)),
        tuple(_unproven_cases(grouped.values())),
        tuple(
            dict.fromkeys(
                _sick_text(remark, results)
                for remark in run.remarks
                if (remark.source, remark.state) == (trust.HEALTH_SOURCE, "event")
            )
        ),
    )


def soak_tables(summary: Summary) -> list[Table]:
    """Return the ledger of the suites whose cases note a digest of their results, as tables; empty if none does."""
    run = summary.run
    suites = {result.case.suite for result in run.results if DIGEST in dict(result.notes)}
    if not suites:
        return []
    results = tuple(result for result in run.results if result.case.suite in suites)
    return tables_of(ledger_of(replace(run, results=results)))


def tables_of(ledger: SoakLedger) -> list[Table]:
    """Return the tables of a ledger: the passes of each case, the devices, the findings, and the cases not compared.

    A table without rows is left out."""
    rows = tuple(case.row for case in ledger.cases)
    devices = tuple((device.device, line) for device in ledger.devices for line in device.lines)
    findings = tuple((finding,) for finding in (*ledger.sick, *ledger.wrong))
    tables = [
        Table(f"Soak: {ledger.verdict}", _HEADS, rows, _HEADS[:3], _NOTE),
        Table("Soak: devices compared", _COMPARED_HEADS, ledger.compared_devices, _COMPARED_HEADS[:1], _COMPARED_NOTE),
        Table("Soak: devices", _DEVICE_HEADS, devices, _DEVICE_HEADS),
        Table("Soak: findings", _FINDING_HEADS, findings, _FINDING_HEADS),
        Table("Soak: not compared", _UNPROVEN_HEADS, ledger.unproven, _UNPROVEN_HEADS),
    ]
    return [table for table in tables if table.rows]


def _sick_text(remark: Remark, results: Sequence[Result]) -> str:
    passes = _passes_of([remark.at], results)
    return f"{remark.device}: {remark.words}{f' (pass {passes[0]})' if passes else ''}"


def _case(results: Sequence[Result]) -> SoakedCase:
    """Return one case over its passes; `results` are its results on one device set, one for each pass, in order."""
    headlines = [series for result in results if result.status == "ok" and (series := quantities.headline(result))]
    return SoakedCase(
        *results[0].key[:2],
        quantities.judged_unit(headlines[0]) if headlines else "",
        tuple(quantities.judged_median(series) for series in headlines),
        sum(len(series.values) for series in headlines),
        tuple(Tally(result.status for result in results).most_common()),
    )


def _failures(results: Iterable[Result]) -> list[str]:
    """Return a line for each failed result: `pass 3, gemm/square[n=1024]: REASON`; passes count from 1."""
    return [
        f"pass {result.replicate + 1}, {result.case.id}: {result.reason}"
        for result in results
        if result.status == "failed"
    ]


def _unproven_cases(groups: Iterable[Sequence[Result]]) -> Iterable[tuple[str, str]]:
    """Yield `CASE on DEVICES` and the last reason for each group in which every pass was skipped or invalid."""
    for group in groups:
        if not {"ok", "failed"} & {result.status for result in group}:
            yield f"{group[-1].case.id} on {'+'.join(group[-1].devices)}", group[-1].reason


def _deviating_digests(run: Run, results: Iterable[Result]) -> list[str]:
    """Return a sentence for each pass whose first result has other bits than most passes of its case on the model."""
    models = {device.id: device.name for device in run.manifest.facts.devices}
    groups: dict[tuple[str, str], list[tuple[str, Result]]] = {}
    for result in results:
        if digest := dict(result.notes).get(DIGEST):
            key = (result.case.id, "+".join(models[device] for device in result.devices))
            groups.setdefault(key, []).append((digest, result))
    findings = []
    for (case_id, _), group in groups.items():
        ((usual, _), *other_digests) = Tally(digest for digest, _ in group).most_common()
        for digest, result in group if other_digests else ():
            if digest != usual:
                where = f"pass {result.replicate + 1}, {case_id} on {'+'.join(result.devices)}"
                difference = f"its first result has other bits ({digest[:12]}) than in most passes ({usual[:12]})"
                findings.append(f"{where}: {difference}")
    return findings


def _soaked_devices(run: Run, results: Sequence[Result], span: counters.Span) -> Iterable[SoakedDevice]:
    table = counters.CounterTable.of_run(run)
    for device in dict.fromkeys(device for result in results for device in result.devices):
        window = counters.Window(table, device, (span,))
        throttled = [f"{reason.name} {units.percent(reason.share)} of the time" for reason in window.throttling()]
        errors = _errors(table, device, [result for result in results if device in result.devices])
        yield SoakedDevice(device, tuple(_gauges(table, device, span)), tuple(throttled), tuple(errors))


def _compared_devices(run: Run, cases: Sequence[SoakedCase], results: Sequence[Result]) -> Iterable[tuple[str, ...]]:
    """Yield a row for each GPU: its power in each load, its memory tests, and its rates against others and itself."""
    table = counters.CounterTable.of_run(run)
    models = {device.id: device.name for device in run.manifest.facts.devices if device.backend != "host"}
    alone = [case for case in cases if len(case.devices) == 1 and case.medians and case.devices[0] in models]
    for device in dict.fromkeys(case.devices[0] for case in alone):
        own = [result for result in results if result.devices == (device,) and result.status == "ok"]
        spans: dict[str, list[counters.Span]] = {}
        for result in own:
            if load := dict(result.notes).get(LOAD):
                spans.setdefault(load, []).append(result.window)
        powers = {load: counters.Window(table, device, of).mean(Measure.BOARD_POWER) for load, of in spans.items()}
        texts = [f"{load} {units.quantity(power.value, 'W')}" for load, power in powers.items() if power]
        same = [case for case in alone if models[case.devices[0]] == models[device]]
        against = [(_against_others(case, same), case.case_id) for case in alone if case.devices == (device,)]
        itself = [
            (min(case.medians) / case.medians[0] - 1, case.case_id) for case in alone if case.devices == (device,)
        ]
        lowest = [min(pairs) for pairs in (against, itself)]
        shares = [f"{share:+.1%} in {case_id}" if share < 0 else "" for share, case_id in lowest]
        yield device, ", ".join(texts), _tested_text(own), *shares


def _against_others(case: SoakedCase, same: Sequence[SoakedCase]) -> float:
    """Return by which fraction a case is faster than on the median of the other devices; 0 without others."""
    others = [stats.median(other.medians) for other in same if other.case_id == case.case_id and other is not case]
    return stats.median(case.medians) / stats.median(others) - 1 if others else 0.0


def _tested_text(results: Sequence[Result]) -> str:
    """Return the bytes of memory that were read and compared in an hour: half of what passes over memory move."""
    seconds = sum(end - begin for begin, end in (result.window for result in results))
    moved = 0.0
    for result in results:
        series = quantities.series_labelled(result, _BESIDE) or quantities.headline(result)
        if series and (series.name == _BESIDE or series.quantity == "moved"):
            moved += quantities.judged_median(series) * (result.window[1] - result.window[0])
    return f"{units.quantity(moved / 2 / seconds * 3600, 'B')} an hour" if seconds and moved else ""


def _gauges(table: counters.CounterTable, device: str, span: counters.Span) -> Iterable[str]:
    """Yield a line for each gauge with readings in the span (s): `temperature 41 °C to 66 °C, mean 60 °C`."""
    for measure, unit in _GAUGES.items():
        for track in table.of(device, measure)[:1]:
            values = track.during(*span).values
            if len(values):
                readings = (values.min(), values.mean(), values.max())
                low, mean, high = (units.quantity(float(reading), unit) for reading in readings)
                yield f"{measure.value} {low} to {high}, mean {mean}"


def _errors(table: counters.CounterTable, device: str, results: Sequence[Result]) -> Iterable[str]:
    """Yield the rise of each counter of errors of a device and the passes in which it rose: `ecc +2 (pass 1, 3)`."""
    for track in table.tracks:
        if track.device == device and track.counter.unit == _ERRORS and len(track.values):
            passes = _passes_of(track.at[1:][track.values[1:] > track.values[:-1]], results)
            where = f" (pass {', '.join(map(str, passes))})" if passes else ""
            yield f"{track.counter.name} +{track.values[-1] - track.values[0]:g}{where}"


def _passes_of(moments: Iterable[float], results: Iterable[Result]) -> list[int]:
    """Return the numbers of the passes, from 1, in which these moments (s) lie, ascending and each once."""
    begun = sorted(
        (result.window[0], result.replicate + 1) for result in results if result.window[1] > result.window[0]
    )
    indices = (bisect_right(begun, (moment, math.inf)) - 1 for moment in moments)
    return sorted({begun[index][1] for index in indices if index >= 0})
