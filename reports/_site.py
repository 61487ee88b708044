"""Collect the values that the template of a site's index shows."""

from collections.abc import Iterator
from dataclasses import dataclass

from gpubench.api import report as gb

_NONE = "–"


@dataclass(frozen=True, slots=True)
class SiteRunLine:
    """A run as texts; `figures` are in the order of the heads of its section.

    `page`, `comparison` and `file` are addresses, `comparison` is empty if the run is not compared with an earlier
    one."""

    date: str
    page: str
    tier: str
    ended: str
    figures: tuple[str, ...]
    trust: str
    is_trusted: bool
    comparison: str
    compared_with: str
    file: str


@dataclass(frozen=True, slots=True)
class DeviceSection:
    """A model of device with its runs, the newest first; `trends` is the address of its page of trends."""

    name: str
    lead: str
    trends: str
    heads: tuple[str, ...]
    runs: tuple[SiteRunLine, ...]


@dataclass(frozen=True, slots=True)
class SitePage:
    """The content of the index; an item of `refused` is a file that could not be listed and the reason."""

    title: str
    devices: tuple[DeviceSection, ...]
    refused: tuple[tuple[str, str], ...]


def site_page(site: gb.Site) -> SitePage:
    """Return the content of the index of a site.

    The texts of the site must be free of control characters: the template only escapes them."""
    count = sum(len(device.runs) for device in site.devices)
    models = f"{len(site.devices)} models of device" if len(site.devices) != 1 else site.devices[0].name
    title = f"{_runs(count)} on {models}" if count else "No runs"
    return SitePage(title, tuple(_sections(site)), site.refused)


def _runs(count: int) -> str:
    """Return a number of runs as text."""
    return "1 run" if count == 1 else f"{count} runs"


def _sections(site: gb.Site) -> Iterator[DeviceSection]:
    """Yield the section of each model of device; a run has a dash for a figure that it does not have."""
    for device in site.devices:
        newest, oldest = device.runs[0].run.date, device.runs[-1].run.date
        span = newest if newest == oldest else f"{oldest} to {newest}"
        lines = tuple(
            SiteRunLine(
                run.date,
                listed.page,
                run.tier or "profile",
                run.ended or "no results",
                tuple(dict(run.figures).get(title, _NONE) for title in device.titles),
                run.trust,
                not run.doubts,
                listed.comparison,
                listed.compared_with,
                run.file,
            )
            for listed in device.runs
            for run in [listed.run]
        )
        yield DeviceSection(device.name, f"{_runs(len(lines))}, {span}", device.trends, device.titles, lines)
