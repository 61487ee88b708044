"""Compose the overview of a run: its devices, its key figures, whether to trust them, and its main limitations."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpubench.analysis.key_figures import KeyValue, key_values
from gpubench.analysis.summary import Summary
from gpubench.analysis.trust import doubts, limitations, trust_text
from gpubench.base import units
from gpubench.model import Device, Facts, Result, Run

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
    duration, date. `doubts` are reasons not to trust its figures; `limitations` are the three most important other
    facts about the figures."""

    devices: tuple[str, ...]
    conditions: tuple[str, ...]
    values: tuple[KeyValue, ...]
    doubts: tuple[str, ...]
    limitations: tuple[str, ...]
    suites: tuple[SuiteLine, ...]

    @property
    def trust(self) -> str:
        """`trustworthy: yes`, `trustworthy: no, because …`, or `trustworthy: imported, not checked`."""
        return f"trustworthy: {trust_text(self.doubts)}"

    @property
    def has_expectations(self) -> bool:
        """Whether any key figure has an expected value for this model of GPU."""
        return any(value.of_expected is not None for value in self.values)


def overview(summary: Summary) -> Overview:
    """Return the overview of a run: devices, conditions, key figures, doubts, limitations, and a line for each suite.

    It has at most three limitations, after a note if only the host was measured."""
    values = key_values(summary)
    run_limitations = limitations(summary, values)
    return Overview(
        tuple(_device_lines(summary)),
        tuple(_conditions(summary)),
        tuple(values),
        tuple(doubts(summary, values)),
        (*_host_note(summary), *run_limitations[:_MOST_LIMITATIONS]),
        tuple(_suite_line(summary, name, summary.results_of(name)) for name in _suite_names(summary.run)),
    )


def _measured_devices(summary: Summary) -> list[Device]:
    used = {device for result in summary.run.results for device in result.devices}
    devices = summary.run.manifest.facts.devices
    return [device for device in devices if device.id in used] or list(devices)


def _device_lines(summary: Summary) -> Iterator[str]:
    """Yield a line for each model of device: `2 × NVIDIA H200 (cuda:0, cuda:1), 132 SMs, 139.8 GiB`."""
    models: dict[tuple[str, str], list[str]] = {}
    for device in _measured_devices(summary):
        models.setdefault((device.name, _device_size(device)), []).append(device.id)
    for (name, size), ids in models.items():
        count = f"{len(ids)} × " if len(ids) > 1 else ""
        yield f"{count}{name} ({', '.join(ids)}){size}"


def _device_size(device: Device) -> str:
    """Return compute units and memory of a device as `, 132 SMs, 139.8 GiB`; an unknown one is left out."""
    kind = {"cuda": "SMs", "rocm": "CUs"}.get(device.id.partition(":")[0], "cores")
    count = f", {device.units} {kind}" if device.units else ""
    return count + (f", {units.round_size(device.memory_bytes)}" if device.memory_bytes else "")


def _conditions(summary: Summary) -> list[str]:
    run = summary.run
    settings = run.manifest.settings
    cases = len({result.case.id for result in run.results})
    count = len({result.replicate for result in run.results})
    replicates = f" × {count} replicates" if count > 1 else ""
    tier = f"tier {settings.tier}" if settings.tier else ""
    return [
        *_versions(run.manifest.facts),
        *([tier] if tier else []),
        f"{cases} {'case' if cases == 1 else 'cases'}{replicates} in {units.duration(_end_s(run))}",
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
        return f"{datetime.fromisoformat(started):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return started


def _host_note(summary: Summary) -> list[str]:
    devices = _measured_devices(summary)
    hosts = [device for device in devices if device.backend == "host"]
    return [_OF_HOST] if hosts and len(hosts) == len(devices) else []


def _suite_names(run: Run) -> list[str]:
    return list(dict.fromkeys(result.case.suite for result in run.results))


def _suite_line(summary: Summary, name: str, results: Sequence[Result]) -> SuiteLine:
    """Return the line of the suite `name`: the number of its `results` by status, and their seconds together."""
    info = next((info for info in summary.run.manifest.suites if info.name == name), None)
    counts = dict.fromkeys(("ok", "skipped", "failed", "invalid"), 0)
    for result in results:
        counts[result.status] += 1
    return SuiteLine(name, info.summary if info else "", counts, sum(result.elapsed_s for result in results))
