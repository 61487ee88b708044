"""Compose the overview of a run: its devices, its key figures, whether to trust them, and its main limitations.

Reduce the run of one node to a digest for the judge of a fleet: the rate of each component in each case.

A *component* can be slow by itself: it is a GPU, the host, or the link between the devices of a case. A run file of
megabytes becomes a digest of kilobytes, so that thousands of nodes are read once and judged together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from gpubench.analysis.counters import CounterTable, Track, is_slowed
from gpubench.analysis.fingerprint import Fingerprint, fingerprint
from gpubench.analysis.key_figures import KeyValue, key_values
from gpubench.analysis.quantities import headline, judged_better, judged_median, judged_unit, other_work, slowdowns
from gpubench.analysis.summary import POWER_CAPPED, Summary
from gpubench.analysis.trust import HEALTH_SOURCE, STATE_SOURCE, doubts, limitations, skips, trust_brief, trust_text
from gpubench.base import units
from gpubench.model import (
    Better,
    EventClass,
    Facts,
    Manifest,
    Measure,
    Remark,
    Result,
    Run,
    Samples,
    Series,
    Tier,
)

_MOST_LIMITATIONS = 3
_OF_HOST = "these are figures of the host processor, not of a GPU"


@dataclass(frozen=True, slots=True)
class SuiteLine:
    """One suite of a run in a line: its name and summary, the number of cases by status, and their seconds together."""

    name: str
    summary: str
    counts: dict[str, int]
    seconds: float

    @property
    def ended(self) -> str:
        """How the cases ended: `58 ok, 2 skipped`."""
        return ", ".join(f"{count} {status}" for status, count in self.counts.items() if count)


@dataclass(frozen=True, slots=True)
class Overview:
    """The first lines of every summary of a run, in the terminal, in Markdown and on the page.

    `devices` has a line for each model. `conditions` say how the run was made: driver, runtime, tier, number of cases,
    duration, date. `doubts` are reasons not to trust its figures, the worst first; `limitations` are the other doubts,
    and the three most important other facts about the figures."""

    devices: tuple[str, ...]
    conditions: tuple[str, ...]
    values: tuple[KeyValue, ...]
    doubts: tuple[str, ...]
    limitations: tuple[str, ...]
    suites: tuple[SuiteLine, ...]

    @property
    def trust(self) -> str:
        """`trustworthy: yes`, `trustworthy: no, because …` with the worst doubt, or `trustworthy: imported, …`."""
        return f"trustworthy: {trust_text(self.doubts)}"

    @property
    def brief_trust(self) -> str:
        """`trustworthy: yes`, `trustworthy: no, 2 reasons`, or `trustworthy: imported, not checked`."""
        return f"trustworthy: {trust_brief(self.doubts)}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Every doubt that `brief_trust` counts, and the limitations."""
        counted = () if self.brief_trust == self.trust else self.doubts[:1]
        return (*counted, *self.limitations)

    @property
    def notes_lead(self) -> str:
        """The sentence before the notes of a run without doubts; empty if there is none."""
        return "noted, but no reason to doubt the key figures:" if self.limitations and not self.doubts else ""

    @property
    def has_expectations(self) -> bool:
        """Whether any key figure has an expected value for this model of GPU."""
        return any(value.of_expected is not None for value in self.values)

    @property
    def expected_note(self) -> str:
        """The source of the expected values: `of expected: …`; empty if no key figure has one."""
        floors = [value.floor for value in self.values if value.floor and value.of_expected is not None]
        dates = " and ".join(sorted({floor.date for floor in floors if floor.date}))
        where = f"in other runs of {dates}" if dates else "as others publish them"
        return f"of expected: cards of this model {where} (docs/gate.md)" if floors else ""


def overview(summary: Summary) -> Overview:
    """Return the overview of a run: devices, conditions, key figures, doubts, limitations, and a line for each suite.

    A note that only the host was measured, and all doubts but the first, stand before up to three limitations."""
    values = key_values(summary)
    run_doubts, run_limitations = doubts(summary, values), limitations(summary, values)
    return Overview(
        tuple(_device_lines(summary)),
        tuple(_conditions(summary)),
        tuple(values),
        tuple(run_doubts),
        (*_host_note(summary), *run_doubts[1:], *run_limitations[:_MOST_LIMITATIONS], *skips(summary)[:2]),
        tuple(
            _suite_line(summary, name, summary.results_of(name))
            for name in dict.fromkeys(result.case.suite for result in summary.run.results)
        ),
    )


def _device_lines(summary: Summary) -> Iterator[str]:
    """Yield a line for each model of device: `2 × NVIDIA H200 (cuda:0, cuda:1), 132 SMs, 139.8 GiB`."""
    models: dict[tuple[str, ...], list[str]] = {}
    for device in summary.measured_devices:
        models.setdefault((device.name, *device.sizes), []).append(device.id)
    for (name, *sizes), ids in models.items():
        count = f"{len(ids)} × " if len(ids) > 1 else ""
        yield ", ".join((f"{count}{name} ({', '.join(ids)})", *sizes))


def _conditions(summary: Summary) -> list[str]:
    run = summary.run
    settings = run.manifest.settings
    cases = len({result.case.id for result in run.results})
    skipped = len({result.case.id for result in run.results if result.status == "skipped"})
    of_all = f"{cases - skipped} of {units.count(cases)}" if skipped else units.count(cases)
    count = len({result.replicate for result in run.results})
    replicates = f" × {count} replicates" if count > 1 else ""
    tier = f"tier {settings.tier}" if settings.tier else ""
    return [
        *_versions(run.manifest.facts),
        *([tier] if tier else []),
        f"{of_all}{replicates} in {units.duration(_end_s(run))}",
        _date(run.manifest.started),
        f"gpubench {run.manifest.gpubench}",
    ]


def _end_s(run: Run) -> float:
    """Return the end of the last window of a result in seconds since the run started; 0 without results."""
    return max((result.window[1] for result in run.results), default=0.0)


def _versions(facts: Facts) -> list[str]:
    """Return the known versions of driver, CUDA and ROCm as texts, such as `CUDA 13.0`."""
    versions = dict(facts.versions)
    driver = next((value for name, value in facts.versions if name.endswith(".driver") and name != "cuda.driver"), "")
    names = (("driver", driver), ("CUDA", versions.get("cuda.runtime", "")), ("ROCm", versions.get("rocm", "")))
    return [f"{name} {value}" for name, value in names if value]


def _date(started: str) -> str:
    """Return a date as `2026-11-20 17:43 UTC`; a text that is no date is returned unchanged."""
    try:
        return units.utc(units.unix_seconds(started))
    except ValueError:
        return started


def _host_note(summary: Summary) -> list[str]:
    devices = summary.measured_devices
    hosts = [device for device in devices if device.backend == "host"]
    return [_OF_HOST] if hosts and len(hosts) == len(devices) else []


def _suite_line(summary: Summary, name: str, results: Sequence[Result]) -> SuiteLine:
    """Return the line of the suite `name`: the number of its `results` by status, and their seconds together."""
    info = summary.suite_infos.get(name)
    counts = dict.fromkeys(("ok", "skipped", "failed", "invalid"), 0)
    for result in results:
        counts[result.status] += 1
    return SuiteLine(name, info.summary if info else "", counts, sum(result.elapsed_s for result in results))


ComponentKind = Literal["GPU", "rack", "node", "host", "link"]
_OF_CASES = (Measure.CORE_CLOCK, Measure.THROTTLE_REASONS)
_SHOWN = (Measure.TEMPERATURE, Measure.BOARD_POWER, *_OF_CASES)
_THROTTLED = {  # the state of a case whose readings have a throttle reason of this class, as the label is called
    EventClass.THERMAL: "thermal",
    EventClass.HARDWARE_SLOWDOWN: "hw-slowdown",
    EventClass.POWER_CAP: "power-capped",
}
_USUALLY = 0.5  # the least share of the readings during a case with a throttle reason
_LINK_DETAILS = ("pcie.generation", "pcie.width")
_ON_CHIP = ("dram", "l2", "shared")
_HOST_LINKS = ("link.h2d", "link.d2h")
_ARITHMETIC = ("tensor.", "float", "int")


class CaseKey(NamedTuple):
    """The key of a rate: the rates of two components are compared only if they have the same key.

    `family` groups cases that the same part of a machine bounds: compute, memory, host link, latency, host."""

    case: str
    version: int
    series: str
    unit: str
    better: Better
    family: str
    tier: Tier


class CaseRate(NamedTuple):
    """The rate of one case on one component.

    `value` is the median of the processes' medians in SI units."""

    value: float
    log: float
    error: float
    processes: int
    clock_hz: float
    states: frozenset[str]


class CaseFailure(NamedTuple):
    """A case that has no valid result on a component: the id of the case, its status, and the reason as a sentence."""

    case: str
    status: Literal["failed", "invalid"]
    reason: str


@dataclass(frozen=True, slots=True)
class Component:
    """A GPU, a host, or a link between GPUs: `devices` are the ids on the node, `uuids` the ids everywhere.

    `model` is the name of its first device."""

    kind: ComponentKind
    devices: tuple[str, ...]
    model: str
    uuids: tuple[str, ...]
    fingerprint: Fingerprint
    details: tuple[tuple[str, str], ...]
    rates: dict[CaseKey, CaseRate]
    temperature_c: float = math.nan
    power_w: float = math.nan
    sick: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    failures: tuple[CaseFailure, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeDigest:
    """The digest of one node's run: its components with their rates, and the versions of drivers and libraries.

    `node` is the name of the node; `versions` are pairs of name and version."""

    node: str
    components: tuple[Component, ...]
    versions: tuple[tuple[str, str], ...] = ()
    complete: bool = True


@dataclass(slots=True)
class DigestBuilder:
    """Builds the digest of a node from the records of its run file, which `add` takes in the order of the file."""

    _manifest: Manifest | None = None
    _results: dict[tuple[str, ...], dict[CaseKey, list[_Process]]] = field(default_factory=dict)
    _samples: list[Samples] = field(default_factory=list)
    _remarks: list[Remark] = field(default_factory=list)
    _failures: dict[tuple[str, ...], list[CaseFailure]] = field(default_factory=dict)
    _wanted: frozenset[str] = frozenset()
    _device_ids: frozenset[str] = frozenset()

    def add(self, record: Manifest | Result | Samples | Remark) -> None:
        """Add one record of a run file; the manifest must be the first."""
        if isinstance(record, Manifest):
            self._manifest = record
            self._device_ids = frozenset(device.id for device in record.facts.devices)
            self._wanted = frozenset(counter.name for counter in record.counters if counter.measures in _SHOWN)
        elif isinstance(record, Result):
            self._add_result(record)
        elif isinstance(record, Samples):
            if any(name in self._wanted for name, _ in record.columns):
                columns = tuple(column for column in record.columns if column[0] in self._wanted)
                self._samples.append(Samples(record.collector, record.device, record.at, columns))
        else:
            self._remarks.append(record)

    def digest(self, node: str, complete: bool = True) -> NodeDigest:
        """Return the digest of the records added so far; `node` is the name of the node that made the run.

        The manifest must have been added."""
        assert self._manifest is not None  # `store.scan` refuses a file that does not begin with a manifest
        declared = [counter for counter in self._manifest.counters if counter.measures in _SHOWN]
        counters = CounterTable(declared, self._samples)
        components = tuple(self._component(devices, self._manifest, counters) for devices in self._results)
        return NodeDigest(node, components, self._manifest.facts.versions, complete)

    def _add_result(self, result: Result) -> None:
        """Keep the rate of an ok result with its window, or the failure of a failed or invalid one."""
        if self._manifest is None:
            return
        if not result.devices or not self._device_ids.issuperset(result.devices):
            return
        if result.status == "failed" or result.status == "invalid":
            failure = CaseFailure(result.case.id, result.status, result.reason or result.cause)
            self._failures.setdefault(result.devices, []).append(failure)
            self._results.setdefault(result.devices, {})
        series = headline(result)
        value = judged_median(series) if series is not None and result.status == "ok" else math.nan
        if series is None or not 0 < value < math.inf:
            return
        key = _case_key(result, series, self._manifest)
        states = frozenset((*result.labels, *other_work(result), *slowdowns(result)))
        if not any(is_slowed(series.clock_hz, self._manifest.facts.device(device)) for device in result.devices):
            states -= {POWER_CAPPED}
        process = _Process(value, series.clock_hz or math.nan, states, result.window)
        self._results.setdefault(result.devices, {}).setdefault(key, []).append(process)

    def _component(self, devices: tuple[str, ...], manifest: Manifest, counters: CounterTable) -> Component:
        """Return the component of these device ids with its rates, health and failures: a link, a host or a GPU."""
        described = [manifest.facts.device(device) for device in devices]
        by_key = self._results[devices]
        windows = np.array([process.window for processes in by_key.values() for process in processes]).reshape(-1, 2)
        sampled = iter(zip(*(_sampled(counters, device, windows) for device in devices), strict=True))
        has_readings = any(counters.of(device, measure) for device in devices for measure in _OF_CASES)
        rates = {
            key: _rate(
                key, [process.with_readings(next(sampled)) if has_readings else process for process in processes]
            )
            for key, processes in by_key.items()
        }
        details = tuple((name, value) for name, value in described[0].details if name in _LINK_DETAILS)
        heat, power = (
            [_readings_during(counters, device, measure, windows) for device in devices]
            for measure in (Measure.TEMPERATURE, Measure.BOARD_POWER)
        )
        is_host = described[0].backend == "host"
        return Component(
            "link" if len(devices) > 1 else "host" if is_host else "GPU",
            devices,
            described[0].name,
            tuple(device.uuid for device in described),
            fingerprint(manifest.facts, devices),
            details,
            rates,
            max((float(values.max()) for values in heat if len(values)), default=math.nan),
            max((float(np.median(values)) for values in power if len(values)), default=math.nan),
            self._event_remarks(devices, HEALTH_SOURCE),
            self._event_remarks(devices, STATE_SOURCE),
            tuple(dict.fromkeys(self._failures.get(devices, ()))),
        )

    def _event_remarks(self, devices: Sequence[str], source: str) -> tuple[str, ...]:
        """Return the messages of the event remarks of one `source` about any of these devices, each message once."""
        events = (remark for remark in self._remarks if (remark.source, remark.state) == (source, "event"))
        return tuple(dict.fromkeys(remark.words for remark in events if remark.device in devices))


_Reading = tuple[float, frozenset[str]]  # the mean core clock in hertz (NaN if unknown) and the states of a device


class _Process(NamedTuple):
    """One replicate of a case: its median in SI units, its clock in hertz (NaN if unknown), states and window."""

    value: float
    clock_hz: float
    states: frozenset[str]
    window: tuple[float, float]

    def with_readings(self, readings: Sequence[_Reading]) -> _Process:
        """Return the process with what the sampled counters of its devices say: their states, and a missing clock."""
        clock_hz = self.clock_hz if self.clock_hz > 0 else _median([clock_hz for clock_hz, _ in readings])
        return self._replace(clock_hz=clock_hz, states=self.states.union(*(states for _, states in readings)))


def _readings_during(counters: CounterTable, device: str, measure: Measure, windows: np.ndarray) -> np.ndarray:
    """Return a device's readings of `measure` from the start of its first ok case to the end of its last."""
    start, end = (windows[:, 0].min(), windows[:, 1].max()) if len(windows) else (0.0, 0.0)
    parts = [track.during(start, end).values for track in counters.of(device, measure)]
    return np.concatenate(parts) if parts else np.array([])


def _sampled(counters: CounterTable, device: str, windows: np.ndarray) -> list[_Reading]:
    """Return for each window the mean of the core clock, and the throttle states that half of the readings have."""

    def means(track: Track, values: np.ndarray) -> np.ndarray:
        begin, end = windows[:, 0], windows[:, 1]
        has_none = track.at.searchsorted(end, "right") <= track.at.searchsorted(begin, "left")
        reach = np.where(
            has_none, track.counter.period_s, 0.0
        )  # a case shorter than a period has the readings beside it
        first, past = track.at.searchsorted(begin - reach, "left"), track.at.searchsorted(end + reach, "right")
        sums = np.concatenate([[0.0], np.cumsum(values, dtype=float)])
        return np.asarray(np.where(past > first, sums[past] - sums[first], np.nan) / np.maximum(past - first, 1))

    clocks = np.full(len(windows), math.nan)
    for track in counters.of(device, Measure.CORE_CLOCK)[:1]:
        clocks = means(track, track.values)
    states: list[set[str]] = [set() for _ in windows]
    for track in counters.of(device, Measure.THROTTLE_REASONS)[:1]:
        masks = track.values.astype(np.int64)
        for bit in track.counter.bits:
            if bit.kind in _THROTTLED:
                for place in np.flatnonzero(means(track, (masks & bit.mask) > 0) >= _USUALLY):
                    states[place].add(_THROTTLED[bit.kind])
    return [(clock_hz, frozenset(of_window)) for clock_hz, of_window in zip(clocks.tolist(), states, strict=True)]


def _case_key(result: Result, series: Series, manifest: Manifest) -> CaseKey:
    """Return the key under which the rate of `series`, a result's main series, is compared with other components."""
    return CaseKey(
        result.case.id,
        result.case.version,
        series.label,
        judged_unit(series),
        judged_better(series),
        _family(result, series, manifest),
        manifest.settings.tier,
    )


def _family(result: Result, series: Series, manifest: Manifest) -> str:
    if len(result.devices) > 1:
        return result.case.suite
    if manifest.facts.device(result.devices[0]).backend == "host":
        return "host"
    if series.limit.startswith(_ARITHMETIC):
        return "compute"
    if series.limit in _HOST_LINKS:
        return "host link"
    if series.limit in _ON_CHIP or series.quantity == "moved":
        return "memory"
    return "latency" if series.quantity == "item" else result.case.suite


def _rate(key: CaseKey, processes: Sequence[_Process]) -> CaseRate:
    sign = 1.0 if key.better == "more" else -1.0
    logs = [sign * math.log(process.value) for process in processes]
    count = len(logs)
    return CaseRate(
        statistics.median(process.value for process in processes),
        statistics.median(logs),
        statistics.stdev(logs) / math.sqrt(count) if count > 1 else 0.0,
        count,
        _median([process.clock_hz for process in processes]),
        frozenset().union(*(process.states for process in processes)),
    )


def _median(values: Iterable[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return statistics.median(finite) if finite else math.nan
