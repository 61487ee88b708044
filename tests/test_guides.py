"""The guides for authors of suites and reports: their files are written as the pages show them, and they work."""

import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from _command import gpubench

from gpubench import plugins
from gpubench.analysis.summary import Summary
from gpubench.authoring.axes import Target
from gpubench.cli import _print, _summary
from gpubench.judging.comparison import compare
from gpubench.measuring import plan as planning
from gpubench.model import Device, Facts, store
from gpubench.tools import rendering
from gpubench.tools.gating import readings

DOCS = Path(__file__).parents[1] / "docs"
SUITE, REPORT = (DOCS / "writing-a-suite.md").read_text(), (DOCS / "writing-a-report.md").read_text()
RECORDINGS = Path(__file__).parent / "recordings"
SUITE_LINE = 'suite = gb.Suite("gathers: out[i] = table[index[i]]")\n'


def blocks(page: str, language: str) -> list[str]:
    """Return the code blocks of a page in that language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def whole_suite() -> str:
    """Return the file that a reader has who followed the page to its end: each block appended, the views put in."""
    first, views, *appended = (block for block in blocks(SUITE, "python") if not block.startswith("# copies/"))
    assert SUITE_LINE in first
    return "\n\n".join([first.replace(SUITE_LINE, views), *appended])


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Run the page's suite, its whole, and its two mistakes in one process; return the folder and the run."""
    folder = tmp_path_factory.mktemp("suite")
    first = blocks(SUITE, "python")[0]
    right, wrong = "np.take(table, index, out=out,", "np.take(table, index[1:], out=out[1:],"
    assert (right in first, f'{wrong} mode="clip")' in SUITE) == (True, True)
    files = {
        "gather": first,
        "whole": whole_suite(),
        "wrong": first.replace(right, wrong),
        "mistaken": first.replace("Work(moved=", "Work(payload="),
    }
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    options = ["--device", "host", "--tier", "smoke", "--out", "run.jsonl"]
    done = gpubench("run", *(f"./{name}.py" for name in files), *options, cwd=folder)
    assert done.returncode == 3, done.stderr  # two of the files are wrong on purpose
    return folder, store.read_run(folder / "run.jsonl")


def outcomes(run, suite):
    return [(result.case.id, result.status, result.cause) for result in run.results if result.case.suite == suite]


def test_the_first_suite_runs_by_its_path(measured):
    assert outcomes(measured[1], "gather") == [
        ("gather/gather[size=64KiB,order=ascending]", "ok", ""),
        ("gather/gather[size=64KiB,order=random]", "ok", ""),
    ]


def test_the_first_case_runs_within_the_first_screen():
    assert SUITE[: SUITE.index("gather[size=16MiB,order=random]  ")].count("\n") < 45


def test_the_blocks_of_the_page_are_one_suite_with_a_view(measured):
    folder, run = measured
    assert {(case_id.partition("[")[0], status) for case_id, status, _ in outcomes(run, "whole")} == {
        ("whole/gather", "ok"),
        ("whole/hand_over", "ok"),
        ("whole/farewell", "ok"),
    }
    gpu = Device("cuda:0", "cupy", "a GPU", "sm_90", memory_bytes=2**34, cache_bytes=2**25, units=2)
    suite = planning.load_suite(str(folder / "whole.py"))
    ids = [case.id for case in suite.cases(Target(Facts((gpu,)), gpu))]
    assert "whole/gather_kernel[size=128MiB,order=random,dtype=float32]" in ids
    assert [view.kind for view in suite.views] == ["curve"]


def test_the_folder_of_the_page_is_a_suite_of_its_topics(tmp_path):
    for block in blocks(SUITE, "python"):
        if block.startswith("# copies/"):
            path = tmp_path / block.split("\n", 1)[0].removeprefix("# ")
            path.parent.mkdir(exist_ok=True)
            path.write_text(block)
    suite = planning.load_suite(str(tmp_path / "copies"))
    assert (suite.name, list(suite.definitions), [view.title for view in suite.views]) == (
        "copies",
        ["whole"],
        ["Copies over size"],
    )


@pytest.mark.parametrize(
    ("suite", "cause", "cases", "block"), [("wrong", "wrong-answer", 1, 1), ("mistaken", "suite", 2, 2)]
)
def test_the_mistakes_of_the_page_fail_and_are_reported_as_the_page_shows(measured, suite, cause, cases, block):
    results = [result for result in measured[1].results if result.case.suite == suite][:cases]
    assert [(result.status, result.cause) for result in results] == [("failed", cause)] * cases
    console = _print.out()
    with console.capture() as capture:
        console.print(*_summary.overview(Summary(replace(measured[1], results=tuple(results)))), sep="\n")
    documented = blocks(SUITE, "text")[block].removeprefix("…\n").removesuffix("…\n")
    assert documented in capture.get().replace(f"{suite}/", "gather/")


@pytest.fixture
def report(tmp_path, monkeypatch):
    """Install the report of the page in the way the page describes, and return its name."""
    package, metadata = tmp_path / "gpubench_txt", tmp_path / "gpubench_txt-1.0.dist-info"
    package.mkdir(), metadata.mkdir()
    (package / "__init__.py").touch()
    (package / "txt.py").write_text(blocks(REPORT, "python")[0])
    (entry_points,) = re.findall(r"printf '(.*)' > gpubench_txt-1\.0\.dist-info/entry_points\.txt", REPORT)
    (metadata / "entry_points.txt").write_text(entry_points.replace("\\n", "\n"))
    monkeypatch.syspath_prepend(tmp_path)
    yield "txt"
    for name in ("gpubench_txt", "gpubench_txt.txt"):
        sys.modules.pop(name, None)


def test_the_report_is_found_and_writes_what_the_page_shows(report):
    assert report in plugins.names("reports")
    form = rendering.report(report)
    assert f'summary = "{form.summary}"' in REPORT
    document = form.render(store.read_run(RECORDINGS / "headline" / "1.jsonl.gz"))
    assert document.startswith(blocks(REPORT, "text")[0])
    runs = readings.read_all([RECORDINGS / "longer" / f"{name}.jsonl.gz" for name in ("base", "3")])
    assert form.compare(compare(runs, lambda _: 0.02)) == blocks(REPORT, "text")[1]


@pytest.mark.parametrize(("page", "room"), [(SUITE, "suites"), (REPORT, "reports")], ids=["suite", "report"])
def test_the_projects_of_the_pages_name_their_package_as_an_entry_point(page, room):
    project = tomllib.loads(blocks(page, "toml")[0])
    (package,) = project["tool"]["setuptools"]["packages"]
    assert list(project["project"]["entry-points"][f"gpubench.{room}"].values()) == [package]
