"""Publish the judgement of a fleet as JUnit XML: each component (GPU, host or link) and each node is a test.

A slow component is a failure if it was slow in a second measurement too; so is a component on which a case failed."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple
from xml.sax.saxutils import escape, quoteattr

from gpubench.api import gate as gb

TestOutcome = Literal["passed", "failure", "error", "skipped"]
_OUTCOME_OF_STATE: dict[str, TestOutcome] = {"confirmed": "failure", "suspect": "skipped"}
_MOST_FINDINGS = 40  # findings in the text of a component's failure; the .json has all of them


class _TestCase(NamedTuple):
    """A test of the document: `type` and `message` say why it did not pass, and `text` gives the details.

    They are empty for a test that passed, and are not yet escaped."""

    name: str
    outcome: TestOutcome
    type: str = ""
    message: str = ""
    text: str = ""


def fleet_tests(judgement: gb.FleetJudgement) -> str:
    """Return the judgement as a JUnit XML document: suites with the answer, the nodes, and each kind of component."""
    findings: dict[gb.Place, list[gb.FleetFinding]] = {}
    for suspect in judgement.suspects:
        for finding in suspect.findings:
            findings.setdefault(finding.place, []).append(finding)
    # Failed cases come first in `judgement.failures`. Reversed, because later items of a dictionary replace earlier.
    failures = {failure.place: failure for failure in reversed(judgement.failures)}
    suites: dict[str, list[_TestCase]] = {"node": list(_node_tests(judgement))}
    for standing in judgement.standings:
        suites.setdefault(standing.kind, []).append(
            _component_test(standing, findings.get(standing.place, ()), failures.get(standing.place))
        )
    tests = [test for suite in suites.values() for test in suite]
    text = gb.fleet_text
    odd = [*text.setting_sentences(judgement), *text.fast_sentences(judgement), *text.population_sentences(judgement)]
    lines = [text.fleet_answer(judgement), *odd, *judgement.notes]
    output = escape("\n".join(lines))
    return "".join(
        [
            '<?xml version="1.0" encoding="UTF-8"?>\n',
            f'<testsuites name="gpubench fleet" {_count_attributes(tests)}>\n',
            f'  <testsuite name="answer" {_count_attributes([])}>\n',
            f"    <system-out>{output}</system-out>\n  </testsuite>\n",
            *(_suite_element(kind, suite) for kind, suite in suites.items()),
            "</testsuites>\n",
        ]
    )


def _node_tests(judgement: gb.FleetJudgement) -> Iterator[_TestCase]:
    """Yield a test for each node: passed if it answered, else an error with its status and the reason."""
    for node in judgement.fleet.nodes:
        if node.status == "answered":
            yield _TestCase(node.name, "passed")
        else:
            yield _TestCase(
                node.name, "error", node.status, f"{node.status}: {node.reason}" if node.reason else node.status
            )


def _component_test(
    standing: gb.Standing, findings: Sequence[gb.FleetFinding], failure: gb.FailedCases | None
) -> _TestCase:
    name, state = standing.place.text, standing.state
    if standing.sick:
        return _TestCase(name, "error", "sick", standing.sick[0], "\n".join(standing.sick))
    if failure:
        outcome: TestOutcome = "failure" if failure.status == "failed" else "error"
        return _TestCase(name, outcome, failure.status, gb.fleet_text.failure_text(failure))
    if not findings:
        is_compared = state != "not compared"
        return _TestCase(name, "passed") if is_compared else _TestCase(name, "skipped", state, "too few are comparable")
    worst = max(findings, key=lambda finding: finding.slowdown)
    message = f"{_finding_text(worst)}: {gb.fleet_text.STATES[worst.state]}"
    return _TestCase(
        name,
        _OUTCOME_OF_STATE.get(state, "passed"),
        state,
        message,
        "\n".join(map(_finding_text, findings[:_MOST_FINDINGS])),
    )


def _finding_text(finding: gb.FleetFinding) -> str:
    """Return a finding in one line: case, slowdown, both figures, smallest detectable slowdown, and probable causes."""
    figures = ""
    if finding.case:
        measured, expected = (gb.units.quantity(value, finding.unit) for value in (finding.value, finding.expected))
        figures = f", {measured} where {expected} is expected"
    slowdown, smallest = gb.units.percent(finding.slowdown), gb.units.percent(finding.detectable)
    cause = gb.fleet_text.causes_text(finding)
    return f"{finding.subject}: {slowdown} slow{figures} ({smallest} would have been found), {cause}"


def _suite_element(kind: str, tests: Sequence[_TestCase]) -> str:
    """Return the XML element of a suite of tests; `kind` is the kind of its components, or `node`."""
    cases = "".join(_case_element(kind, test) for test in tests)
    return f'  <testsuite name="{kind}" {_count_attributes(tests)}>\n{cases}  </testsuite>\n'


def _case_element(kind: str, test: _TestCase) -> str:
    """Return the XML element of a test, with its failure, error or skip if it did not pass."""
    opening = f'<testcase classname="gpubench.fleet.{kind}" name={quoteattr(test.name)}'
    if test.outcome == "passed":
        return f"    {opening}/>\n"
    message = f"message={quoteattr(test.message)}"
    if test.outcome == "skipped":
        return f"    {opening}><skipped {message}/></testcase>\n"
    inner = f"<{test.outcome} type={quoteattr(test.type)} {message}>{escape(test.text)}</{test.outcome}>"
    return f"    {opening}>{inner}</testcase>\n"


def _count_attributes(tests: Sequence[_TestCase]) -> str:
    """Return the XML attributes `tests`, `failures`, `errors` and `skipped`, which count the tests by outcome."""
    outcomes = [test.outcome for test in tests]
    return (
        f'tests="{len(tests)}" failures="{outcomes.count("failure")}" errors="{outcomes.count("error")}" '
        f'skipped="{outcomes.count("skipped")}"'
    )
