"""Show judged cases in the terminal: the verdict, its reasons, the next step, then the cases, the worst first."""

import math
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from gpubench.base.clean import one_line
from gpubench.cli import _print
from gpubench.cli._layout import NamedRow, named_rows
from gpubench.judging.answer import AB, PASSING, GateAnswer, NextStep
from gpubench.judging.finding_text import HEADS, MISSING, finding_cells, name, plural
from gpubench.judging.judge import Finding, Judgement

Part = Table | Text
_STYLES = {"slower": "bold red", "invalid": "yellow", "not comparable": "yellow", "faster": "cyan", "same": "green"}
_ENDS = {1: "red", 3: "red", 4: "yellow"}  # the colour of the answer by exit status
_MOST_ROWS = 60  # the most rows; further ones are only counted
_WIDE = ("processes", "q")


def answer_parts(judgement: Judgement, answer: GateAnswer, every: bool = False, wide: bool = False) -> list[Part]:
    """Return the lines and tables of a gate's answer: verdict, reasons, next steps, then the cases, the worst first.

    With `every`, passing cases are listed too, and no case is left out; else a line says how many are hidden. With
    `wide`, the table also has the processes and q of each case."""
    parts = verdict_parts(answer.verdict, answer.reasons, answer.next_steps, _ENDS.get(answer.status, ""))
    passing = PASSING[:1] if answer.title == AB else PASSING  # a comparison of two builds also lists what became faster
    listed_findings = [finding for finding in judgement.findings if every or finding.verdict not in passing]
    hidden = len(judgement.findings) - len(listed_findings)
    notes = [f"not listed: {plural(hidden, 'passing case')}; --all lists them"] if hidden else []
    return [
        *parts,
        *finding_parts(listed_findings, HEADS[2:4], every, wide),
        *(_print.plain(note, "dim") for note in notes),
    ]


def finding_parts(findings: Sequence[Finding], sides: Sequence[str], every: bool, wide: bool) -> list[Part]:
    """Return the table of the cases in `findings`, and a note with the number of cases that are left out of it.

    `findings` are sorted, the worst first, and `sides` are the headings of the two compared figures. The first 60 cases
    are listed; `every` lists all. `wide` adds the number of processes on each side and q, the false discovery rate."""
    printed = findings if every else findings[:_MOST_ROWS]
    rest = len(findings) - len(printed)
    note = f"not listed: {plural(rest, 'more case')}, none worse; --all lists them"
    return [*_table(printed, sides, wide), *([_print.plain(note, "dim")] if rest else [])]


def verdict_parts(verdict: str, reasons: Sequence[str], next_steps: Sequence[NextStep], style: str = "") -> list[Part]:
    """Return lines with the verdict, with each of the `reasons`, and with the text and the command of each next step.

    A command stands on a separate line that is never broken. `style` is a colour for the verdict (`red`), or empty.
    """
    lines: list[Part] = [_print.plain(verdict, f"bold {style}".strip())]
    lines += [_print.plain(f"- {reason}") for reason in reasons]
    for step in next_steps:
        lines.append(_print.plain(f"next: {step.text}{':' if step.command else ''}"))
        if step.command:  # on a separate line without line breaks, so that it can be copied
            lines.append(Text(f"    {one_line(step.command)}", no_wrap=True, overflow="ignore"))
    return lines


def _table(findings: Sequence[Finding], sides: Sequence[str], wide: bool) -> list[Part]:
    """Return the table of the cases with the figures of both sides, or nothing if there are no cases."""
    if not findings:
        return []
    several = len({finding.devices for finding in findings if finding.devices}) > 1
    cells_of_findings = [finding_cells(cells) for cells in findings]
    thresholds = {cells.threshold for cells in cells_of_findings} - {MISSING}
    columns = list(
        zip(*((cells.before, cells.after, cells.change, cells.interval) for cells in cells_of_findings), strict=True)
    )
    heads = [*sides, *HEADS[4:6]]
    if len(thresholds) > 1:
        columns.append(tuple(cells.threshold for cells in cells_of_findings))
        heads.append(HEADS[6])
    if wide:
        columns += zip(*map(_statistics, findings), strict=True)
        heads += _WIDE
    filled = [place for place, cells in enumerate(columns) if set(cells) != {MISSING}]
    rows = [
        NamedRow(
            cells.verdict,
            name(finding) if several else finding.case.id,
            tuple(columns[place][number] for place in filled),
            _STYLES.get(cells.verdict, ""),
        )
        for number, (finding, cells) in enumerate(zip(findings, cells_of_findings, strict=True))
    ]
    above = [_print.plain(f"threshold {thresholds.pop()}", "dim")] if len(thresholds) == 1 else []
    return [
        Text(""),
        *above,
        *named_rows([*HEADS[:2], *(heads[place] for place in filled)], rows, _print.out().width),
    ]


def _statistics(finding: Finding) -> tuple[str, str]:
    """Return the numbers of processes of both sides (`5, 5`), and q, the false discovery rate (– if unknown)."""
    q = f"{finding.q:.2g}" if math.isfinite(finding.q) else MISSING
    return f"{finding.before.processes}, {finding.after.processes}", q


def show(parts: Sequence[Part]) -> None:
    """Print the parts on standard output one by one, because each text has its own rule for line breaks."""
    out = _print.out()
    for part in parts:
        out.print(part, soft_wrap=isinstance(part, Text) and bool(part.no_wrap))
