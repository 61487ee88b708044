"""The publications of a judgement for a CI: complete, within size limits, and inert for any name of a case."""

import functools
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import _make as make
import pytest
from _injections import INJECTIONS, poisoned
from _sides import noisy, reading
from markdown_it import MarkdownIt
from pydantic import ValidationError
from test_injection import TAGS_OF_MARKDOWN, UNSEEN, is_inert_json, is_inert_markdown

from gpubench import plugins
from gpubench.base.clean import escape, tidy
from gpubench.judging.answer import answer
from gpubench.judging.evidence import Evidence
from gpubench.judging.judge import Judgement, exit_status, settled
from gpubench.judging.policy import Policy
from gpubench.model import Verdict
from gpubench.model.verdict import VERDICT, verdict_schema


def judgement(**centres):
    """Return the judgement of a case per name with this factor of slow-down; names may be hostile."""
    cases = {name: make.case(name, size_bytes=2**20) for name in centres}
    before = [reading(noisy(spread=1e-3), of=case) for case in cases.values()]
    after = [reading(noisy(centres[name], 1.1e-3), of=case) for name, case in cases.items()]
    return settled(plugins.load("gates", "regression").judge(Evidence([before]), Evidence([after]), Policy()))


@functools.cache
def many(count):
    return judgement(**{f"case{index}": 1.1 for index in range(count)})


def render(form, judgement, limit=0):
    clean = tidy(judgement)
    return plugins.load("publications", form).render(clean, answer(clean, exit_status(clean), "gpubench gate"), limit)


def test_junit_has_a_test_for_each_case_and_an_error_for_a_pattern_without_one():
    judged = judgement(slow=1.1, fine=1.0001, unsure=1.0195)
    root = ET.fromstring(render("junit", judged))
    assert root.attrib == {"name": "gpubench gate", "tests": "3", "failures": "1", "errors": "0", "skipped": "1"}
    failed = root.find(".//testcase[failure]")
    assert failed.get("name") == "bandwidth/slow[size=1MiB] on cuda:0"
    assert failed.find("failure").get("message").startswith("slower: +10.0 % (")
    assert "2.0 %" in failed.find("system-out").text
    root = ET.fromstring(render("junit", Judgement((), unmet=("gemm/*",))))
    assert root.find(".//testcase/error").get("type") == "missing"
    assert root.get("errors") == "1"


def many_hostile(texts):
    """Return a judgement in which each text is a name, a reason, a note, a device, a required case and a unit."""
    (finding,) = judgement(case=1.1).findings
    findings = [
        replace(
            poisoned(replace(finding, reason=text, cause="x", devices=(text,)), text),
            verdict=list(Verdict)[number % len(Verdict)],
        )
        for number, text in enumerate(texts)
    ]
    return Judgement(tuple(findings), unmet=tuple(texts), notes=tuple(texts))


@pytest.mark.parametrize("form", plugins.names("publications"))
def test_no_text_of_a_judgement_becomes_markup_in_any_publication(form):
    for texts in (INJECTIONS, *([text] for text in INJECTIONS)):
        INERT[form](render(form, many_hostile(texts)))


def is_inert_xml(written):
    """Assert that the document has only the elements and attributes of JUnit, and no hidden letter."""
    root = ET.fromstring(written)
    assert {node.tag for node in root.iter()} <= {
        *("testsuites", "testsuite", "testcase", "failure", "error", "skipped", "system-out")
    }
    assert {name for node in root.iter() for name in node.attrib} <= {
        *("name", "classname", "type", "message", "tests", "failures", "errors", "skipped")
    }
    assert not UNSEEN.search(written)


def is_inert_annotation(written):
    """Assert that each line is one annotation of limited length, and no other command."""
    assert not UNSEEN.search(written)
    for line in written.splitlines():
        text = re.fullmatch(r"::(?:error|warning) title=gpubench gate::(.+)", line)[1]
        assert len(text.replace("%25", "%").replace("#\\#", "##")) <= 500
        assert not re.search(r"##\w*\[", line)


def is_inert_comment(written):
    html = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(written)
    assert set(re.findall(r"<([a-z0-9]+)", html)) <= {*TAGS_OF_MARKDOWN, "details", "summary"}
    is_inert_markdown(re.sub("</?(details|summary)>|<!-- gpubench gate -->", "", written))


INERT = {"annotations": is_inert_annotation, "json": is_inert_json, "junit": is_inert_xml, "markdown": is_inert_comment}


def test_markdown_shows_the_worst_cases_first_and_folds_the_passing_ones():
    text = render("markdown", judgement(fine=1.0001, slow=1.1))
    assert text.startswith("<!-- gpubench gate -->\n## gpubench gate: SLOWER: 1 of 2 cases is slower (exit status 1: ")
    loud, quiet = text.split("<details>")
    assert "bandwidth/slow" in loud
    assert "bandwidth/fine" in quiet
    assert "bandwidth/fine" not in loud


@pytest.mark.parametrize("limit", [0, 600, 5_000, 65_536, 1_024_000])
def test_markdown_fits_the_limit_and_counts_the_omitted_lines(limit):
    text = render("markdown", many(1000), limit)
    assert not limit or len(text.encode()) <= limit
    assert text.startswith("<!-- gpubench gate -->\n## gpubench gate: SLOWER: 1000 of 1000 cases are slower (exit ")
    rows = text.count("**slower**")
    if rows < 1000:
        assert limit
        left = int(re.search(r"… and (\d+) more lines", text)[1])
        assert 1000 - rows <= left <= 1010 - rows


def test_folded_cases_are_left_out_first_if_space_is_short():
    judged = judgement(slow=1.1, **{f"fine{index}": 1.0001 for index in range(400)})
    text = render("markdown", judged, 20_000)
    assert len(text.encode()) <= 20_000
    assert text.rstrip().endswith("</details>")
    assert "bandwidth/slow" in text


def test_there_are_at_most_ten_annotations_of_a_kind_and_the_last_counts_the_others():
    lines = render("annotations", many(25)).splitlines()
    assert len(lines) == 10
    assert all(line.startswith("::error title=gpubench gate::") for line in lines)
    assert lines[-1].endswith("and 16 more; in all 25 slower")
    lines = render("annotations", judgement(unsure=1.0195, slow=1.1)).splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["::error", "::warning"], "could not be judged"
    assert "+2.0 %25 (" in lines[1]


def test_json_is_one_document_with_every_number_and_null_where_there_is_none():
    document = json.loads(render("json", judgement(slow=1.1)))
    (finding,) = document["findings"]
    assert finding["verdict"] == "slower"
    assert finding["change_low"] < finding["change"] < finding["change_high"]
    assert finding["change"] == pytest.approx(0.1)
    assert (finding["baseline"]["processes"], document["counts"]) == (5, {"slower": 1})


REASONS = {
    "": "noise",
    "to-be-confirmed": "noise",
    "method": "other method",
    "card": "hardware",
    "machine-step": "hardware",
    "contended": "contention",
    "failed": "failure",
}


@pytest.mark.parametrize(("cause", "word"), REASONS.items())
def test_json_has_the_published_form_and_its_reasons_are_closed_words(cause, word):
    slow, fine = judgement(slow=1.1, fine=1.0001).findings
    undecided = replace(slow, verdict=Verdict.INCONCLUSIVE, cause=cause)
    written = json.loads(render("json", Judgement((slow, undecided, fine))))
    published = VERDICT.validate_python(written, strict=False)
    assert [finding["reason"] for finding in published["findings"]] == ["regression", word, None]
    properties = verdict_schema()["$defs"]["FindingRecord"]["properties"]
    assert [set(finding) for finding in written["findings"]] == 3 * [set(properties)]
    assert set(written) == set(verdict_schema()["properties"])
    with pytest.raises(ValidationError, match="reason"):
        VERDICT.validate_python({**written, "findings": [{**written["findings"][0], "reason": "mood"}]})
    judged = judgement(slow=1.1)
    alone = settled(plugins.load("gates", "regression").judge(Evidence([]), Evidence([]), Policy(required=("x",))))
    assert json.loads(render("json", alone))["unmet"] == ["x"]
    single = Evidence([[reading([1.0])]]), Evidence([[reading([1.1])]])
    (finding,) = json.loads(render("json", plugins.load("gates", "regression").judge(*single, Policy())))["findings"]
    assert (finding["change"], finding["q"]) == (None, None)
    assert judged.findings


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("access_width, B* pays; llama-3-8b: done", "`access_width`, `B*` pays; `llama-3-8b`: done"),
        ("ends with `x_y.z`.", "ends with &#96;`x_y.z`&#96;."),
        (": starts", "`:` starts"),
    ],
)
def test_the_punctuation_of_a_sentence_stays_outside_of_code(text, escaped):
    assert escape(text) == escaped
