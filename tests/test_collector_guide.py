"""The package of docs/writing-a-collector.md, built as a reader would copy it, and the tables of both documents."""

import math
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from gpubench import plugins
from gpubench.measuring import boundary
from gpubench.measuring.sampler import SamplingProcess
from gpubench.model import CounterKind, EventBit, EventClass, Measure

DOCS = Path(__file__).parents[1] / "docs"
GUIDE, LIST = (DOCS / "writing-a-collector.md").read_text(), (DOCS / "counters.md").read_text()
FILES = dict(re.findall(r"^`([\w./]+)`\n\n```\w+\n(.*?)```", GUIDE, re.DOTALL | re.MULTILINE))
KINDS: dict[str, tuple[CounterKind, ...]] = {
    "gauge": ("gauge",),
    "gauge, window": ("gauge", "window"),
    "cumulative": ("cumulative",),
    "event": ("event",),
}
HOST = plugins.load("backends", "host").devices()


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """Return a folder with the guide's files, which Python takes for an installed distribution."""
    folder = tmp_path_factory.mktemp("guide")
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    project = tomllib.loads(FILES["pyproject.toml"])["project"]
    information = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    information.mkdir()
    header = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (information / "METADATA").write_text(header)
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in project["entry-points"].items()
    ]
    (information / "entry_points.txt").write_text("\n".join(groups))
    return folder


def rows(document, start):
    """Return the cells of the table whose head begins with these words."""
    lines = document[document.index(f"\n| {start} ") :].strip().splitlines()
    table = lines[: lines.index("")] if "" in lines else lines
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[2:]]


def test_the_guides_counter_is_sampled_with_its_measure_and_without_a_warning(package, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(package))
    process = SamplingProcess(HOST, time.monotonic())
    time.sleep(0.3)
    chunks = [chunk for chunk in process.stop() if chunk.collector == "meminfo"]
    measures = {counter.name: counter.measures for counter in process.counters}
    values = [value for chunk in chunks for value in dict(chunk.columns)["meminfo.used"]]
    assert measures["meminfo.used"] is Measure.MEMORY_USED
    assert values
    assert all(value is not None and math.isfinite(value) and value > 0 for value in values)
    assert [remark.text for remark in process.remarks() if remark.state == "lost"] == []


def test_the_tests_of_the_collector_guide_pass(package, tmp_path):
    command = tmp_path / "gpubench"  # the command as the environment of gpubench has it
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m gpubench "$@"\n')
    command.chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    environment |= {"PYTHONPATH": str(package), "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # loading plugins of pytest takes longer than these tests
    arguments = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_host_counters.py"]
    done = subprocess.run(
        arguments, cwd=package, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_the_guides_tables_are_the_accepted_measures_and_the_classes_that_count_as_throttling():
    listed = {name.strip("`"): (unit, kinds) for name, unit, kinds, _ in rows(GUIDE, "measure | unit")}
    assert listed.pop("OTHER") == ("any", "any")
    assert [*listed] == [measure.name for measure in Measure if measure is not Measure.OTHER]
    for name, (unit, kinds) in listed.items():
        forms = {(unit, kind) for kind in KINDS.get(kinds, ())}
        if unit == "B/s or B":
            assert kinds == "window, gauge or cumulative"
            forms = {("B/s", "window"), ("B/s", "gauge"), ("B", "cumulative")}
        assert forms == {*boundary._FORMS[Measure[name]]}, name
    throttling = {name.strip("`"): counts.startswith("yes") for name, counts, _ in rows(GUIDE, "`EventClass`")}
    assert throttling == {kind.name: EventBit(1, "a bit", kind).slows for kind in EventClass}


BUILTIN = tuple(
    counter for name in ("amd", "cupti", "gpm", "host", "nvml") for counter in plugins.load("collectors", name).counters
)


def test_the_list_of_counters_says_what_each_one_measures():
    listed = {measure: names.split(", ") for measure, names in rows(LIST, "measure | built-in counters")}
    expected: dict[str, list[str]] = {}
    for measure in Measure:
        names = [f"`{counter.name}`" for counter in BUILTIN if counter.measures is measure]
        if names and measure is not Measure.OTHER:
            expected[str(measure)] = names
    assert listed == expected


def test_the_list_of_counters_has_every_throttle_reason():
    bits = {counter.name: counter.bits for counter in BUILTIN if counter.bits}
    nvidia = [(int(mask, 16), name, kind) for mask, name, kind in rows(LIST, "mask | NVIDIA's reason")]
    assert nvidia == [(bit.mask, bit.name, str(bit.kind)) for bit in bits["nvml.event_reasons"]]
    amd = []
    for places, names, kind in rows(LIST, "bits | AMD's reasons"):
        first, _ = map(int, places.split("–"))
        stem, _, several = names.rstrip(")").partition(" (")
        for place, name in enumerate(several.split(", "), first):
            amd.append((1 << place, f"{stem} ({name})", kind))
    assert amd == [(bit.mask, bit.name, str(bit.kind)) for bit in bits["amd.throttle"]]
