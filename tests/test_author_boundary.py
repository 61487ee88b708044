"""An author's values are checked where they are made: a mistake costs its case, and the field is named."""

from pathlib import Path

import numpy as np
import pytest
from _command import gpubench
from hypothesis import given
from hypothesis import strategies as st

from gpubench.authoring.axes import axis_values
from gpubench.authoring.effort import POINT, TIER, Effort
from gpubench.authoring.task import Profile, Stage, Task, nothing, observed
from gpubench.base.errors import SuiteError
from gpubench.knowledge import hardware
from gpubench.model import LIMITS, Work
from gpubench.model.store import read_run

PLUGIN = str(Path(__file__).parent / "plugin")
RUN = ("run", "mistakes", "--device", "host", "--tier", "smoke")
WORDS = {
    "quantity": "Stage.quantity is str 'bytes', not one of flops, item, items, moved, payload, value",
    "modes": "Stage.modes is str 'warm', not one of cold, each, graph, hot",
    "one_mode": "Stage.modes is str 'hot', not a tuple of hot, each, cold, graph",
    "no_modes": "Stage.modes is empty, and there is no rotation: nothing would be timed",
    "limit": "Stage.limit is str 'drum', not one of dram, float16",
    "clock": "Stage.clock is str 'gpu', not one of device, host, self",
    "uncounted": "quantity is 'moved', but Stage.work.moved is 0: the work counts payload",
    "negative": "Stage.work.items is int -1, not from 0 to 1e+30",
    "text_work": "Stage.work.items is str 'many', not a number",
    "broken_bytes": "Stage.work.moved is float 1048.576, not whole bytes: a unit or a factor is wrong",
    "buffers": "Stage.buffers has 1 arrays for 2 calls",
    "note": "Task.notes['codec'] is object",
    "long_note": "Task.notes['log'] is str 'xxx",
    "labels": "Task.labels is str 'time-sliced', not a tuple of texts",
    "call": "Stage.call is int 3, not a function",
    "stages": "Task.stages is list [Stage(",
    "no_stage": "no rank of the case has a stage: nothing would be timed",
    "no_task": "the case returned NoneType None, not a Task",
    "observation": "Observed.value is str 'small', not a number",
    "no_mapping": "what the check returns is float 3.0, not a mapping",
    "unit": "Observed.unit is list ['B'], not a text",
    "better": "Observed.better is str 'higher', not one of less, more",
    "profile": "Profile.values has 100000 values, not 1 to 65536",
    "probe": "a probe returns numbers, but row is a Profile; return it from the check",
    "own_time": "the seconds of a self-timed call is str 'fast', not a number",
    "own_times": "the case yields at least 600000 values; a record holds at most 500000",
    "effort": "Stage.effort is int 30, not an Effort: TIER, POINT or Effort.sustained(seconds)",
}
ANYTHING = st.one_of(
    *(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(),
        st.binary(),
        st.just(object()),
        st.just(10**400),
    ),
    *(st.lists(st.integers(), max_size=2), st.dictionaries(st.text(), st.text(), max_size=2)),
)


def run(*arguments):
    """Run gpubench with the plugin of mistakes and without a history."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PLUGIN)
        return gpubench(*arguments, PYTHONPATH=PLUGIN, GPUBENCH_HISTORY="off")


@pytest.fixture(scope="module")
def mistakes(tmp_path_factory):
    """Run every mistake, then resume; return both commands and the run."""
    out = tmp_path_factory.mktemp("mistakes") / "run.jsonl"
    done = run(*RUN, "--out", str(out))
    lines = out.read_bytes().splitlines(keepends=True)
    results = [place for place, line in enumerate(lines) if line.startswith(b'{"kind":"result"')]
    out.write_bytes(b"".join(lines[: results[-4]]))
    resumed = run(*RUN, "--out", str(out), "--resume")
    return done, resumed, read_run(out)


def test_every_mistake_fails_its_case_and_names_the_field(mistakes):
    _, _, run = mistakes
    reasons = {r.case.param("what"): (r.status, r.cause, r.reason) for r in run.results if r.case.name == "mistake"}
    assert reasons.keys() == WORDS.keys()
    for name, (status, cause, reason) in reasons.items():
        assert (status, cause) == ("failed", "suite"), name
        assert reason.startswith(WORDS[name])


def test_the_run_and_a_resumed_run_continue_after_mistakes(mistakes):
    done, resumed, run = mistakes
    assert (done.returncode, resumed.returncode) == (3, 3), done.stderr + resumed.stderr
    assert run.complete
    assert "this is a bug" not in done.stderr + resumed.stderr


def test_a_case_whose_timing_mode_is_unsupported_is_skipped_and_never_ok_without_a_figure(mistakes):
    (result,) = (result for result in mistakes[2].results if result.case.name == "graph_alone")
    assert (result.status, result.reason) == ("skipped", "this device has no timing mode graph")


def test_numbers_of_numpy_and_notes_that_are_numbers_are_accepted(mistakes):
    (result,) = (result for result in mistakes[2].results if result.case.name == "coerced")
    assert result.status == "ok"
    assert result.series[0].work == Work(moved=8.0, items=2.0)
    assert result.notes == (("blocks", "132"),)
    assert {series.name: series.values for series in result.series if series.role == "observed"} == {
        "error": (0.5,),
        "count": (3.0,),
    }


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(Stage.__slots__, ANYTHING)))
def test_a_stage_of_any_values_is_valid_or_refused(fields):
    try:
        made = Stage(**{"call": nothing, **fields})
    except SuiteError:
        return
    numbers = [getattr(made.work, name) for name in Work.__slots__]
    assert all(type(value) is float and value >= 0 for value in numbers)
    assert made.limit in ("", *LIMITS)


@given(ANYTHING)
def test_an_observation_of_any_value_is_valid_or_refused(value):
    for make in (
        lambda: observed("the check", {"x": value}),
        lambda: observed("the check", value),
        lambda: Profile(value),
    ):
        try:
            observation = make()
        except SuiteError:
            continue
        values = (
            observation.values if isinstance(observation, Profile) else [entry.value for entry in observation.values()]
        )
        assert all(type(number) is float for number in values)


@given(st.fixed_dictionaries({"stages": ANYTHING}, optional=dict.fromkeys(("notes", "labels", "check"), ANYTHING)))
def test_a_task_of_any_values_is_valid_or_refused(fields):
    try:
        made = Task(**fields)
    except SuiteError:
        return
    assert all(isinstance(value, str) for value in made.notes.values())


def test_efforts_are_checked_too():
    assert Effort.sustained(np.float32(0.5)).seconds == 0.5
    assert POINT.with_tail(np.int64(300)).samples == 300
    assert TIER.with_tail(0) == TIER
    for wrong in (
        lambda: Effort.sustained(-1),
        lambda: Effort.sustained(float("nan")),
        lambda: Effort.sustained("long"),
        lambda: POINT.with_tail(2.5),
    ):
        with pytest.raises(SuiteError, match=r"Effort\."):
            wrong()


def test_the_values_of_an_axis_are_texts_or_numbers_of_python():
    values = axis_values(np.array([1, 2]), None)
    assert values == (1, 2)
    assert {type(value) for value in values} == {int}
    assert axis_values((np.float32(0.5), "a"), None) == (0.5, "a")
    for wrong in ("abc", 3, ([1],), (None,), (float("nan"),), ("two\nlines",)):
        with pytest.raises(SuiteError, match="axis"):
            axis_values(wrong, None)


def test_every_peak_that_a_table_knows_may_be_named():
    limits = {
        limit for arch in ("sm_80", "sm_89", "sm_90", "gfx90a", "gfx942") for limit in hardware.per_clock_limits(arch)
    }
    assert limits <= set(LIMITS)
