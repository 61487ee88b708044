"""The judgement of a fleet as JUnit XML: a component (a GPU, a host, a link) is a test, and a missing node is one.

A slow component is a failure if it was slow in a second measurement too; so is a component on which a case failed. A
suspect that was not measured again is skipped, as in a gate: it may be chance, and a pipeline that fails by chance is
soon ignored. Sick devices, and nodes that did not answer, are errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple
from xml.sax.saxutils import escape, quoteattr

from gpubench.api.gate import FailedCases, FleetFinding, FleetJudgement, Place, Standing, fleet_text, units

Outcome = Literal["passed", "failure", "error", "skipped"]
_OUTCOMES: dict[str, Outcome] = {"confirmed": "failure", "suspect": "skipped"}
_MOST_FINDINGS = 40  # in the text of a component's failure; the .json has all findings


class _Test(NamedTuple):
    """A test case: `type` and `message` say why it did not pass, `text` gives the details."""

    name: str
    outcome: Outcome
    type: str = ""
    message: str = ""
    text: str = ""


def fleet_tests(judgement: FleetJudgement) -> str:
    """Return the judgement as a JUnit XML document; every text is escaped."""
    findings: dict[Place, list[FleetFinding]] = {}
    for suspect in judgement.suspects:
        for finding in suspect.findings:
            findings.setdefault(finding.place, []).append(finding)
    # Failed cases come first in `judgement.failures`, and reversing lets the first of a place win.
    failures = {failure.place: failure for failure in reversed(judgement.failures)}
    suites: dict[str, list[_Test]] = {"node": list(_nodes(judgement))}
    for standing in judgement.standings:
        suites.setdefault(standing.kind, []).append(
            _component(standing, findings.get(standing.place, ()), failures.get(standing.place))
        )
    tests = [test for suite in suites.values() for test in suite]
    lines = [fleet_text.fleet_answer(judgement), *fleet_text.population_sentences(judgement), *judgement.notes]
    output = escape("\n".join(lines))
    return "".join(
        [
            '<?xml version="1.0" encoding="UTF-8"?>\n',
            f'<testsuites name="gpubench fleet" {_counts(tests)}>\n',
            f'  <testsuite name="answer" {_counts([])}>\n    <system-out>{output}</system-out>\n  </testsuite>\n',
            *(_suite(kind, suite) for kind, suite in suites.items()),
            "</testsuites>\n",
        ]
    )


def _nodes(judgement: FleetJudgement) -> Iterator[_Test]:
    for node in judgement.fleet.nodes:
        if node.status == "answered":
            yield _Test(node.name, "passed")
        else:
            yield _Test(
                node.name, "error", node.status, f"{node.status}: {node.reason}" if node.reason else node.status
            )


def _component(standing: Standing, findings: Sequence[FleetFinding], failure: FailedCases | None) -> _Test:
    name, state = standing.place.text, standing.state
    if standing.sick:
        return _Test(name, "error", "sick", standing.sick[0], "\n".join(standing.sick))
    if failure:
        outcome: Outcome = "failure" if failure.status == "failed" else "error"
        return _Test(name, outcome, failure.status, fleet_text.failure_text(failure))
    if not findings:
        is_compared = state != "not compared"
        return _Test(name, "passed") if is_compared else _Test(name, "skipped", state, "too few are comparable")
    worst = max(findings, key=lambda finding: finding.slowdown)
    message = f"{_finding(worst)}: {fleet_text.STATES[worst.state]}"
    return _Test(
        name, _OUTCOMES.get(state, "passed"), state, message, "\n".join(map(_finding, findings[:_MOST_FINDINGS]))
    )


def _finding(finding: FleetFinding) -> str:
    figures = ""
    if finding.case:
        measured, expected = (units.quantity(value, finding.unit) for value in (finding.value, finding.expected))
        figures = f", {measured} where {expected} is expected"
    slowdown, least = units.percent(finding.slowdown), units.percent(finding.detectable)
    subject = finding.case or f"all cases of {finding.family} together"
    cause = fleet_text.causes_text(finding)
    return f"{subject}: {slowdown} slow{figures} ({least} would have been found), {cause}"


def _suite(kind: str, tests: Sequence[_Test]) -> str:
    cases = "".join(_case(kind, test) for test in tests)
    return f'  <testsuite name="{kind}" {_counts(tests)}>\n{cases}  </testsuite>\n'


def _case(kind: str, test: _Test) -> str:
    named = f'<testcase classname="gpubench.fleet.{kind}" name={quoteattr(test.name)}'
    if test.outcome == "passed":
        return f"    {named}/>\n"
    message = f"message={quoteattr(test.message)}"
    if test.outcome == "skipped":
        return f"    {named}><skipped {message}/></testcase>\n"
    inner = f"<{test.outcome} type={quoteattr(test.type)} {message}>{escape(test.text)}</{test.outcome}>"
    return f"    {named}>{inner}</testcase>\n"


def _counts(tests: Sequence[_Test]) -> str:
    outcomes = [test.outcome for test in tests]
    return (
        f'tests="{len(tests)}" failures="{outcomes.count("failure")}" errors="{outcomes.count("error")}" '
        f'skipped="{outcomes.count("skipped")}"'
    )
