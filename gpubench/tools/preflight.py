"""Plan and judge a preflight of a node: its health, wrong bits, and quiet cases on all devices at once."""

import math
from collections import Counter as Tally
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from gpubench.analysis.figure import Spread
from gpubench.analysis.key_figures import key_values
from gpubench.analysis.overview import DigestBuilder, NodeDigest
from gpubench.analysis.quantities import other_work
from gpubench.analysis.soak import DIGEST
from gpubench.analysis.summary import Summary
from gpubench.analysis.trust import HEALTH_SOURCE
from gpubench.base import units
from gpubench.base.errors import UsageError
from gpubench.judging.fleet import FleetJudgement, Place
from gpubench.judging.fleet_rule import SecondMeasurement, judge_fleet
from gpubench.judging.fleet_text import causes_text
from gpubench.measuring import plan
from gpubench.measuring.claims import SHARED_LABEL
from gpubench.measuring.examination import Examination
from gpubench.measuring.plan import Plan
from gpubench.model import Case, Device, Facts, Result, Run, Settings
from gpubench.model.fleet import Fleet, FleetNode
from gpubench.plugins.collector import HealthSign

LEAST_S = 10.0  # the search for devices, the start of the workers and one pass of the cases take about as long
SUITES = ("bandwidth", "latency", "gemm", "soak")
# The title of each figure, its case, the values of its parameters, and the largest value of one more, of which the plan
# takes the largest up to this limit. The cases take milliseconds, so that no power cap acts. Several cases of a family
# let the rule of the fleet see a slowdown of 3 % among eight GPUs (tests/test_preflight.py).
_CASES: tuple[tuple[str, str, tuple[tuple[str, Any], ...], tuple[str, int]], ...] = (
    ("read", "bandwidth/read", (("dtype", "float32"),), ("size_bytes", 2**32)),
    ("read of 1 GiB", "bandwidth/read", (("dtype", "float32"),), ("size_bytes", 2**30)),
    ("chase", "latency/chase", (), ("size_bytes", 2**30)),
    ("chase in L2", "latency/chase", (), ("size_bytes", 2**24)),
    ("chase in L1", "latency/chase", (), ("size_bytes", 2**14)),
    ("host to device", "bandwidth/h2d", (("memory", "pinned"),), ("size_bytes", 2**28)),
    ("device to host", "bandwidth/d2h", (("memory", "pinned"),), ("size_bytes", 2**28)),
    ("float64", "gemm/square", (("dtype", "float64"),), ("n", 2048)),
    ("float32", "gemm/square", (("dtype", "float32"),), ("n", 2048)),
    ("product", "soak/product", (), ("size", 4096)),
    ("memory", "soak/memory", (), ("size_bytes", 2**28)),
)
_SHOWN = ("read", "chase", "host to device", "float64", "product")
_CYCLES = "cycles"  # the series of the chase that does not depend on the clock
_PASSES = 4
_RESERVE, _LEAST_RESERVE_S = 0.1, 1.5  # of the budget, for the health after the last case, the verdict and the end
_OF_DEVICE = ("wrong-answer", "device")  # causes of failures for which no program is to blame
_FOREIGN = "foreign-process"  # why samples are discarded while another program computes on the device
State = Literal["sick", "slow", "busy", "not judged", "ok"]
_STATUS: Mapping[State, int] = {"sick": 6, "slow": 1, "busy": 4, "not judged": 4, "ok": 0}


def check_budget(budget_s: float) -> None:
    """Raise UsageError if the budget is too short for one pass."""
    if budget_s < LEAST_S:
        raise UsageError(f"--budget {budget_s:g}s is too short to measure anything: give {LEAST_S:g}s or more")


def plan_of(facts: Facts, settings: Settings, budget_s: float, spent_s: float) -> Plan:
    """Return the plan of a preflight that ends `budget_s` seconds after the command began, `spent_s` seconds ago."""
    chosen = _chosen([job.case for job in plan.make(facts, replace(settings, suites=SUITES)).jobs])
    planned = plan.make(facts, replace(settings, suites=SUITES, filters=tuple(chosen), replicates=_PASSES))
    left_s = budget_s - spent_s - max(_RESERVE * budget_s, _LEAST_RESERVE_S)
    return replace(planned, most_s=left_s / 2, ends_s=left_s).at_once()


def _chosen(cases: Sequence[Case]) -> dict[str, str]:
    """Return the title of the figure of each case that a preflight measures, by the id of the case."""
    titles: dict[str, str] = {}
    for title, name, fixed, (axis, most) in _CASES:
        fitting = [
            case
            for case in cases
            if f"{case.suite}/{case.name}" == name
            and all((key, value) in case.params for key, value in fixed)
            and int(dict(case.params)[axis]) <= most
        ]
        if fitting:
            titles.setdefault(max(fitting, key=lambda case: dict(case.params)[axis]).id, title)
    return titles


@dataclass(frozen=True, slots=True)
class CheckedDevice:
    """One device of a node: its state, its figures by the title of the case, and sentences that explain the state.

    `expected` is the lowest share of the figure expected of its model, NaN if none is known."""

    device: str
    state: State
    figures: tuple[tuple[str, str], ...]
    reasons: tuple[str, ...]
    expected: float = math.nan

    @property
    def text(self) -> str:
        """The device in a line: `cuda:3: slow: memory 3.1 % below the others; read 4.48 TB/s, …`."""
        figures = ", ".join(f"{title} {text}" for title, text in self.figures)
        hint = "" if math.isnan(self.expected) else f" (lowest of expected: {units.percent(self.expected)})"
        return "; ".join(part for part in (f"{self.device}: {self.state}", *self.reasons, figures) if part) + hint


@dataclass(frozen=True, slots=True)
class Preflight:
    """The verdict on a node: its devices, and why their speed was not compared, empty if it was."""

    devices: tuple[CheckedDevice, ...]
    not_compared: str = ""

    @property
    def status(self) -> int:
        """The exit status: 6 if a device is sick, 1 if one is slow, 4 if one was not judged, else 0."""
        statuses = {_STATUS[device.state] for device in self.devices} | ({4} if self.not_compared else set())
        return next((status for status in (6, 1, 4) if status in statuses), 0)

    @property
    def verdict(self) -> str:
        """The verdict in one line: `slow: cuda:3`, or `8 devices are healthy and equally fast`."""
        named = {state: [device.device for device in self.devices if device.state == state] for state in _STATUS}
        parts = [f"{state}: {', '.join(devices)}" for state, devices in named.items() if devices and state != "ok"]
        sound = f"{len(self.devices)} device{'s are' if len(self.devices) > 1 else ' is'} healthy"
        if self.not_compared:
            parts += [*([] if parts else [sound]), f"speed not judged: {self.not_compared}"]
        return "; ".join(parts) or f"{sound} and equally fast"


def judge(run: Run, others: Sequence[CheckedDevice] = ()) -> Preflight:
    """Return the verdict on the node that `run`, made by `plan_of`, measured; `others` were not measured.

    A device that another program used is not judged. Slow are the devices that the rule of a fleet accuses in the first
    half of the passes and confirms in the second half."""
    names = list(dict.fromkeys(result.devices[0] for result in run.results))
    sick = {name: list(_sickness(run, name)) for name in names}
    busy = {name: list(_other_programs(run, name)) for name in names}
    judged = [name for name in names if not sick[name] and not busy[name]]
    judgement = _compared(run, judged)
    in_cycles = replace(run, results=tuple(map(_in_cycles, run.results)))
    spreads = Summary(in_cycles).spreads()
    values = key_values(Summary(run))
    devices = []
    for name in names:
        state, reasons = _state(run, name, judgement)
        state, reasons = ("busy", busy[name]) if busy[name] else (state, reasons)
        state, reasons = ("sick", sick[name]) if sick[name] else (state, reasons)
        shares = [value.of_expected for value in values if value.devices == (name,)]
        lowest = min((share for share in shares if share is not None), default=math.nan)
        devices.append(CheckedDevice(name, state, tuple(_figures(spreads, name)), tuple(reasons), lowest))
    checked = sorted((*devices, *others), key=lambda device: (len(device.device), device.device))
    count = f"{len(judged)} device{'s' * (len(judged) != 1)} to compare; the rule needs five of one model"
    return Preflight(tuple(checked), "" if judgement.is_judged else count)


def missing(facts: Facts, names: Sequence[str]) -> dict[str, CheckedDevice]:
    """Return the devices among `names` that the driver does not show, as sick ones, by id."""
    there = [device.id for device in facts.devices]
    reason = f"the driver shows no such device; available: {', '.join(there) or 'none'}"
    gone = [name for name in names if name not in (*there, "all")]
    return {name: CheckedDevice(name, "sick", (), (reason,)) for name in gone}


def unfit(devices: Sequence[Device], patience_s: float) -> dict[str, CheckedDevice]:
    """Return the devices that a preflight does not measure, by id: sick ones, and devices that other programs use."""
    checked: dict[str, CheckedDevice] = {}
    with Examination(devices, patience_s) as examination:
        for of_device in examination.read():
            used = [finding for finding in of_device.findings if finding.sign is HealthSign.PROCESSES and finding.value]
            sick = of_device.of("sick")
            if sick or used:
                state: State = "sick" if sick else "busy"
                reasons = tuple(finding.text for finding in sick or used)
                checked[of_device.device] = CheckedDevice(of_device.device, state, (), reasons)
    return checked


def _sickness(run: Run, device: str) -> Iterator[str]:
    """Yield why a device must not be used: its health, a wrong answer, or that it did not answer unlike others."""
    yield from dict.fromkeys(
        remark.words
        for remark in run.remarks
        if (remark.source, remark.state, remark.device) == (HEALTH_SOURCE, "event", device)
    )
    own = [result for result in run.results if device in result.devices]
    ok = {result.case.id for result in run.results if result.status == "ok" and device not in result.devices}
    for result in own:
        is_failed = result.status == "failed" or (result.cause == "budget" and result.status == "invalid")
        is_alone = result.case.id in ok and (result.cause != "budget" or not result.replicate)
        if is_failed and (is_alone or result.cause in _OF_DEVICE):
            yield f"{result.case.id}: {result.reason}"
            return
    models = {listed.id: listed.name for listed in run.manifest.facts.devices}
    noted = [
        (result, dict(result.notes).get(DIGEST))
        for result in run.results
        if models[result.devices[0]] == models[device]
    ]
    for case_id in dict.fromkeys(result.case.id for result, digest in noted if digest):
        digests = Tally(digest for result, digest in noted if result.case.id == case_id and digest)
        mine = {digest for result, digest in noted if result.case.id == case_id and digest and device in result.devices}
        if any(2 * digests[digest] <= digests.total() for digest in mine):  # of two that differ, either may be wrong
            yield f"{case_id}: the product has other bits than on half of the devices or more"


def _other_programs(run: Run, device: str) -> Iterator[str]:
    """Yield why a device cannot be judged: another program computes on it."""
    own = [result for result in run.results if device in result.devices]
    if any({SHARED_LABEL, _FOREIGN}.intersection(other_work(result)) or _FOREIGN in result.reason for result in own):
        yield "another program used it during the measurement"


def _compared(run: Run, names: Sequence[str]) -> FleetJudgement:
    """Return the judgement of the devices as a fleet of one node, with half of the passes as second measurement."""
    passes = sorted({result.replicate for result in run.results if result.status == "ok"})
    half = passes[: max((len(passes) + 1) // 2, 1)]
    first = _digest(run, names, [number for number in passes if number in half])
    second = _digest(run, names, [number for number in passes if number not in half])
    fleet = Fleet((FleetNode("", "answered"),))
    judgement = judge_fleet(fleet, [first])
    suspects = {place for suspect in judgement.suspects for place in suspect.parts}
    again = [
        SecondMeasurement(replace(second, components=parts), is_control)
        for is_control in (False, True)
        if (parts := tuple(part for part in second.components if (Place("", part.devices) in suspects) != is_control))
    ]
    return judge_fleet(fleet, [first], again) if suspects and again else judgement


def _digest(run: Run, names: Sequence[str], passes: Sequence[int]) -> NodeDigest:
    """Return the digest of these devices and passes; the chase counts in cycles."""
    builder = DigestBuilder()
    builder.add(run.manifest)
    for samples in run.samples:
        builder.add(samples)
    for result in run.results:
        if result.status == "ok" and result.devices[0] in names and result.replicate in passes:
            builder.add(_in_cycles(result))
    return builder.digest("")


def _in_cycles(result: Result) -> Result:
    """Return a result of the chase with its cycles as the headline, and any other result unchanged."""
    cycles = tuple(series for series in result.series if series.unit == _CYCLES)
    rest = tuple(series for series in result.series if series.unit != _CYCLES)
    return replace(result, series=(*cycles, *rest)) if result.case.name == "chase" else result


def _state(run: Run, name: str, judgement: FleetJudgement) -> tuple[State, Sequence[str]]:
    """Return the state of a device that is neither sick nor busy, and the reasons for it."""
    own = [result for result in run.results if name in result.devices and not result.replicate]
    suspects = [suspect for suspect in judgement.suspects if name in suspect.place.devices]
    for suspect in suspects:
        if suspect.state == "confirmed":
            worst = suspect.findings[0]
            return "slow", [
                f"{worst.subject} {units.percent(worst.slowdown)} below the others ({causes_text(suspect)})"
            ]
    if any(suspect.state == "suspect" for suspect in suspects):
        return "not judged", ["it seemed slow once, and the budget had no second pass: give more"]
    if missing := [
        result.case.id for result in own if result.status in ("invalid", "failed") or result.cause == "budget"
    ]:
        why = next(result.reason for result in own if result.case.id == missing[0])
        return "not judged", [f"no valid result of {', '.join(missing)}: {why}; a larger --budget may help"]
    return "ok", []


def _figures(spreads: Sequence[Spread], name: str) -> Iterator[tuple[str, str]]:
    own = [spread for spread in spreads if spread.devices == (name,) and spread.figure is not None]
    titles = _chosen([spread.case for spread in own])
    for spread in own:
        if (title := titles.get(spread.case.id)) in _SHOWN and spread.figure is not None:
            yield title, units.quantity(spread.figure.interval.centre, spread.figure.unit)
