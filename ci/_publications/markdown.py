"""Publish a judgement as GitHub Markdown, for a comment on a pull request or the summary of a step."""

from collections.abc import Iterator
from dataclasses import dataclass

from gpubench.api import gate as gb

from ._texts import fit_lines

_MARKER = "<!-- gpubench gate -->"  # identifies the earlier comment, which a workflow then updates
_HEADS = f"| {' | '.join(gb.HEADS)} | reason |\n|{'---|' * (len(gb.HEADS) + 1)}"
_BOLD = (gb.Verdict.SLOWER, gb.Verdict.INVALID, gb.Verdict.NOT_COMPARABLE)


@dataclass(frozen=True, slots=True)
class Markdown:
    """Writes one table with the worst findings first, and the passing cases folded away below it."""

    summary: str = "GitHub Markdown: a comment, a step's summary"

    def render(self, judgement: gb.Judgement, answer: gb.GateAnswer, limit: int = 0) -> str:
        """Return the document: verdict, reasons, next steps, and the tables of cases.

        `limit` is the most bytes of UTF-8, 0 for no limit."""
        not_passing = [finding for finding in judgement.findings if finding.verdict not in gb.PASSING]
        passing = [finding for finding in judgement.findings if finding.verdict in gb.PASSING]
        head = f"{_MARKER}\n## {gb.escape(answer.title)}: {gb.escape(answer.verdict)}\n"
        body = fit_lines(head, _body_lines(answer, not_passing), (), limit)
        if passing:
            opening = f"\n<details><summary>{len(passing)} same or faster</summary>\n\n{_HEADS}"
            rest = limit - len(body.encode()) if limit else 0
            if not limit or rest > 2 * len(opening.encode()):
                body += fit_lines(opening, map(_row, passing), ("\n</details>",), rest)
        return body


def _body_lines(answer: gb.GateAnswer, not_passing: list[gb.Finding]) -> Iterator[str]:
    """Yield the reasons, the next steps, and the table of `not_passing`, in parts that newlines join."""
    yield from (f"- {gb.escape(reason)}" for reason in answer.reasons)
    for step in answer.next_steps:
        yield f"- **next:** {gb.escape(step.text)}{f': {gb.code(step.command)}' if step.command else ''}"
    if not_passing:
        yield f"\n{_HEADS}"
    yield from map(_row, not_passing)


def _row(finding: gb.Finding) -> str:
    """Return a finding as an escaped row of the Markdown table; the verdicts of `_BOLD` are bold."""
    texts = gb.finding_cells(finding)
    verdict = f"**{texts.verdict}**" if finding.verdict in _BOLD else texts.verdict
    figures = (texts.before, texts.after, texts.change, texts.interval, texts.threshold, texts.explanation)
    return f"| {' | '.join((verdict, gb.code(gb.name(finding)), *map(gb.escape, figures)))} |"


publication: gb.Publication = Markdown()
