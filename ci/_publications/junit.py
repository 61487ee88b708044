"""Publish a judgement as JUnit XML, which GitLab, Jenkins and others show as tests: a case is a test."""

from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from gpubench.api import gate as gb

from ._fleet_junit import fleet_tests
from ._texts import finding_message

_ELEMENTS = {
    gb.Verdict.SLOWER: "failure",
    gb.Verdict.INVALID: "error",
    gb.Verdict.NOT_COMPARABLE: "error",
    gb.Verdict.INCONCLUSIVE: "skipped",
    gb.Verdict.SUSPECT: "skipped",
}


@dataclass(frozen=True, slots=True)
class JUnit:
    """Writes a test for each case: a slower one is a failure, an invalid or not comparable one an error.

    An inconclusive or suspect one is skipped. The output of a test has the figures."""

    summary: str = "JUnit XML: a case is a test"

    def render(self, judgement: gb.Judgement, answer: gb.GateAnswer, limit: int = 0) -> str:
        """Return the whole document; `limit` is ignored, because a truncated document would hide failures."""
        del limit
        suites: dict[str, list[gb.Finding]] = {}
        for finding in judgement.findings:
            suites.setdefault(finding.case.suite, []).append(finding)
        parts = [
            _answer_element(answer),
            *(_suite_element(suite, findings) for suite, findings in sorted(suites.items())),
        ]
        if judgement.unmet:
            parts.append(_unmet_element(judgement))
        counts = _count_attributes(list(judgement.findings), len(judgement.unmet))
        return (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f"<testsuites name={quoteattr(answer.title)} {counts}>\n{''.join(parts)}</testsuites>\n"
        )

    def fleet(self, judgement: gb.FleetJudgement) -> str:
        """Return the judgement of a fleet as a JUnit XML document, in which a component is a test."""
        return fleet_tests(judgement)


def _answer_element(answer: gb.GateAnswer) -> str:
    """Return the XML element of a suite without tests, whose output is the verdict, the reasons and the next steps."""
    lines = [answer.verdict, *answer.reasons, *(f"next: {step}" for step in answer.next_steps)]
    output = escape("\n".join(lines))
    return (
        f"  <testsuite name={quoteattr(answer.title)} {_count_attributes([])}>\n"
        f"    <system-out>{output}</system-out>\n  </testsuite>\n"
    )


def _count_attributes(findings: list[gb.Finding], unmet: int = 0) -> str:
    """Return the XML attributes `tests`, `failures`, `errors` and `skipped`, which count `findings` by outcome."""
    kinds = [_ELEMENTS.get(finding.verdict) for finding in findings]
    return (
        f'tests="{len(kinds) + unmet}" failures="{kinds.count("failure")}" '
        f'errors="{kinds.count("error") + unmet}" skipped="{kinds.count("skipped")}"'
    )


def _suite_element(suite: str, findings: list[gb.Finding]) -> str:
    """Return the XML element of a suite with a test for each of `findings`."""
    cases = "".join(map(_case_element, findings))
    return f"  <testsuite name={quoteattr(suite)} {_count_attributes(findings)}>\n{cases}  </testsuite>\n"


def _case_element(finding: gb.Finding) -> str:
    """Return the XML element of a finding's test: a failure, an error or a skip if it did not pass, and its figures."""
    element = _ELEMENTS.get(finding.verdict)
    problem = quoteattr(f"{finding.verdict}: {gb.sentence(finding)}")
    inner = ""
    if element == "skipped":
        inner = f"      <skipped message={problem}/>\n"
    elif element:
        text = escape(finding_message(finding))
        inner = f"      <{element} type={quoteattr(str(finding.verdict))} message={problem}>{text}</{element}>\n"
    output = escape(_output_text(finding))
    attributes = f"classname={quoteattr(f'gpubench.{finding.case.suite}')} name={quoteattr(gb.name(finding))}"
    return f"    <testcase {attributes}>\n{inner}      <system-out>{output}</system-out>\n    </testcase>\n"


def _output_text(finding: gb.Finding) -> str:
    """Return the output of a finding's test: both figures, the numbers of processes, and the verdict."""
    texts = gb.finding_cells(finding)
    counts = f"{finding.before.processes} and {finding.after.processes} processes"
    return f"baseline {texts.before}, candidate {texts.after}, {counts}; {finding.verdict}: {gb.sentence(finding)}"


def _unmet_element(judgement: gb.Judgement) -> str:
    """Return the XML element of a suite with an error for each required pattern that no case matches."""
    cases = "".join(
        f'    <testcase classname="gpubench" name={quoteattr(pattern)}>\n'
        '      <error type="missing" message="no case matches the required pattern"/>\n    </testcase>\n'
        for pattern in judgement.unmet
    )
    return f'  <testsuite name="required" {_count_attributes([], len(judgement.unmet))}>\n{cases}  </testsuite>\n'


publication: gb.FleetPublication = JUnit()
