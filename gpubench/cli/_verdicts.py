"""Publish a gate's answer in the terminal, in the requested files, and for GitHub's runner.

Show judged cases in the terminal: the verdict, its reasons, the next step, then the cases, the worst first."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from gpubench.base.clean import one_line
from gpubench.cli import _print
from gpubench.cli import _sharing as sharing
from gpubench.cli._layout import NamedRow, named_rows
from gpubench.judging.answer import AB, PASSING, GateAnswer, NextStep
from gpubench.judging.finding_text import HEADS, MISSING, finding_cells, name, plural
from gpubench.judging.judge import Finding, Judgement

if TYPE_CHECKING:
    from gpubench.judging.policy import Policy
    from gpubench.tools.gating.gate import GateResult


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

    A command stands on a separate line that is never broken. `style` is a colour for the verdict (`red`), or empty."""
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


_COMMENT_BYTES = 65_536  # the limit of a comment on GitHub in characters, which are never more than bytes
_SUMMARY_BYTES = 1_024_000  # the limit of a step's summary on GitHub

Threshold = Annotated[
    float | None,
    typer.Option(
        "--threshold",
        min=0.0,
        max=1000.0,
        help="The smallest change that matters, in per cent, for cases without a threshold in the policy. "
        "\\[default: 2]",
    ),
]
PolicyFile = Annotated[
    Path | None,
    typer.Option(
        "--policy",
        help="The policy file. \\[default: gpubench.toml here, or else \\[tool.gpubench] of pyproject.toml]",
    ),
]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="Exit with status 4 if a case is inconclusive or missing in the candidate."),
]
Rounds = Annotated[
    int | None,
    typer.Option(
        "--rounds",
        min=0,
        max=100,
        help="How many times to measure suspects again, each time in the same number of new processes. \\[default: 3]",
    ),
]
All = Annotated[bool, typer.Option("--all", help="List every case, including those that pass.")]
Wide = Annotated[
    bool,
    typer.Option("--wide", help="Add columns: the number of processes on both sides, and q, the false discovery rate."),
]
JUnit = Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML to this file.")]
Markdown = Annotated[
    Path | None,
    typer.Option("--markdown", help="Write Markdown to this file, short enough for a comment on a pull request."),
]


def policy(file: Path | None, threshold: float | None, strict: bool, allow_mismatch: bool) -> Policy:
    """Return the policy in `file`, changed by the command's options.

    If `file` is None, the policy is in gpubench.toml or pyproject.toml in the current folder, or the built-in one.
    `threshold` is in per cent; None keeps the policy's threshold. `strict` and `allow_mismatch` are the options of
    these names. Raises UsageError if the file is invalid."""
    from dataclasses import replace

    from gpubench.judging.policy import load

    loaded = load(file)
    percent = loaded.threshold_percent if threshold is None else threshold
    return replace(loaded, threshold_percent=percent, strict=strict or loaded.strict, allow_mismatch=allow_mismatch)


def publish(
    judged: GateResult,
    status: int,
    title: str,
    json: bool,
    junit: Path | None,
    markdown: Path | None,
    no_redact: bool = False,
    every: bool = False,
    wide: bool = False,
) -> None:
    """Write the requested files, then print the answer, or with `json` the JSON document, with warnings on stderr.

    `junit` and `markdown` are the files to write; `status` is the exit status, `title` the command's name in the
    documents; `every` and `wide` are the options --all and --wide. Publications receive texts without control
    characters and, unless `no_redact` is set, only allowed words. A terminal shows all texts; the log
    of a CI, which others read, does not. The files are written first, so that a closed pipe prevents none of them.
    Raises UsageError if a file cannot be written."""
    from gpubench import plugins
    from gpubench.base.clean import tidy
    from gpubench.base.streams import write_commands
    from gpubench.judging.answer import answer, warnings

    step_summary, is_ci = os.environ.get("GITHUB_STEP_SUMMARY"), sharing.is_ci()
    printed = shared = tidy(judged.judgement)
    if is_ci or json or junit or markdown or step_summary:
        shared = sharing.shareable(printed, no_redact, judged.manifests)
        printed = shared if is_ci else printed

    def render(form: str, limit: int = 0) -> str:
        """Return the document in the form of the publication `form`, in at most `limit` bytes if `limit` is not 0."""
        text: str = plugins.load("publications", form).render(shared, answer(shared, status, title), limit)
        return text

    for path, form, limit in ((junit, "junit", 0), (markdown, "markdown", _COMMENT_BYTES)):
        if path is not None:
            sharing.write(path, render(form, limit))
    if step_summary:
        _append(Path(step_summary), render("markdown", max(_SUMMARY_BYTES - _size(Path(step_summary)), 1)))
    if os.environ.get("GITHUB_ACTIONS") == "true":
        write_commands(render("annotations"), sys.stderr if json else sys.stdout)
    if json:
        for line in warnings(printed):
            _print.say(f"warning: {line}", "yellow")
        sys.stdout.write(render("json"))
    else:
        show(answer_parts(printed, answer(printed, status, title), every, wide))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # the file does not exist yet, or `_append` says what is wrong with it
        return 0


def _append(path: Path, text: str) -> None:
    """Append `text` to the file `path`, or print a warning if that fails."""
    from gpubench.base.files import append

    try:
        append(path, text.encode())
    except OSError as error:
        _print.err().print(_print.plain(f"cannot write {path}: {error.strerror}", "yellow"), soft_wrap=True)
