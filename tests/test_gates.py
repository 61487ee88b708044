"""The two gates: how a policy turns verdicts into an exit status."""

from __future__ import annotations

import dataclasses
import math

import _make as make
import pytest
import scipy.stats
from _sides import TRIAD, evidence, noisy, reading

from gpubench import plugins
from gpubench.judging.answer import warnings
from gpubench.judging.decidable import processes_needed
from gpubench.judging.evidence import Evidence
from gpubench.judging.finding_text import sentence
from gpubench.judging.judge import exit_status, settled
from gpubench.judging.policy import Policy
from gpubench.knowledge.floors import Floor
from gpubench.model import Verdict

COPY = make.case("copy", size_bytes=2**30)
EMPTY = Evidence([])


def two_cases(triad, copy, **fields):
    """Return evidence with medians for a triad and a copy."""
    return Evidence([[reading(triad, of=TRIAD, **fields), reading(copy, of=COPY)]])


def gate(before, after, name="regression", **policy):
    return settled(plugins.load("gates", name).judge(before, after, Policy(**policy)))


BASE = two_cases(noisy(), noisy())
SLOWER = two_cases(noisy(1.1), noisy())


def test_nothing_slower_ends_with_0():
    assert exit_status(gate(BASE, two_cases(noisy(1.0001, 0.001), noisy()))) == 0


def test_a_slower_case_ends_with_1():
    judgement = gate(BASE, SLOWER)
    assert (exit_status(judgement), judgement.findings[0].case) == (1, TRIAD)


def test_a_failed_case_ends_with_3_even_beside_a_slower_one():
    crash = reading([1.0], of=COPY, status="failed", cause="crash", reason="the worker ended")
    after = Evidence([[reading(noisy(1.1)), reading(noisy(), of=COPY), crash]])
    assert exit_status(gate(BASE, after)) == 3


def test_an_invalid_case_ends_with_4_and_does_not_hide_a_slower_one():
    invalid = reading([1.0] * 5, of=COPY, status="invalid", cause="discarded", reason="heat")
    assert exit_status(gate(BASE, Evidence([[reading(noisy(1.001)), invalid]]))) == 4
    assert exit_status(gate(BASE, Evidence([[reading(noisy(1.1)), invalid]]))) == 1


def test_a_case_that_is_not_required_may_be_invalid():
    invalid = reading([1.0] * 5, of=COPY, status="invalid", cause="discarded", reason="heat")
    assert exit_status(gate(BASE, Evidence([[reading(noisy()), invalid]]), required=("triad",))) == 0


def test_an_inconclusive_case_ends_with_0_and_when_strict_with_4():
    judgement = gate(BASE, two_cases(noisy(1.005, 0.02), noisy()))
    assert judgement.findings[0].verdict is Verdict.INCONCLUSIVE
    assert (exit_status(judgement), exit_status(judgement, strict=True)) == (0, 4)


def test_an_empty_intersection_cannot_be_judged():
    other_case = evidence(*noisy(), of=make.case("chase", "latency"))
    judgement = gate(BASE, other_case)
    assert (judgement.findings, exit_status(judgement)) == ((), 4)
    assert "latency/chase: new, there is no baseline for it" in judgement.notes


def test_a_required_case_that_is_missing_cannot_be_judged():
    judgement = gate(BASE, evidence(*noisy()), required=("copy",))
    (finding,) = [finding for finding in judgement.findings if finding.required]
    assert (finding.case, finding.verdict, finding.cause) == (COPY, Verdict.INVALID, "missing")
    assert exit_status(judgement) == 4


def test_a_missing_case_that_is_not_required_is_named_and_changes_no_status():
    judgement = gate(BASE, evidence(*noisy()))
    assert exit_status(judgement) == 0
    assert f"{COPY.id}: the baseline has a figure, the candidate has none" in judgement.notes


def test_a_vanished_case_gives_a_warning_and_when_strict_ends_with_4():
    judgement = gate(BASE, evidence(*noisy(1.0001)))
    assert (exit_status(judgement), exit_status(judgement, strict=True)) == (0, 4)
    assert (judgement.decided, judgement.cases) == (1, 2)
    assert f"{COPY.id}: the baseline has a figure, the candidate has none" in warnings(judgement)


def test_a_case_that_vanished_and_is_not_of_those_required_ends_with_0_even_when_strict():
    judgement = gate(BASE, evidence(*noisy(1.0001)), required=("triad",))
    assert exit_status(judgement, strict=True) == 0
    assert f"{COPY.id}: the baseline has a figure, the candidate has none" in judgement.notes


def test_two_against_two_processes_give_a_warning_and_when_strict_end_with_4():
    judgement = gate(evidence(1.0, 1.1), evidence(1.2, 1.3))
    assert (exit_status(judgement), exit_status(judgement, strict=True)) == (0, 4)
    assert f"{TRIAD.id}: too few processes to call a change slower or faster" in warnings(judgement)
    assert "0 of 1 case is decided: the other 1 may be slower" in warnings(judgement)


def test_a_gate_that_decides_every_case_prints_no_warning():
    assert warnings(gate(BASE, two_cases(noisy(1.0001), noisy()))) == []


def test_a_required_pattern_that_matches_no_case_cannot_be_judged():
    judgement = gate(BASE, BASE, required=("triad", "triat"))
    assert (judgement.unmet, exit_status(judgement)) == (("triat",), 4)


def test_a_skip_that_is_allowed_is_a_note_and_another_is_not():
    skipped = reading([1.0] * 5, of=COPY, status="skipped", cause="devices", reason="needs 2 devices")
    after = Evidence([[reading(noisy()), skipped]])
    assert exit_status(gate(BASE, after)) == 4
    judgement = gate(BASE, after, allowed_skips=("copy",))
    assert exit_status(judgement) == 0
    assert f"{COPY.id}: skipped, which the policy allows" in judgement.notes


def test_a_pattern_that_matches_no_case_gives_a_warning():
    judgement = gate(BASE, BASE, thresholds_percent=(("latency/", 5.0),))
    assert "the policy's pattern 'latency/' matches no case" in judgement.notes


def test_thresholds_are_by_case():
    slow = two_cases(noisy(1.1), noisy(1.1))
    judgement = gate(BASE, slow, thresholds_percent=(("triad", 50.0),))
    assert {finding.case: finding.verdict for finding in judgement.findings} == {
        COPY: Verdict.SLOWER,
        TRIAD: Verdict.SAME,
    }


def test_an_inconclusive_case_says_how_many_processes_would_decide():
    (finding,) = gate(evidence(*noisy()), evidence(*noisy(1.012, 0.011))).findings
    needed = processes_needed(finding)
    assert 5 < needed < 100
    assert sentence(finding).endswith(f"needs about {needed} processes per side to decide")
    assert sentence(finding).startswith("+1.2 % (")


def test_a_partial_run_is_noted():
    partial = dataclasses.replace(reading(noisy(1.0001)), complete=False, source="new.jsonl")
    assert gate(evidence(*noisy()), Evidence([[partial]])).notes == ("candidate: new.jsonl is a partial run",)


def test_another_card_of_the_model_is_noted():
    def of(uuid):
        return evidence(*noisy(), manifest={"facts": make.facts(make.device(uuid=uuid))})

    assert "different cards" in " ".join(gate(of("GPU-1"), of("GPU-2")).notes)
    assert gate(of("GPU-1"), of("GPU-1")).notes == ()


def test_a_wrong_clock_of_a_machine_changes_no_verdict():
    """A gate does not compare the ages of runs."""
    late = evidence(*noisy(1.1), manifest={"started": "1970-01-01T00:00:00+00:00"})
    assert exit_status(gate(evidence(*noisy(), manifest={"started": "2099-01-01T00:00:00+00:00"}), late)) == 1


FLOOR = Floor("NVIDIA H200", "bandwidth/triad[*", 1e12, "B/s", 5.0, "a data sheet")


@pytest.mark.parametrize(
    ("rate", "verdict", "status"),
    [(0.9e12, "slower", 1), (0.99e12, "same", 0), (1.02e12, "same", 0), (1.2e12, "faster", 0), (0.953e12, None, 0)],
)
def test_a_floor_is_met_or_missed_or_inconclusive(rate, verdict, status):
    after = evidence(*noisy(1.0, 0.005), moved=rate)
    judgement = gate(EMPTY, after, "floor", floors=(FLOOR,))
    (finding,) = judgement.findings
    assert finding.verdict == (verdict or "inconclusive")
    assert exit_status(judgement) == status
    assert finding.before.median == 1e12


def test_a_floor_of_a_time_lies_above_it():
    floor = Floor("NVIDIA H200", "bandwidth/triad[*", 1.0, "s", 5.0, "seen", "less")
    assert gate(EMPTY, evidence(*noisy(1.1, 0.001)), "floor", floors=(floor,)).findings[0].verdict is Verdict.SLOWER


def test_the_interval_around_a_floor_is_students_t_interval():
    values = noisy(1.0, 0.02, 6)
    floor = Floor("NVIDIA H200", "bandwidth/triad[*", 1.0, "s", 5.0, "seen", "less")
    (finding,) = gate(EMPTY, evidence(*values), "floor", floors=(floor,)).findings
    interval = scipy.stats.ttest_1samp([math.log(value) for value in values], 0.0).confidence_interval(0.95)
    assert (finding.effect.low, finding.effect.high) == pytest.approx((interval.low, interval.high))


def test_a_model_without_floors_cannot_be_judged_and_the_answer_says_how_to_add_one():
    judgement = gate(EMPTY, evidence(*noisy(), moved=1e12), "floor")
    assert exit_status(judgement) == 4
    assert judgement.notes == (
        "no floor is known for NVIDIA H200: write [[floor]] tables into gpubench.toml (docs/gate.md)",
    )


def test_a_floor_in_another_unit_is_not_comparable():
    (finding,) = gate(EMPTY, evidence(*noisy()), "floor", floors=(FLOOR,)).findings
    assert (finding.verdict, finding.reason) == (Verdict.NOT_COMPARABLE, "the unit is s, the floor's B/s")


def test_one_process_is_too_few_to_meet_a_floor():
    (finding,) = gate(EMPTY, evidence(1.0, moved=1e12), "floor", floors=(FLOOR,)).findings
    assert (finding.verdict, finding.cause) == (Verdict.INCONCLUSIVE, "few-processes")
