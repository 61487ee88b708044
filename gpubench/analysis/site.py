"""A run as the site of many runs lists it: one line, and the figures that its trends are drawn from."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from gpubench.analysis.key_figures import KeyValue
from gpubench.analysis.overview import overview
from gpubench.analysis.summary import Summary
from gpubench.analysis.trend import Entry, Line, Point, Source, Trend, entries
from gpubench.model import Run


@dataclass(frozen=True, slots=True)
class SiteRun:
    """What a site keeps of a run: its line in the index and the figures of its trends.

    `key` is the same for every copy of the run, `device` names the models that it measured (`2 × NVIDIA H200`), `at` is
    its start in seconds since 1970. `figures` are titles and values in words, `doubts` why they cannot be trusted.
    """

    key: str
    file: str
    device: str
    at: float
    tier: str
    suites: tuple[str, ...]
    results: int
    ended: str
    figures: tuple[tuple[str, str], ...]
    doubts: tuple[str, ...]
    versions: tuple[tuple[str, str], ...]
    entries: tuple[Entry, ...]

    @property
    def date(self) -> str:
        """`2026-11-20 17:43 UTC`."""
        return f"{datetime.fromtimestamp(self.at, UTC):%Y-%m-%d %H:%M} UTC"

    @property
    def trust(self) -> str:
        """`yes`, or `no, because …`."""
        return f"no, because {'; '.join(self.doubts)}" if self.doubts else "yes"


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run in the index, with the addresses of its page and of its comparison with an earlier run; empty for none."""

    run: SiteRun
    page: str
    comparison: str = ""
    compared_with: str = ""


@dataclass(frozen=True, slots=True)
class SiteDevice:
    """The runs on one model of device, the newest first, and the address of their trends."""

    name: str
    trends: str
    runs: tuple[ListedRun, ...]

    @property
    def titles(self) -> tuple[str, ...]:
        """The titles of all key figures that any of the runs has."""
        return tuple(dict.fromkeys(title for listed in self.runs for title, _ in listed.run.figures))


@dataclass(frozen=True, slots=True)
class Site:
    """The index of a site; `refused` are the files that could not be read, each with the reason."""

    devices: tuple[SiteDevice, ...]
    refused: tuple[tuple[str, str], ...]


def site_run(run: Run, file: str, content_key: str, written_at: float) -> SiteRun:
    """Return what a site keeps of a run.

    `content_key` and `written_at` stand for the key and the start of a run that does not say when it started.
    """
    found = overview(Summary(run))
    started = run.manifest.started
    statuses = Tally(result.status for result in run.results)
    figures: dict[str, str] = {}  # of several devices, the figure of the first
    for value in found.values:
        figures.setdefault(value.title, value.figure.text)
    return SiteRun(
        f"{started} {run.manifest.started_at}" if started else content_key,
        file,
        _device(run),
        _seconds(started) if started else written_at,
        run.manifest.settings.tier,
        tuple(dict.fromkeys(result.case.suite for result in run.results)),
        len(run.results),
        ", ".join(f"{count} {status}" for status, count in statuses.items()),
        tuple(figures.items()),
        found.doubts,
        run.manifest.facts.versions,
        tuple(_key_entries(run, found.values)),
    )


def _seconds(started: str) -> float:
    """Return when a run started, in seconds since 1970; a time without a zone is UTC, as gpubench writes it."""
    found = datetime.fromisoformat(started)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _device(run: Run) -> str:
    """Return the models that a run measured: `2 × NVIDIA H200`; the host only of a run that measured nothing else."""
    used = {device for result in run.results for device in result.devices} or set(run.manifest.settings.devices)
    devices = [device for device in run.manifest.facts.devices if device.id in used]
    gpus = [device for device in devices if device.backend != "host"]
    models = Tally(device.name for device in gpus or devices)
    return " + ".join(f"{count} × {name}" if count > 1 else name for name, count in models.items()) or "no device"


def _key_entries(run: Run, values: tuple[KeyValue, ...]) -> list[Entry]:
    """Return the entries of the run that its key figures are."""
    wanted = {
        (value.case_id, value.devices, key.series)
        for value in values
        for suite in run.manifest.suites
        for key in suite.key_figures
        if (suite.name, key.title) == (value.suite, value.title)
    }
    return [
        entry
        for entry in entries(run)
        for series in ("" if entry.headline else entry.line.series,)
        if (entry.line.case, entry.line.devices, series) in wanted
    ]


def trends(runs: Sequence[SiteRun]) -> list[Trend]:
    """Return the trends of the key figures of these runs, which stand in order of time."""
    points: dict[Line, list[Point]] = {}
    for run in runs:
        source = Source(run.key, run.file, run.at, "", run.versions)
        for each in run.entries:
            point = Point(source, each.replicate, each.interval, each.noise, each.samples, each.labels)
            points.setdefault(each.line, []).append(point)
    return [Trend.of(line, found) for line, found in points.items()]
