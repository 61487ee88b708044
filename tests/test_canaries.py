"""A step of the machine between two sessions is no regression, and a regression beside one is found."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import _make as make
import pytest
from _sides import noisy
from canary_simulation import LIMITS, SteppedWorld, simulate_steps

from gpubench.judging.canaries import CAUSE, MOST_CANARIES, CommonShift, MachineSteps, resource
from gpubench.judging.evidence import Evidence, Gathering, Kind, Process, Reading
from gpubench.judging.judge import exit_status, judge, settled
from gpubench.judging.rounds import Sides, settle_beside_canaries
from gpubench.model import Verdict, store

NAMES = [f"case{index}" for index in range(8)]


def measured(centres, limits=None, count=5, spread=1e-3):
    """Return a run file with a case for each name, five processes around each centre, bound by the limits."""
    results = {}
    for name, centre in centres.items():
        case = make.case(name)
        kind = Kind(1, "hot", "s", "less", (limits or {}).get(name, "dram"))
        processes = [Process("ok", value, kind) for value in noisy(centre, spread, count)]
        results[case.id, ("cuda:0",)] = [(case, process) for process in processes]
    return Reading(make.manifest(), Gathering(results))


def judged(sides):
    return judge(sides.before, sides.after, lambda case_id: 0.02)


def gate_with_canaries(before, after, limits=None):
    """Return the judgement on a candidate that repeats its medians, and the cases that were measured again."""
    asked = []

    def again(sides, findings):
        asked.append([finding.case.name for finding in findings])
        more = measured({finding.case.name: after[finding.case.name] for finding in findings}, limits)
        return Sides(sides.before, sides.after.with_repeats([more]))

    sides = Sides(Evidence([[measured(before, limits)]]), Evidence([[measured(after, limits)]]))
    return settle_beside_canaries(sides, judged, again), asked


def same_median(centre, **others):
    """Return one median for every case but the named ones."""
    return dict.fromkeys(NAMES, centre) | others


def verdicts(judgement):
    return {finding.case.name: finding.verdict for finding in judgement.findings}


def test_cases_that_moved_together_are_inconclusive_and_share_one_note():
    judgement, asked = gate_with_canaries(same_median(1.0), same_median(1.05))
    assert set(verdicts(judgement).values()) == {Verdict.INCONCLUSIVE}
    assert {finding.cause for finding in judgement.findings} == {CAUSE}
    assert "8 of 8 cases bound by dram became 5.0 % slower together" in judgement.findings[0].reason
    (note,) = judgement.notes
    assert note.startswith("step of the machine or common cause: 8 of 8 cases bound by dram became 5.0 % slower")
    assert "`gpubench ab`" in note
    assert asked == []


def test_a_common_step_ends_with_the_status_of_inconclusive_cases():
    judgement, _ = gate_with_canaries(same_median(1.0), same_median(1.05))
    assert (exit_status(judgement), exit_status(judgement, strict=True)) == (0, 4)


def test_a_case_that_is_slower_than_its_canaries_has_the_remaining_effect():
    judgement, asked = gate_with_canaries(same_median(1.0), same_median(1.05, case0=1.1))
    worst = judgement.findings[0]
    assert (worst.case.name, worst.verdict) == ("case0", Verdict.SLOWER)
    assert worst.change == pytest.approx(1.1 / 1.05 - 1, abs=2e-3)
    assert Verdict.SLOWER not in list(verdicts(judgement).values())[1:]
    assert "became 5.0 % slower together" in worst.reason
    assert asked[0][0] == "case0"
    assert len(asked[0]) == 1 + MOST_CANARIES


def test_without_a_common_step_the_verdict_and_its_effect_stay():
    judgement, _ = gate_with_canaries(same_median(1.0), same_median(1.0, case0=1.1))
    worst = judgement.findings[0]
    assert worst.verdict is Verdict.SLOWER
    assert worst.change == pytest.approx(0.1, abs=2e-3)
    assert worst.reason == ""
    assert judgement.notes == ()


def test_a_slow_down_of_half_the_cases_is_no_step_of_the_machine():
    judgement, _ = gate_with_canaries(same_median(1.0), same_median(1.0, **dict.fromkeys(NAMES[:4], 1.05)))
    assert judgement.counts() == {Verdict.SLOWER: 4, Verdict.SAME: 4}


def test_a_load_that_slows_some_cases_more_than_others_is_a_step_of_the_machine():
    slow = {name: 1.30 + 0.03 * index for index, name in enumerate(NAMES)}
    judgement, _ = gate_with_canaries(same_median(1.0), slow)
    assert judgement.counts() == {Verdict.INCONCLUSIVE: 8}
    changed, _ = gate_with_canaries(same_median(1.0), slow | {"case0": 2.5})
    assert verdicts(changed)["case0"] is Verdict.SLOWER


def test_a_step_of_one_resource_shows_in_the_cases_that_it_bounds():
    limits = dict(zip(NAMES, ["dram"] * 4 + ["tensor.float16"] * 4, strict=True))
    judgement, _ = gate_with_canaries(same_median(1.0), same_median(1.0, **dict.fromkeys(NAMES[:4], 1.05)), limits)
    assert judgement.counts() == {Verdict.INCONCLUSIVE: 4, Verdict.SAME: 4}


def test_a_regression_that_a_faster_machine_hides_is_found_beside_cases_of_its_resource():
    judgement, _ = gate_with_canaries(same_median(1.0), same_median(0.96, case0=1.0005))
    assert verdicts(judgement)["case0"] is Verdict.SLOWER


def test_other_resources_that_became_faster_make_no_case_slower():
    limits = dict(zip(NAMES, ["dram", *["tensor.float16"] * 7], strict=True))
    judgement, _ = gate_with_canaries(same_median(1.0), same_median(0.96, case0=1.0005), limits)
    assert verdicts(judgement)["case0"] is Verdict.SAME


def test_without_canaries_a_slower_case_is_slower_and_ab_is_recommended():
    judgement, asked = gate_with_canaries({"case0": 1.0, "case1": 1.0}, {"case0": 1.1, "case1": 1.0})
    assert judgement.counts() == {Verdict.SLOWER: 1, Verdict.SAME: 1}
    (note,) = judgement.notes
    assert "case0: slower, but no 3 other cases moved together" in note
    assert "`gpubench ab`" in note
    assert asked == [["case0"]]


def test_a_step_that_only_the_repeated_measurements_meet_is_seen_by_the_canaries():
    """The suspect is 1.3 % slower at first, and everything is 4 % slower when it is measured again."""
    first = same_median(1.0, case0=1.013)

    def again(sides, findings):
        more = measured({finding.case.name: 1.04 * first[finding.case.name] for finding in findings})
        return Sides(sides.before, sides.after.with_repeats([more]))

    sides = Sides(Evidence([[measured(same_median(1.0))]]), Evidence([[measured(first)]]))
    assert Verdict.SLOWER not in verdicts(settle_beside_canaries(sides, judged, again)).values()


def test_the_least_noisy_cases_are_the_canaries_in_every_round():
    spreads = {name: 1e-3 * (1 + index) for index, name in enumerate(NAMES)}

    def candidate(centres, names):
        parts = [measured({name: centres[name]}, spread=spreads[name]) for name in names]
        return Reading(
            make.manifest(), Gathering({key: value for part in parts for key, value in part.gathered.results.items()})
        )

    asked = []

    def again(sides, findings):
        asked.append({finding.case.name for finding in findings})
        return Sides(
            sides.before, sides.after.with_repeats([candidate(slow, [finding.case.name for finding in findings])])
        )

    slow = same_median(1.0, case7=1.016)
    sides = Sides(Evidence([[candidate(same_median(1.0), NAMES)]]), Evidence([[candidate(slow, NAMES)]]))
    settle_beside_canaries(sides, judged, again)
    assert asked == [{*NAMES[:MOST_CANARIES], "case7"}] * 3


def test_a_finding_with_another_cause_keeps_that_cause():
    sides = Sides(Evidence([[measured(same_median(1.0))]]), Evidence([[measured(same_median(1.05))]]))
    judgement = judged(sides)
    clock = dataclasses.replace(judgement.findings[0], verdict=Verdict.SUSPECT, cause="clock", reason="the clock")
    raw = dataclasses.replace(judgement, findings=(clock, *judgement.findings[1:]))
    left = settled(MachineSteps(raw, sides.before, sides.after).judgement())
    assert [finding.reason for finding in left.findings if finding.cause == "clock"] == ["the clock"]


@pytest.mark.parametrize(
    ("limit", "name"), [("tensor.float16", "tensor"), ("link.h2d", "link.h2d"), ("dram", "dram"), ("", "")]
)
def test_each_limit_belongs_to_a_resource(limit, name):
    assert resource(limit) == name


def test_a_common_shift_is_a_step_beyond_its_error_and_a_tenth_of_the_threshold():
    shift = CommonShift.of([0.010, 0.011, 0.012, 0.3], [1e-8] * 4)
    assert 0.010 < shift.shift < 0.012 + 0.15
    assert CommonShift(0.01, 0.004).is_step(0.02)
    assert not CommonShift(0.01, 0.006).is_step(0.02)
    assert not CommonShift(0.001, 1e-6).is_step(0.02)


@pytest.mark.parametrize("step", [0.015, 0.03])
def test_a_step_of_the_machine_raises_no_alarm_in_simulated_suites(step):
    world = SteppedWorld(step, baseline=20, cases=40)
    assert simulate_steps(world, suites=3, canaries=False).alarmed > 0 or step < 0.03
    assert simulate_steps(world, suites=3).alarmed == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("stepped", [LIMITS, LIMITS[:1]])
@pytest.mark.parametrize("step", [0.0, 0.015, 0.03, -0.015, -0.03])
def test_of_a_hundred_suites_with_a_step_at_most_one_is_alarmed(step, stepped):
    assert simulate_steps(SteppedWorld(step, stepped, baseline=10), suites=100).alarmed <= 0.01


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("baseline", [5, 20])
@pytest.mark.parametrize("slower", [0.03, 0.05])
def test_a_slow_down_is_found_as_often_beside_canaries(slower, baseline):
    world = SteppedWorld(slower=slower, baseline=baseline)
    without, beside = (simulate_steps(world, suites=80, canaries=way).detected for way in (False, True))
    assert beside >= without - 0.05


SUITE = """
import os, time
import numpy as np
from gpubench.api.suite import Bench, Stage, Suite, Task, Work

suite = Suite("times that are arithmetic: a step of all, a change of one")


@suite.case(number=(0, 1, 2, 3, 4))
def step(bench: Bench, number: int) -> Task:
    noise = np.random.default_rng(time.time_ns()).standard_normal()
    slower = float(os.environ.get("STEP", "0")) + float(os.environ.get("CHANGE", "0")) * (number == 0)
    seconds = 1e-3 * (1 + slower) * float(np.exp(1e-3 * noise))
    return Task.of(Stage(lambda: seconds, Work(items=1), "item", clock="self"), check=dict)
"""


@pytest.mark.slow
def test_a_gate_with_a_stored_baseline_measures_canaries_beside_a_suspect(tmp_path):
    """A step of 4 % alone is inconclusive; with a change of 5 % in one case that case is found."""
    (tmp_path / "steps.py").write_text(SUITE)

    def gate(*arguments, **variables):
        command = [sys.executable, "-P", "-m", "gpubench", "gate", "--run", "steps.py", "--device", "host"]
        environment = {**os.environ, **variables, "GPUBENCH_HISTORY": "off"}
        return subprocess.run(
            [*command, "--tier", "smoke", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    assert gate("--save-baseline", "main", "--replicates", "5").returncode == 0
    common = gate("--baseline", "main", STEP="0.04")
    assert common.returncode == 0, common.stderr
    assert "step of the machine or common cause: 5 of 5 cases became" in common.stdout
    changed = gate("--baseline", "main", "--out", "new.jsonl", STEP="0.04", CHANGE="0.05")
    assert changed.returncode == 1, changed.stderr
    assert "1 slower, 4 inconclusive on host" in changed.stdout
    repeated = store.read_run(tmp_path / "new-again1.jsonl").results
    assert len({result.case.id for result in repeated}) == 5
