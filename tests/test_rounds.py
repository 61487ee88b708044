"""The whole procedure of a gate: repeated measurements, when they end, and how often they are right (simulated)."""

import dataclasses
import os
import subprocess
import sys

import _make as make
import pytest
from _sides import evidence, noisy
from _simulated import World, judged
from gate_simulation import simulate
from verdict_worlds import Cell, simulate_cells

from gpubench.judging.evidence import Evidence, Gathering, Kind, Process, Reading, by_session, in_turn
from gpubench.judging.judge import exit_status, judge, settled
from gpubench.judging.references import CAUSE, MOST_REFERENCES, CommonShift, MachineSteps
from gpubench.judging.rounds import Sides, settle, settle_stored
from gpubench.judging.sessions import SessionSpreads, resource, without_outlying_processes
from gpubench.model import Verdict


def settle_one_case(values, again, rounds=3):
    """Settle a case measured as `values`; each further measurement has the median of `again`."""
    asked = []

    def measure(sides, suspects):
        asked.append([finding.case.id for finding in suspects])
        more = evidence(*noisy(again[len(asked) - 1], 0.001)).readings[0]
        return Sides(
            sides.before.with_repeats([evidence(*noisy(1.0, 0.001)).readings[0]]), sides.after.with_repeats([more])
        )

    sides = Sides(evidence(*noisy(1.0, 0.001)), evidence(*values))
    (finding,) = settle(sides, judged, measure, rounds).findings
    return finding.verdict, len(asked)


@pytest.mark.parametrize(
    ("first", "again", "rounds", "expected"),
    [
        (1.1, [1.1], 3, (Verdict.SLOWER, 1)),  # it is measured again before it fails
        (1.1, [1.0, 1.0, 1.0], 3, (Verdict.INCONCLUSIVE, 2)),  # slower once and not again
        (1.02, [1.02] * 3, 3, (Verdict.INCONCLUSIVE, 3)),  # a suspect that remains one
        (1.001, [], 3, (Verdict.SAME, 0)),
        (1.1, [], 0, (Verdict.SLOWER, 0)),  # without rounds the first measurement counts
    ],
)
def test_a_slower_case_is_measured_again_and_fails_only_if_it_stays_slower(first, again, rounds, expected):
    assert settle_one_case(noisy(first, 0.001), again, rounds) == expected


@pytest.mark.parametrize(
    ("world", "design", "suites"),
    [(World(noise=0.03), "files", 20), (World(noise=0.03), "stored", 10), (World(noise=0.01, mode=0.03), "ab", 6)],
)
def test_few_suites_of_identical_code_are_alarmed(world, design, suites):
    """`bash ci/study.sh gate_simulation` judges hundreds, of which at most one in a hundred is alarmed."""
    assert simulate(world, suites, design, seed=2).alarmed <= 1


@pytest.mark.parametrize("world", [World(), World(noise=0.003, drift=0.002, baseline=10, candidate=10, cases=20)])
def test_a_slow_down_of_five_per_cent_is_found_where_both_sides_can_be_measured_again(world):
    """A drift from process to process cancels in the differences of neighbours."""
    assert simulate(dataclasses.replace(world, slower=0.05), suites=6, seed=2).found >= 0.98


def test_of_identical_code_only_what_looks_slower_is_measured_again():
    # a third of these are inconclusive after the first measurement
    assert simulate(World(), suites=4, rounds=1, seed=1).asked_again < 0.15
    limits = {"tensor.float16": "tensor", "link.h2d": "link.h2d", "dram": "dram", "": ""}
    assert {limit: resource(limit) for limit in limits} == limits


# ---- A slower machine is no regression where reference cases witness it, and nothing else hides a slow-down.


NAMES = [f"case{index}" for index in range(8)]


REFERENCES = frozenset(f"bandwidth/{name}" for name in NAMES[4:])


def is_reference(case_id):
    return case_id.partition("[")[0] in REFERENCES


def measured(centres, limits=None, count=5, spread=1e-3, started="2026-01-02T03:04:05+00:00"):
    results = {}
    for name, centre in centres.items():
        case = make.case(name)
        kind = Kind(1, "hot", "s", "less", (limits or {}).get(name, "dram"))
        processes = [Process("ok", value, kind) for value in noisy(centre, spread, count)]
        results[case.id, ("cuda:0",)] = [(case, process) for process in processes]
    return Reading(make.manifest(started=started), Gathering(results))


def stored(before, after, limits=None, reference=is_reference):
    """Return the judgement on a candidate that repeats its medians, and the cases that were measured again.

    `before` are the medians of one session, or a list of those of several."""
    asked = []

    def again(sides, findings):
        asked.append([finding.case.name for finding in findings])
        more = measured({finding.case.name: after[finding.case.name] for finding in findings}, limits)
        return Sides(sides.before, sides.after.with_repeats([more]))

    sessions = before if isinstance(before, list) else [before]
    baseline = Evidence([[measured(session, limits)] for session in sessions])
    sides = Sides(baseline, Evidence([[measured(after, limits)]]))
    return settle_stored(sides, judged, again, is_reference=reference), asked


def same_median(centre, **others):
    return dict.fromkeys(NAMES, centre) | others


def verdicts(judgement):
    return {finding.case.name: finding.verdict for finding in judgement.findings}


def no_reference(case_id):
    return False


def test_an_optimisation_of_most_cases_makes_the_others_no_slower():
    faster = dict.fromkeys(NAMES[:7], 0.95)
    for reference in (no_reference, is_reference, lambda case_id: True):
        judgement, _ = stored(same_median(1.0), same_median(1.0) | faster, reference=reference)
        assert verdicts(judgement)["case7"] is Verdict.SAME
        assert exit_status(judgement) == 0


@pytest.mark.parametrize("changed", [2.0, 1.3, 1.1])
@pytest.mark.parametrize("count", [8, 7])
def test_a_slow_down_of_everything_is_a_slow_down_with_the_doubt_beside_it(changed, count):
    after = same_median(1.0) | dict.fromkeys(NAMES[:count], changed)
    judgement, _ = stored(same_median(1.0), after, reference=no_reference)
    assert judgement.counts()[Verdict.SLOWER] == count
    assert exit_status(judgement) == 1
    assert f"{count} of 8 cases bound by dram became" in judgement.findings[0].reason
    assert "together, of which the machine may explain 5.0 %" in judgement.findings[0].reason


def test_a_case_that_is_slower_than_its_references_has_the_remaining_effect():
    judgement, asked = stored(same_median(1.0), same_median(1.06))
    assert {finding.cause for finding in judgement.findings} == {CAUSE}
    assert "4 of 4 cases bound by dram became 6.0 % slower together" in judgement.findings[0].reason
    (note,) = judgement.notes
    assert note.startswith("step of the machine: the reference cases, 4 of 4 cases bound by dram became 6.0 % slower")
    assert exit_status(judgement) == 4  # nothing is decided
    assert asked == []
    judgement, asked = stored(same_median(1.0), same_median(1.05, case0=1.155))
    worst = judgement.findings[0]
    assert (worst.case.name, worst.verdict) == ("case0", Verdict.SLOWER)
    assert worst.change == pytest.approx(0.1, abs=2e-3)
    assert "became 5.0 % slower together" in worst.reason
    assert asked[0][0] == "case0"
    assert set(asked[0][1:]) == set(NAMES[4:])
    assert len(asked[0]) <= 1 + MOST_REFERENCES
    limits = dict(zip(NAMES, ["dram"] * 4 + ["tensor.float16"] * 4, strict=True))
    judgement, _ = stored(same_median(1.0), same_median(1.07), limits)
    assert {finding.cause for finding in judgement.findings} == {CAUSE}


def test_one_session_says_at_most_to_be_confirmed_within_the_bound_and_two_decide():
    small, asked = stored(same_median(1.0), same_median(1.0, case0=1.045), reference=no_reference)
    (finding,) = small.to_confirm
    assert (finding.case.name, finding.verdict) == ("case0", Verdict.INCONCLUSIVE)
    assert "sessions may differ by 5.0 %" in finding.reason
    assert exit_status(small) == exit_status(small, allow_undecided=True) == 4
    assert asked[0] == ["case0"]
    two, _ = stored([same_median(1.0), same_median(1.001)], same_median(1.0, case0=1.045), reference=no_reference)
    assert verdicts(two)["case0"] is Verdict.SLOWER
    assert exit_status(two) == 1


@pytest.mark.parametrize(
    ("sessions", "others", "case0", "verdict"),
    [
        ("one session", 1.0, 1.08, "slower"),
        ("one session", 1.03, 1.08, "inconclusive"),
        ("one session", 1.06, 1.08, "slower"),
        ("2 sessions", 1.0, 1.05, "slower"),
        ("2 sessions", 1.03, 1.05, "inconclusive"),  # a common step that two sessions did not show may occur in a third
        ("2 sessions", 1.03, 1.08, "slower"),
    ],
)
def test_the_bound_of_few_sessions_counts_from_what_most_cases_share_within_it(sessions, others, case0, verdict):
    baselines = [same_median(1.0), same_median(1.001)][: 1 if sessions == "one session" else 2]
    judgement, _ = stored(baselines, same_median(others, case0=case0), reference=no_reference)
    assert verdicts(judgement)["case0"] == verdict
    reasons = [finding.reason for finding in judgement.to_confirm if finding.case.name == "case0"]
    bounds = "5.0 % beyond the 3.0 %" if sessions == "one session" else "2.9 % beyond the 2.9 %"
    text = f"has {sessions}, and sessions may differ by {bounds} by which most cases are slower"
    assert [text in reason for reason in reasons] == [True] * (verdict == "inconclusive")


@pytest.mark.parametrize(("slower_by", "verdict"), [(0.0, "inconclusive"), (0.035, "inconclusive"), (0.08, "slower")])
def test_what_a_lower_clock_explains_does_not_count_against_the_bound(slower_by, verdict):
    """The clock fell by 4 %; a case that is 3.5 % slower in cycles is to be confirmed, one of 8 % is slower."""
    sides = []
    for centre, hertz in ((1.0, 2e9), (1.04 * (1 + slower_by), 2e9 / 1.04)):
        run = measured(dict.fromkeys(NAMES[:2], centre), dict.fromkeys(NAMES, "tensor.float16"))
        clocks = noisy(hertz, 1e-5)
        for results in run.gathered.results.values():
            results[:] = [(c, p._replace(clock_hz=hz)) for (c, p), hz in zip(results, clocks, strict=True)]
        sides.append(Evidence([[run]]))
    judgement = settle_stored(Sides(*sides), judged, lambda now, _: now, rounds=0)
    assert verdicts(judgement) == dict.fromkeys(NAMES[:2], verdict)
    assert {finding.cause for finding in judgement.findings} == {
        0.0: {"clock"},
        0.035: {"to-be-confirmed"},
        0.08: {""},
    }[slower_by]


def test_a_bad_process_of_the_baseline_hides_no_slow_down():
    bad = measured(same_median(1.0))
    for results in bad.gathered.results.values():
        case, process = results[2]
        results[2] = (case, process._replace(value=1.2))
    sides = Sides(Evidence([[bad]]), Evidence([[measured(same_median(1.0, case0=1.1))]]))
    assert verdicts(settle_stored(sides, judged, lambda now, _: now, rounds=0))["case0"] is Verdict.SLOWER


def test_the_variance_between_sessions_is_pooled_over_the_cases_of_a_resource():
    sessions = [dict.fromkeys(NAMES, 1.0), {name: 1.02 if index % 2 else 0.98 for index, name in enumerate(NAMES)}]
    before = Evidence([[measured(session)] for session in sessions])
    after = Evidence([[measured(same_median(1.04))]])
    spreads = SessionSpreads(before.sides.values())
    (side, other) = (evidence.sides[make.case("case0").id, ("cuda:0",)] for evidence in (before, after))
    assert spreads.scatter(side, other).deviation == pytest.approx(
        0.0119, abs=1e-3
    )  # √((8 · 0.02²/2 + 4 · 0.005²) / 12)
    assert spreads.bound(side) == pytest.approx(0.02, abs=1e-3)
    assert Verdict.SLOWER not in verdicts(judge(before, after, lambda _: 0.02)).values()


def test_runs_within_an_hour_or_measured_in_turn_share_a_session():
    at = ("2026-01-02T03:00:00+00:00", "2026-01-02T03:50:00+00:00", "2026-01-02T04:40:00+00:00")
    runs = [measured({"case0": 1.0}, started=started) for started in (*at, "2026-01-03T03:00:00+00:00")]
    assert [len(session) for session in by_session(reversed(runs))] == [3, 1]
    other = make.facts(make.device(uuid="another"))
    moved = dataclasses.replace(runs[0], manifest=dataclasses.replace(runs[0].manifest, facts=other))
    assert [len(session) for session in by_session([runs[1], moved])] == [1, 1]
    at = [f"2026-01-02T03:0{minute}:00+00:00" for minute in range(4)]
    runs = [measured(same_median(1.0 if turn in (0, 3) else 1.04), started=started) for turn, started in enumerate(at)]
    before, after = Evidence([[runs[0], runs[3]]]), Evidence([[runs[1], runs[2]]])
    assert in_turn(before, after)
    assert not in_turn(Evidence([runs[:2]]), Evidence([runs[2:]]))
    judgement = MachineSteps(judged(Sides(before, after)), before, after, no_reference).confirmed()
    assert set(verdicts(judgement).values()) == {Verdict.SLOWER}


def test_of_five_processes_one_bad_is_left_out_and_two_are_not():
    reading = measured(same_median(1.0))
    for results in reading.gathered.results.values():
        case, process = results[2]
        results[2] = (case, process._replace(value=1.2))
    side, (note,) = without_outlying_processes(Evidence([[reading]]), "candidate")
    assert note == "candidate: process 3 of the run is out for 8 of 8 cases and is left out"
    assert {len(cases.values) for cases in side.sides.values()} == {4}
    assert note in judged(Sides(Evidence([[measured(same_median(1.0))]]), Evidence([[reading]]))).notes
    reading = measured(same_median(1.0))
    for results in reading.gathered.results.values():
        results[2:4] = [(case, process._replace(value=1.2)) for case, process in results[2:4]]
    evidence = Evidence([[reading]])
    assert without_outlying_processes(evidence, "candidate") == (evidence, [])


def test_a_finding_with_another_cause_keeps_that_cause():
    sides = Sides(Evidence([[measured(same_median(1.0))]]), Evidence([[measured(same_median(1.06))]]))
    judgement = judged(sides)
    clock = dataclasses.replace(judgement.findings[0], verdict=Verdict.SUSPECT, cause="clock", reason="the clock")
    raw = dataclasses.replace(judgement, findings=(clock, *judgement.findings[1:]))
    left = settled(MachineSteps(raw, sides.before, sides.after, is_reference).judgement())
    assert [finding.reason for finding in left.findings if finding.cause == "clock"] == ["the clock"]


def test_a_common_shift_is_a_step_beyond_its_error_and_a_tenth_of_the_threshold():
    shift = CommonShift.of([0.010, 0.011, 0.012, 0.3], [1e-8] * 4)
    assert 0.010 < shift.shift < 0.012 + 0.15
    assert CommonShift(0.01, 0.004).is_step(0.02)
    assert not CommonShift(0.01, 0.006).is_step(0.02)
    assert not CommonShift(0.001, 1e-6).is_step(0.02)


WORLDS = (
    *("independent 1 %", "Cauchy, 0.5 %", "one bad replicate, a third", "day and night 1 %, baseline of 1"),
    *("another card 1.5 %", "half throttled 4 %", "half 4 % slower, no clock"),
)


def test_in_a_world_of_each_kind_identical_code_raises_no_alarm_and_ab_finds_five_per_cent():
    """`bash ci/study.sh verdict_worlds` simulates all nineteen."""
    for cell, means in simulate_cells([Cell(name, 5, 40) for name in WORLDS], suites=2, jobs=1):
        assert means["ends with 1"] == means["after ab"] == means["ab ends with 1"] == 0, cell
        assert means["to be confirmed"] == ("no clock" in cell.name), cell
        assert means["+5% ab"] > 0.7, cell


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
def test_a_gate_with_a_stored_baseline_measures_references_beside_a_suspect(tmp_path):
    """A step of 7 % that the references share decides nothing; a change of 10 % beyond it is found."""
    (tmp_path / "steps.py").write_text(SUITE)
    (tmp_path / "gpubench.toml").write_text('[gate]\nreference = ["number=2", "number=3", "number=4"]\n')

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
    common = gate("--baseline", "main", STEP="0.07")
    assert common.returncode == 4, common.stderr
    assert "step of the machine: the reference cases, 3 of 3 cases became" in common.stdout
    changed = gate("--baseline", "main", "--out", "new.jsonl", STEP="0.07", CHANGE="0.3")
    assert changed.returncode == 1, changed.stderr
    assert "1 slower" in changed.stdout
