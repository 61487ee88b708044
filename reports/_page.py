"""Collect the values that the template of a run's page shows: texts and drawings."""

import base64
import csv
import gzip
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpubench.api import report as gb

from . import _roofline, _serving, _timeline, _transfers, _web
from ._amortisation import amortisation
from ._blocks import Blocks, heads, room_for
from ._breakeven import breakeven
from ._charts import Chart, bars, curve, pareto
from ._matrix import matrix
from ._staircase import staircase
from ._texts import Notice, counts_by_level, device_text, head, legend_text, notices, suite_anchor
from ._waterfall import waterfall

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Facts under a title; an item of `facts` is a name and a text, which is empty if the fact is unknown."""

    title: str
    facts: Pairs


def environment(run: gb.Run) -> Iterator[Group]:
    """Yield the facts of a run in groups: one for each device, then `Host`, `Versions`, `Unavailable` and `Settings`.

    `Unavailable` gives for each missing library the reason and the remedy."""
    facts = run.manifest.facts
    for device in facts.devices:
        yield Group(device_text(device), tuple(_device(device)))
    yield Group("Host", tuple(gb.units.fact(*pair) for pair in facts.host))
    yield Group("Versions", (("gpubench", run.manifest.gpubench), *facts.versions))
    yield Group("Unavailable", tuple((part.what, f"{part.reason}; {part.how}") for part in facts.absent))
    yield Group("Settings", tuple(_settings(run)))


def environment_text(run: gb.Run) -> str:
    """Return the environment in one line: `Linux 6.18, Python 3.12.3, 2 devices, 15 versions`."""
    facts = run.manifest.facts
    versions = dict(facts.versions)
    names = [dict(facts.host).get("system", ""), f"Python {versions['python']}" if "python" in versions else ""]
    counts = [count_text(len(facts.devices), "device"), count_text(len(versions) + 1, "version")]
    return ", ".join(part for part in (*names, *counts) if part)


def count_text(number: int, word: str) -> str:
    """Return a number with its noun in the singular or plural: `2 devices`."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _device(device: gb.Device) -> Iterator[tuple[str, str]]:
    """Yield the facts of a device as pairs of a name and a text; an unknown fact has an empty text."""
    yield "backend", device.backend
    yield "last-level cache", gb.units.brief_size(device.cache_bytes) if device.cache_bytes else ""
    yield "PCI", device.pci
    yield "UUID", device.uuid
    yield "data types", ", ".join(device.dtypes)
    yield "reaches", ", ".join(device.peers)
    for name, text in device.details:
        yield gb.units.fact(name, text)


def _settings(run: gb.Run) -> Iterator[tuple[str, str]]:
    """Yield the settings of a run as pairs of a name and a text; an unused setting has an empty text or `none`."""
    settings = run.manifest.settings
    yield "suites", ", ".join(settings.suites)
    yield "devices", ", ".join(settings.devices)
    yield "tier", settings.tier
    yield "filters", ", ".join(settings.filters) or "none"
    yield "cases", "the representative cases of each suite" if settings.headline else ""
    yield "replicates", str(settings.replicates)
    yield "seed", str(settings.seed)
    for file in settings.data:
        yield "data", f"{file.label}: {file.path}, {gb.units.round_size(file.bytes)}"
    yield "command", " ".join(run.manifest.argv)
    yield "schema", run.manifest.schema
    yield "started", run.manifest.started


_HEADS = ("case", "devices", "status", "unit", "median", "low", "high", "noise", "samples")


@dataclass(frozen=True, slots=True)
class Results:
    """A gzipped file inside the page: its `content` is in base64, `text` describes it, and `size` is its size as text.

    `sha256` is the hash of the run file."""

    name: str
    text: str
    content: str
    size: str
    sha256: str


def results(summary: gb.Summary, enclosure: gb.Enclosure) -> Results:
    """Return the file that a page offers for download: the run file of the enclosure, or else the figures as CSV."""
    if enclosure.content:
        name, content = "run.jsonl.gz", enclosure.content
        sentence = "The anonymised run file of this page, for gpubench show, report, compare and gate."
    else:
        name, content = "figures.csv.gz", gzip.compress(_figures(summary).encode(), 6, mtime=0)
        sentence = "The headline figure of every case, in SI units."
    sentence = " ".join(part for part in (sentence, enclosure.left_out) if part)
    return Results(
        name, sentence, base64.b64encode(content).decode(), gb.units.round_size(len(content)), enclosure.sha256
    )


def _figures(summary: gb.Summary) -> str:
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(_HEADS)
    for spread in summary.spreads():
        figure = spread.figure
        cells = [spread.case.id, "+".join(spread.devices), spread.status]
        if figure:
            interval = figure.interval
            cells += [figure.unit, *map(repr, (interval.centre, interval.low, interval.high, figure.noise))]
            cells.append(str(figure.samples))
        writer.writerow([*cells, *[""] * (len(_HEADS) - len(cells))])
    return table.getvalue()


_DRAW: dict[str, Callable[[gb.Summary, str, gb.View], list[Chart]]] = {
    "curve": curve,
    "bars": bars,
    "matrix": matrix,
    "pareto": pareto,
    "staircase": staircase,
    "transfer": _transfers.transfer,
    "breakeven": breakeven,
    "serving": _serving.served,
    "amortisation": amortisation,
}
_TOPICS = ("phases", "links", "soak")
_OPEN_CHARTS = 2  # the open charts of a suite: the others are folded away


@dataclass(frozen=True, slots=True)
class Fold:
    """Charts that stand open, and charts that are folded away under a line with their titles."""

    shown: tuple[Chart, ...]
    folded: tuple[Chart, ...]

    @property
    def lone(self) -> bool:
        """Whether at most one chart is open and leaves half of the page for what would stand below it."""
        return not self.shown[1:] and not any(chart.full for chart in self.shown)

    @property
    def names(self) -> str:
        """The titles of the folded charts, each once."""
        return ", ".join(dict.fromkeys(chart.title for chart in self.folded))


def page(run: gb.Run, enclosure: gb.Enclosure | None = None) -> dict[str, Any]:
    """Return the content of the page of a run; with an enclosure it also holds the results for download.

    Without one (None), the page offers no download."""
    summary = gb.Summary(run)
    spreads = summary.spreads()
    room = room_for(spreads)
    drawn, blocks = _timeline.timelines(summary), Blocks(summary, room)
    by_topic = {topic: tuple(table for table in gb.tables(summary) if table.topic == topic) for topic in _TOPICS}
    all_notices = [
        *notices(summary, [spread.row for spread in spreads]),
        *([Notice("note", room.left_out)] if room.left_out else []),
    ]
    names = ", ".join(dict.fromkeys(device.name for device in summary.measured_devices)) or "no device"
    tables = blocks.tables()
    return {
        "title": ", ".join(part for part in (names, run.manifest.started[:10]) if part),
        "index": enclosure.index if enclosure else "",
        "head": head(summary),
        "notices": tuple(all_notices),
        "counts_by_level": counts_by_level(all_notices),
        "has_errors": any(notice.level == "error" for notice in all_notices),
        "suites": tuple(_suite(summary, name, table) for name, table in tables.items()),
        "waterfall": waterfall(summary),
        "phases": by_topic["phases"],
        "rooflines": tuple(_roofline.rooflines(summary)),
        "links": by_topic["links"],
        "soak": by_topic["soak"],
        "timelines": [
            (timeline, _fold(timeline.charts, 0 if index else _OPEN_CHARTS))
            for index, timeline in enumerate(drawn.devices)
        ],
        "zoom": _web.packed(drawn.zoom) if drawn.zoom else "",
        "thinned": drawn.thinned,
        "details": _web.packed(blocks.packed) if blocks.packed else "",
        "results": results(summary, enclosure) if enclosure else None,
        "environment": tuple(environment(run)),
        "environment_text": environment_text(run),
        "heads": heads(summary),
        "meanings": gb.frame.MEANINGS,
        "legend": legend_text(summary),
    }


def _suite(summary: gb.Summary, name: str, table: dict[str, Any]) -> dict[str, Any]:
    """Return the section of a suite."""
    info = summary.suite_infos.get(name)
    views = sorted(info.views if info else (), key=lambda view: _is_of_host(summary, name, view))
    return {
        "name": name,
        "anchor": suite_anchor(name),
        "summary": info.summary if info else "",
        "charts": _fold([chart for view in views for chart in draw(summary, name, view)], _OPEN_CHARTS),
        "table": table,
    }


def _is_of_host(summary: gb.Summary, suite: str, view: gb.View) -> bool:
    timed = {result.devices for result in summary.results_of(suite) if result.case.name in view.cases}
    used = {device for devices in timed for device in devices}
    return bool(used) and all(summary.device(device).backend == "host" for device in used)


def _fold(charts: Sequence[Chart], open_count: int) -> Fold:
    """Return the charts with the first `open_count` open, or a full one among these alone; the others folded away."""
    opened = tuple(charts[:open_count])
    opened = tuple(chart for chart in opened if chart.full)[:1] or opened
    return Fold(opened, tuple(chart for chart in charts if chart not in opened))


def draw(summary: gb.Summary, suite: str, view: gb.View) -> list[Chart]:
    """Return the charts of a view; an empty list if its kind is unknown or it has too few points."""
    kind = _DRAW.get(view.kind)
    return kind(summary, suite, view) if kind else []
