"""The content of a policy file, and the messages that refuse anything else."""

from pathlib import Path

import pytest

from gpubench.base.errors import UsageError
from gpubench.judging import policy
from gpubench.measuring import plan as planning
from gpubench.model import Settings
from gpubench.model.store import read_run

RECORDING = Path(__file__).parent / "recordings" / "h200x2-quick.jsonl.gz"

WHOLE = """
[gate]
threshold_percent = 3
strict = true
required = ["bandwidth/*", "gemm/square"]
allowed_skips = ["ipc/pull[path=peer"]

[gate.thresholds_percent]
"latency/" = 5
"latency/launch" = 10.5

[[floor]]
model = "NVIDIA L40S"
case = "bandwidth/triad[[]*"
expected = 7.5e11
unit = "B/s"
source = "our own rack, 2026"
"""


def load(tmp_path, text, name="gpubench.toml"):
    (tmp_path / name).write_text(text)
    return policy.load(folder=tmp_path)


def test_the_last_of_several_thresholds_counts_and_every_key_is_read(tmp_path):
    loaded = load(tmp_path, WHOLE)
    assert (loaded.threshold_percent, loaded.strict) == (3.0, True)
    assert loaded.required == ("bandwidth/*", "gemm/square")
    assert loaded.allowed_skips == ("ipc/pull[path=peer",)
    assert loaded.floors[-1].tolerance_percent == 5.0
    loaded = load(tmp_path, WHOLE)
    cases = ("latency/chase[size=1GiB]", "latency/launch", "gemm/square[n=8]")
    assert [loaded.threshold(case) for case in cases] == [0.05, 0.105, 0.03]
    assert not loaded.is_required("latency/launch")


def test_a_policy_may_stand_in_pyproject_and_a_policy_file_has_precedence(tmp_path):
    assert policy.load(folder=tmp_path).is_required("latency/launch"), "if no policy lists any"
    for text in ("tool = 3", "[tool]\ngpubench = 3", "[tool]\ngpubench = [1]"):
        with pytest.raises(UsageError, match="a table is expected"):
            load(tmp_path, text, "pyproject.toml")
    assert load(tmp_path, "[tool.other]\nx = 1\n", "pyproject.toml") == policy.built_in()
    text = "[project]\nname = 'x'\n[tool.gpubench.gate]\nthreshold_percent = 7\n"
    assert load(tmp_path, text, "pyproject.toml").threshold_percent == 7.0
    assert load(tmp_path, "[gate]\nthreshold_percent = 1").threshold_percent == 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[gate]\ntreshold_percent = 2", "gate.treshold_percent: no such key; did you mean threshold_percent?"),
        ("[gates]", "gates: no such key; did you mean gate?"),
        ("[gate]\nzzz = 1", "gate.zzz: no such key; choose from threshold_percent, thresholds_percent, required"),
        *[
            (f"[gate]\nthreshold_percent = {value}", "gate.threshold_percent: a number is expected")
            for value in ("'2 %'", "true", "nan", "1e999", "1" * 400)
        ],
        ("[gate]\nthreshold_percent = " + "1" * 5000, "not TOML: Exceeds the limit"),
        ("[gate]\nthreshold_percent = -1", "gate.threshold_percent: -1 is no percentage from 0 to 1000"),
        ("[gate]\nrequired = 'all'", "gate.required: a list of texts is expected"),
        ("[gate]\nstrict = 1", "gate.strict: true or false is expected"),
        ("gate = 3", "gate: a table is expected"),
        ("[gate.thresholds_percent]\n'x' = []", "gate.thresholds_percent.x: a number is expected"),
        ("[floor]\nmodel = 'x'", "floor: tables are expected: [[floor]]"),
        ("[[floor]]\nmodel = 'x'", "floor[1].unit: it is missing"),
        ("[[floor]]\nmodel='x'\ncase='y'\nexpected=-1\nunit='s'\nsource='z'", "floor[1].expected: a positive number"),
        ("[[floor]]\nunit='s'\nbetter='fewer'", "floor[1].better: more or less is expected"),
        ("[gate", "not TOML:"),
        ("x = " + "[" * 100_000, "nested too deeply"),
        ("#" * (2**20 + 1), "larger than 1.000 MiB: not a policy"),
    ],
    ids=range(21),
)
def test_an_invalid_policy_is_refused_with_the_file_the_key_and_the_expected_value(tmp_path, text, message):
    with pytest.raises(UsageError) as refused:
        load(tmp_path, text)
    assert str(refused.value).startswith(f"{tmp_path / 'gpubench.toml'}: ")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_users_floor_holds_for_its_model_alone_and_before_the_built_in_one(tmp_path):
    first = policy.built_in().floors[0]
    text = f"[[floor]]\nmodel='{first.model}'\ncase='{first.case}'\nexpected=1\nunit='{first.unit}'\nsource='own'"
    assert load(tmp_path, text).floor(first.model, first.case).source == "own"
    text = "[[floor]]\nmodel='NVIDIA H200'\ncase='a/b*'\nexpected=1\nunit='B/s'\nsource='own'"
    loaded = load(tmp_path, text)
    assert loaded.floor("NVIDIA H200", "a/b[c=1]") is not None
    assert loaded.floor("NVIDIA H200 NVL", "a/b[c=1]") is None


def test_every_built_in_floor_of_a_recorded_model_names_a_case_that_is_there():
    """When a case is renamed, its floor must be renamed, too."""
    facts = read_run(RECORDING).manifest.facts
    plan = planning.make(facts, Settings(planning.suite_names([]), ("cuda:0",), "quick"))
    ids = {job.case.id for job in plan.jobs}
    models = {device.name for device in facts.devices}
    floors = [floor for floor in policy.built_in().floors if floor.model in models]
    assert len(floors) > 10
    assert [floor.case for floor in floors if not any(floor.is_of(floor.model, case) for case in ids)] == []
