"""The two gates: how a policy turns verdicts into an exit status."""

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
    return Evidence([[reading(triad, of=TRIAD, **fields), reading(copy, of=COPY)]])


def gate(before, after, name="regression", **policy):
    return settled(plugins.load("gates", name).judge(before, after, Policy(**policy)))


BASE = two_cases(noisy(), noisy())
SLOWER = two_cases(noisy(1.1), noisy())


GONE = f"{COPY.id}: the baseline has a figure, the candidate has none"
ALLOWED = f"{COPY.id}: skipped, which the policy allows"
CHASE = make.case("chase", "latency")


def beside(triad, status, cause):
    return Evidence([[reading(noisy(triad)), reading([1.0] * 5, of=COPY, status=status, cause=cause, reason="heat")]])


@pytest.mark.parametrize(
    ("after", "policy", "plain", "strict", "note"),
    [
        (two_cases(noisy(1.0001, 0.001), noisy()), {}, 0, 0, ""),
        (SLOWER, {}, 1, 1, ""),
        (two_cases(noisy(1.005, 0.02), noisy()), {}, 0, 4, ""),
        (beside(1.1, "failed", "crash"), {}, 3, 3, ""),
        (beside(1.001, "invalid", "discarded"), {}, 4, 4, ""),
        (beside(1.1, "invalid", "discarded"), {}, 1, 1, ""),
        (beside(1.0, "invalid", "discarded"), {"required": ("triad",)}, 0, 0, ""),
        (beside(1.0, "skipped", "devices"), {}, 4, 4, ""),
        (beside(1.0, "skipped", "devices"), {"allowed_skips": ("copy",)}, 0, 0, ALLOWED),
        (evidence(*noisy(1.0001)), {}, 4, 4, GONE),
        (evidence(*noisy(1.0001)), {"required": ("triad",)}, 0, 0, GONE),
        (evidence(*noisy(), of=CHASE), {}, 4, 4, "latency/chase: new, there is no baseline for it"),
        (BASE, {"thresholds_percent": (("latency/", 5.0),)}, 0, 0, "the policy's pattern 'latency/' matches no case"),
    ],
)
def test_the_worst_of_the_required_cases_gives_the_status(after, policy, plain, strict, note):
    judgement = gate(BASE, after, **policy)
    assert (exit_status(judgement), exit_status(judgement, strict=True)) == (plain, strict)
    assert not note or note in judgement.notes


def test_warnings_name_what_could_not_be_decided_and_two_processes_decide_nothing():
    assert warnings(gate(BASE, two_cases(noisy(1.0001), noisy()))) == []
    judgement = gate(BASE, evidence(*noisy(1.0001)))
    assert (judgement.decided, judgement.cases) == (1, 2)
    assert GONE in warnings(judgement)
    judgement = gate(evidence(1.0, 1.1), evidence(1.2, 1.3))
    assert (exit_status(judgement), exit_status(judgement, allow_undecided=True)) == (4, 0)
    assert f"{TRIAD.id}: too few processes to call a change slower or faster" in warnings(judgement)
    assert "0 of 1 case is decided: the other 1 may be slower" in warnings(judgement)


def test_a_required_case_or_pattern_that_is_missing_cannot_be_judged():
    judgement = gate(BASE, evidence(*noisy()), required=("copy",))
    (finding,) = [finding for finding in judgement.findings if finding.required]
    assert (finding.case, finding.verdict, finding.cause) == (COPY, Verdict.INVALID, "missing")
    assert exit_status(judgement) == 4
    judgement = gate(BASE, BASE, required=("triad", "triat"))
    assert (judgement.unmet, exit_status(judgement)) == (("triat",), 4)


def test_thresholds_are_by_case():
    slow = two_cases(noisy(1.1), noisy(1.1))
    judgement = gate(BASE, slow, thresholds_percent=(("triad", 50.0),))
    verdicts = {finding.case: finding.verdict for finding in judgement.findings}
    assert verdicts == {COPY: Verdict.SLOWER, TRIAD: Verdict.SAME}


def test_an_inconclusive_case_says_how_many_processes_would_decide():
    (finding,) = gate(evidence(*noisy()), evidence(*noisy(1.012, 0.011))).findings
    needed = processes_needed(finding)
    assert 5 < needed < 100
    assert sentence(finding).endswith(f"needs about {needed} processes per side to decide")
    assert sentence(finding).startswith("+1.2 % (")


def test_a_partial_run_and_another_card_are_noted():
    partial = dataclasses.replace(reading(noisy(1.0001)), complete=False, source="new.jsonl")
    assert gate(evidence(*noisy()), Evidence([[partial]])).notes == ("candidate: new.jsonl is a partial run",)
    old, new = (evidence(*noisy(), manifest={"facts": make.facts(make.device(uuid=u))}) for u in ("GPU-1", "GPU-2"))
    assert "different cards" in " ".join(gate(old, new).notes)
    assert gate(old, old).notes == ()


def test_the_ages_of_runs_are_not_compared():
    early, late = ({"started": f"{year}-01-01T00:00:00+00:00"} for year in (1970, 2099))
    assert exit_status(gate(evidence(*noisy(), manifest=late), evidence(*noisy(1.1), manifest=early))) == 1


FLOOR = Floor("NVIDIA H200", "bandwidth/triad[*", 1e12, "B/s", 5.0, "a data sheet")


@pytest.mark.parametrize(
    ("rate", "verdict", "status"),
    [(0.9e12, "slower", 1), (0.99e12, "same", 0), (1.02e12, "same", 0), (1.2e12, "faster", 0), (0.953e12, None, 4)],
)
def test_a_floor_is_met_or_missed_or_inconclusive(rate, verdict, status):
    after = evidence(*noisy(1.0, 0.005), moved=rate)
    judgement = gate(EMPTY, after, "floor", floors=(FLOOR,))
    (finding,) = judgement.findings
    assert finding.verdict == (verdict or "inconclusive")
    assert exit_status(judgement) == status
    assert finding.before.median == 1e12


def test_a_floor_of_a_time_lies_above_it_with_students_interval():
    floor = Floor("NVIDIA H200", "bandwidth/triad[*", 1.0, "s", 5.0, "seen", "less")
    values = noisy(1.1, 0.001, 6)
    (finding,) = gate(EMPTY, evidence(*values), "floor", floors=(floor,)).findings
    interval = scipy.stats.ttest_1samp([math.log(value) for value in values], 0.0).confidence_interval(0.95)
    assert (finding.effect.low, finding.effect.high) == pytest.approx((interval.low, interval.high))
    assert finding.verdict is Verdict.SLOWER


def test_a_model_without_floors_cannot_be_judged_and_the_answer_says_how_to_add_one():
    judgement = gate(EMPTY, evidence(*noisy(), moved=1e12), "floor")
    assert exit_status(judgement) == 4
    assert judgement.notes == (
        "no floor is known for NVIDIA H200: write [[floor]] tables into gpubench.toml (docs/gate.md)",
    )


@pytest.mark.parametrize(
    ("side", "verdict", "cause"),
    [(evidence(*noisy()), "not comparable", "method"), (evidence(1.0, moved=1e12), "inconclusive", "few-processes")],
)
def test_another_unit_or_one_process_meets_no_floor(side, verdict, cause):
    (finding,) = gate(EMPTY, side, "floor", floors=(FLOOR,)).findings
    assert (finding.verdict, finding.cause) == (verdict, cause)
