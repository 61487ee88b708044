"""A run as the page's template takes it: values in words, drawings as markup; the template only lays out."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpubench.api import (
    CounterTable,
    Row,
    Run,
    Spread,
    Staircase,
    Summary,
    Table,
    View,
    link_tables,
    staircases,
    units,
    view_points,
)

from ._cases import (
    CaseLine,
    CounterLine,
    ReplicateLine,
    SeriesLine,
    ShareLine,
    case_lines,
    counter_lines,
    heads,
    method_words,
    replicate_lines,
    series_lines,
    share_lines,
)
from ._charts import Chart, bars, curve, pareto
from ._matrix import matrix
from ._payoffs import breakeven
from ._room import Room, room_for
from ._staircase import staircase
from ._timeline import Timeline, timelines
from ._transfers import transfer
from ._words import (
    Notice,
    best_rows,
    case_namer,
    count_words,
    device_words,
    host_words,
    legend_words,
    measured,
    notices,
    share_words,
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
_MOST_ROWS = 24  # of one case in a table that is not folded


@dataclass(frozen=True, slots=True)
class Best:
    """A tile of the page's head: the best figure of a suite and limit."""

    what: str
    figure: str
    share: str
    case: str


@dataclass(frozen=True, slots=True)
class CaseBlock:
    """A case's line with all that is folded away beneath it; without a method there is nothing to open.

    Of several replicates the method and the counters are those of the one in `of`, in words.
    """

    line: CaseLine
    replicates: tuple[ReplicateLine, ...]
    series: tuple[SeriesLine, ...]
    shares: tuple[ShareLine, ...]
    method: tuple[tuple[str, str], ...]
    counters: tuple[CounterLine, ...]
    of: str


@dataclass(frozen=True, slots=True)
class CaseTable:
    """Some cases of a suite as one table, folded away where they are the many points of one case."""

    title: str
    folded: bool
    cases: tuple[CaseBlock, ...]


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
    best: tuple[Best, ...]
    notices: tuple[Notice, ...]
    suites: tuple[SuiteBlock, ...]
    links: tuple[Table, ...]
    timelines: tuple[Timeline, ...]
    environment: tuple[tuple[str, Pairs], ...]
    heads: tuple[str, ...]
    legend: str


def page(run: Run) -> Page:
    """The page of a run whose text is clean."""
    summary = Summary(run)
    table = summary.counters
    suites = summary.suites()
    rows = [spread.row for _, spreads in suites for spread in spreads]
    room = room_for([spread for _, spreads in suites for spread in spreads])
    devices = measured(summary)
    names = ", ".join(dict.fromkeys(device.name for device in devices)) or "no device"
    return Page(
        title=f"{names}: {count_words(summary)}",
        started=run.manifest.started,
        gpubench=run.manifest.gpubench,
        devices=tuple(map(device_words, devices)),
        host=host_words(summary),
        counts=tuple(summary.counts().items()),
        complete=run.complete,
        best=tuple(_tiles(rows, summary)),
        notices=(*notices(summary, rows), *([Notice("note", room.left_out)] if room.left_out else [])),
        suites=tuple(_suite(summary, table, room, name, group) for name, group in suites),
        links=tuple(link_tables(summary)),
        timelines=tuple(timelines(run, table)),
        environment=tuple(environment(run)),
        heads=heads(summary),
        legend=legend_words(summary),
    )


def _tiles(rows: Iterable[Row], summary: Summary) -> Iterable[Best]:
    """The best figure of each suite and limit; of a suite with a staircase, its levels instead of its least time."""
    name = case_namer(summary.run)
    ladders = {found.suite: found for found in reversed(staircases(summary))}
    told = set()
    for row in best_rows(rows):
        ladder = ladders.get(row.suite)
        if ladder and row.figure and row.figure.unit == ladder.steps[0].unit:
            if row.suite not in told:
                yield from _level_tiles(ladder)
            told.add(row.suite)
        elif row.figure:
            what = f"{row.suite} · {row.figure.limit}" if row.figure.limit else row.suite
            yield Best(what, row.figure.text, share_words(row.figure), name(row.result))


def _level_tiles(ladder: Staircase) -> Iterable[Best]:
    for number, step in enumerate(ladder.steps, 1):
        what = f"{ladder.suite} · {units.brief_size(step.smallest)} – {units.brief_size(step.largest)}"
        cycles = f"{units.significant(step.cycles)} cycles" if step.cycles is not None else ""
        level = f"level {number} of {len(ladder.steps)}: {ladder.title}"
        yield Best(what, step.text, cycles, level)


def _suite(summary: Summary, table: CounterTable, room: Room, name: str, spreads: list[Spread]) -> SuiteBlock:
    info = next((info for info in summary.run.manifest.suites if info.name == name), None)
    drawn = [(view, draw(summary, name, view)) for view in (info.views if info else ())]
    lines = case_lines([spread for spread in spreads if room.shows(spread)], summary)
    return SuiteBlock(
        name,
        info.summary if info else "",
        tuple(chart for _, charts in drawn for chart in charts),
        tuple((view.title, _absence(summary, name, view)) for view, charts in drawn if not charts),
        tuple(_case_tables(name, spreads, [_block(summary, table, room, line) for line in lines])),
    )


def _case_tables(suite: str, spreads: Sequence[Spread], blocks: Sequence[CaseBlock]) -> Iterator[CaseTable]:
    """One table of all cases, but a folded one for each case of many points; what is not ok is never folded away."""
    counts = Tally(spread.case.name for spread in spreads if spread.status in ("ok", "skipped"))
    many = {name: count for name, count in counts.items() if count > _MOST_ROWS}
    folded = {name: [block for block in blocks if _is_point(block, name)] for name in many}
    hidden = {id(block) for group in folded.values() for block in group}
    rest = tuple(block for block in blocks if id(block) not in hidden)
    if rest:
        count = _count_words(len(rest), len(spreads) - sum(many.values()))
        yield CaseTable(f"{count} of {suite}; open one for its other series, its method and its counters", False, rest)
    for name, group in folded.items():
        yield CaseTable(f"{name}: {_count_words(len(group), many[name])}", True, tuple(group))


def _count_words(shown: int, total: int) -> str:
    if shown < total:
        return f"{shown} of {total} cases"
    return "1 case" if total == 1 else f"{total} cases"


def _is_point(block: CaseBlock, name: str) -> bool:
    return block.line.name == name and block.line.status in ("ok", "skipped")


def draw(summary: Summary, suite: str, view: View) -> list[Chart]:
    """The charts of a view; none where its kind is unknown or nothing was measured for it."""
    kind = _DRAW.get(view.kind)
    return kind(summary, suite, view) if kind else []


def _absence(summary: Summary, suite: str, view: View) -> str:
    if view.kind in ("curve", "staircase", "transfer") and view_points(summary, suite, view, view.series):
        return "measured at too few places of its axis: see the table"
    return "nothing measured for this view"


def _block(summary: Summary, table: CounterTable, room: Room, line: CaseLine) -> CaseBlock:
    if not room.opens(line.spread):
        return CaseBlock(line, (), (), (), (), (), "")
    result = line.spread.row.result
    return CaseBlock(
        line,
        tuple(replicate_lines(line.spread)) if summary.replicated else (),
        tuple(series_lines(summary, line.spread)),
        tuple(share_lines(line.spread)),
        tuple(method_words(summary, result)),
        tuple(counter_lines(table, result)),
        f" (replicate {result.replicate})" if summary.replicated else "",
    )


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
