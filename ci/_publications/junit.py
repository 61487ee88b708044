"""A judgement as JUnit XML, which GitLab, Jenkins and others show as tests: a case is a test."""

from __future__ import annotations

from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from gpubench.api.gate import Finding, Judgement, Publication, Verdict, sentence

from ._words import figure, message, name

_ELEMENTS = {
    Verdict.SLOWER: "failure",
    Verdict.INVALID: "error",
    Verdict.NOT_COMPARABLE: "error",
    Verdict.INCONCLUSIVE: "skipped",
    Verdict.SUSPECT: "skipped",
}


@dataclass(frozen=True, slots=True)
class JUnit:
    """slower is a failure, invalid and not comparable are errors, inconclusive is skipped; figures are output."""

    summary: str = "JUnit XML: a case is a test"

    def render(self, judgement: Judgement, title: str, limit: int = 0) -> str:
        """The document, whole: a limit would hide failures, so it is not looked at."""
        del limit
        suites: dict[str, list[Finding]] = {}
        for finding in judgement.findings:
            suites.setdefault(finding.case.suite, []).append(finding)
        parts = [_suite(suite, findings) for suite, findings in sorted(suites.items())]
        if judgement.unmet:
            parts.append(_unmet(judgement))
        counts = _counts(list(judgement.findings), len(judgement.unmet))
        return (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f"<testsuites name={quoteattr(title)} {counts}>\n{''.join(parts)}</testsuites>\n"
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
    what = quoteattr(f"{finding.verdict}: {sentence(finding)}")
    inner = ""
    if element == "skipped":
        inner = f"      <skipped message={what}/>\n"
    elif element:
        text = escape(message(finding))
        inner = f"      <{element} type={quoteattr(str(finding.verdict))} message={what}>{text}</{element}>\n"
    output = escape(_output(finding))
    named = f"classname={quoteattr(f'gpubench.{finding.case.suite}')} name={quoteattr(name(finding))}"
    return f"    <testcase {named}>\n{inner}      <system-out>{output}</system-out>\n    </testcase>\n"


def _output(finding: Finding) -> str:
    sides = [figure(side.median, finding.unit) or "none" for side in (finding.before, finding.after)]
    counts = f"{finding.before.processes} and {finding.after.processes} processes"
    return f"baseline {sides[0]}, candidate {sides[1]}, {counts}; {finding.verdict}: {sentence(finding)}"


def _unmet(judgement: Judgement) -> str:
    cases = "".join(
        f'    <testcase classname="gpubench" name={quoteattr(pattern)}>\n'
        '      <error type="missing" message="required, and no case is called so"/>\n    </testcase>\n'
        for pattern in judgement.unmet
    )
    return f'  <testsuite name="required" {_counts([], len(judgement.unmet))}>\n{cases}  </testsuite>\n'


publication: Publication = JUnit()
