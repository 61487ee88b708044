"""Publish a judgement as GitHub Markdown, for a comment on a pull request or the summary of a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpubench.api.gate import (
    HEADS,
    PASSING,
    Finding,
    GateAnswer,
    Judgement,
    Publication,
    Verdict,
    code,
    escape,
    finding_cells,
    name,
)

from ._texts import fit_lines

_MARKER = "<!-- gpubench gate -->"  # identifies the earlier comment, which a workflow then updates
_HEADS = f"| {' | '.join(HEADS)} | reason |\n|{'---|' * (len(HEADS) + 1)}"
_BOLD = (Verdict.SLOWER, Verdict.INVALID, Verdict.NOT_COMPARABLE)


@dataclass(frozen=True, slots=True)
class Markdown:
    """Writes one table with the worst findings first, and the passing cases folded away below it."""

    summary: str = "GitHub Markdown: a comment, a step's summary"

    def render(self, judgement: Judgement, answer: GateAnswer, limit: int = 0) -> str:
        """Return the document: verdict, reasons, next steps, and the tables of cases.

        `limit` is the most bytes of UTF-8, 0 for no limit."""
        not_passing = [finding for finding in judgement.findings if finding.verdict not in PASSING]
        passing = [finding for finding in judgement.findings if finding.verdict in PASSING]
        head = f"{_MARKER}\n## {escape(answer.title)}: {escape(answer.verdict)}\n"
        body = fit_lines(head, _body_lines(answer, not_passing), (), limit)
        if passing:
            opening = f"\n<details><summary>{len(passing)} same or faster</summary>\n\n{_HEADS}"
            rest = limit - len(body.encode()) if limit else 0
            if not limit or rest > 2 * len(opening.encode()):
                body += fit_lines(opening, map(_row, passing), ("\n</details>",), rest)
        return body


def _body_lines(answer: GateAnswer, not_passing: list[Finding]) -> Iterator[str]:
    """Yield the reasons, the next steps, and the table of `not_passing`, in parts that newlines join."""
    yield from (f"- {escape(reason)}" for reason in answer.reasons)
    for step in answer.next_steps:
        yield f"- **next:** {escape(step.text)}{f': {code(step.command)}' if step.command else ''}"
    if not_passing:
        yield f"\n{_HEADS}"
    yield from map(_row, not_passing)


def _row(finding: Finding) -> str:
    """Return a finding as an escaped row of the Markdown table; the verdicts of `_BOLD` are bold."""
    texts = finding_cells(finding)
    verdict = f"**{texts.verdict}**" if finding.verdict in _BOLD else texts.verdict
    figures = (texts.before, texts.after, texts.change, texts.interval, texts.threshold, texts.explanation)
    return f"| {' | '.join((verdict, code(name(finding)), *map(escape, figures)))} |"


publication: Publication = Markdown()
