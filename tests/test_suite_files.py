"""Suites by the path of their file: found by the command and by each worker, with the files beside them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from _command import gpubench
from _modules import bench_on, opened

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.base.errors import UsageError
from gpubench.measuring import plan as planning
from gpubench.model import Facts, Settings, store

SUITE = '''
from helper import double
from ._shared import FACTOR
from gpubench.api.suite import Stage, Suite, Task, Work, expect, points

suite = Suite("twice an array")


@suite.case(size_bytes=points(quick=(2**12, 2**14), smoke=(2**12,)), headline={})
def twice(bench, size_bytes):
    """An element read, an element written."""
    host = bench.rng.random(size_bytes // 8)
    data, out = bench.xp.asarray(host), bench.xp.empty(size_bytes // 8)

    def check():
        expect(bool((bench.device.to_host(out) == FACTOR * host).all()), "an element is wrong")
        return {}

    stage = Stage(lambda: double(data, out), Work(moved=2 * size_bytes), "moved")
    return Task.of(stage, check=check, poison=lambda: out.fill(0))


@suite.case(ranks=2)
def greeting(bench):
    """Two processes that both found the file."""
    assert bench.exchange(bench.rank) == [0, 1]
    if bench.rank:
        return Task.idle()
    return Task.of(Stage(lambda: None), check=dict)
'''


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "my program"  # a name that no package can have
    place.mkdir()
    (place / "mine.py").write_text(SUITE)
    (place / "helper.py").write_text("def double(data, out):\n    out[:] = data + data\n")
    (place / "_shared.py").write_text("FACTOR = 2.0\n")
    yield place
    for name in [name for name in sys.modules if name.startswith("gpubench_files_") or name == "helper"]:
        del sys.modules[name]
    sys.path[:] = [entry for entry in sys.path if entry != str(place)]


def test_a_suite_runs_by_the_path_of_its_file_from_anywhere(folder, tmp_path):
    options = ("--device", "host", "--tier", "smoke", "--out", tmp_path / "a.jsonl")
    done = gpubench("run", "mine.py", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    done = gpubench("run", "my program/mine.py", *options, "--resume", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = store.read_run(tmp_path / "a.jsonl")
    assert [(result.case.id, result.status) for result in run.results] == [
        ("mine/twice[size=4KiB]", "ok"),
        ("mine/greeting", "ok"),
    ]
    assert run.manifest.settings.suites == (str(folder / "mine.py"),)
    assert [info.name for info in run.manifest.suites] == ["mine"]


def test_files_beside_a_suite_are_found_as_those_of_a_package(folder):
    (folder / "work.cu").write_text('{"seconds": 0.25}')
    suite = planning.load_suite(str(folder / "mine.py"))
    device = opened("clockwork")
    bench = bench_on(device, suite, "twice")
    bench.kernel("work.cu", "work")((1,), (1,), ())
    assert device.now() == 0.25
    assert sys.path[-1] == str(folder), "a module of the user never shadows an installed one"
    facts = Facts(tuple(plugins.load("backends", "host").devices()))
    names = planning.suite_names(["gemm", str(folder / "mine.py")])
    plan = planning.make(facts, Settings(names, ("host",), "smoke"))
    assert {plan.suite(job.case) for job in plan.jobs} == {"gemm", str(folder / "mine.py")}
    listed = json.loads(gpubench("list", "./mine.py", "all", "--json", cwd=folder).stdout)
    assert {"suite": "mine", "summary": "twice an array"} in listed
    assert len(listed) == 1 + len(plugins.names("suites"))


@pytest.fixture
def suite_folder(folder):
    place = folder / "ours"
    place.mkdir()
    (place / "__init__.py").write_text(SUITE.replace("from helper", "from .helper"))
    for name in ("helper.py", "_shared.py"):
        (folder / name).rename(place / name)
    return place


def test_a_suite_that_is_a_folder_runs_by_its_path(suite_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(suite_folder.parent)
    words = ("ours/", "./ours", "ours/__init__.py")
    assert {planning.suite_names([word]) for word in words} == {(str(suite_folder),)}
    done = gpubench("run", words[-1], "--device", "host", "--tier", "smoke", "--out", tmp_path / "a.jsonl")
    assert done.returncode == 0, done.stderr
    run = store.read_run(tmp_path / "a.jsonl")
    assert [result.case.id for result in run.results] == ["ours/twice[size=4KiB]", "ours/greeting"]
    assert run.manifest.settings.suites == (str(suite_folder),)


def test_a_folder_finds_kernels_in_itself_or_beside_it(suite_folder):
    for place, seconds in ((suite_folder, 0.25), (suite_folder.parent, 0.5)):
        (place / "work.cu").write_text(json.dumps({"seconds": seconds}))
    (suite_folder.parent / "shared.cu").write_text('{"seconds": 1.0}')
    suite = planning.load_suite(str(suite_folder))
    device = opened("clockwork")
    bench = bench_on(device, suite, "twice")
    for file in ("work.cu", "shared.cu"):
        bench.kernel(file, "work")((1,), (1,), ())
    assert device.now() == 1.25
    with pytest.raises(FileNotFoundError, match=r"ours/missing\.cu"):
        bench.kernel("missing.cu", "work")


TOPIC = """from gpubench.api.suite import Stage, Task, Topic, View, Work

topic = Topic(views=[View("bars", "the view of {name}", ("{name}",))])


@topic.case()
def {name}(bench):
    '''Read a kernel beside the folder.'''
    return Task.of(Stage(lambda: None, Work(items=1), "item"), check=dict)
"""


def assembled(folder, *names):
    """Return a suite `parts` whose topics declare a case each."""
    place = folder / "parts"
    place.mkdir()
    for at, name in enumerate(names):
        (place / f"_{at}.py").write_text(TOPIC.format(name=name))
    topics = "".join(f"import_module('._{at}', __name__).topic, " for at in range(len(names)))
    head = "from importlib import import_module\nfrom gpubench.api.suite import Suite, View\n"
    (place / "__init__.py").write_text(f"{head}suite = Suite('parts', [View('bars', 'all', ()), ], [{topics}])\n")
    return place


def test_a_folder_is_assembled_from_its_topics_in_their_order(folder):
    suite = planning.load_suite(str(assembled(folder, "second", "first")))
    assert (suite.name, list(suite.definitions)) == ("parts", ["second", "first"])
    assert [view.title for view in suite.views] == ["all", "the view of second", "the view of first"]
    assert suite.package.endswith(".parts")
    (device,) = plugins.load("backends", "clockwork").devices()
    assert [case.id for case in suite.cases(Target(Facts((device,)), device))] == ["parts/second", "parts/first"]


def test_names_that_no_case_id_can_have_and_cases_that_two_topics_declare_are_refused(folder):
    with pytest.raises(Exception, match=r"TypeError: two cases are called same"):
        planning.load_suite(str(assembled(folder, "same", "same")))
    (folder / "my suite.py").write_text(SUITE)
    with pytest.raises(UsageError, match="a suite is named after its file"):
        planning.load_suite(str(folder / "my suite.py"))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = y\n", "does not load: NameError: name 'y' is not defined (other.py, line 1)"),
        ("\n\nimport nowhere_at_all\n", "does not load: ModuleNotFoundError: .* (other.py, line 3)"),
        ("def f(:\n", "does not load: SyntaxError: .*other.py, line 1"),
        ("x = 1\n", "does not load: it has no `suite`"),
        ("suite = 1\n", "`suite` must be a Suite with"),
        ("from gpubench.api.suite import Suite\nsuite = Suite('none')\n", "`suite` must be a Suite with"),
    ],
)
def test_a_file_that_is_no_suite_is_refused_with_the_place_in_it(folder, source, message):
    (folder / "other.py").write_text(source)
    done = gpubench("run", "./other.py", "--device", "host", cwd=folder)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    pattern = (
        message.replace("(other.py", r"\(other.py").replace(r"line 1)", r"line 1\)").replace("line 3)", r"line 3\)")
    )
    with pytest.raises(Exception, match=pattern):
        planning.load_suite(str(folder / "other.py"))


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("./nothing.py", "there is no such file"),
        ("{folder}/", "it is a folder without an __init__.py"),
        ("gemm.py", "a suite named gemm exists already"),
    ],
)
def test_a_path_that_cannot_be_a_suite_is_refused_before_anything_is_looked_for(folder, monkeypatch, word, reason):
    monkeypatch.chdir(folder)
    Path("gemm.py").write_text(SUITE)
    with pytest.raises(UsageError, match=reason):
        planning.suite_names([word.format(folder=folder)])


def test_two_files_of_one_name_are_refused_and_a_file_named_twice_counts_once(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    (tmp_path / "mine.py").write_text(SUITE)
    with pytest.raises(UsageError, match="are suites of the same name; rename one"):
        planning.suite_names(["./mine.py", "../mine.py"])
    assert planning.suite_names(["./mine.py", "mine.py"]) == (str(folder / "mine.py"),)


@pytest.fixture
def said(tmp_path):
    """Return a function that calls gpubench where a third party's suite `third_bad` does not load."""
    package, metadata = tmp_path / "third_party", tmp_path / "third_party-1.0.dist-info"
    package.mkdir(), metadata.mkdir()
    (package / "__init__.py").touch()
    (package / "third_bad.py").write_text("raise RuntimeError('no licence')")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: third_party\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[gpubench.suites]\nx = third_party\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def call(*arguments):
        command = [sys.executable, "-P", "-m", "gpubench", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100, check=False)

    return call


NOT_LOADED = "plugin third_bad (third_party.third_bad) does not load: RuntimeError: no licence"


def test_a_suite_that_does_not_load_is_left_out_with_a_warning(said):
    listed, named = said("list"), said("list", "third_bad")
    assert (listed.returncode, f"left out: {NOT_LOADED}" in listed.stderr) == (0, True)
    assert "compression" in listed.stdout
    assert "third_bad" not in listed.stdout
    assert (named.returncode, NOT_LOADED in named.stderr) == (2, True)
    planned = said("plan", "all", "--device", "host", "--tier", "smoke", "--filter", "latency")
    assert (planned.returncode, f"left out: {NOT_LOADED}" in planned.stderr) == (0, True)
