"""The gate on real replicates of identical code, forty-eight processes on four H200: it is not alarmed."""

from pathlib import Path

import pytest
from gate_on_recordings import DESIGNS, RecordedSessions, smallest, tally

from gpubench.judging.evidence import Evidence
from gpubench.judging.judge import judge, settled
from gpubench.model import Verdict
from gpubench.tools.gating.readings import read, read_all

FILES = sorted((Path(__file__).parent / "recordings" / "headline").glob("*.jsonl.gz"))
LONGER = Path(__file__).parent / "recordings" / "longer"
SESSIONS = Path(__file__).parent / "recordings" / "sessions"


@pytest.fixture(scope="module")
def recording():
    return RecordedSessions(read_all(FILES))


@pytest.mark.parametrize("design", DESIGNS)
def test_replicates_of_identical_code_alarm_at_most_one_suite_in_a_hundred(recording, design):
    result = tally(recording, design, draws=30, threshold=0.02)
    assert result.draws == 30
    assert result.alarmed <= 1


def test_a_slow_down_of_five_per_cent_is_found_in_nearly_every_case_of_a_gpu(recording):
    least = {case: values[1] for case, values in smallest(recording, 0.02, draws=150)}
    assert len(least) >= 4
    assert sum(value <= 0.05 for value in least.values()) >= 0.75 * len(least)


def longer(percent, threshold):
    """Return the verdicts on kernels that took `percent` longer on a real GPU, 5 processes vs 5."""
    before, after = (Evidence([[read(LONGER / f"{name}.jsonl.gz")]]) for name in ("base", percent))
    findings = settled(judge(before, after, lambda _: threshold)).findings
    return {finding.case.name: finding.verdict for finding in findings}


@pytest.mark.parametrize(("percent", "threshold"), [(2, 0.01), (3, 0.01), (3, 0.02), (5, 0.02), (10, 0.02)])
def test_a_kernel_that_is_longer_on_a_real_gpu_is_found(percent, threshold):
    verdicts = longer(percent, threshold)
    assert (verdicts["triad"], verdicts["chase"]) == (Verdict.SLOWER, Verdict.SLOWER)


def test_a_power_capped_product_is_slower_only_where_the_slow_down_exceeds_its_noise():
    """With ±2 % between processes, 5 vs 5 processes can neither exclude a change of 2 % nor confirm one of 5 %."""
    verdicts = {percent: longer(percent, 0.02)["product"] for percent in (0, 2, 3, 5, 10)}
    assert verdicts == {
        0: Verdict.INCONCLUSIVE,
        2: Verdict.INCONCLUSIVE,
        3: Verdict.INCONCLUSIVE,
        5: Verdict.INCONCLUSIVE,
        10: Verdict.SLOWER,
    }


def test_the_same_kernel_measured_again_is_the_same_if_its_noise_allows_a_verdict():
    assert longer(0, 0.01) == {"triad": Verdict.SAME, "chase": Verdict.SAME, "product": Verdict.INCONCLUSIVE}
    assert longer(0, 0.05)["product"] is Verdict.SAME


@pytest.mark.parametrize(("baseline", "candidate"), [(1, 2), (2, 1)])
def test_two_sessions_on_two_cards_accuse_no_case_and_decide_half_of_them(baseline, candidate):
    sides = (Evidence([[read(SESSIONS / f"{number}.jsonl.gz")]]) for number in (baseline, candidate))
    findings = settled(judge(*sides, lambda _: 0.02)).findings
    verdicts = [finding.verdict for finding in findings]
    assert Verdict.SLOWER not in verdicts
    assert verdicts.count(Verdict.SAME) >= 8
