"""Judged cases in the terminal: the verdict first, then why, then what to do next, then the cases, the worst first."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from gpubench.base.clean import one_line
from gpubench.cli import _print
from gpubench.cli._layout import NamedRow, named_rows
from gpubench.judging.answer import AB, PASSING, Answer, NextStep
from gpubench.judging.judge import Finding, Judgement
from gpubench.judging.words import HEADS, MISSING, finding_words, name, plural

Part = Table | Text
_STYLES = {"slower": "bold red", "invalid": "yellow", "not comparable": "yellow", "faster": "cyan", "same": "green"}
_ENDS = {1: "red", 3: "red", 4: "yellow"}  # by exit status
_MOST_ROWS = 60  # more are counted
_WIDE = ("processes", "q")


def answered(judgement: Judgement, found: Answer, every: bool = False, wide: bool = False) -> list[Part]:
    """Return the verdict, why, what to do next, and the cases, the worst first; those that pass only with `every`."""
    parts = said(found.verdict, found.why, found.next_steps, _ENDS.get(found.status, ""))
    passing = PASSING[:1] if found.title == AB else PASSING  # who measures two builds asks what became faster too
    shown = [finding for finding in judgement.findings if every or finding.verdict not in passing]
    hidden = len(judgement.findings) - len(shown)
    notes = [f"not listed: {plural(hidden, 'passing case')}; --all lists them"] if hidden else []
    return [*parts, *listed(shown, HEADS[2:4], every, wide), *(_print.plain(note, "dim") for note in notes)]


def listed(findings: Sequence[Finding], sides: Sequence[str], every: bool, wide: bool) -> list[Part]:
    """Return the table of the cases, of many the worst, and how many there are more."""
    shown = findings if every else findings[:_MOST_ROWS]
    rest = len(findings) - len(shown)
    note = f"not listed: {plural(rest, 'more case')}, none worse; --all lists them"
    return [*_table(shown, sides, wide), *([_print.plain(note, "dim")] if rest else [])]


def said(verdict: str, why: Sequence[str], next_steps: Sequence[NextStep], style: str = "") -> list[Part]:
    """Return the verdict as the first line, then the reasons, then what to do next."""
    lines: list[Part] = [_print.plain(verdict, f"bold {style}".strip())]
    lines += [_print.plain(f"- {words}") for words in why]
    for step in next_steps:
        lines.append(_print.plain(f"next: {step.words}{':' if step.command else ''}"))
        if step.command:  # on a line of its own, which no line break spoils for who copies it
            lines.append(Text(f"    {one_line(step.command)}", no_wrap=True, overflow="ignore"))
    return lines


def _table(findings: Sequence[Finding], sides: Sequence[str], wide: bool) -> list[Part]:
    """Return the cases with the figures of both `sides`; what all rows share stands once above them."""
    if not findings:
        return []
    several = len({finding.devices for finding in findings if finding.devices}) > 1
    found = [finding_words(each) for each in findings]
    thresholds = {each.threshold for each in found} - {MISSING}
    columns = list(zip(*((each.before, each.after, each.change, each.interval) for each in found), strict=True))
    heads = [*sides, *HEADS[4:6]]
    if len(thresholds) > 1:
        columns.append(tuple(each.threshold for each in found))
        heads.append(HEADS[6])
    if wide:
        columns += zip(*map(_statistics, findings), strict=True)
        heads += _WIDE
    kept = [place for place, cells in enumerate(columns) if set(cells) != {MISSING}]
    rows = [
        NamedRow(
            cells.verdict,
            name(finding) if several else finding.case.id,
            tuple(columns[place][number] for place in kept),
            _STYLES.get(cells.verdict, ""),
        )
        for number, (finding, cells) in enumerate(zip(findings, found, strict=True))
    ]
    above = [_print.plain(f"threshold {thresholds.pop()}", "dim")] if len(thresholds) == 1 else []
    return [
        Text(""),
        *above,
        *named_rows([*HEADS[:2], *(heads[place] for place in kept)], rows, _print.out().width),
    ]


def _statistics(finding: Finding) -> tuple[str, str]:
    """Return the processes of both sides, and how often chance finds as much among all the cases."""
    q = f"{finding.q:.2g}" if math.isfinite(finding.q) else MISSING
    return f"{finding.before.processes}, {finding.after.processes}", q


def show(parts: Sequence[Part]) -> None:
    """Print the parts on standard output, each by itself: joined texts would lose how they may be broken."""
    out = _print.out()
    for part in parts:
        out.print(part, soft_wrap=isinstance(part, Text) and bool(part.no_wrap))
