"""Write a run as GitHub Markdown, short enough for a comment: the answer first, then the cases, the worst first."""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpubench.api import report as gb

from . import _page, _texts
from ._blocks import figure_cells, heads, reason_text
from ._sides import Cell, FindingRow, Judged, Row, Side, Sides, side_by_side
from ._web import MOST_BYTES, clipped, cut, table

_MOST_SUSPECTS, _MOST_LINES, _MOST_KEY_LINES = 15, 6, 3
_WHOLE = "a report with `-o fleet.html` or `-o fleet.json` lists them all"


def fleet_markdown(judgement: gb.FleetJudgement) -> str:
    """Return the Markdown document, which ends with a newline."""
    lines = [
        f"# {gb.escape(clipped(gb.fleet_text.devices_text(judgement)))}",
        "",
        f"**{gb.escape(clipped(gb.fleet_text.fleet_answer(judgement)))}**",
        "",
        *_key_lines(judgement),
        *_suspects(judgement.suspects),
        *_medians(judgement),
        *_section("Nodes that did not answer", gb.fleet_text.missing_node_lines(judgement)),
        *_section("Notes", judgement.notes),
    ]
    return "\n".join(lines) + "\n"


def _key_lines(judgement: gb.FleetJudgement) -> Iterator[str]:
    if judgement.is_judged:
        yield f"- Compared with {gb.fleet_text.compared_with(judgement)}."
    if detectable := gb.fleet_text.detectable_text(judgement):
        yield f"- Smallest detectable slowdown: {gb.escape(clipped(detectable))}."
    answered = len(judgement.fleet.nodes) - len(judgement.missing_nodes)
    yield f"- {answered} of {len(judgement.fleet.nodes)} nodes answered."
    sick = [f"{standing.place.text}: {standing.sick[0]}" for standing in judgement.sick]
    yield from (f"- **sick:** {gb.escape(clipped(line))}" for line in sick[:_MOST_KEY_LINES])
    failures = [gb.fleet_text.failure_text(failure) for failure in judgement.failures]
    yield from (f"- **failed:** {gb.escape(clipped(line))}" for line in failures[:_MOST_KEY_LINES])
    odd = gb.fleet_text.setting_sentences(judgement)[:1] + gb.fleet_text.fast_sentences(judgement)[:1]
    for line in odd + gb.fleet_text.population_sentences(judgement)[:_MOST_KEY_LINES]:
        yield f"- {gb.escape(clipped(line))}"
    for line in gb.fleet_text.next_steps_text(judgement):
        yield f"- **next:** {gb.escape(clipped(line))}"


def _suspects(suspects: Sequence[gb.Suspect]) -> Iterator[str]:
    if not suspects:
        return
    yield from ("", "## Suspects", "")
    heads = ("kind", "place", "family", "slowest case", "slowdown", "detectable", "state", "cause")
    yield from table(heads, map(_fleet_cells, suspects[:_MOST_SUSPECTS]))
    if (rest := len(suspects) - _MOST_SUSPECTS) > 0:
        yield from ("", f"{rest} more suspects: {_WHOLE}.")


def _medians(judgement: gb.FleetJudgement) -> Iterator[str]:
    for medians in itertools.islice(gb.fleet_text.medians_tables(judgement), 1):
        yield from ("", f"## {medians.title.capitalize()}", "")
        most = max(_MOST_SUSPECTS - len(judgement.suspects), _MOST_KEY_LINES - 1)
        rows = [(gb.code(clipped(case)), *map(gb.escape, cells)) for case, *cells in medians.rows[:most]]
        yield from table([gb.escape(clipped(head)) for head in medians.heads], rows)


def _fleet_cells(suspect: gb.Suspect) -> tuple[str, ...]:
    worst = suspect.findings[0]
    state = gb.fleet_text.STATES[suspect.state]
    return (
        suspect.unit,
        gb.escape(clipped(suspect.name)),
        gb.escape(clipped(worst.family)),
        gb.code(clipped(worst.case)) if worst.case else "all together",
        gb.units.percent(worst.slowdown),
        gb.units.percent(worst.detectable),
        f"**{state}**" if suspect.state == "confirmed" else state,
        gb.escape(clipped(gb.fleet_text.causes_text(suspect))),
    )


def _section(title: str, lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a section that lists at most six of `lines` and counts the others."""
    if not lines:
        return
    yield from ("", f"## {title}", "")
    yield from (f"- {gb.escape(clipped(line))}" for line in lines[:_MOST_LINES])
    if (rest := len(lines) - _MOST_LINES) > 0:
        yield f"- and {rest} more: {_WHOLE}"


_MOST_DIFFERENCES = 30
_HEAD_BYTES = 300  # bytes for the head of a table and the sentence about the rows that are left out


def sides_markdown(page: Sides) -> str:
    """Return the Markdown, which ends with a newline and has at most 65 536 bytes, as a comment may have.

    Findings that do not fit are counted; of runs that are not judged, lines at the end are left out."""
    room = MOST_BYTES - len(_sides_text(page, [() for _ in page.judged]).encode()) - _HEAD_BYTES * len(page.judged)
    share = room // max(len(page.judged), 1)
    return cut(_sides_text(page, [_fitting(judged.notable, share) for judged in page.judged]))


def _fitting(rows: Sequence[FindingRow], room_bytes: int) -> Sequence[FindingRow]:
    """Return the first rows, the worst ones, that fit into `room_bytes`."""
    for index, row in enumerate(rows):
        room_bytes -= len(_finding_line(row).encode()) + 1
        if room_bytes < 0:
            return rows[:index]
    return rows


def _sides_text(page: Sides, listed: Sequence[Sequence[FindingRow]]) -> str:
    """Return the document with the findings `listed` for each judged run."""
    letters = [side.letter for side in page.sides]
    parts = [f"# {gb.escape(page.title)}", ""]
    for judged in page.judged:
        parts += _answer(judged)
    parts += table(("run", "name", "devices", "conditions", "trust"), map(_side_cells, page.sides))
    if page.key_figures:
        parts += ["\n## Key figures\n", *table(("key figure", *letters), map(_row, page.key_figures))]
    if page.key_figures or not page.judged:
        parts += [f"\n{gb.escape(page.note)}"]
    parts += _environment(page, letters)
    for judged, rows in zip(page.judged, listed, strict=True):
        parts += _findings(judged, rows)
    for name, _, cases in page.suites if not page.judged else ():
        parts += [f"\n## {gb.escape(name)}\n", *table(("case", *letters), map(_row, cases))]
    return "\n".join(parts) + "\n"


def _side_cells(side: Side) -> tuple[str, ...]:
    trust = "; ".join(filter(None, (side.trust, *side.limitations)))
    name = side.name if side.name != side.letter else ""
    cells = (side.letter, name, "; ".join(side.devices), " · ".join(side.conditions), trust)
    return tuple(map(gb.escape, cells))


def _answer(judged: Judged) -> Iterator[str]:
    yield f"**{gb.escape(judged.answer.verdict)}**\n"
    yield from (f"- {gb.escape(clipped(reason))}" for reason in judged.reasons)
    for step in judged.answer.next_steps:
        command = f": {gb.code(clipped(step.command))}" if step.command else ""
        yield f"- **next:** {gb.escape(clipped(step.text))}{command}"
    yield ""


def _environment(page: Sides, letters: Sequence[str]) -> Iterator[str]:
    yield "\n## Environment\n"
    if not page.differences:
        yield "No known environment differences."
        return
    shown_differences = page.differences[:_MOST_DIFFERENCES]
    rows = (
        (gb.escape(difference.name), *(gb.escape(clipped(value)) or "–" for value in difference.values))
        for difference in shown_differences
    )
    yield from table(("environment", *letters), rows)
    if (more := len(page.differences) - len(shown_differences)) > 0:
        yield f"\nand {more} more"


def _row(row: Row) -> Sequence[str]:
    name = f"{gb.code(row.title) if row.anchor else gb.escape(row.title)} {gb.escape(row.device)}".rstrip()
    return (name, *map(_cell, row.cells))


def _cell(cell: Cell) -> str:
    change = f" ({cell.change})" if cell.change else ""
    parts = (f"**{gb.escape(cell.text)}**{change}" if cell.text else "", cell.verdict, gb.escape(cell.note))
    return ", ".join(part for part in parts if part) or "–"


def _findings(judged: Judged, rows: Sequence[FindingRow]) -> Iterator[str]:
    yield f"\n## {judged.side.letter} against A: {gb.escape(judged.tally)}\n"
    if judged.means:
        lines = ((gb.escape(mean.suite), gb.escape(mean.text), mean.counts) for mean, _ in judged.means)
        yield from table(("suite", "geometric mean", "cases"), lines)
        yield ""
    if rows:
        heads = ("verdict", "case", "A", judged.side.letter, "change", "95 % interval", "threshold", "reason")
        yield from table(heads, ())
        yield from map(_finding_line, rows)
    if left := len(judged.notable) + len(judged.same) + judged.left_out - len(rows):
        yield f"\n{left} {'more' if rows else 'cases'}, none worse; a `.html` or `.json` report lists them all."


def _finding_line(row: FindingRow) -> str:
    """Return a finding as a line of a Markdown table; verdicts that are bad or a warning are bold."""
    texts = row.cells
    case = " ".join([gb.code(row.finding.case.id), *([gb.escape(row.device)] if row.device else [])])
    verdict = f"**{texts.verdict}**" if row.style in ("bad", "warning") else texts.verdict
    cells = (texts.before, texts.after, texts.change, texts.interval, texts.threshold, clipped(row.explanation))
    return f"| {' | '.join((verdict, case, *map(gb.escape, cells)))} |"


_FULL = "The length of a comment is limited; to see every case, write a .html or .csv file with `gpubench report`"
_NOTICES = 12  # the most notices if room is short; the worst come first
_RANKS = ("failed", "invalid", "ok", "skipped")


@dataclass(frozen=True, slots=True)
class MarkdownReport:
    """Writes headings and tables; every text of the run is escaped."""

    summary: str = "GitHub Markdown, for a pull request or an issue"

    def render(self, run: gb.Run) -> str:
        """Return the run as a Markdown document that ends with a newline and has at most 65 536 bytes.

        If the whole document is longer, the rows of the best cases and some tables are left out, and a sentence says
        so."""
        summary = gb.Summary(run)
        suites = [_Suite(suite, summary) for suite in gb.listing(summary)]
        suites.sort(key=lambda suite: min(map(_rank, suite.lines)))
        head = list(_head_lines(gb.overview(summary), summary.interval_name))
        notices = _texts.notices(summary, [line.spread.row for suite in suites for line in suite.lines])
        end = [*_environment_lines(summary.run), "", *_clauses(_texts.legend_text(summary))]
        derived = [line for table in gb.tables(summary) for line in _derived_lines("##", table)]
        whole = _document([*head, *_notice_lines(notices)], suites, None, [*derived, *end])
        if len(whole.encode()) <= MOST_BYTES:
            return whole
        heads_bytes = sum(len("\n".join(_heading_lines(suite)).encode()) + 1 for suite in suites)
        head += _notice_lines(notices[:_NOTICES])
        room = MOST_BYTES - len(_document(head, suites, frozenset(), end).encode()) - heads_bytes
        return cut(_document(head, suites, _fitting_rows(suites, room), end))

    def compare(self, comparison: gb.Comparison) -> str:
        """Return several runs side by side, as Markdown that ends with a newline and fits a comment."""
        return sides_markdown(side_by_side(comparison))

    def fleet(self, judgement: gb.FleetJudgement) -> str:
        """Return the judgement of a fleet as Markdown of at most 60 lines."""
        return fleet_markdown(judgement)


class _Suite:
    """The section of a suite: its cases in `lines`, the worst first, each also as a row of the table in `rows`.

    `heads` are the heads of the table, and `derived` the tables of figures that are derived from the suite's views."""

    def __init__(self, suite: gb.ListedSuite, summary: gb.Summary) -> None:
        self.name, self.constants, self.summary = suite.name, suite.constants, summary
        self.leading = list(_key_figures(suite.leading, suite.interval_name)) if suite.leading else []
        self.lines = sorted(suite.cases, key=_rank)
        beside = {
            id(line): _texts.secondary_text(summary.secondary_figures(line.spread)) if line.median else ""
            for line in self.lines
        }
        has_more = any(beside.values())
        has_roof = any(line.shares[-1] for line in self.lines)
        self.heads = ("case", *heads(summary, has_roof), *(("also",) if has_more else ()), "state")
        also = [(gb.escape(beside[id(line)]),) if has_more else () for line in self.lines]
        self.rows = [
            f"| {' | '.join(_cells(line, has_roof, more))} |" for line, more in zip(self.lines, also, strict=True)
        ]
        self.derived = gb.tables(summary, suite.name)


def _rank(line: gb.ListedCase) -> int:
    return _RANKS.index(line.spread.status)


def _fitting_rows(suites: Sequence[_Suite], room_bytes: int) -> frozenset[str]:
    """Return the rows of tables that fit into `room_bytes`."""
    fitting: set[str] = set()
    pairs = [(_rank(line), row) for suite in suites for line, row in zip(suite.lines, suite.rows, strict=True)]
    for _, row in sorted(pairs, key=lambda pair: pair[0]):
        room_bytes -= len(row.encode()) + 1
        if room_bytes < 0:
            break
        fitting.add(row)
    return frozenset(fitting)


def _document(head: Sequence[str], suites: Sequence[_Suite], kept: frozenset[str] | None, end: Sequence[str]) -> str:
    """Return the whole document, or for a `kept` that is not None a shorter one with only the rows in `kept`."""
    parts = list(head)
    if kept is not None:
        left_out = sum(row not in kept for suite in suites for row in suite.rows)
        count = sum(len(suite.rows) for suite in suites)
        parts.append(f"\n> {left_out} of {count} cases are left out; the worst cases are kept. {_FULL}")
    for suite in suites:
        parts += _suite_section(suite, kept)
    return "\n".join([*parts, *end]) + "\n"


def _head_lines(run_overview: gb.Overview, interval_name: str) -> Iterator[str]:
    """Yield the head of the document in parts that newlines join."""
    yield f"# gpubench: {gb.escape('; '.join(run_overview.devices) or 'no device')}\n"
    yield gb.escape(" · ".join(run_overview.conditions))
    if run_overview.values:
        yield ""
        yield from _key_figures(run_overview.values, interval_name, grouped=True)
        if note := _texts.key_note(run_overview):
            yield from ("", *_clauses(gb.escape(note)))
    yield f"\n**{gb.escape(_texts.trust_text(run_overview))}**"
    if run_overview.notes:
        yield ""
    yield from (f"- {gb.escape(sentence)}" for sentence in run_overview.notes)
    if run_overview.suites:
        yield ""
        lines = (
            (line.name, line.summary, line.ended, _texts.seconds_text(line.seconds)) for line in run_overview.suites
        )
        yield from table(
            ("suite", "what it measures", "cases", "time"), (tuple(map(gb.escape, line)) for line in lines)
        )


def _key_figures(values: Sequence[gb.KeyValue], interval_name: str, grouped: bool = False) -> Iterator[str]:
    """Yield the table of key figures in parts that newlines join; an unneeded column is left out."""
    cells = list(map(_key_cells, values))
    several = len({value.devices[:1] for value in values}) > 1
    device, group = "device" if several else "", "group" if grouped else ""
    heads = (group, "key figure", device, "median", interval_name, "better", "of data sheet", "of expected")
    needed = [column for column, head in enumerate(heads) if head and any(row[column] for row in cells)]
    yield from table([heads[column] for column in needed], ([row[column] for column in needed] for row in cells))


def _key_cells(value: gb.KeyValue) -> tuple[str, ...]:
    reached = _texts.share_text(value.of_expected)
    return (
        gb.escape(value.group),
        gb.escape(value.title),
        gb.escape("+".join(value.devices)),
        f"**{gb.escape(value.figure.text)}**",
        value.figure.half_width_text,
        value.figure.better,
        _texts.share_text(value.of_spec),
        f"**{reached}**" if value.is_below_expectation else reached,
    )


def _notice_lines(shown_notices: Sequence[_texts.Notice]) -> Iterator[str]:
    if shown_notices:
        yield "\n## Warnings and notes\n"
    for notice in shown_notices:
        cases = ", ".join(map(gb.code, notice.cases)) + (f" and {notice.more} more" if notice.more else "")
        yield (
            f"- {'**' if notice.level == 'error' else ''}{gb.escape(clipped(notice.text))}"
            + ("**" if notice.level == "error" else "")
            + (f": {cases}" if cases else "")
        )


def _clauses(text: str) -> list[str]:
    """Return the lines of a paragraph, one for each sentence or clause of an escaped text."""
    return re.split(r"(?<=[.;]) ", text)


def _heading_lines(suite: _Suite, has_rows: bool = True) -> Iterator[str]:
    info = suite.summary.suite_infos.get(suite.name)
    sentence = info.summary if info else ""
    yield f"\n## {gb.escape(suite.name)}\n"
    if sentence:
        yield f"{gb.escape(sentence)}\n"
    if suite.leading:
        yield "\n".join([*suite.leading, ""])
    if suite.constants and has_rows:
        yield from (*_clauses(f"Constant, and left out of the names: {gb.escape(suite.constants)}."), "")
    yield from table(suite.heads, ()) if has_rows else ()


def _suite_section(suite: _Suite, kept: frozenset[str] | None) -> Iterator[str]:
    rows = suite.rows if kept is None else [row for row in suite.rows if row in kept]
    if rows or suite.leading:
        yield from _heading_lines(suite, bool(rows))
    yield from rows
    for derived_table in suite.derived:
        yield from _derived_lines("###", derived_table)


def _derived_lines(level: str, derived_table: gb.Table) -> Iterator[str]:
    yield f"\n{level} {gb.escape(derived_table.title)}\n"
    yield from table(
        tuple(map(gb.escape, derived_table.heads)), (tuple(map(gb.escape, row)) for row in derived_table.rows)
    )
    if derived_table.note:
        yield from ("", *_clauses(gb.escape(derived_table.note)))


def _cells(line: gb.ListedCase, has_roof: bool, also: tuple[str, ...]) -> tuple[str, ...]:
    """Return the cells of a case, escaped for Markdown, for the columns of `_Suite.heads`."""
    reason = reason_text(line.spread)
    state = (line.ended or line.spread.status) + (f": {clipped(reason)}" if reason else "")
    device = [gb.escape(line.device)] if line.device else []
    return (
        " ".join([gb.code(line.name), *device]),
        *map(gb.escape, figure_cells(line, has_roof)),
        *also,
        gb.escape(state),
    )


def _environment_lines(run: gb.Run) -> Iterator[str]:
    yield "\n## Environment\n"
    facts = [(group.title, name, text) for group in _page.environment(run) for name, text in group.facts if text]
    yield from table(("group", "property", "value"), (tuple(map(gb.escape, line)) for line in facts))


report = MarkdownReport()
