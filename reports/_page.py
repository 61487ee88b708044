"""A run as the page's template takes it: values in words, drawings as markup; the template only lays out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gpubench.api.report import (
    Enclosure,
    Run,
    Spread,
    Summary,
    Table,
    View,
    link_tables,
    phase_tables,
    units,
    view_points,
)

from ._blocks import Blocks, CaseTable
from ._cases import (
    heads,
)
from ._charts import Chart, bars, curve, pareto
from ._matrix import matrix
from ._payoffs import breakeven
from ._results import Results, results
from ._roofline import rooflines
from ._room import room_for
from ._staircase import staircase
from ._tiles import Best, tiles
from ._timeline import Timeline, timelines
from ._transfers import transfer
from ._web import packed
from ._words import (
    Notice,
    count_words,
    device_words,
    host_words,
    legend_words,
    measured,
    notices,
    verdict_words,
)

_DRAW: dict[str, Callable[[Summary, str, View], list[Chart]]] = {
    "curve": curve,
    "bars": bars,
    "matrix": matrix,
    "pareto": pareto,
    "staircase": staircase,
    "transfer": transfer,
    "breakeven": breakeven,
}
Pairs = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class SuiteBlock:
    """A suite's section; `unseen` are the titles of views that are not drawn, and why."""

    name: str
    summary: str
    charts: tuple[Chart, ...]
    unseen: tuple[tuple[str, str], ...]
    tables: tuple[CaseTable, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """Everything the template shows."""

    title: str
    started: str
    gpubench: str
    devices: tuple[str, ...]
    host: str
    counts: tuple[tuple[str, int], ...]
    complete: bool
    verdict: str
    best: tuple[Best, ...]
    notices: tuple[Notice, ...]
    suites: tuple[SuiteBlock, ...]
    phases: tuple[Table, ...]  # of a profiled program
    rooflines: tuple[Chart, ...]
    links: tuple[Table, ...]
    timelines: tuple[Timeline, ...]
    zoom: str  # packed, for the script; as are the details of cases that do not stand in the page
    thinned: int
    details: str
    results: Results | None
    environment: tuple[tuple[str, Pairs], ...]
    heads: tuple[str, ...]
    replicated: bool
    legend: str


def page(run: Run, enclosure: Enclosure | None = None) -> Page:
    """The page of a run whose text is clean; with an enclosure it has the results inside."""
    summary = Summary(run)
    suites = summary.suites()
    rows = [spread.row for _, spreads in suites for spread in spreads]
    room = room_for([spread for _, spreads in suites for spread in spreads])
    devices = measured(summary)
    drawn, blocks = timelines(run, summary.counters), Blocks(summary, room)
    found = tuple(_suite(summary, blocks, name, group) for name, group in suites)
    said = (*notices(summary, rows), *([Notice("note", room.left_out)] if room.left_out else []))
    names = ", ".join(dict.fromkeys(device.name for device in devices)) or "no device"
    return Page(
        title=f"{names}: {count_words(summary)}",
        started=run.manifest.started,
        gpubench=run.manifest.gpubench,
        devices=tuple(map(device_words, devices)),
        host=host_words(summary),
        counts=tuple(summary.counts().items()),
        complete=run.complete,
        verdict=verdict_words(summary, said),
        best=tuple(tiles(rows, summary)),
        notices=said,
        suites=found,
        phases=tuple(phase_tables(summary)),
        rooflines=tuple(rooflines(summary)),
        links=tuple(link_tables(summary)),
        timelines=drawn.devices,
        zoom=packed(drawn.zoom) if drawn.zoom else "",
        thinned=drawn.thinned,
        details=packed(blocks.packed) if blocks.packed else "",
        results=results(summary, enclosure) if enclosure else None,
        environment=tuple(environment(run)),
        heads=heads(summary),
        replicated=summary.replicated,
        legend=legend_words(summary),
    )


def _suite(summary: Summary, blocks: Blocks, name: str, spreads: list[Spread]) -> SuiteBlock:
    info = next((info for info in summary.run.manifest.suites if info.name == name), None)
    drawn = [(view, draw(summary, name, view)) for view in (info.views if info else ())]
    return SuiteBlock(
        name,
        info.summary if info else "",
        tuple(chart for _, charts in drawn for chart in charts),
        tuple((view.title, _absence(summary, name, view)) for view, charts in drawn if not charts),
        blocks.tables(name, spreads),
    )


def draw(summary: Summary, suite: str, view: View) -> list[Chart]:
    """The charts of a view; none where its kind is unknown or nothing was measured for it."""
    kind = _DRAW.get(view.kind)
    return kind(summary, suite, view) if kind else []


def _absence(summary: Summary, suite: str, view: View) -> str:
    if view.kind in ("curve", "staircase", "transfer") and view_points(summary, suite, view, view.series):
        return "measured at too few places of its axis: see the table"
    return "nothing measured for this view"


def environment(run: Run) -> Iterable[tuple[str, Pairs]]:
    """What the run was measured with: titled lists of names and words."""
    facts, settings = run.manifest.facts, run.manifest.settings
    for device in facts.devices:
        cache = [("last-level cache", units.round_size(device.cache_bytes))] if device.cache_bytes else []
        known = (
            ("PCI", device.pci),
            ("UUID", device.uuid),
            ("dtypes", ", ".join(device.dtypes)),
            ("reaches", ", ".join(device.peers)),
        )
        yield (
            device_words(device),
            [("backend", device.backend), *cache, *((name, words) for name, words in known if words), *device.details],
        )
    yield "Host", facts.host
    yield "Versions", [("gpubench", run.manifest.gpubench), *facts.versions]
    yield "Not usable here", [(absent.what, f"{absent.reason}; {absent.how}") for absent in facts.absent]
    yield (
        "Settings",
        [
            ("suites", ", ".join(settings.suites)),
            ("devices", ", ".join(settings.devices)),
            ("tier", settings.tier),
            ("filters", ", ".join(settings.filters) or "none"),
            ("cases", "the headline case of each suite" if settings.headline else ""),
            ("replicates", str(settings.replicates)),
            ("seed", str(settings.seed)),
            *(("data", f"{file.label}: {file.path}, {units.round_size(file.bytes)}") for file in settings.data),
            ("command", " ".join(run.manifest.argv)),
            ("schema", run.manifest.schema),
        ],
    )
