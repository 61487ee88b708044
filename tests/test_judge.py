"""Verdicts on evidence made by hand: each rule of docs/gate.md once."""

from __future__ import annotations

import dataclasses
import math

import _make as make
import pytest
import scipy.stats
from _sides import TRIAD, evidence, noisy, percent, reading

from gpubench.judging import effect
from gpubench.judging.evidence import Evidence, Reading
from gpubench.judging.finding_text import explanation, sentence
from gpubench.judging.judge import Finding, decide, judge, settled, verdict_of
from gpubench.model import DataFile, Verdict


def only_finding(before, after, threshold=2.0, **fields):
    """Return the finding on the only common case; the threshold is in per cent."""
    (finding,) = judge(before, after, percent(threshold), **fields).findings
    return finding


def effect_of(shift, low, high):
    """Return an effect with this logarithmic change and interval."""
    return effect.Effect(shift, low, high, 0.0, 0.0)


@pytest.mark.parametrize(
    ("weighed_effect", "verdict"),
    [
        (effect_of(0.05, 0.03, 0.07), "slower"),
        (effect_of(-0.05, -0.07, -0.03), "faster"),
        (effect_of(0.0, -0.01, 0.01), "same"),
        (effect_of(0.015, 0.011, 0.019), "same"),  # slower with confidence, and by less than the threshold
        (effect_of(0.03, 0.01, 0.05), "suspect"),
        (effect_of(0.011, -0.02, 0.04), "suspect"),
        (effect_of(0.0, -0.03, 0.03), "inconclusive"),
        (effect_of(-0.03, -0.05, -0.01), "inconclusive"),
        (effect_of(0.019, 0.021, 0.05), "suspect"),  # the estimate lies outside the interval because of outliers
    ],
)
def test_a_verdict_depends_on_the_whole_interval(weighed_effect, verdict):
    assert verdict_of(weighed_effect, 0.02) == verdict


def test_a_time_that_grew_by_five_per_cent_is_slower():
    finding = only_finding(evidence(*noisy(spread=0.002)), evidence(*noisy(1.05, spread=0.002)))
    assert finding.verdict is Verdict.SLOWER
    assert finding.change == pytest.approx(0.05)
    assert finding.bounds[0] < 0.05 < finding.bounds[1]


def test_a_rate_that_fell_is_slower_and_one_that_rose_is_faster():
    before = evidence(*noisy(spread=0.002), moved=1e9)
    finding = only_finding(before, evidence(*noisy(1.05, spread=0.002), moved=1e9))
    assert (finding.verdict, finding.better, finding.unit) == (Verdict.SLOWER, "more", "B/s")
    assert finding.change == pytest.approx(1 / 1.05 - 1)
    assert only_finding(before, evidence(*noisy(0.95, spread=0.002), moved=1e9)).verdict is Verdict.FASTER


def test_the_interval_is_welchs_on_logarithms():
    old, new = noisy(1.0, 0.01, 5), noisy(1.1, 0.03, 7)
    expected = scipy.stats.ttest_ind([math.log(v) for v in new], [math.log(v) for v in old], equal_var=False)
    result = only_finding(evidence(*old), evidence(*new)).effect
    interval = expected.confidence_interval(0.95)
    assert (result.low, result.high, result.p) == pytest.approx((interval.low, interval.high, expected.pvalue))


def least(deviation, freedom, *counts):
    """Return the smallest threshold: Student's t at the tail of three standard deviations, times the standard error."""
    return scipy.stats.t.isf(0.0027 / 2, freedom) * deviation * math.sqrt(sum(1 / count for count in counts))


def test_noise_between_processes_raises_the_threshold_by_students_quantile():
    finding = only_finding(evidence(*noisy(spread=0.05)), evidence(*noisy(1.01, spread=0.05)))
    assert finding.threshold == pytest.approx(least(0.05, 8, 5, 5))


def test_the_deviation_is_pooled_so_that_a_side_that_is_quiet_by_chance_does_not_narrow_the_threshold():
    finding = only_finding(evidence(*noisy(spread=0.001)), evidence(*noisy(1.1, spread=0.05)))
    assert finding.threshold > least(0.05 / math.sqrt(2), 8, 5, 5) * 0.99


def test_the_smaller_side_counts_with_its_own_noise_if_it_is_the_noisier_one():
    """Forty quiet processes do not make five noisy ones more precise."""
    finding = only_finding(evidence(*noisy(spread=0.05)), evidence(*noisy(1.01, spread=0.01, count=40)))
    assert finding.threshold > least(0.05, 4.3, 5)


def test_noise_beyond_the_users_threshold_is_inconclusive_and_says_how_much_identical_code_varies():
    finding = only_finding(evidence(*noisy(spread=0.03)), evidence(*noisy(1.01, spread=0.03)))
    assert finding.verdict is Verdict.INCONCLUSIVE
    assert explanation(finding).startswith(
        "threshold 8.5 %, because identical code varies by 3.0 % (5 and 5 processes)"
    )


def test_a_case_is_the_same_only_within_the_users_threshold():
    before, after = evidence(*noisy(spread=0.2)), evidence(*noisy(1.01, spread=0.1))
    assert only_finding(before, after).verdict is Verdict.INCONCLUSIVE
    asked = only_finding(before, after, threshold=50)
    assert (asked.verdict, asked.threshold) == (Verdict.SAME, pytest.approx(math.log(1.5)))


def test_the_sentence_of_a_slower_case_explains_a_widened_threshold_too():
    finding = only_finding(evidence(*noisy(spread=0.01)), evidence(*noisy(1.1, spread=0.01)))
    assert finding.verdict is Verdict.SLOWER
    assert "threshold 2.7 %, because identical code varies by 1.0 % (5 and 5 processes)" in sentence(finding)


def test_a_noise_run_counts_where_it_is_noisier_than_the_sides_themselves():
    noise = evidence(*noisy(spread=0.05, count=20))
    finding = only_finding(evidence(*noisy(spread=0.001)), evidence(*noisy(1.05, spread=0.001)), noise=noise)
    assert finding.threshold == pytest.approx(least(0.05, 19, 5, 5))
    assert "(20 processes of the noise run)" in sentence(finding)
    quiet = evidence(*noisy(spread=0.001, count=20))
    assert only_finding(evidence(*noisy(spread=0.05)), evidence(*noisy(spread=0.04)), noise=quiet).threshold > 0.05


def test_the_users_threshold_is_a_change_of_the_time_and_of_its_inverse():
    finding = only_finding(evidence(*noisy(spread=1e-6)), evidence(*noisy(1.001, spread=1e-6)), threshold=5)
    assert finding.threshold == pytest.approx(math.log(1.05))


def test_a_difference_between_sessions_does_not_average_out_within_one_session():
    """Three sessions 4 % apart, each of quiet processes: a fourth one 5 % off is no regression."""
    sessions = Evidence([[reading(noisy(centre, 1e-4))] for centre in (1.0, 1.04, 1.08)])
    one_session = Evidence([[reading([value for centre in (1.0, 1.04, 1.08) for value in noisy(centre, 1e-4)])]])
    after = evidence(*noisy(1.12, 1e-4))
    finding = only_finding(sessions, after)
    assert finding.verdict is not Verdict.SLOWER
    assert finding.threshold > 2 * only_finding(one_session, after).threshold
    assert "(3 sessions of the baseline)" in explanation(finding)


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_than_three_processes_are_inconclusive_and_name_the_option_to_use(count):
    finding = only_finding(evidence(*noisy(count=5)), evidence(*[1.5, 1.6][:count]))
    assert (finding.verdict, finding.cause) == (Verdict.INCONCLUSIVE, "few-processes")
    assert "--replicates 5" in finding.reason


@pytest.mark.parametrize(("old", "new"), [(3, 3), (4, 10), (20, 4)])
@pytest.mark.parametrize(("centre", "verdict"), [(1.5, Verdict.SUSPECT), (0.5, Verdict.INCONCLUSIVE)])
def test_fewer_than_five_processes_on_a_side_call_nothing_slower_or_faster(old, new, centre, verdict):
    finding = only_finding(evidence(*noisy(spread=1e-3, count=old)), evidence(*noisy(centre, 1e-3, new)))
    assert (finding.verdict, finding.cause) == (verdict, "few-processes")
    assert finding.reason.startswith(
        f"{old} and {new} processes: with fewer than 5 on a side no change is called slower"
    )


def test_three_processes_that_agree_are_the_same():
    assert (
        only_finding(evidence(*noisy(spread=1e-3, count=3)), evidence(*noisy(1.001, 1e-3, 3))).verdict is Verdict.SAME
    )


@pytest.mark.parametrize("count", [1, 2, 5])
def test_identical_files_are_the_same_however_few_their_processes(count):
    values = [1.0, 1.3, 1.1, 1.2, 1.5][:count]
    finding = only_finding(evidence(*values), evidence(*values))
    assert (finding.verdict, finding.cause) == (Verdict.SAME, "identical")


def test_figures_without_a_logarithm_are_inconclusive():
    finding = only_finding(evidence(0.0, 1.0, 2.0), evidence(1.0, 1.0, 2.0))
    assert (finding.verdict, finding.cause) == (Verdict.INCONCLUSIVE, "no-ratio")


def test_values_that_never_vary_are_judged_by_the_users_threshold_alone():
    finding = only_finding(evidence(*[1.0] * 5), evidence(*[1.03] * 5))
    assert (finding.verdict, finding.threshold, finding.q) == (Verdict.SLOWER, pytest.approx(math.log(1.02)), 0.0)


def test_another_case_version_is_not_comparable():
    finding = only_finding(evidence(*noisy()), evidence(*noisy(), of=dataclasses.replace(TRIAD, version=2)))
    assert (finding.verdict, finding.cause) == (Verdict.NOT_COMPARABLE, "method")
    assert finding.reason == "case version was 1, is 2"


def test_mixed_units_are_not_comparable_even_within_a_side():
    seconds, rate = reading(noisy()), reading(noisy(), moved=1e9)
    finding = only_finding(Evidence([[seconds], [rate]]), Evidence([[seconds]]))
    assert (finding.verdict, finding.reason) == (
        Verdict.NOT_COMPARABLE,
        "unit was s, is B/s; the better direction was less, is more",
    )


USUAL = {"clock.sm_most_hz": "1980000000", "power.limit_w": "700.0", "ecc": "on", "mig": "off"}


def machine(name="NVIDIA H200", device_id="cuda:0", **details):
    """Return a manifest's facts with one device of these settings."""
    device = make.device(device_id, name, details=tuple((USUAL | details).items()))
    return {"facts": make.facts(device, versions=(("nvidia.driver", "580.1"),))}


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        ({"name": "NVIDIA H100"}, "model NVIDIA H100 instead of NVIDIA H200"),
        ({"power.limit_w": "500.0"}, "power limit 500.0 W instead of 700.0 W"),
        ({"ecc": "off"}, "ECC off instead of on"),
        ({"mig": "on"}, "MIG on instead of off"),
        ({"clock.sm_most_hz": "1410000000"}, "clocks 1.410 GHz instead of 1.980 GHz"),
    ],
)
def test_another_machine_or_setting_is_not_comparable(manifest, reason):
    before, after = evidence(*noisy(), manifest=machine()), evidence(*noisy(), manifest=machine(**manifest))
    finding = only_finding(before, after)
    assert (finding.verdict, finding.cause) == (Verdict.NOT_COMPARABLE, "machine")
    assert finding.reason == f"not comparable with the baseline: {reason}"
    assert only_finding(before, after, allow_mismatch=True).verdict is Verdict.SAME


def test_the_major_version_of_the_driver_counts_the_minor_does_not():
    def of(version):
        return {"manifest": {"facts": make.facts(versions=(("nvidia.driver", version),))}}

    before = evidence(*noisy(), **of("580.1.2"))
    assert only_finding(before, evidence(*noisy(), **of("580.9"))).verdict is Verdict.SAME
    assert (
        only_finding(before, evidence(*noisy(), **of("590.1"))).reason
        == "not comparable with the baseline: driver nvidia 590 instead of nvidia 580"
    )


def test_another_tier_is_not_comparable():
    settings = dataclasses.replace(make.manifest().settings, tier="smoke")
    finding = only_finding(evidence(*noisy()), evidence(*noisy(), manifest={"settings": settings}))
    assert finding.reason == "not comparable with the baseline: tier smoke instead of quick"


def test_a_candidate_that_failed_once_is_invalid_at_any_speed():
    bad = reading([1.0], status="failed", cause="wrong-answer", reason="1 + 1 came out as 3")
    finding = only_finding(evidence(*noisy()), Evidence([[reading(noisy()), bad]]))
    assert (finding.verdict, finding.cause) == (Verdict.INVALID, "failed")
    assert finding.reason == "candidate: 1 of 6 failed: 1 + 1 came out as 3"


def test_invalid_processes_leave_the_others_to_be_judged_where_enough_are_left():
    bad = reading([1.0], status="invalid", cause="discarded", reason="most samples had to go")
    assert only_finding(evidence(*noisy()), Evidence([[reading(noisy()), bad]])).verdict is Verdict.SAME
    finding = only_finding(evidence(*noisy()), Evidence([[reading([1.0, 1.0]), bad]]))
    assert (finding.verdict, finding.reason) == (
        Verdict.INVALID,
        "candidate: 1 of 3 invalid: most samples had to go",
    )


def test_a_case_of_only_one_side_is_listed_as_missing_or_new_and_has_no_verdict():
    other_case = make.case("copy", size_bytes=2**30)
    both = judge(evidence(*noisy()), evidence(*noisy(), of=other_case), percent(2))
    assert (both.findings, both.missing, both.new) == ((), (TRIAD,), (other_case,))


def test_a_case_that_was_skipped_before_is_new_and_one_that_is_skipped_now_is_invalid():
    skipped = evidence(1.0, status="skipped", reason="needs 2 devices")
    assert judge(skipped, evidence(*noisy()), percent(2)).new == (TRIAD,)
    finding = only_finding(evidence(*noisy()), skipped)
    assert (finding.verdict, finding.cause) == (Verdict.INVALID, "skipped")


def test_two_single_cards_are_compared_even_if_their_device_ids_differ():
    after = evidence(*noisy(), devices=("cuda:1",), manifest=machine(device_id="cuda:1"))
    finding = only_finding(evidence(*noisy(), manifest=machine()), after)
    assert (finding.verdict, finding.devices) == (Verdict.SAME, ("cuda:1",))


def test_each_of_two_cards_is_compared_with_itself():
    both = make.facts(make.device("cuda:0"), make.device("cuda:1"))

    def of(first, second):
        values = {"cuda:0": first, "cuda:1": second}
        return Evidence(
            [[reading(noisy(v, 1e-4), devices=(name,), manifest={"facts": both}) for name, v in values.items()]]
        )

    findings = judge(of(1.0, 2.0), of(1.0, 2.2), percent(2)).findings
    assert [(finding.devices, finding.verdict) for finding in findings] == [
        (("cuda:1",), Verdict.SLOWER),
        (("cuda:0",), Verdict.SAME),
    ]


def evidence_on_cards(value, *uuids, spread=1e-3):
    """Return evidence with a session on each card."""
    return Evidence(
        [
            [reading(noisy(value if i == 0 else 1.0, spread), manifest={"facts": make.facts(make.device(uuid=uuid))})]
            for i, uuid in enumerate(uuids)
        ]
    )


@pytest.mark.parametrize(
    ("value", "verdict"), [(1.04, "inconclusive"), (0.96, "inconclusive"), (1.2, "slower"), (1.0005, "same")]
)
def test_another_card_of_the_model_may_differ_by_the_usual_difference_between_cards(value, verdict):
    """Real H200 differ by 3.8 % in the latency of their memory: that is no regression."""
    finding = only_finding(evidence_on_cards(1.0, "GPU-1"), evidence_on_cards(value, "GPU-2"))
    assert finding.verdict == verdict
    assert (finding.cause == "card") == (verdict == "inconclusive")


def test_of_a_baseline_of_several_cards_the_candidates_own_is_used():
    before = evidence_on_cards(1.04, "GPU-2", "GPU-1", "GPU-3")
    assert only_finding(before, evidence_on_cards(1.04, "GPU-2")).verdict is Verdict.SAME
    assert only_finding(before, evidence_on_cards(1.08, "GPU-2")).before.processes == 5
    assert only_finding(before, evidence_on_cards(1.08, "GPU-2")).verdict is Verdict.SLOWER


def evidence_at_clocks(values, hertz, labels=()):
    """Return a reading whose processes each ran at a clock of their own, read in their windows."""
    results = [
        make.result(make.timing(value), of=TRIAD, replicate=index, window=(index, index + 0.9), labels=labels)
        for index, value in enumerate(values)
    ]
    at = [index + 0.5 for index in range(len(values))]
    counter = make.counter("nvml.clock.sm", "Hz", "gauge", 0.1, "nvidia-smi")
    samples = make.samples(at, **{"clock.sm": list(hertz)})
    return Evidence([[Reading.of(make.run(*results, sampled=[samples], counters=(counter,)))]])


FAST, SLOW = noisy(1.98e9, 1e-4), noisy(1.8e9, 1e-4)


def test_a_slow_down_that_the_clock_alone_explains_is_inconclusive():
    """10 % slower at a clock 10 % lower is the same number of cycles."""
    finding = only_finding(
        evidence_at_clocks(noisy(1.0, 0.001), FAST), evidence_at_clocks(noisy(1.1, 0.001), SLOW, ("power-capped",))
    )
    assert (finding.verdict, finding.cause) == (Verdict.SUSPECT, "clock")
    assert "1.980 GHz to 1.800 GHz (power-capped on one side only)" in finding.reason
    assert settled(judge(evidence(*noisy()), evidence(*noisy()), percent(2))).counts() == {Verdict.SAME: 1}


def test_a_case_that_is_slower_in_cycles_too_is_slower():
    finding = only_finding(
        evidence_at_clocks(noisy(1.0, 0.001), FAST), evidence_at_clocks(noisy(1.2, 0.001), SLOW, ("power-capped",))
    )
    assert finding.verdict is Verdict.SLOWER


def test_a_slow_down_at_the_same_clock_is_slower():
    finding = only_finding(evidence_at_clocks(noisy(1.0, 0.001), FAST), evidence_at_clocks(noisy(1.1, 0.001), FAST))
    assert finding.verdict is Verdict.SLOWER


@pytest.mark.parametrize("label", ["shared-device", "loaded"])
def test_a_slow_down_beside_neighbours_that_the_baseline_did_not_have_is_inconclusive(label):
    slow = noisy(1.1, 0.001)
    assert only_finding(evidence(*noisy()), evidence(*slow, labels=(label,))).cause == "contended"


def test_without_a_second_measurement_a_suspect_is_inconclusive_and_keeps_its_reason():
    judgement = settled(judge(evidence_at_clocks(noisy(), FAST), evidence_at_clocks(noisy(1.1), SLOW), percent(2)))
    assert [(f.verdict, f.cause) for f in judgement.findings] == [(Verdict.INCONCLUSIVE, "clock")]


def test_q_values_depend_on_the_number_of_compared_cases():
    cases = [make.case("triad", size_bytes=2**n) for n in range(10, 20)]

    def of(values):
        return Evidence([[reading(medians, of=case) for case, medians in zip(cases, values, strict=True)]])

    findings = judge(of([noisy()] * 10), of([noisy(1.05), *[noisy(1.001)] * 9]), percent(2)).findings
    slow = next(f for f in findings if f.case == cases[0])
    assert slow.q == pytest.approx(min(10 * slow.effect.p, 1.0))


def test_a_chance_finding_among_many_cases_is_called_neither_slower_nor_faster():
    """With a threshold of zero, a probability of 1/200 is expected once among two hundred cases."""
    cases = [make.case("triad", size_bytes=2**10 + n) for n in range(200)]
    effects = [effect.Effect(0.05, 0.02, 0.08, 0.005, 0.001), *[effect.Effect(0.0, -0.01, 0.01, 0.9, 0.001)] * 199]
    plain = [Finding(case, ("cuda:0",), Verdict.INCONCLUSIVE) for case in cases]
    first = decide(plain, effects, percent(1))[0]
    assert (first.verdict, first.cause) == (Verdict.SUSPECT, "chance")
    assert decide(plain[:1], effects[:1], percent(1))[0].verdict is Verdict.SLOWER


def test_findings_are_listed_with_the_worst_first():
    cases = [make.case(name) for name in ("a", "b", "c")]
    before = Evidence([[reading(noisy(spread=1e-4), of=case) for case in cases]])
    after = Evidence([[reading(noisy(v, 1e-4), of=case) for case, v in zip(cases, (1.0, 1.05, 1.2), strict=True)]])
    assert [f.case.name for f in judge(before, after, percent(2)).findings] == ["c", "b", "a"]


def test_different_data_files_of_the_user_are_not_comparable():
    case = make.case("roundtrip", "compression", corpus="dump.bin")

    def of(digest):
        settings = dataclasses.replace(make.manifest().settings, data=(DataFile("dump.bin", "/d", 1, digest),))
        return evidence(*noisy(), of=case, manifest={"settings": settings})

    assert only_finding(of("aa"), of("aa")).verdict is Verdict.SAME
    assert only_finding(of("aa"), of("bb")).reason == "the data dump.bin is another file"
