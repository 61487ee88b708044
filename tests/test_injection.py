"""Forty texts that are code somewhere, each in every field that holds one: inert in every form of a run, and of two."""

from __future__ import annotations

import base64
import csv
import dataclasses
import gzip
import io
import json
import re
from html.parser import HTMLParser

import _make as make
import pytest
from _injections import INJECTIONS, poisoned
from markdown_it import MarkdownIt

from gpubench import model, plugins
from gpubench.cli import _print
from gpubench.cli.compare import _parts
from gpubench.judging import comparison
from gpubench.judging.evidence import Reading
from gpubench.model import Case, View
from gpubench.plugins.report import Enclosure
from gpubench.tools import rendering
from gpubench.tools.notebook import NotebookRun

FORMS = plugins.names("reports")
COMPARED = tuple(name for name in FORMS if rendering.report(name).offers("compare"))
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff\U000e0041]")
TAGS_OF_MARKDOWN = {
    *("h1", "h2", "h3", "p", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "code", "strong", "blockquote")
}


def plain_run(scale=1.0, replicates=1):
    """A run with something in every kind of field: devices, versions, views, notes, counters, failures."""
    detail = ("serial", "1")
    gpu = make.device(uuid="GPU-1", pci="0000:01:00.0", dtypes=("float32",), peers=("cuda:1",), details=(detail,))
    facts = make.facts(
        gpu,
        make.device("host", "CPU"),
        host=(("hostname", "h"), ("cpu", "c")),
        versions=(("driver", "1"),),
        absent=(model.Absent("rocm", "none", "install"),),
    )
    views = (View("bars", "Kernels", ("triad",)), View("curve", "Rate", ("sized",), x="n", by=("dtype",)))
    results = [
        make.result(
            *(make.timing(*(scale * base * (1 + 0.001 * i) for i in range(8)), moved=1e9) for base in (1e-3,)),
            make.timing(scale * 2e-3, name="cold", moved=1e9, limit="dram"),
            of=case,
            replicate=replicate,
            labels=("loaded",),
            discarded=(("thermal", 2),),
            notes=(("library", "x 1.0"),),
            window=(1.0, 2.0),
        )
        for replicate in range(replicates)
        for case in (make.case(dtype="float32"), *(make.case("sized", n=n, dtype="float32") for n in (1, 2, 3)))
    ]
    bad = [
        make.result(of=make.case("bad", n=7), status=status, cause="crash", reason="it ended: line\nTraceback")
        for status in ("failed", "skipped", "invalid")
    ]
    bad = [dataclasses.replace(each, replicate=number) for number, each in enumerate(bad)]
    run = make.run(
        *results,
        *bad,
        sampled=[make.samples([1.0, 1.5, 2.0], power=[1.0, 2.0, 3.0])],
        facts=facts,
        settings=model.Settings(
            ("bandwidth",), ("cuda:0",), filters=("x",), data=(model.DataFile("a", "/a", 1, "00"),)
        ),
        suites=(model.SuiteInfo("bandwidth", "what it measures", views),),
    )
    return dataclasses.replace(run, warnings=("a warning",), complete=False)


def spoiled(text, scale=1.0, replicates=1):
    """The run with the text in every field; what tells cases apart stays a number."""
    return poisoned(plain_run(scale, replicates), text)


def compared(text):
    """Two runs with the text in every field, one slower, held against each other."""
    sides = [Reading.of(spoiled(text, scale, 5), text) for scale in (1.0, 1.2)]
    return poisoned(comparison.compare(sides, lambda case: 0.02), text)


class Structure(HTMLParser):
    """The tags of a page with the names of their attributes; and what attributes say."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes = set(), []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags |= {tag, *((tag, name) for name, _ in attrs)}
        self.attributes += [(name, value or "") for name, value in attrs]


def is_inert_page(page, plain):
    """Whether a page has no tag and no attribute that one with a harmless text has not, and refers to nothing."""
    found, expected = Structure(page), Structure(plain)
    assert found.tags - {"wbr"} <= expected.tags
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    links = [value for name, value in found.attributes if name in ("href", "src", "action", "xlink:href")]
    assert [value for value in links if not value.startswith(("#", "data:application/", "blob:"))] == []
    assert not UNSEEN.search(page)


def is_inert_markdown(written):
    shown = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(written)
    assert set(re.findall(r"<([a-z0-9]+)", shown)) <= TAGS_OF_MARKDOWN
    outside = re.sub(r"`[^`\n]*`", "", written)  # GitHub makes no link and no mention of what is code
    assert not re.search(r"://|www\.[a-z]|(?<![\w&#;])@\w", outside)
    assert not UNSEEN.search(written)
    tables = re.findall(r"((?:^\|.*\n)+)", written, re.MULTILINE)
    assert all(len({line.count("|") for line in table.splitlines()}) == 1 for table in tables)


def is_inert_csv(written):
    rows = list(csv.reader(io.StringIO(written)))
    assert len({len(row) for row in rows}) == 1
    cells = [cell for row in rows for cell in row]
    assert not [cell for cell in cells if re.match(r"\s*[=+@\t\r＝＋－＠]|\s*-(?![\d.])|\s*-.*[^\d.e+-]", cell)]
    assert not UNSEEN.search(written)


def is_inert_json(written):
    json.loads(written, parse_constant=pytest.fail)
    assert not UNSEEN.search(written)


def is_inert_exposition(written):
    sample = re.compile(r'gpubench_\w+(\{(?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)*\})? \S+')
    lines = written.split("\n")
    assert all(re.fullmatch(r"# (HELP|TYPE) gpubench_[^\n]*|", line) or sample.fullmatch(line) for line in lines)
    assert not UNSEEN.search(written)


def is_inert_parquet(written):
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra parquet is not installed")
    texts = [cell for row in parquet.read_table(io.BytesIO(written)).to_pylist() for cell in row.values()]
    assert not [text for text in texts if isinstance(text, str) and UNSEEN.search(text)]


CHECKS = {
    "md": is_inert_markdown,
    "csv": is_inert_csv,
    "json": is_inert_json,
    "trace": is_inert_json,
    "prom": is_inert_exposition,
    "parquet": is_inert_parquet,
}


def check(form, written, plain):
    """Whether a form is inert; a form that is not known here is held to be a page."""
    CHECKS[form](written) if form in CHECKS else is_inert_page(written, plain)


def test_there_are_forty_texts():
    assert len(set(INJECTIONS)) == 40


@pytest.mark.parametrize("form", FORMS)
def test_no_text_of_a_run_is_more_than_text_in_any_form(form):
    report = rendering.report(form)
    plain = report.render(spoiled("plain"))
    for text in INJECTIONS:
        check(form, report.render(spoiled(text)), plain)


@pytest.mark.parametrize("form", COMPARED)
def test_no_text_of_two_runs_is_more_than_text_in_any_form(form):
    report = rendering.report(form)
    plain = report.compare(compared("plain"))
    for text in INJECTIONS:
        check(form, report.compare(compared(text)), plain)


def test_no_text_of_a_run_is_more_than_text_in_a_notebook():
    plain = NotebookRun(spoiled("plain"))._repr_html_()
    for text in INJECTIONS:
        is_inert_page(NotebookRun(spoiled(text))._repr_html_(), plain)


@pytest.mark.parametrize("what", ["summary", "comparison"])
def test_no_text_does_anything_to_a_terminal(what, capsys):
    for text in INJECTIONS:
        parts = _print.summary(spoiled(text)) if what == "summary" else _parts(compared(text))
        _print.out().print(*parts, sep="\n")
        shown = capsys.readouterr().out
        assert not UNSEEN.search(shown)
        if "[red]" in text:
            assert "[red]x[/red]" in shown, "markup is shown, not obeyed"


def test_the_comparison_that_is_held_against_injections_has_a_verdict_of_each_kind():
    counts = compared("plain").against[0].judgement.counts()
    assert {"slower", "invalid"} <= set(counts)


def packed(page, name):
    return gzip.decompress(base64.b64decode(re.search(rf'id="{name}">([^<]*)<', page)[1])).decode()


def many(texts):
    """Cases too many to stand unfolded in a page, each with its own text in what is folded away, and counters."""
    results = [
        make.result(
            make.timing(*[1e-3] * 6, moved=1e9),
            of=Case("bandwidth", f"case{number}", (("x", text),)),
            labels=(text,),
            notes=((text, text),),
            discarded=((text, 1),),
            window=(number, number + 0.5),
        )
        for number, text in enumerate(texts)
    ]
    counters = tuple(model.Counter(f"nvml.{text}", text, "gauge", 0.1, text) for text in dict.fromkeys(texts))
    columns = tuple((counter.name, (1.0, 2.0)) for counter in counters)
    sampled = [model.Samples("nvml", "cuda:0", (1.0, 41.0), columns)]
    return make.run(*results, sampled=sampled, counters=counters)


def test_no_text_is_more_than_text_in_what_a_page_unfolds_zooms_and_carries():
    html = rendering.report("html")
    enclosure = Enclosure("0" * 64, b"", "<script>alert(1)</script>")
    plain = html.enclose(many(["plain"] * 41), enclosure)
    page = html.enclose(many([*INJECTIONS, "plain"]), enclosure)
    is_inert_page(page, plain)
    allowed = Structure("".join(json.loads(packed(plain, "details")))).tags
    unfolded = "".join(json.loads(packed(page, "details")))
    assert Structure(unfolded).tags - {"wbr"} <= allowed
    assert not UNSEEN.search(unfolded)
    assert not UNSEEN.search(packed(page, "zoom"))
