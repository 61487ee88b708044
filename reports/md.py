"""A run as GitHub Markdown, short enough for a comment: the worst first, and first to stay where room is short."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpubench.api import Report, Row, Run, Spread, Summary, derived_tables, tidy

from ._cases import CaseLine, case_lines, heads
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

MOST_BYTES = 65_536  # GitHub refuses a longer comment: "maximum is 65536 characters"
_MARKS = re.compile(
    r"([`*_\[\]~$]|^[#+=-])"
)  # what Markdown may read as more than itself, at a line's start or anywhere
# As entities: HTML, what parsers of tables disagree on (`\|` and `\\|` split cells in some), and what notifies people.
_ENTITIES = {ord(mark): f"&#{ord(mark)};" for mark in "\\|@"} | {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;"}
_LINK = re.compile(r":(?=//)|(?<=www)\.", re.IGNORECASE)  # what GitHub makes a link of by itself
_FULL = "a comment holds no more; `gpubench report` writes all of them as .html or .csv"
_NOTICES = 12  # that stay where room is short: the worst come first
_CLIPPED = 400  # characters of a reason: a traceback is in the page
_RANKS = ("failed", "invalid", "ok", "skipped")


@dataclass(frozen=True, slots=True)
class MarkdownReport:
    """Writes headings and tables; every text of the run is escaped."""

    summary: str = "GitHub Markdown, for a pull request or an issue"

    def render(self, run: Run) -> str:
        """The document, with a newline at its end."""
        summary = Summary(tidy(run))
        suites = [_Suite(name, summary, spreads) for name, spreads in summary.suites()]
        suites.sort(key=lambda suite: min(map(_rank, suite.lines)))
        whole = _document(summary, suites, None)
        if len(whole.encode()) <= MOST_BYTES:
            return whole
        heads_bytes = sum(len("\n".join(_heading(suite)).encode()) + 1 for suite in suites)
        room = MOST_BYTES - len(_document(summary, suites, frozenset()).encode()) - heads_bytes
        return _cut(_document(summary, suites, _kept(suites, room)))


class _Suite:
    """A suite's cases as lines, the worst first, each written as a row once."""

    def __init__(self, name: str, summary: Summary, spreads: list[Spread]) -> None:
        self.name, self.summary, self.spreads = name, summary, spreads
        self.lines = sorted(case_lines(spreads, summary), key=_rank)
        more = any(line.beside for line in self.lines)
        self.heads = ("case", *heads(summary), *(("also",) if more else ()), "status")
        self.rows = [f"| {' | '.join(_cells(line, more))} |" for line in self.lines]
        self.derived = derived_tables(summary, name)


def _rank(line: CaseLine) -> int:
    return _RANKS.index(line.status)


def _kept(suites: Sequence[_Suite], room_bytes: int) -> frozenset[str]:
    """The rows that fit, the worst of all suites first."""
    kept: set[str] = set()
    pairs = [(_rank(line), row) for suite in suites for line, row in zip(suite.lines, suite.rows, strict=True)]
    for _, row in sorted(pairs, key=lambda pair: pair[0]):
        room_bytes -= len(row.encode()) + 1
        if room_bytes < 0:
            break
        kept.add(row)
    return frozenset(kept)


def _cut(text: str) -> str:
    """A document whose head alone is too long, as far as whole lines of it fit."""
    data = text.encode()
    return text if len(data) <= MOST_BYTES else data[: data.rfind(b"\n", 0, MOST_BYTES) + 1].decode()


def _document(summary: Summary, suites: Sequence[_Suite], kept: frozenset[str] | None) -> str:
    """The document with these rows of its tables of cases, with all of them where `kept` is None."""
    rows = [spread.row for suite in suites for spread in suite.spreads]
    found = notices(summary, rows)
    parts = [*_head(summary), *_notices(found if kept is None else found[:_NOTICES]), *_best(rows, summary.run)]
    if kept is not None:
        out = sum(row not in kept for suite in suites for row in suite.rows)
        parts.append(f"\n> {out} of {len(rows)} cases are left out, the worst of all being kept: {_FULL}")
    for suite in suites:
        parts += _suite(suite, kept)
    parts += [*_environment(summary.run), f"\n{legend_words(summary)}"]
    return "\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Text that shows as itself, in a table's cell too, and notifies nobody."""
    marked = _MARKS.sub(r"\\\1", text.strip().translate(_ENTITIES))
    return _LINK.sub(lambda found: f"&#{ord(found[0])};", marked)


def code(text: str) -> str:
    """Text as a code span; escaped text where it holds what would end the span or the cell."""
    return escape(text) if not text or set(text) & set("`|") else f"`{text}`"


def _head(summary: Summary) -> Iterator[str]:
    manifest = summary.run.manifest
    names = ", ".join(dict.fromkeys(device.name for device in measured(summary))) or "no device"
    yield f"# gpubench: {escape(names)}"
    yield ""
    started = f"started {escape(manifest.started)}; " if manifest.started else ""
    yield f"{count_words(summary)}; {started}gpubench {escape(manifest.gpubench)}"
    if host := host_words(summary):
        yield f"\n> **Host processor.** {escape(host)}"


def _best(rows: Sequence[Row], run: Run) -> Iterator[str]:
    name = case_namer(run)
    best = [row for row in best_rows(rows) if row.figure]
    if best:
        yield "\n## Best figures\n"
        yield from _table(
            ("suite", "best", "share of peak", "case"),
            (
                (
                    escape(row.suite),
                    f"**{escape(row.figure.text)}**",
                    escape(share_words(row.figure)),
                    code(name(row.result)),
                )
                for row in best
                if row.figure
            ),
        )


def _notices(found: Sequence[Notice]) -> Iterator[str]:
    if found:
        yield "\n## Worth knowing\n"
    for notice in found:
        cases = ", ".join(map(code, notice.cases)) + (f" and {notice.more} more" if notice.more else "")
        yield (
            f"- {'**' if notice.level == 'bad' else ''}{escape(_clipped(notice.text))}"
            + ("**" if notice.level == "bad" else "")
            + (f": {cases}" if cases else "")
        )


def _heading(suite: _Suite) -> Iterator[str]:
    sentence = next((info.summary for info in suite.summary.run.manifest.suites if info.name == suite.name), "")
    yield f"\n## {escape(suite.name)}\n"
    if sentence:
        yield f"{escape(sentence)}\n"
    yield from _table(suite.heads, ())


def _suite(suite: _Suite, kept: frozenset[str] | None) -> Iterator[str]:
    rows = suite.rows if kept is None else [row for row in suite.rows if row in kept]
    if rows:
        yield from _heading(suite)
        yield from rows
    for found in suite.derived:
        yield f"\n### {escape(found.title)}\n"
        yield from _table(found.heads, (tuple(map(escape, row)) for row in found.rows))
        if found.note:
            yield f"\n{escape(found.note)}"


def _cells(line: CaseLine, more: bool) -> tuple[str, ...]:
    case = code(line.name + (f"[{line.axes}]" if line.axes else ""))
    status = line.ended + (f" ({', '.join(line.labels)})" if line.labels else "")
    status += f": {_clipped(line.reason)}" if line.reason else ""
    also = (escape(line.beside),) if more else ()
    return (" ".join([case, *map(escape, line.tags)]), *map(escape, line.figures), *also, escape(status))


def _clipped(text: str) -> str:
    return text if len(text) <= _CLIPPED else f"{text[:_CLIPPED]}…"


def _environment(run: Run) -> Iterator[str]:
    facts = run.manifest.facts
    found = [*(("device", device_words(device)) for device in facts.devices), *facts.host, *facts.versions]
    found += [(absent.what, f"not usable here: {absent.reason}; {absent.how}") for absent in facts.absent]
    found += [("command", " ".join(run.manifest.argv)), ("schema", run.manifest.schema)]
    yield "\n## Environment\n"
    yield from _table(("what", "is"), ((escape(name), escape(words)) for name, words in found))


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


report: Report = MarkdownReport()
