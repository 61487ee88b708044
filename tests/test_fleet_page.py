"""The judgement of a fleet as a page, as Markdown, JSON and JUnit: what it says, what it hides, and how large it is."""

import base64
import functools
import gzip
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import _browser
import pytest
from _fleets import fleet
from test_injection import TEXTS, UNSEEN, is_inert_json, is_inert_markdown, is_inert_page

from gpubench.base.errors import UsageError
from gpubench.base.walk import with_texts
from gpubench.judging.fleet import FailedCases, Place, TwoPopulations
from gpubench.judging.fleet_rule import judge_fleet
from gpubench.tools import sharing
from gpubench.tools.fleet import judging

SLOW = ("gpu03", "cuda:3")
DEAD = {"gpu05": ("died", "no message from gpu05 for 30 s")}
FORMS = ("html", "md", "json", "xml")
FAILED = (FailedCases(Place("gpu01", ("cuda:2",)), "failed", 2, "gemm/square[n=64]", "a wrong answer"),)
MOST_PAGE_BYTES = 2_000_000


@functools.cache
def judged(nodes=8, gpus=8, rack_size=4):
    """Return a fleet with a GPU that heat slowed down, and a node that died."""
    return judge_fleet(*fleet(nodes, gpus, {SLOW: {"memory": 0.067}}, {SLOW: {"thermal"}}, DEAD, rack_size=rack_size))


def of_state(judgement, state):
    places = {place for suspect in judgement.suspects for place in suspect.parts}
    suspects = tuple(
        replace(suspect, findings=tuple(replace(finding, state=state, again=0.06) for finding in suspect.findings))
        for suspect in judgement.suspects
    )
    standings = tuple(
        replace(standing, state=state) if standing.place in places else standing for standing in judgement.standings
    )
    return replace(judgement, suspects=suspects, standings=standings)


def with_sick(judgement):
    first, *others = judgement.standings
    return replace(judgement, standings=(replace(first, sick=("33 remapped rows",)), *others))


def rendered(form, judgement):
    return judging.rendered(Path(f"fleet.{form}"), judgement)


class MapTiles(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.rows, self.links, self._in_map, self._cell = {}, [], False, None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self._in_map = self._in_map or attributes.get("id") == "map"
        if not self._in_map:
            return
        if tag == "table":
            self._cell = None
        if tag == "tr":
            self._row = []
        if tag in ("th", "td"):
            self._cell = [attributes.get("class", ""), ""]
            self._row.append(self._cell)
        if tag == "a":
            self.links.append(attributes["href"])

    def handle_endtag(self, tag):
        self._in_map = self._in_map and tag != "section"
        self._cell = None if tag == "table" else self._cell

    def handle_data(self, data):
        if self._in_map and self._cell:
            self._cell[1] += data.strip()
            self.rows[self._row[0][1]] = [tuple(cell) for cell in self._row[1:]]


def layers(page):
    packed = re.search(r'id="layers">([^<]*)<', page)[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def test_the_answer_stands_first_tiles_are_marked_and_a_suspect_shows_its_cases_the_lowest_share_first():
    page = rendered("html", judged())
    answer = re.search(r'<p class="verdict warning">([^<]*)</p>', page)[1]
    assert "gpu03 cuda:3: memory 6.7 % below the others (heat slowed it down" in answer
    assert page.index(answer) < page.index("<main>")
    tiles = MapTiles(page)
    assert tiles.rows["gpu03"][3] == ("h3 suspect", "93.3")
    assert tiles.links == ["#suspect-1"]
    evidence = page.partition('id="suspect-1"')[2].partition("</details>")[0]
    assert [text for text in ("4084 GB/s", "4379 GB/s", "heat slowed it down") if text not in evidence] == []
    assert page.count('<a href="#suspect-1">gpu03 cuda:3</a>') == 1
    assert tiles.rows["gpu05"] == [("gone", "died")]
    assert "no message from gpu05 for 30 s" in page
    (suspect,) = judged().suspects
    assert suspect.cases[0].family == "memory"
    assert len(suspect.cases) == len(judged().groups[0].cases)
    assert [case.share for case in suspect.cases] == sorted(case.share for case in suspect.cases)
    chase = next(case for case in suspect.cases if case.unit == "s")
    assert chase.share == pytest.approx(chase.median / chase.value)
    evidence = rendered("html", judged()).partition('id="suspect-1"')[2].partition("</details>")[0]
    assert "gemm/square" in evidence
    assert "latency/chase" in evidence


def test_the_map_shows_every_gpu_with_its_share_and_the_script_gets_the_same_values():
    page = rendered("html", judged())
    map_layers = layers(page)
    assert map_layers["devices"] == [f"cuda:{index}" for index in range(8)]
    memory = map_layers["layers"][0]
    tiles = [text for node, row in MapTiles(page).rows.items() if node.startswith("gpu") for _, text in row]
    assert [f"{value / 10:.1f}" for value in memory["values"]] == [text for text in tiles if text != "died"]
    without_racks = rendered("html", judged(40, 2, 0)).partition('<div id="map"')[2].partition("</section>")[0]
    assert without_racks.count("<table>") == 3, "of sixteen nodes"
    names = [layer["name"] for layer in map_layers["layers"]]
    assert names == ["memory", "compression", "latency", "compute", "ipc", "temperature", "power", "clock"]


def test_a_slow_link_marks_the_tiles_of_both_its_gpus():
    pair = ("cuda:0", "cuda:1")
    judgement = judge_fleet(*fleet(8, 2, {("gpu02", pair): {"ipc": 0.15}}))
    assert [suspect.place for suspect in judgement.suspects] == [Place("gpu02", pair)]
    row = MapTiles(rendered("html", judgement)).rows["gpu02"]
    assert [style for style, _ in row] == ["h5 suspect", "h5 suspect"]
    states = {standing.place: standing.state for standing in judgement.standings}
    assert (states[Place("gpu02", ("cuda:0",))], states[Place("gpu02", pair)]) == ("ok", "suspect")


def test_two_populations_and_a_fleet_that_cannot_be_judged_are_reported_in_every_form():
    two = TwoPopulations(
        "memory", ("bandwidth/triad",), (Place("gpu00", ("cuda:0",)),), 3, 0.08, ("pcie width 8, there 16",)
    )
    judgement = judged()
    split = replace(judgement, groups=(replace(judgement.groups[0], populations=(two,)), *judgement.groups[1:]))
    small = judge_fleet(*fleet(2, 1))
    gone = {f"gpu0{index}": ("missing", "it never reported") for index in range(3)}
    silent = judge_fleet(*fleet(3, 8, silent=gone))
    for form in FORMS:
        assert "pcie width 8" in rendered(form, split)
        assert "cannot be judged: 2 comparable GPUs" in rendered(form, small)
        assert rendered(form, silent).count("it never reported") >= 3
    assert MapTiles(rendered("html", silent)).rows["gpu02"] == [("gone", "missing")]


def test_the_host_processors_of_a_fleet_without_gpus_are_tiles_and_not_called_gpus():
    record, digests = fleet(6, 1)
    hosts = []
    for digest in digests:
        part = replace(digest.components[0], kind="host", devices=("host",), uuids=("",), model="EPYC")
        hosts.append(replace(digest, components=(part,)))
    page = rendered("html", judge_fleet(record, hosts))
    assert [len(row) for row in MapTiles(page).rows.values()] == [1] * 7
    assert "<th scope=col>host" in page
    text = re.sub(r"<(style|script)[^>]*>.*?</\1>", "", page, flags=re.DOTALL)
    assert "each tile a host" in text
    assert "6 × NVIDIA H200 in 6 nodes" in text
    assert "GPU" not in text.replace("Written by gpubench", "")


def test_failed_cases_and_a_sick_device_are_reported_in_every_form_and_marked_in_the_map():
    judgement = replace(with_sick(judged()), failures=FAILED)
    for form in FORMS:
        assert "a wrong answer" in rendered(form, judgement)
        assert "33 remapped rows" in rendered(form, judgement)
    tiles = MapTiles(rendered("html", judgement))
    assert (tiles.rows["gpu00"][0][0], tiles.rows["gpu01"][2][0]) == ("sick", "failed")
    root = ElementTree.fromstring(rendered("xml", replace(judged(), failures=FAILED)))
    assert [test.get("name") for test in root.iter("testcase") if test.find("failure") is not None] == ["gpu01 cuda:2"]


def test_the_suffix_of_a_file_chooses_the_form():
    with pytest.raises(UsageError, match=r"fleet\.csv: the ending of the file chooses the form .* \.html, \.md"):
        rendered("csv", judged())


def test_shared_forms_name_no_node_no_rack_no_uuid_and_no_file():
    noted = replace(judged(), notes=("gpu03 and gpu04 both measured one GPU; see /home/anna/x on GPU07",))
    shared = sharing.shared(noted, b"salt")
    for form in FORMS:
        assert "gpu03" in rendered(form, noted)
        written = rendered(form, shared)
        assert not re.search(r"(?i)gpu0|rack-0|GPU-gpu|anna|jsonl", written)
        assert re.search("node-4`? cuda:3", written) or '"node": "node-4"' in written
        assert "node-6" in written
    assert shared.notes == ("node-4 and node-5 both measured one GPU; see (left out) on node-8",)
    assert shared.fleet.nodes[5].reason == "no message from node-6 for 30 s"
    assert [node.rack for node in shared.fleet.nodes] == ["rack-1"] * 4 + ["rack-2"] * 4
    assert [node.name for node in shared.fleet.nodes] == [f"node-{number}" for number in range(1, 9)]
    assert [group.text for group in shared.groups] == [group.text for group in judged().groups], "no figure changes"
    assert [replace(case, nodes=()) for group in shared.groups for case in group.cases] == [
        replace(case, nodes=()) for group in judged().groups for case in group.cases
    ]
    assert shared.suspects[0].causes == judged().suspects[0].causes
    assert shared.suspects[0].findings[0].case == judged().suspects[0].findings[0].case


def test_a_pseudonym_of_a_node_never_stands_for_another_node():
    judgement = with_texts(judged(), lambda text: {"gpu00": "node-2", "gpu01": "node-1"}.get(text, text))
    shared = sharing.shared(replace(judgement, notes=("node-2 and node-1",)), b"salt")
    assert shared.notes == ("node-1 and node-2",)
    assert [node.name for node in shared.fleet.nodes[:2]] == ["node-1", "node-2"]


def test_markdown_has_at_most_sixty_lines_however_bad_the_fleet_is():
    judgement = with_sick(judged())
    nodes = tuple(replace(judgement.fleet.nodes[5], name=f"gone{index}") for index in range(500))
    two = TwoPopulations("memory", ("a/b",), (), 3, 0.08, ())
    groups = tuple(replace(judgement.groups[0], populations=(two,) * 50) for _ in range(20))
    worst = of_state(judgement, "confirmed")
    worst = replace(
        worst,
        fleet=replace(worst.fleet, nodes=nodes),
        groups=groups,
        suspects=worst.suspects * 600,
        standings=worst.standings[:1] * 900,
        failures=FAILED * 90,
        notes=("a note",) * 300,
    )
    lines = rendered("md", worst).splitlines()
    assert len(lines) <= 60
    assert any("585 more suspects" in line for line in lines)
    assert any("gone0, gone1, gone2 and 497 more: died" in line for line in lines)


def test_json_has_every_figure_under_the_name_of_its_unit():
    document = json.loads(rendered("json", of_state(judged(), "confirmed")), parse_constant=pytest.fail)
    assert document["schema"] == "gpubench.fleet-judgement/1"
    (suspect,) = document["suspects"]
    finding = suspect["findings"][0]
    assert (suspect["node"], suspect["devices"], suspect["state"]) == ("gpu03", ["cuda:3"], "confirmed")
    assert finding["slowdown_fraction"] == pytest.approx(1 - finding["value"] / finding["expected"], abs=0.002)
    assert finding["slowdown_again_fraction"] == 0.06
    assert document["nodes"][5]["status"] == "died"
    gpus = [component for component in document["components"] if component["kind"] == "GPU"]
    slow = next(component for component in gpus if (component["node"], *component["devices"]) == SLOW)
    assert slow["share_of_median_fraction"]["memory"] == pytest.approx(0.933, abs=0.001)
    assert slow["temperature_c"] > 60
    assert slow["clock_hz"] == pytest.approx(1.98e9 * 0.95)


@pytest.mark.parametrize(("state", "element"), [("confirmed", "failure"), ("suspect", "skipped"), ("transient", None)])
def test_in_junit_only_a_confirmed_suspect_fails(state, element):
    root = ElementTree.fromstring(rendered("xml", of_state(judged(), state)))
    tests = {test.get("name"): [child.tag for child in test] for test in root.iter("testcase")}
    assert tests["gpu03 cuda:3"] == ([element] if element else [])
    assert tests["gpu03 cuda:2"] == []
    assert tests["gpu05"] == ["error"]
    all_tags = [tag for tags in tests.values() for tag in tags]
    for suite in (root, *root.iter("testsuite")):
        inside = [child.tag for test in suite.iter("testcase") for child in test]
        kinds = ("failure", "error", "skipped")
        assert [suite.get(name) for name in ("failures", "errors", "skipped")] == [str(inside.count(k)) for k in kinds]
    assert all_tags.count("error") == 1


@functools.cache
def whole():
    """Return a judgement with something in every field."""
    two = TwoPopulations("memory", ("a/b",), (Place("gpu00", ("cuda:0",)),), 3, 0.08, ("width 8",))
    judgement = with_sick(of_state(judged(), "confirmed"))
    groups = tuple(replace(group, populations=(two,)) for group in judgement.groups)
    return replace(
        judgement, groups=groups, notes=("a note",), failures=FAILED, fleet=replace(judgement.fleet, argv=("gpubench",))
    )


def judgement_with_text(text):
    """Return the judgement with a text in every field that holds one; what the types fix stays."""
    return with_texts(whole(), lambda _: text, lambda _: text)


@TEXTS
@pytest.mark.parametrize("form", FORMS)
def test_text_of_a_fleet_stays_inert_text_in_every_form(form, texts):
    plain = rendered(form, judgement_with_text("plain"))
    for text in texts:
        written = rendered(form, judgement_with_text(text))
        if form == "html":
            is_inert_page(written, plain)
            assert not UNSEEN.search(json.dumps(layers(written), ensure_ascii=False))
        elif form == "md":
            is_inert_markdown(written)
        elif form == "json":
            is_inert_json(written)
        else:
            assert {element.tag for element in ElementTree.fromstring(written).iter()} == {
                element.tag for element in ElementTree.fromstring(plain).iter()
            }
            assert not UNSEEN.search(written)


@functools.cache
def thousand():
    """Return a thousand nodes of eight GPUs: a slow GPU, a slow node, two nodes without an answer."""
    slow = {("gpu303", "cuda:3"): {"memory": 0.067}, **{("gpu404", f"cuda:{k}"): {"memory": 0.05} for k in range(8)}}
    silent = {"gpu055": ("died", "no message for 30 s"), "gpu777": ("missing", "it never reported")}
    return judge_fleet(*fleet(1000, 8, slow, {("gpu303", "cuda:3"): {"thermal"}}, silent))


@pytest.mark.slow
def test_the_page_of_a_thousand_and_of_a_hundred_thousand_nodes_with_many_suspects_stays_below_two_megabytes():
    judgement = thousand()
    page = rendered("html", judgement)
    assert len(page.encode()) <= MOST_PAGE_BYTES / 4
    assert len(MapTiles(page).rows) == 1001
    assert len(rendered("xml", judgement).encode()) <= 4_000_000
    nodes = tuple(replace(judgement.fleet.nodes[55], name=f"node with a long name {index}") for index in range(100_000))
    nodes = (*judgement.fleet.nodes, *nodes)
    findings = judgement.suspects[1].findings * 20
    cases = judgement.suspects[1].cases * 40
    suspects = tuple(replace(suspect, findings=findings, cases=cases) for suspect in judgement.suspects * 800)
    judgement = replace(
        judgement, fleet=replace(judgement.fleet, nodes=nodes), suspects=suspects, notes=("a note " * 60,) * 5000
    )
    assert len(rendered("html", judgement).encode()) <= MOST_PAGE_BYTES


def in_browser(test):
    for mark in _browser.MARKS:
        test = mark(test)
    return test


def shown(browser, tmp_path, judgement, width=1280, **more):
    page = tmp_path / "fleet.html"
    page.write_text(rendered("html", judgement))
    browser.show(page, width, **more)


@in_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("state", ["suspect", "confirmed"])
def test_no_text_of_the_page_is_clipped_or_overprinted(browser, tmp_path, state, width, dark):
    shown(browser, tmp_path, with_sick(of_state(judged(), state)), width, dark=dark)
    browser.expect_whole()
    assert browser.messages == []


@in_browser
def test_a_click_on_a_small_map_shows_its_layer_and_a_tile_shows_its_values(browser, tmp_path):
    shown(browser, tmp_path, judged())
    browser.ask("document.querySelectorAll('.overview figure')[3].click()")
    text = browser.ask(
        "(async () => { while (document.getElementById('map').dataset.layer !== '3') "
        "await new Promise((done) => setTimeout(done, 5)); return document.getElementById('layer').textContent; })()"
    )
    assert text.startswith("compute: ")
    compute = next(
        standing for standing in judged().standings if standing.place == Place(*[SLOW[0], (SLOW[1],)])
    ).shares[3]
    tile = "document.querySelector('#map td.suspect')"
    assert compute[0] == "compute"
    assert browser.ask(f"{tile}.textContent") == f"{100 * compute[1]:.1f}"
    browser.ask(f"{tile}.dispatchEvent(new Event('pointerover', {{bubbles: true}}))")
    tool_tip = browser.ask(
        "(async () => { const told = document.getElementById('tile'); while (!told.textContent.includes('gpu03')) "
        "await new Promise((done) => setTimeout(done, 5)); return told.textContent; })()"
    )
    assert tool_tip.startswith("gpu03 cuda:3: memory 93.3 %")
    assert tool_tip.endswith("clock 1.88 GHz")


@in_browser
def test_the_tile_of_a_suspect_opens_its_cases(browser, tmp_path):
    many = replace(judged(), suspects=judged().suspects * 9)
    shown(browser, tmp_path, many)
    assert browser.ask("document.getElementById('suspect-1').open") is False
    browser.ask("document.querySelector('#map a').click()")
    opened = browser.ask(
        "(async () => { const fold = document.getElementById('suspect-1'); "
        "while (!fold.open) await new Promise((done) => setTimeout(done, 5)); return fold.open; })()"
    )
    assert opened is True


@in_browser
def test_without_a_script_the_map_and_the_cases_of_the_suspects_are_there(browser, tmp_path):
    shown(browser, tmp_path, judged(), script=False)
    page = (tmp_path / "fleet.html").read_text()
    assert MapTiles(page).rows["gpu03"][3] == ("h3 suspect", "93.3")
    assert '<details class="fold" id="suspect-1" open>' in page
    assert "hidden" in re.search(r'<output id="tile"[^>]*>', page)[0]


def test_an_implausibly_fast_component_is_marked_in_the_map_and_told_in_every_form():
    record, digests = fleet(8, 1, {("gpu02", "cuda:0"): {"memory": -0.05}})
    judgement = judge_fleet(record, digests)
    assert MapTiles(rendered("html", judgement)).rows["gpu02"][0] == ("fast", "105.1")
    assert json.loads(rendered("json", judgement))["too_fast"][0]["node"] == "gpu02"
    for form in FORMS:
        assert "implausibly fast: memory 5." in rendered(form, judgement)


@pytest.mark.parametrize("nodes", [2, 7])
def test_the_medians_of_each_node_of_a_small_fleet_and_their_ratio_are_shown_proven_or_not(nodes):
    judgement = judge_fleet(
        *fleet(nodes, 2, {("gpu01", "cuda:0"): {"memory": 0.1}, ("gpu01", "cuda:1"): {"memory": 0.1}})
    )
    case = min((case for group in judgement.groups for case in group.cases), key=lambda case: case.ratio)
    assert case.case.startswith("bandwidth/triad")
    assert case.ratio == pytest.approx(0.9, abs=0.005)
    assert [median.place.node for median in case.nodes] == [f"gpu0{node}" for node in range(nodes)]
    for form in ("html", "md"):
        assert "medians of each node" in rendered(form, judgement).lower()
    assert not any(case.nodes for group in judged(40, 2, 0).groups for case in group.cases)


def test_the_terminal_shows_the_medians_of_two_nodes_and_their_ratio(call):
    done = call("fleet", "judge", Path(__file__).parent / "recordings/fleet/link-loaded")
    assert done.returncode == 4
    assert "; the largest difference: vm-1 has 49.2 % of the rate of vm-0 in bandwidth/d2h[" in done.stdout
    assert "medians of each node" in done.stdout
    assert re.search(r"bandwidth/d2h.*54\.99 GB/s +27\.05 GB/s +49\.2 %", done.stdout)


def test_many_nodes_without_files_are_told_in_a_few_lines(call, tmp_path):
    nodes = [{"name": f"node{index}", "status": "answered", "file": f"node{index}.jsonl.gz"} for index in range(20_000)]
    (tmp_path / "fleet.json").write_text(json.dumps({"nodes": nodes}))
    done = call("fleet", "judge", tmp_path)
    assert done.returncode == 4
    assert len(done.stdout.splitlines()) < 10
    assert "20000 of 20000 nodes did not answer" in done.stdout
    assert "node0, node1, node2 and 19997 more: refused: its run file is missing" in done.stdout
