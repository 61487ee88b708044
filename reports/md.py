"""A run as GitHub Markdown, short enough for a comment: the worst first, and first to stay where room is short."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpubench.api.report import (
    Comparison,
    ComparisonReport,
    Row,
    Run,
    Spread,
    Summary,
    Table,
    code,
    derived_tables,
    escape,
    link_tables,
    phase_tables,
)

from ._cases import CaseLine, case_lines, heads
from ._compare_md import compare_markdown
from ._markdown import MOST_BYTES, clipped, cut, table
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

_FULL = "a comment holds no more; `gpubench report` writes all of them as .html or .csv"
_NOTICES = 12  # that stay where room is short: the worst come first
_RANKS = ("failed", "invalid", "ok", "skipped")


@dataclass(frozen=True, slots=True)
class MarkdownReport:
    """Writes headings and tables; every text of the run is escaped."""

    summary: str = "GitHub Markdown, for a pull request or an issue"

    def render(self, run: Run) -> str:
        """The document, with a newline at its end."""
        summary = Summary(run)
        suites = [_Suite(name, summary, spreads) for name, spreads in summary.suites()]
        suites.sort(key=lambda suite: min(map(_rank, suite.lines)))
        whole = _document(summary, suites, None)
        if len(whole.encode()) <= MOST_BYTES:
            return whole
        heads_bytes = sum(len("\n".join(_heading(suite)).encode()) + 1 for suite in suites)
        room = MOST_BYTES - len(_document(summary, suites, frozenset()).encode()) - heads_bytes
        return cut(_document(summary, suites, _kept(suites, room)))

    def compare(self, comparison: Comparison) -> str:
        """Runs side by side, with a newline at its end."""
        return compare_markdown(comparison)


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
    for shown in (*phase_tables(summary), *link_tables(summary)) if kept is None else ():
        parts += _derived("##", shown)
    parts += [*_environment(summary.run), f"\n{legend_words(summary)}"]
    return "\n".join(parts) + "\n"


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
        yield from table(
            ("suite", "best", "share of peak", "case"),
            (
                (
                    escape(row.suite),
                    f"**{escape(row.figure.text)}**",
                    escape(share_words(row)),
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
            f"- {'**' if notice.level == 'bad' else ''}{escape(clipped(notice.text))}"
            + ("**" if notice.level == "bad" else "")
            + (f": {cases}" if cases else "")
        )


def _heading(suite: _Suite) -> Iterator[str]:
    sentence = next((info.summary for info in suite.summary.run.manifest.suites if info.name == suite.name), "")
    yield f"\n## {escape(suite.name)}\n"
    if sentence:
        yield f"{escape(sentence)}\n"
    yield from table(suite.heads, ())


def _suite(suite: _Suite, kept: frozenset[str] | None) -> Iterator[str]:
    rows = suite.rows if kept is None else [row for row in suite.rows if row in kept]
    if rows:
        yield from _heading(suite)
        yield from rows
    for found in suite.derived:
        yield from _derived("###", found)


def _derived(level: str, found: Table) -> Iterator[str]:
    yield f"\n{level} {escape(found.title)}\n"
    yield from table(tuple(map(escape, found.heads)), (tuple(map(escape, row)) for row in found.rows))
    if found.note:
        yield f"\n{escape(found.note)}"


def _cells(line: CaseLine, more: bool) -> tuple[str, ...]:
    case = code(line.name + (f"[{line.axes}]" if line.axes else ""))
    status = line.ended + (f" ({', '.join(line.labels)})" if line.labels else "")
    status += f": {clipped(line.reason)}" if line.reason else ""
    also = (escape(line.beside),) if more else ()
    return (" ".join([case, *map(escape, line.tags)]), *map(escape, line.figures), *also, escape(status))


def _environment(run: Run) -> Iterator[str]:
    facts = run.manifest.facts
    found = [*(("device", device_words(device)) for device in facts.devices), *facts.host, *facts.versions]
    found += [(absent.what, f"not usable here: {absent.reason}; {absent.how}") for absent in facts.absent]
    found += [("command", " ".join(run.manifest.argv)), ("schema", run.manifest.schema)]
    yield "\n## Environment\n"
    yield from table(("what", "is"), ((escape(name), escape(words)) for name, words in found))


report: ComparisonReport = MarkdownReport()
