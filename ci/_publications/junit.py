"""A judgement as JUnit XML, which GitLab, Jenkins and others show as tests: a case is a test."""

from __future__ import annotations

from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from gpubench.api.gate import (
    Finding,
    FleetJudgement,
    FleetPublication,
    GateAnswer,
    Judgement,
    Verdict,
    finding_cells,
    name,
    sentence,
)

from ._fleet_junit import fleet_tests
from ._words import message

_ELEMENTS = {
    Verdict.SLOWER: "failure",
    Verdict.INVALID: "error",
    Verdict.NOT_COMPARABLE: "error",
    Verdict.INCONCLUSIVE: "skipped",
    Verdict.SUSPECT: "skipped",
}


@dataclass(frozen=True, slots=True)
class JUnit:
    """A slower case is a failure, an invalid or not comparable one an error, an inconclusive one skipped.

    The figures are the output of each test.
    """

    summary: str = "JUnit XML: a case is a test"

    def render(self, judgement: Judgement, answer: GateAnswer, limit: int = 0) -> str:
        """Return the whole document: a truncated one would hide failures, so `limit` is ignored."""
        del limit
        suites: dict[str, list[Finding]] = {}
        for finding in judgement.findings:
            suites.setdefault(finding.case.suite, []).append(finding)
        parts = [_answer(answer), *(_suite(suite, findings) for suite, findings in sorted(suites.items()))]
        if judgement.unmet:
            parts.append(_unmet(judgement))
        counts = _counts(list(judgement.findings), len(judgement.unmet))
        return (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f"<testsuites name={quoteattr(answer.title)} {counts}>\n{''.join(parts)}</testsuites>\n"
        )

    def fleet(self, judgement: FleetJudgement) -> str:
        """Return the judgement of a fleet as a whole document; a component is a test."""
        return fleet_tests(judgement)


def _answer(answer: GateAnswer) -> str:
    """Return the verdict, the reasons and the next steps, as the output of a suite without tests."""
    lines = [answer.verdict, *answer.why, *(f"next: {step}" for step in answer.next_steps)]
    output = escape("\n".join(lines))
    return (
        f"  <testsuite name={quoteattr(answer.title)} {_counts([])}>\n"
        f"    <system-out>{output}</system-out>\n  </testsuite>\n"
    )


def _counts(findings: list[Finding], unmet: int = 0) -> str:
    kinds = [_ELEMENTS.get(finding.verdict) for finding in findings]
    return (
        f'tests="{len(kinds) + unmet}" failures="{kinds.count("failure")}" '
        f'errors="{kinds.count("error") + unmet}" skipped="{kinds.count("skipped")}"'
    )


def _suite(suite: str, findings: list[Finding]) -> str:
    cases = "".join(map(_case, findings))
    return f"  <testsuite name={quoteattr(suite)} {_counts(findings)}>\n{cases}  </testsuite>\n"


def _case(finding: Finding) -> str:
    element = _ELEMENTS.get(finding.verdict)
    problem = quoteattr(f"{finding.verdict}: {sentence(finding)}")
    inner = ""
    if element == "skipped":
        inner = f"      <skipped message={problem}/>\n"
    elif element:
        text = escape(message(finding))
        inner = f"      <{element} type={quoteattr(str(finding.verdict))} message={problem}>{text}</{element}>\n"
    output = escape(_output(finding))
    named = f"classname={quoteattr(f'gpubench.{finding.case.suite}')} name={quoteattr(name(finding))}"
    return f"    <testcase {named}>\n{inner}      <system-out>{output}</system-out>\n    </testcase>\n"


def _output(finding: Finding) -> str:
    texts = finding_cells(finding)
    counts = f"{finding.before.processes} and {finding.after.processes} processes"
    return f"baseline {texts.before}, candidate {texts.after}, {counts}; {finding.verdict}: {sentence(finding)}"


def _unmet(judgement: Judgement) -> str:
    cases = "".join(
        f'    <testcase classname="gpubench" name={quoteattr(pattern)}>\n'
        '      <error type="missing" message="no case matches the required pattern"/>\n    </testcase>\n'
        for pattern in judgement.unmet
    )
    return f'  <testsuite name="required" {_counts([], len(judgement.unmet))}>\n{cases}  </testsuite>\n'


publication: FleetPublication = JUnit()
