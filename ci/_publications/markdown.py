"""A judgement as GitHub Markdown: the comment on a pull request, the summary of a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpubench.api.gate import Finding, Judgement, Publication, Verdict, code, escape, sentence

from ._words import QUIET, figure, fitting, name, tally

_MARKER = "<!-- gpubench gate -->"  # by which a workflow finds its own comment again
_HEADS = "| verdict | case | baseline | candidate | change (95 % interval), threshold | q |\n|---|---|---|---|---|---|"
_LOUD = (Verdict.SLOWER, Verdict.INVALID, Verdict.NOT_COMPARABLE)


@dataclass(frozen=True, slots=True)
class Markdown:
    """One table, the worst first; what nobody has to act on is folded away, and goes first where room is short."""

    summary: str = "GitHub Markdown: a comment, a step's summary"

    def render(self, judgement: Judgement, title: str, limit: int = 0) -> str:
        """The document; the worst findings stay where `limit` is short."""
        loud = [finding for finding in judgement.findings if finding.verdict not in QUIET]
        quiet = [finding for finding in judgement.findings if finding.verdict in QUIET]
        head = f"{_MARKER}\n## {escape(title)}: {tally(judgement)}\n"
        body = fitting(head, _body(judgement, loud), (), limit)
        if quiet:
            opening = f"\n<details><summary>{len(quiet)} same or faster</summary>\n\n{_HEADS}"
            rest = limit - len(body.encode()) if limit else 0
            if not limit or rest > 2 * len(opening.encode()):
                body += fitting(opening, map(_row, quiet), ("\n</details>",), rest)
        return body


def _body(judgement: Judgement, loud: list[Finding]) -> Iterator[str]:
    yield from (f"- **no case is called {code(pattern)}**, which is required" for pattern in judgement.unmet)
    if loud:
        yield _HEADS
    yield from map(_row, loud)
    if judgement.notes:
        yield ""
    yield from (f"- {escape(note)}" for note in judgement.notes)


def _row(finding: Finding) -> str:
    before, after = (figure(side.median, finding.unit) for side in (finding.before, finding.after))
    counts = f" ({finding.before.processes})", f" ({finding.after.processes})"
    q = f"{finding.q:.2g}" if finding.q == finding.q else ""
    sides = [f"{text}{count}" if text else "" for text, count in zip((before, after), counts, strict=True)]
    verdict = f"**{finding.verdict}**" if finding.verdict in _LOUD else str(finding.verdict)
    cells = (verdict, code(name(finding)), *map(escape, sides), escape(sentence(finding)), q)
    return f"| {' | '.join(cells)} |"


publication: Publication = Markdown()
