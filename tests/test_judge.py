"""Verdicts on evidence made by hand: each rule of docs/gate.md once."""

import dataclasses
import math

import _make as make
import pytest
import scipy.stats
from _sides import TRIAD, evidence, noisy, percent, reading

from gpubench.judging import effect
from gpubench.judging.answer import next_steps
from gpubench.judging.evidence import Evidence, Kind
from gpubench.judging.finding_text import explanation, sentence
from gpubench.judging.judge import Finding, decide, judge, verdict_of
from gpubench.judging.objections import cards_differ
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


def test_a_change_is_slower_or_faster_by_the_direction_of_its_figure():
    finding = only_finding(evidence(*noisy(spread=0.002)), evidence(*noisy(1.05, spread=0.002)))
    assert finding.verdict is Verdict.SLOWER
    assert finding.change == pytest.approx(0.05)
    assert finding.bounds[0] < 0.05 < finding.bounds[1]
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


@pytest.mark.parametrize(
    ("old", "new", "low", "high"),
    [
        (noisy(spread=0.05), noisy(1.01, spread=0.05), least(0.05, 8, 5, 5), least(0.05, 8, 5, 5)),
        # a side that is quiet by chance does not narrow the threshold, nor do forty quiet processes beside five noisy
        (noisy(spread=0.001), noisy(1.1, spread=0.05), 0.99 * least(0.05 / math.sqrt(2), 8, 5, 5), 1),
        (noisy(spread=0.05), noisy(1.01, spread=0.01, count=40), least(0.05, 4.3, 5), 1),
    ],
)
def test_noise_between_processes_raises_the_threshold_by_students_quantile(old, new, low, high):
    assert low * (1 - 1e-6) < only_finding(evidence(*old), evidence(*new)).threshold < high * (1 + 1e-6)


@pytest.mark.parametrize(
    ("spread", "ratio", "verdict", "text"),
    [
        (0.03, 1.01, "inconclusive", "threshold 8.5 %, because identical code varies by 3.0 % (5 and 5 processes)"),
        (0.01, 1.1, "slower", "threshold 2.7 %, because identical code varies by 1.0 % (5 and 5 processes)"),
    ],
)
def test_a_widened_threshold_is_explained_by_the_noise_of_identical_code(spread, ratio, verdict, text):
    finding = only_finding(evidence(*noisy(spread=spread)), evidence(*noisy(ratio, spread=spread)))
    assert finding.verdict == verdict
    assert text in sentence(finding)


def test_a_case_is_the_same_only_within_the_users_threshold():
    before, after = evidence(*noisy(spread=0.2)), evidence(*noisy(1.01, spread=0.1))
    assert only_finding(before, after).verdict is Verdict.INCONCLUSIVE
    asked = only_finding(before, after, threshold=50)
    assert (asked.verdict, asked.threshold) == (Verdict.SAME, pytest.approx(math.log(1.5)))


def test_a_noise_run_counts_where_it_is_noisier_than_the_sides_themselves():
    noise = evidence(*noisy(spread=0.05, count=20))
    finding = only_finding(evidence(*noisy(spread=0.001)), evidence(*noisy(1.05, spread=0.001)), noise=noise)
    assert finding.threshold == pytest.approx(least(0.05, 19, 5, 5))
    assert "(20 processes of the noise run)" in sentence(finding)
    quiet = evidence(*noisy(spread=0.001, count=20))
    assert only_finding(evidence(*noisy(spread=0.05)), evidence(*noisy(spread=0.04)), noise=quiet).threshold > 0.05


def test_values_that_never_vary_are_judged_by_the_users_threshold_alone():
    finding = only_finding(evidence(*[1.0] * 5), evidence(*[1.03] * 5))
    assert (finding.verdict, finding.threshold, finding.q) == (Verdict.SLOWER, pytest.approx(math.log(1.02)), 0.0)
    finding = only_finding(evidence(0.0, 1.0, 2.0), evidence(1.0, 1.0, 2.0))
    assert (finding.verdict, finding.cause) == (Verdict.INCONCLUSIVE, "no-ratio")


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
    same = only_finding(evidence(*noisy(spread=1e-3, count=3)), evidence(*noisy(1.001, 1e-3, 3)))
    assert same.verdict is Verdict.SAME, "three that agree"
    finding = only_finding(evidence(*noisy(spread=1e-3, count=old)), evidence(*noisy(centre, 1e-3, new)))
    assert (finding.verdict, finding.cause) == (verdict, "few-processes")
    assert finding.reason.startswith(
        f"{old} and {new} processes: with fewer than 5 on a side no change is called slower"
    )


@pytest.mark.parametrize("count", [1, 2, 5])
def test_identical_files_are_the_same_however_few_their_processes(count):
    values = [1.0, 1.3, 1.1, 1.2, 1.5][:count]
    finding = only_finding(evidence(*values), evidence(*values))
    assert (finding.verdict, finding.cause) == (Verdict.SAME, "identical")


USUAL = {"clock.sm_most_hz": "1980000000", "power.limit_w": "700.0", "ecc": "on", "mig": "off"}


def machine(name="NVIDIA H200", device_id="cuda:0", **details):
    """Return a manifest's facts with one device of these settings."""
    device = make.device(device_id, name, details=tuple((USUAL | details).items()))
    return {"facts": make.facts(device, versions=(("nvidia.driver", "580.1"),))}


def driver(version):
    return {"facts": make.facts(versions=(("nvidia.driver", version),))}


def tier(name):
    return {"settings": dataclasses.replace(make.manifest().settings, tier=name)}


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (machine(), machine(name="NVIDIA H100"), "model NVIDIA H100 instead of NVIDIA H200"),
        (machine(), machine(**{"power.limit_w": "500.0"}), "power limit 500.0 W instead of 700.0 W"),
        (machine(), machine(ecc="off"), "ECC off instead of on"),
        (machine(), machine(mig="on"), "MIG on instead of off"),
        (machine(), machine(**{"clock.sm_most_hz": "1410000000"}), "clocks 1.410 GHz instead of 1.980 GHz"),
        (driver("580.1.2"), driver("590.1"), "driver nvidia 590 instead of nvidia 580"),
        (tier("quick"), tier("smoke"), "tier smoke instead of quick"),
    ],
)
def test_another_machine_or_setting_is_not_comparable(before, after, reason):
    before, after = evidence(*noisy(), manifest=before), evidence(*noisy(), manifest=after)
    finding = only_finding(before, after)
    assert (finding.verdict, finding.cause) == (Verdict.NOT_COMPARABLE, "machine")
    assert finding.reason == f"not comparable with the baseline: {reason}"
    assert only_finding(before, after, allow_mismatch=True).verdict is Verdict.SAME


def test_a_minor_version_of_the_driver_and_another_device_id_do_not_count():
    before, after = (evidence(*noisy(), manifest=driver(version)) for version in ("580.1.2", "580.9"))
    assert only_finding(before, after).verdict is Verdict.SAME
    after = evidence(*noisy(), devices=("cuda:1",), manifest=machine(device_id="cuda:1"))
    finding = only_finding(evidence(*noisy(), manifest=machine()), after)
    assert (finding.verdict, finding.devices) == (Verdict.SAME, ("cuda:1",))


def test_another_version_or_unit_of_a_case_is_not_comparable():
    seconds, rate = reading(noisy()), reading(noisy(), moved=1e9)
    for before, after, reason in (
        ([seconds], reading(noisy(), of=dataclasses.replace(TRIAD, version=2)), "case version was 1, is 2"),
        ([seconds, rate], seconds, "unit was s, is B/s; the better direction was less, is more"),
    ):
        finding = only_finding(Evidence([[one] for one in before]), Evidence([[after]]))
        assert (finding.verdict, finding.cause, finding.reason) == (Verdict.NOT_COMPARABLE, "method", reason)


BAD = reading([1.0], status="invalid", cause="discarded", reason="most samples had to go")
WRONG = reading([1.0], status="failed", cause="wrong-answer", reason="1 + 1 came out as 3")


def test_a_candidate_that_failed_once_is_invalid_and_one_with_enough_valid_processes_is_judged():
    before = evidence(*noisy())
    finding = only_finding(before, Evidence([[reading(noisy()), WRONG]]))
    assert (finding.verdict, finding.cause) == (Verdict.INVALID, "failed")
    assert finding.reason == "candidate: 1 of 6 failed: 1 + 1 came out as 3"
    assert only_finding(before, Evidence([[reading(noisy()), BAD]])).verdict is Verdict.SAME
    finding = only_finding(before, Evidence([[reading([1.0, 1.0]), BAD]]))
    assert (finding.verdict, finding.reason) == (Verdict.INVALID, "candidate: 1 of 3 invalid: most samples had to go")


def test_a_case_of_only_one_side_is_listed_as_missing_or_new_and_has_no_verdict():
    other_case = make.case("copy", size_bytes=2**30)
    both = judge(evidence(*noisy()), evidence(*noisy(), of=other_case), percent(2))
    assert (both.findings, both.missing, both.new) == ((), (TRIAD,), (other_case,))


def test_a_case_that_was_skipped_before_is_new_and_one_that_is_skipped_now_is_invalid():
    skipped = evidence(1.0, status="skipped", reason="needs 2 devices")
    assert judge(skipped, evidence(*noisy()), percent(2)).new == (TRIAD,)
    assert judge(skipped, skipped, percent(2)).new == judge(evidence(*noisy()), skipped, percent(2)).new == ()
    finding = only_finding(evidence(*noisy()), skipped)
    assert (finding.verdict, finding.cause) == (Verdict.INVALID, "skipped")


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
    return Evidence(
        [
            [reading(noisy(value if i == 0 else 1.0, spread), manifest={"facts": make.facts(make.device(uuid=uuid))})]
            for i, uuid in enumerate(uuids)
        ]
    )


@pytest.mark.parametrize(
    ("value", "verdict"),
    [(1.04, "inconclusive"), (0.97, "inconclusive"), (0.9, "faster"), (1.2, "slower"), (1.0005, "same")],
)
def test_another_card_of_the_model_may_differ_by_the_usual_difference_between_cards(value, verdict):
    """Real H200 differ by 3.8 % in the latency of their memory: that is no regression."""
    finding = only_finding(evidence_on_cards(1.0, "GPU-1"), evidence_on_cards(value, "GPU-2"))
    assert finding.verdict == verdict
    assert (finding.cause == "card") == (verdict == "inconclusive")


@pytest.mark.parametrize("known", [("GPU-1",), ("GPU-1", "GPU-3", "GPU-4")])
def test_cards_that_are_alike_do_not_show_how_the_next_one_differs(known):
    """Of four H200, three had one latency and the fourth 3.7 % more."""
    finding = only_finding(evidence_on_cards(1.0, *known), evidence_on_cards(1.037, "GPU-2"))
    assert (finding.verdict, finding.cause) == (Verdict.INCONCLUSIVE, "card")


def test_of_a_baseline_of_several_cards_the_candidates_own_is_used():
    before = evidence_on_cards(1.04, "GPU-2", "GPU-1", "GPU-3")
    assert only_finding(before, evidence_on_cards(1.04, "GPU-2")).verdict is Verdict.SAME
    assert only_finding(before, evidence_on_cards(1.08, "GPU-2")).before.processes == 5
    assert only_finding(before, evidence_on_cards(1.08, "GPU-2")).verdict is Verdict.SLOWER


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


def test_a_machine_whose_noise_hides_changes_of_half_is_too_noisy_to_judge():
    before, after = evidence(1.0, 3.0, 0.5, 2.0, 9.0), evidence(4.0, 0.7, 6.0, 1.5, 2.5)
    finding = only_finding(before, after)
    assert (finding.verdict, finding.cause) == (Verdict.INCONCLUSIVE, "too-noisy")
    assert finding.reason.startswith("this machine is too noisy to judge")
    assert explanation(finding) == finding.reason
    steps = next_steps(judge(before, after, percent(2.0)), "gpubench gate")
    assert [step for step in steps if "--threshold" in str(step)] == []
    assert any("doctor --noise" in str(step) for step in steps)


def test_a_change_against_the_medians_is_undecided_because_of_two_states():
    before = evidence(1.0, 1.001, 1.002, 1.3, 1.301, 1.302, 1.303)  # the median is in the slow state
    after = evidence(1.05, 1.051, 1.052, 1.053, 1.35, 1.351, 1.352)  # each state is slower, the median is faster
    finding = only_finding(before, after)
    assert finding.after.median < finding.before.median
    assert finding.change > 0.01
    assert finding.cause == "two-states"


@pytest.mark.parametrize(
    ("kind", "fraction"),
    [
        (Kind(1, "hot", "B/s", "more", "dram"), 0.02),
        (Kind(1, "hot", "FLOP/s", "more", "tensor.bfloat16"), 0.02),
        (Kind(1, "hot", "B/s", "more", "link.h2d"), 0.07),
        (Kind(1, "hot", "B/s", "more"), 0.03),
        (Kind(1, "self", "s", "less"), 0.04),
        (Kind(1, "host", "s", "less"), 0.5),
        (Kind(1, "hot", "token/s", "more"), 0.08),
    ],
)
def test_cards_of_a_model_differ_by_quantity(kind, fraction):
    assert cards_differ(kind) == fraction
