"""A run as GitHub Markdown: for a pull request, an issue or a wiki."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpubench.api import Report, Row, Run, Spread, Summary, derived_tables

from ._cases import CaseLine, case_lines, heads
from ._clean import tidy
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

_MARKS = re.compile(
    r"([`*_\[\]~$]|^[#+=-])"
)  # what Markdown may read as more than itself, at a line's start or anywhere
# As entities: HTML, and what parsers of tables disagree on (`\|` and `\\|` split cells in some).
_ENTITIES = {ord(mark): f"&#{ord(mark)};" for mark in "\\|"} | {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;"}


@dataclass(frozen=True, slots=True)
class MarkdownReport:
    """Writes headings and tables; every text of the run is escaped."""

    summary: str = "GitHub Markdown, for a pull request or an issue"

    def render(self, run: Run) -> str:
        """The document, with a newline at its end."""
        clean = tidy(run)
        summary = Summary(clean)
        suites = summary.suites()
        rows = [spread.row for _, spreads in suites for spread in spreads]
        parts = [*_head(summary), *_best(rows, clean), *_notices(notices(summary, rows))]
        for name, spreads in suites:
            parts += _suite(name, spreads, summary)
        parts += [*_environment(clean), f"\n{legend_words(summary)}"]
        return "\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Text that shows as itself, in a table's cell too."""
    return _MARKS.sub(r"\\\1", text.strip().translate(_ENTITIES))


def code(text: str) -> str:
    """Text as a code span; escaped text where it holds what would end the span or the cell."""
    return escape(text) if not text or set(text) & set("`|") else f"`{text}`"


def _head(summary: Summary) -> Iterator[str]:
    manifest = summary.run.manifest
    names = ", ".join(dict.fromkeys(device.name for device in measured(summary))) or "no device"
    yield f"# gpubench: {escape(names)}"
    yield ""
    yield f"{count_words(summary)}; started {escape(manifest.started)}; gpubench {escape(manifest.gpubench)}"
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
            f"- {'**' if notice.level == 'bad' else ''}{escape(notice.text)}{'**' if notice.level == 'bad' else ''}"
            + (f": {cases}" if cases else "")
        )


def _suite(name: str, spreads: list[Spread], summary: Summary) -> Iterator[str]:
    sentence = next((info.summary for info in summary.run.manifest.suites if info.name == name), "")
    yield f"\n## {escape(name)}\n"
    if sentence:
        yield f"{escape(sentence)}\n"
    yield from _table(("case", *heads(summary), "status"), map(_cells, case_lines(spreads, summary)))
    for found in derived_tables(summary, name):
        yield f"\n### {escape(found.title)}\n"
        yield from _table(found.heads, (tuple(map(escape, row)) for row in found.rows))
        if found.note:
            yield f"\n{escape(found.note)}"


def _cells(line: CaseLine) -> tuple[str, ...]:
    case = code(line.name + (f"[{line.axes}]" if line.axes else ""))
    status = line.ended + (f" ({', '.join(line.labels)})" if line.labels else "")
    status += f": {line.reason}" if line.reason else ""
    return (" ".join([case, *map(escape, line.tags)]), *map(escape, line.figures), escape(status))


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
