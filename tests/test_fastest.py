"""The thresholds of a transfer view: which path is fastest at each size, and from which size on."""

import json
import re
from pathlib import Path

import _make as make
import pytest
from test_derived import copies, path

from gpubench import plugins
from gpubench.analysis.views.table import derived
from gpubench.analysis.views.transfers import Transfers
from gpubench.model import Series, Work

GUIDE = Path(__file__).parents[1] / "docs/host-link.md"


def choices(*results):
    (transfer,) = derived(copies(*results), Transfers)
    return {tuple(choice.params.values()): choice for choice in transfer.fastest}


def test_the_choice_changes_where_one_path_becomes_significantly_faster():
    (group,) = choices(*path("kernel", 2e-6, 3e10), *path("engine", 6e-6, 5.5e10)).values()
    assert group.axis == "engine"
    assert group.params == {"memory": "pinned"}
    assert [choice.value for choice in group.choices] == ["kernel", "engine"]
    assert group.choices[0].above == 8
    assert group.choices[1].above == pytest.approx(264_000, rel=0.1)  # 4 µs / (1/30 − 1/55 ns/B)
    (group,) = choices(*path("kernel", 2e-6, 3e10), *path("engine", 2.02e-6, 3.03e10)).values()
    assert [choice.value for choice in group.choices] == ["kernel"], "one that is hardly faster changes nothing"


def test_only_paths_that_differ_in_no_other_axis_compete_for_the_choice():
    chosen = choices(
        *path("kernel", 2e-6, 3e10),
        *path("engine", 6e-6, 5.5e10),
        *path("kernel", 9e-6, 3e10, "pageable"),
        *path("engine", 6e-6, 5.5e10, "pageable"),
    )
    assert [[choice.value for choice in group.choices] for group in chosen.values()] == [
        ["kernel", "engine"],
        ["engine"],
    ]


def test_a_program_reads_the_thresholds_from_the_json_of_a_run():
    run = copies(*path("kernel", 2e-6, 3e10), *path("engine", 6e-6, 5.5e10)).run
    (transfer,) = json.loads(plugins.load("reports", "json").render(run))["transfers"]
    assert [path_entry["params"] for path_entry in transfer["paths"]] == [
        {"engine": "kernel", "memory": "pinned"},
        {"engine": "engine", "memory": "pinned"},
    ]
    (fastest_entry,) = transfer["fastest"]
    assert (fastest_entry["axis"], fastest_entry["params"]) == ("engine", {"memory": "pinned"})
    assert [entry["fastest"] for entry in fastest_entry["choices"]] == ["kernel", "engine"]
    assert [entry["from"] for entry in fastest_entry["choices"]] == [8, pytest.approx(264_000, rel=0.1)]


def blocks_of(way, fixed_s, rate):
    for power in range(10, 19, 2):
        params = {"way": way, "direction": "h2d", "block_bytes": 2**power, "count": 256, "order": "shuffled"}
        payload = 256.0 * 2**power
        series = Series(
            "hot", "s", (fixed_s + payload / rate,) * 3, work=Work(payload=payload), quantity="payload", better="more"
        )
        yield make.result(series, of=make.case("blocks", **params))


def test_the_example_of_the_documentation_reads_the_thresholds_of_a_run(tmp_path, monkeypatch):
    view = next(view for view in plugins.load("suites", "bandwidth").views if view.cases == ("blocks",))
    run = copies(*blocks_of("kernel", 2e-6, 3e10), *blocks_of("batch", 120e-6, 5.5e10), view=view).run
    (tmp_path / "run.json").write_text(plugins.load("reports", "json").render(run))
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    names = {}
    exec(example, names)
    assert [names["way_for"](size) for size in (1024, 4096, 2**16, 2**20)] == ["kernel", "kernel", "batch", "batch"]


def test_the_table_names_each_choice_that_changes():
    (transfer,) = derived(copies(*path("kernel", 2e-6, 3e10), *path("engine", 6e-6, 5.5e10)), Transfers)
    table = next(table for table in transfer.tables if table.title.startswith("Fastest"))
    assert (table.title, table.heads) == ("Fastest by size: Copies by engine", ("engine among", "fastest"))
    ((shared, choices),) = table.rows
    assert shared == "pinned · cuda:0"
    assert choices.startswith("kernel from 8 B, engine from 25")
    (transfer,) = derived(copies(*path("kernel", 2e-6, 6e10), *path("engine", 6e-6, 5.5e10)), Transfers)
    assert not [table for table in transfer.tables if table.title.startswith("Fastest")]
