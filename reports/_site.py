"""Collect the values that the template of a site's index shows."""

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
    return SitePage(title, tuple(map(_section, site.devices)), site.refused)


def _runs(count: int) -> str:
    """Return a number of runs as text."""
    return "1 run" if count == 1 else f"{count} runs"


def _section(device: gb.SiteDevice) -> DeviceSection:
    """Return the section of a model of device; its runs must be in order, the newest first."""
    newest, oldest = device.runs[0].run.date, device.runs[-1].run.date
    span = newest if newest == oldest else f"{oldest} to {newest}"
    lines = tuple(_line(listed, device.titles) for listed in device.runs)
    return DeviceSection(device.name, f"{_runs(len(lines))}, {span}", device.trends, device.titles, lines)


def _line(listed: gb.ListedRun, heads: tuple[str, ...]) -> SiteRunLine:
    """Return a run as texts, with one figure for each of `heads`; a dash for a figure that the run does not have."""
    run, figures = listed.run, dict(listed.run.figures)
    return SiteRunLine(
        run.date,
        listed.page,
        run.tier or "profile",
        run.ended or "no results",
        tuple(figures.get(head, _NONE) for head in heads),
        run.trust,
        not run.doubts,
        listed.comparison,
        listed.compared_with,
        run.file,
    )
