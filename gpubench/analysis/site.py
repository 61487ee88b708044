"""Describe a run as a site of many runs lists it: one line in the index, and the figures for its trends."""

import hashlib
import math
from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpubench.analysis import phases
from gpubench.analysis.key_figures import KeyValue
from gpubench.analysis.overview import overview
from gpubench.analysis.summary import Summary
from gpubench.analysis.trend import Entry, Line, RunSource, Trend, TrendPoint, entries
from gpubench.analysis.trust import trust_brief
from gpubench.base import units
from gpubench.model import Better, Run


@dataclass(frozen=True, slots=True)
class CaseFigure:
    """The headline of a case in a run: the median with its 95 % interval in SI units, and the number of samples.

    `suite` is the sentence of the suite, which says what it measures."""

    case: str
    version: int
    suite: str
    series: str
    unit: str
    better: Better
    low: float
    median: float
    high: float
    samples: int


@dataclass(frozen=True, slots=True)
class CatalogueRow:
    """The runs of one case in one tier on one card: each run's date and page with its figure. At least one."""

    label: str
    address: str
    tier: str
    figures: tuple[tuple[str, str, CaseFigure], ...]


@dataclass(frozen=True, slots=True)
class CataloguePage:
    """A page of the catalogue: of a card with a row for each case, or of a case with a row for each card.

    Tiers have separate rows, because they measure for different times."""

    title: str
    rows: tuple[CatalogueRow, ...]
    is_case: bool


@dataclass(frozen=True, slots=True)
class SiteRun:
    """The part of a run that a site keeps: its line in the index and the figures of its trends.

    `key` is the same for every copy of the run, `file` the name of the run file, `device` names the models that it
    measured (`2 × NVIDIA H200`), and `at` is its start in seconds since 1970. `results` is their number and `ended`
    their statuses as text. `figures` are titles and values as text, `doubts` the reasons not to trust them."""

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
    cases: tuple[CaseFigure, ...]

    @property
    def date(self) -> str:
        """`2026-11-20 17:43 UTC`."""
        return units.utc(self.at)

    @property
    def trust(self) -> str:
        """`yes`, `no, 2 reasons`, or `imported, not checked`."""
        return trust_brief(self.doubts)


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run in the index, with the addresses of its page and of its comparison with an earlier run.

    A site without pages of runs has the place in the index, `index.html#1f0c…`, as their address. `compared_with` names
    the earlier run; both texts are empty without a comparison."""

    run: SiteRun
    page: str
    comparison: str = ""
    compared_with: str = ""


@dataclass(frozen=True, slots=True)
class SiteDevice:
    """The runs on one model of device, the newest first; `trends` is the address of the page with their trends."""

    name: str
    trends: str
    runs: tuple[ListedRun, ...]

    @property
    def card(self) -> str:
        """The address of the page with every case on this model."""
        return _page_name("cards", self.name)

    @property
    def titles(self) -> tuple[str, ...]:
        """The titles of all key figures that any of the runs has."""
        return tuple(dict.fromkeys(title for listed in self.runs for title, _ in listed.run.figures))


@dataclass(frozen=True, slots=True)
class Site:
    """The index of a site: its devices with their runs, and the files that could not be read.

    `refused` are pairs of such a file and the reason."""

    devices: tuple[SiteDevice, ...]
    refused: tuple[tuple[str, str], ...]


def site_run(run: Run, file: str, content_key: str, written_at: float) -> SiteRun:
    """Return the part of a run that a site keeps; `file` is the name of its run file.

    A run that does not say when it started takes `content_key` as its key and `written_at` (s since 1970) as its start.
    Raises ValueError for a start that is no date."""
    run_overview = overview(Summary(run))
    started = run.manifest.started
    statuses = Tally(result.status for result in run.results)
    figures: dict[str, str] = {}  # if there are several devices, the figure of the first one
    for value in run_overview.values:
        figures.setdefault(value.title, value.figure.text)
    return SiteRun(
        f"{started} {run.manifest.started_at}" if started else content_key,
        file,
        _device_text(run),
        units.unix_seconds(started) if started else written_at,
        run.manifest.settings.tier,
        tuple(dict.fromkeys(result.case.suite for result in run.results)),
        len(run.results),
        ", ".join(f"{count} {status}" for status, count in statuses.items()),
        tuple(figures.items()),
        run_overview.doubts,
        run.manifest.facts.versions,
        tuple(_key_entries(run, run_overview.values)),
        tuple(_case_figures(run)),
    )


def _case_figures(run: Run) -> Iterator[CaseFigure]:
    suites = {suite.name: suite.summary for suite in run.manifest.suites}
    for spread in Summary(run).spreads():
        case, figure = spread.case, spread.figure
        if figure and all(map(math.isfinite, (figure.interval.low, figure.interval.centre, figure.interval.high))):
            ends = figure.interval.low, figure.interval.centre, figure.interval.high
            suite = suites.get(case.suite, "")
            yield CaseFigure(
                case.id, case.version, suite, figure.name, figure.unit, figure.better, *ends, figure.samples
            )


def _page_name(kind: str, name: str) -> str:
    """Return the address of the page of a card (`cards`) or a case (`cases`), relative to the index."""
    return f"{kind}/{hashlib.sha256(name.encode()).hexdigest()[:16]}.html"


def catalogue(devices: Sequence[SiteDevice]) -> dict[str, CataloguePage]:
    """Return the pages of the catalogue by their addresses: one of each card, and one of each case on all cards."""
    groups: dict[tuple[str, str, str], list[tuple[str, str, CaseFigure]]] = {}
    for device in devices:
        for listed in device.runs:
            for figure in listed.run.cases:
                if figure.case.startswith(f"{phases.SUITE}/"):
                    continue  # one program's phases are no case that another run repeats
                seen = (listed.run.date, listed.page, figure)
                groups.setdefault((device.name, figure.case, listed.run.tier), []).append(seen)
    cards: dict[str, list[CatalogueRow]] = {}
    cases: dict[str, list[CatalogueRow]] = {}
    for (card, case, tier), figures in groups.items():
        cards.setdefault(card, []).append(CatalogueRow(case, _page_name("cases", case), tier, tuple(figures)))
        cases.setdefault(case, []).append(CatalogueRow(card, _page_name("cards", card), tier, tuple(figures)))
    return {
        _page_name(kind, name): CataloguePage(name, tuple(rows), kind == "cases")
        for kind, pages in (("cards", cards), ("cases", cases))
        for name, rows in pages.items()
    }


def _device_text(run: Run) -> str:
    """Return the models of the measured devices as text, `2 × NVIDIA H200`; the host only if no GPU was measured."""
    used = {device for result in run.results for device in result.devices} or set(run.manifest.settings.devices)
    devices = [device for device in run.manifest.facts.devices if device.id in used]
    gpus = [device for device in devices if device.backend != "host"]
    models = Tally(device.name for device in gpus or devices)
    return " + ".join(f"{count} × {name}" if count > 1 else name for name, count in models.items()) or "no device"


def _key_entries(run: Run, values: tuple[KeyValue, ...]) -> list[Entry]:
    """Return the trend entries of the run that belong to the key figures `values` of its overview."""
    wanted = {(value.case_id, value.devices, value.series) for value in values}
    return [
        entry
        for entry in entries(run)
        for series in ("" if entry.headline else entry.line.series,)
        if (entry.line.case, entry.line.devices, series) in wanted
    ]


def trends(runs: Sequence[SiteRun]) -> list[Trend]:
    """Return a trend for each line of the key figures of these runs, which must be in order of time, oldest first."""
    points: dict[Line, list[TrendPoint]] = {}
    for run in runs:
        source = RunSource(run.key, run.file, run.at, "", run.versions)
        for entry in run.entries:
            point = TrendPoint(source, entry.replicate, entry.interval, entry.noise, entry.samples, entry.labels)
            points.setdefault(entry.line, []).append(point)
    return [Trend.of(line, line_points) for line, line_points in points.items()]
