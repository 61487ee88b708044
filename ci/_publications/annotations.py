"""Publish a judgement as annotations of a GitHub workflow: lines that the runner takes from the output of a step.

GitHub shows ten errors and ten warnings of a step and drops the rest (docs.github.com, "Workflow commands" and "About
check runs"), so the tenth line gives the number of the others."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpubench.api import gate as gb

from ._texts import finding_message

_MOST_LINES = 10
_WARNINGS = (gb.Verdict.INVALID, gb.Verdict.NOT_COMPARABLE, gb.Verdict.INCONCLUSIVE, gb.Verdict.SUSPECT)


@dataclass(frozen=True, slots=True)
class Annotations:
    """Annotates a slower or failed case as an error, and a case that could not be judged as a warning."""

    summary: str = "annotations of a GitHub workflow"

    def render(self, judgement: gb.Judgement, answer: gb.GateAnswer, limit: int = 0) -> str:
        """Return at most ten lines with errors and ten with warnings, as one text; `limit` is ignored."""
        del limit
        errors = [finding for finding in judgement.findings if _is_error(finding)]
        warnings = [
            finding for finding in judgement.findings if finding.verdict in _WARNINGS and not _is_error(finding)
        ]
        missing = [f"no case matches the required pattern {pattern}" for pattern in judgement.unmet]
        lines = [
            *_annotation_lines("error", answer.title, [*missing, *map(finding_message, errors)], judgement),
            *_annotation_lines("warning", answer.title, [*map(finding_message, warnings), *judgement.notes], judgement),
        ]
        return "".join(f"{line}\n" for line in lines)


def _is_error(finding: gb.Finding) -> bool:
    """Return True if a finding is annotated as an error: it is slower, or its case failed."""
    return finding.verdict is gb.Verdict.SLOWER or finding.cause == "failed"


def _annotation_lines(kind: str, title: str, messages: Sequence[str], judgement: gb.Judgement) -> list[str]:
    """Return `messages` as at most ten annotations; if there are more, the tenth counts the others."""
    listed = list(messages[:_MOST_LINES])
    if len(messages) > _MOST_LINES:
        listed[-1] = f"and {len(messages) - _MOST_LINES + 1} more; in all {gb.tally(judgement)}"
    return [f"::{kind} title={_escaped_property(title)}::{_escaped_message(text)}" for text in listed]


def _escaped_message(text: str) -> str:
    """Return a message escaped for the runner (actions/toolkit, packages/core/src/command.ts)."""
    return gb.without_commands(gb.one_line(text)).replace("%", "%25")


def _escaped_property(text: str) -> str:
    """Return a property of an annotation escaped for the runner, which also needs colons and commas escaped."""
    return _escaped_message(text).replace(":", "%3A").replace(",", "%2C")


publication: gb.Publication = Annotations()
