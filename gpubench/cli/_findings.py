"""Show judged cases in the terminal: the verdict, its reasons, the next step, then the cases, the worst first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.table import Table
from rich.text import Text

from gpubench.base import units
from gpubench.base.clean import one_line
from gpubench.cli import _print
from gpubench.cli._late import late
from gpubench.cli._layout import NamedRow, named_rows

with late():
    from gpubench.analysis import summary
    from gpubench.explaining import attribution as attributions
    from gpubench.judging import answer as answers
    from gpubench.judging import finding_text, judge

Part = Table | Text
_STYLES = {"slower": "bold red", "invalid": "yellow", "not comparable": "yellow", "faster": "cyan", "same": "green"}
_ENDS = {1: "red", 3: "red", 4: "yellow"}  # the colour of the answer by exit status
_MOST_ROWS = 60  # the most rows; further ones are only counted
_MOST_SPLIT = 10  # the most changes that are split into rungs
_MOST_BYTES = 2**25  # of a run file that is read whole for it
_WIDE = ("processes", "q")  # q is the false discovery rate


def answer_parts(
    judgement: judge.Judgement, answer: answers.GateAnswer, every: bool = False, wide: bool = False
) -> list[Part]:
    """Return the lines and tables of a gate's answer: verdict, reasons, next steps, then the cases, the worst first."""
    parts = verdict_parts(answer.verdict, answer.reasons, answer.next_steps, _ENDS.get(answer.status, ""))
    # a comparison of two builds also lists what became faster
    passing = answers.PASSING[:1] if answer.title == answers.AB else answers.PASSING
    listed_findings = [finding for finding in judgement.findings if every or finding.verdict not in passing]
    hidden = len(judgement.findings) - len(listed_findings)
    note = f"not listed: {units.count(hidden, 'passing case')}; --all lists them"
    parts += finding_parts(listed_findings, finding_text.HEADS[2:4], every, wide)
    return [*parts, *([_print.plain(note, "dim")] if hidden else [])]


def finding_parts(findings: Sequence[judge.Finding], sides: Sequence[str], every: bool, wide: bool) -> list[Part]:
    """Return the table of the first 60 cases in `findings` (with `every` of all), and a note about the others."""
    printed = findings if every else findings[:_MOST_ROWS]
    rest = len(findings) - len(printed)
    note = f"not listed: {units.count(rest, 'more case')}, none worse; --all lists them"
    split = [
        _print.plain(f"{finding_text.signed(finding.observed_change)}: {parts}; {finding.case.id}", "dim")
        for finding in printed
        if (parts := finding_text.attribution(finding))
    ]
    return [*_table(printed, sides, wide), *split[:_MOST_SPLIT], *([_print.plain(note, "dim")] if rest else [])]


def split(findings: Sequence[judge.Finding], before: Path, after: Path) -> tuple[judge.Finding, ...]:
    """Return the findings, the largest changes split into the rungs of their cases in the run files of both sides.

    Large files and pipes are not read again: their findings keep the rung of the clock."""
    from gpubench.model.store import read_run

    changed = [finding for finding in findings if judge.is_attributed(finding)][:_MOST_SPLIT]
    paths = before, after
    if not changed or not all(path.is_file() and path.stat().st_size <= _MOST_BYTES for path in paths):
        return tuple(findings)
    attribution = attributions.Attribution(*(summary.Summary(read_run(path)) for path in paths))
    parts = {finding.key: attribution.parts(finding.key) for finding in changed}
    return tuple(replace(finding, parts=parts.get(finding.key) or finding.parts) for finding in findings)


def verdict_parts(
    verdict: str, reasons: Sequence[str], next_steps: Sequence[answers.NextStep], style: str = ""
) -> list[Part]:
    """Return lines with the verdict, the `reasons`, and text and command of each next step; commands stay whole."""
    lines: list[Part] = [_print.plain(verdict, f"bold {style}".strip())]
    lines += [_print.plain(f"- {reason}") for reason in reasons]
    for step in next_steps:
        lines.append(_print.plain(f"next: {step.text}{':' if step.command else ''}"))
        if step.command:  # on a separate line without line breaks, so that it can be copied
            lines.append(Text(f"    {one_line(step.command)}", no_wrap=True, overflow="ignore"))
    return lines


def _table(findings: Sequence[judge.Finding], sides: Sequence[str], wide: bool) -> list[Part]:
    """Return the table of the cases with the figures of both sides, or nothing if there are no cases."""
    if not findings:
        return []
    several = len({finding.devices for finding in findings if finding.devices}) > 1
    cells_of_findings = list(map(finding_text.finding_cells, findings))
    thresholds = {cells.threshold for cells in cells_of_findings} - {finding_text.MISSING}
    columns = list(
        zip(*((cells.before, cells.after, cells.change, cells.interval) for cells in cells_of_findings), strict=True)
    )
    heads = [*sides, *finding_text.HEADS[4:6]]
    if len(thresholds) > 1:
        columns.append(tuple(cells.threshold for cells in cells_of_findings))
        heads.append(finding_text.HEADS[6])
    if wide:
        processes = (f"{finding.before.processes}, {finding.after.processes}" for finding in findings)
        rates = (f"{finding.q:.2g}" if math.isfinite(finding.q) else finding_text.MISSING for finding in findings)
        columns += [tuple(processes), tuple(rates)]
        heads += _WIDE
    filled = [place for place, cells in enumerate(columns) if set(cells) != {finding_text.MISSING}]
    rows = [
        NamedRow(
            cells.verdict,
            finding_text.name(finding) if several else finding.case.id,
            tuple(columns[place][number] for place in filled),
            _STYLES.get(cells.verdict, ""),
        )
        for number, (finding, cells) in enumerate(zip(findings, cells_of_findings, strict=True))
    ]
    above = [_print.plain(f"threshold {thresholds.pop()}", "dim")] if len(thresholds) == 1 else []
    heads = [*finding_text.HEADS[:2], *(heads[place] for place in filled)]
    return [Text(""), *above, *named_rows(heads, rows, _print.out().width)]


def show(parts: Sequence[Part]) -> None:
    """Print the parts on standard output one by one, because each text has its own rule for line breaks."""
    out = _print.out()
    for part in parts:
        out.print(part, soft_wrap=isinstance(part, Text) and bool(part.no_wrap))
