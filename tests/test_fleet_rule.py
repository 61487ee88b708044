"""The rule for fleets: settings that differ, liars, heavy tails, racks, two populations, and bad input."""

import itertools
import math
from dataclasses import replace

import _make as make
import numpy as np
import pytest
from _fleets import fleet

from gpubench.analysis.fingerprint import Fingerprint
from gpubench.analysis.overview import DigestBuilder
from gpubench.judging import fleet_text, outliers
from gpubench.judging.fleet import Place, SlowCause, fleet_status
from gpubench.judging.fleet_rule import SecondMeasurement, judge_fleet
from gpubench.model.fleet import Fleet, FleetNode

FAMILIES = ("memory", "compute", "host link", "latency", "collectives")


def simulated(size, spread=0.002, in_node=1, cases=20, seed=1, noise=None, moved=(), nodes_in_rack=0):
    """Return a fleet of GPUs with random deviations; `moved` lists (node, device, family, slowdown), `all` for any."""
    rng = np.random.default_rng(seed)
    record, digests = fleet(size // in_node, in_node, rack_size=nodes_in_rack)
    deviations = spread * (rng.normal(size=(cases, size)) if noise is None else noise(rng, (cases, size)))
    made, column = [], itertools.count()
    for digest in digests:
        parts = []
        for part in (part for part in digest.components if part.kind == "GPU"):
            key, rate = next(iter(part.rates.items()))
            of_gpu = deviations[:, next(column)]
            rates = {}
            for number, log in enumerate(of_gpu.tolist()):
                family = FAMILIES[number % len(FAMILIES)]
                for node, device, slow_family, slowdown in moved:
                    if (
                        node in ("all", digest.node)
                        and device in ("all", *part.devices)
                        and slow_family in ("all", family)
                    ):
                        log += math.log1p(-slowdown)
                of_case = key._replace(case=f"case/{number}", family=family)
                rates[of_case] = rate._replace(log=log, value=1e12 * math.exp(log), error=0.0)
            parts.append(replace(part, rates=rates))
        made.append(replace(digest, components=tuple(parts)))
    return record, made


def with_setting(digest, name, value):
    """Return the digest with another setting of all components; None leaves the setting out."""
    parts = []
    for part in digest.components:
        pairs = tuple((key, value if key == name else old) for key, old in part.fingerprint.pairs)
        parts.append(
            replace(part, fingerprint=Fingerprint(tuple((key, text) for key, text in pairs if text is not None)))
        )
    return replace(digest, components=tuple(parts))


def suspects(judgement):
    return [suspect.name for suspect in judgement.suspects]


@pytest.mark.parametrize(
    ("name", "value", "difference"),
    [
        ("power limit", "500.0", "power limit 500.0 W instead of 700.0 W"),
        ("driver", "nvidia 570", "driver nvidia 570 instead of nvidia 580"),
        ("ECC", "off", "ECC off instead of on"),
    ],
)
def test_a_slow_node_with_another_setting_is_compared_with_the_others_and_the_setting_is_the_cause(
    name, value, difference
):
    record, digests = simulated(96, in_node=8, moved=[("gpu05", "all", "all", 0.1)])
    digests[5] = with_setting(digests[5], name, value)
    judgement = judge_fleet(record, digests)
    assert suspects(judgement) == ["gpu05"]
    assert judgement.suspects[0].causes[0] == SlowCause("setting", difference)
    assert difference in fleet_text.setting_sentences(judgement)[0]
    assert (fleet_status(judgement), fleet_status(judgement, strict=True)) == (0, 4)
    assert fleet_text.next_steps_text(judgement) == [
        f"give gpu05 the settings of the others ({difference}), and measure again"
    ]


def test_settings_that_differ_without_an_effect_are_told_and_leave_a_strict_judgement_open():
    record, digests = simulated(96, in_node=8)
    digests[5] = with_setting(digests[5], "ECC", "off")
    judgement = judge_fleet(record, digests)
    assert (suspects(judgement), fleet_status(judgement), fleet_status(judgement, strict=True)) == ([], 0, 4)
    assert "8 GPUs (gpu05) with other settings than most: ECC off instead of on" in fleet_text.fleet_answer(judgement)


def test_two_halves_with_different_settings_are_judged_apart_and_compared_by_their_medians():
    record, digests = simulated(16, moved=[(f"gpu{node:02}", "all", "memory", 0.1) for node in range(6)])
    made = [
        with_setting(digest, "power limit", "500.0") if index < 6 else digest for index, digest in enumerate(digests)
    ]
    judgement = judge_fleet(record, made)
    assert suspects(judgement) == []
    (sentence,) = fleet_text.setting_sentences(judgement)
    assert "6 GPUs" in sentence
    assert "memory 1" in sentence
    assert sentence.endswith("% slower")


@pytest.mark.parametrize("more", [0.05, 0.10, 0.20])
def test_a_gpu_that_reports_too_much_hides_no_slow_one_and_is_named(more):
    for seed in range(20):
        lies = [("gpu05", "all", "all", -more), ("gpu02", "all", "memory", 0.05)]
        judgement = judge_fleet(*simulated(8, seed=seed, moved=lies))
        assert suspects(judgement) == ["gpu02 cuda:0"]
        assert {finding.place.node for finding in judgement.fast} == {"gpu05"}
        assert fleet_text.fast_sentences(judgement)[0].startswith("gpu05 cuda:0 is implausibly fast: ")
        assert fleet_status(judgement, strict=True) == 4


def test_five_gpus_find_five_per_cent_in_one_case_by_the_variance_of_its_family():
    found = 0
    for seed in range(20):
        record, digests = simulated(5, seed=seed)
        part = digests[2].components[0]
        key = next(iter(part.rates))
        slow = {**part.rates, key: part.rates[key]._replace(log=part.rates[key].log - 0.05)}
        digests[2] = replace(digests[2], components=(replace(part, rates=slow),))
        found += suspects(judge_fleet(record, digests)) == ["gpu02 cuda:0"]
    assert found >= 17


def test_of_many_gpus_with_heavy_tails_the_one_that_is_slow_in_a_family_is_named_by_its_median():
    def student(rng, shape):
        return rng.standard_t(3, shape) / math.sqrt(3)

    slow = [("gpu05", "cuda:3", "memory", 0.05)]
    for seed in range(3):
        judgement = judge_fleet(*simulated(256, in_node=8, seed=seed, noise=student, moved=slow))
        assert suspects(judgement) == ["gpu05 cuda:3"]


def test_a_rack_that_is_two_per_cent_slow_is_named_and_not_its_nodes():
    slow = [(f"gpu{node:02}", "all", "memory", 0.02) for node in range(4, 8)]
    record, digests = simulated(128, in_node=8, nodes_in_rack=4, moved=slow)
    judgement = judge_fleet(record, digests)
    assert suspects(judgement) == ["rack rack-1"]
    assert judgement.suspects[0].unit == "rack"
    assert judgement.suspects[0].slowdown == pytest.approx(0.02, abs=0.002)


def test_a_slow_gpu_in_a_slow_rack_is_named_too():
    slow = [(f"gpu{node:02}", "all", "memory", 0.03) for node in range(4, 8)]
    slow.append(("gpu05", "cuda:3", "memory", 0.06))
    assert set(suspects(judge_fleet(*simulated(128, in_node=8, nodes_in_rack=4, moved=slow)))) == {
        "rack rack-1",
        "gpu05 cuda:3",
    }


def test_one_of_two_slow_racks_of_half_the_fleet_is_a_population_with_the_rack_as_difference():
    slow = [(f"gpu{node:02}", "all", "memory", 0.03) for node in range(6)]
    judgement = judge_fleet(*simulated(12, nodes_in_rack=6, moved=slow))
    assert suspects(judgement) == []
    (sentence,) = fleet_text.population_sentences(judgement)
    assert sentence.endswith("rack rack-0 in the slower part, rack-1 in the other")


def test_a_node_two_per_cent_slow_in_many_cases_is_named_as_a_node():
    judgement = judge_fleet(*simulated(64, in_node=8, moved=[("gpu03", "all", "compute", 0.03)]))
    assert suspects(judgement) == ["gpu03"]
    assert judgement.suspects[0].place.devices == tuple(f"cuda:{gpu}" for gpu in range(8))


@pytest.mark.parametrize(("again", "state"), [(0.03, "confirmed"), (0.0, "transient")])
def test_a_slow_node_is_measured_again_by_all_its_gpus(again, state):
    record, digests = simulated(64, in_node=8, moved=[("gpu03", "all", "compute", 0.03)])
    _, second = simulated(64, in_node=8, seed=2, moved=[("gpu03", "all", "compute", again)])
    judgement = judge_fleet(record, digests, [SecondMeasurement(second[3], False), SecondMeasurement(second[5], True)])
    assert [suspect.state for suspect in judgement.suspects] == [state]


def test_two_populations_are_told_by_family_the_largest_gap_first():
    half = [f"gpu{node:02}" for node in range(8)]
    moved = [(node, "all", family, gap) for node in half for family, gap in (("memory", 0.3), ("latency", 0.05))]
    sentences = fleet_text.population_sentences(judge_fleet(*simulated(16, moved=moved)))
    assert sentences[0].startswith("two populations in memory: 8 of 16 components are 30.")
    assert sentences[1].startswith("two populations in latency: 8 of 16 components are 5.")


def test_the_smallest_detectable_slowdown_is_not_widened_by_the_suspects():
    slow = [(f"gpu0{node}", "all", "memory", 0.3) for node in (1, 2)]
    healthy, faulty = (judge_fleet(*simulated(16, moved=moved)).groups[0].cases for moved in ((), slow))
    assert all(with_slow.detectable < 1.5 * case.detectable for case, with_slow in zip(healthy, faulty, strict=True))


def test_nodes_that_are_all_different_are_counted_in_a_few_lines():
    record, digests = simulated(200)
    made = [with_setting(digest, "power limit", str(500.0 + index)) for index, digest in enumerate(digests)]
    judgement = judge_fleet(record, made)
    assert fleet_status(judgement) == 4
    assert len(fleet_text.setting_sentences(judgement)) == 4
    assert len(judgement.notes) < 5


def test_a_setting_that_some_files_do_not_tell_is_no_difference():
    record, digests = simulated(12, moved=[("gpu03", "all", "memory", 0.05)])
    made = [
        with_setting(digest, "power limit", None) if index % 3 == 0 else digest for index, digest in enumerate(digests)
    ]
    judgement = judge_fleet(record, made)
    assert [group.components for group in judgement.groups] == [12]
    assert suspects(judgement) == ["gpu03 cuda:0"]
    assert "power limit unknown" in judgement.notes[0]


def test_a_uuid_that_all_nodes_report_identifies_no_gpu():
    record, digests = simulated(12, moved=[("gpu03", "all", "memory", 0.05)])
    same = [
        replace(digest, components=tuple(replace(part, uuids=("GPU-0",)) for part in digest.components))
        for digest in digests
    ]
    judgement = judge_fleet(record, same)
    assert suspects(judgement) == ["gpu03 cuda:0"]
    assert judgement.notes[0] == "12 nodes report the UUID GPU-0, which identifies no component"


def test_nodes_that_are_alone_in_their_rack_are_judged_as_nodes():
    slow = [("gpu03", "all", "memory", 0.05)]
    assert suspects(judge_fleet(*simulated(12, nodes_in_rack=1, moved=slow))) == ["gpu03 cuda:0"]
    assert suspects(judge_fleet(*simulated(96, in_node=8, nodes_in_rack=1, moved=slow))) == ["gpu03"]


def test_a_third_of_the_rates_may_be_missing():
    record, digests = simulated(32, moved=[("gpu03", "all", "memory", 0.05)])
    rng = np.random.default_rng(3)
    made = []
    for digest in digests:
        part = digest.components[0]
        rates = {key: rate for key, rate in part.rates.items() if rng.random() > 0.3}
        made.append(replace(digest, components=(replace(part, rates=rates),)))
    assert suspects(judge_fleet(record, made)) == ["gpu03 cuda:0"]


def test_components_without_a_rate_are_no_reference_and_no_suspect():
    rates = np.random.default_rng(1).normal(0.0, 0.002, (3, 12))
    rates[0], rates[1, :9] = np.nan, np.nan
    judged = outliers.find(rates)
    assert np.isnan(judged.detectable[:2]).all()
    assert not judged.is_suspect.any()


def test_a_slow_rack_has_its_place_in_the_judgement():
    slow = [(f"gpu{node:02}", "all", "memory", 0.05) for node in range(4, 8)]
    judgement = judge_fleet(*simulated(128, in_node=8, nodes_in_rack=4, moved=slow))
    assert judgement.suspects[0].place == Place("rack-1", ())
    assert fleet_text.fleet_answer(judgement).startswith(
        "1 component seemed slow once, not measured again: rack rack-1: "
    )


def digest_of_a_run(name, temperature_c, clock_hz, mask, slower=1.0, window_s=0.2):
    """Return the digest of a run of one GPU with sampled counters and without labels."""
    builder = DigestBuilder()
    gpu = make.device(uuid=f"GPU-{name}")
    counters = tuple(
        make.counter(f"nvml.{counter}", unit, kind)
        for counter, unit, kind in (
            ("temperature", "°C", "gauge"),
            ("clock.sm", "Hz", "gauge"),
            ("event_reasons", "bit mask", "event"),
        )
    )
    builder.add(make.manifest(facts=make.facts(gpu), counters=counters))
    for replicate in range(3):
        for number, seconds in enumerate((1e-3, 2e-3, 3e-3)):
            at = 1.01 + replicate + number / 4
            timing = make.timing(seconds * slower, moved=1e9, limit="dram")
            builder.add(
                make.result(timing, of=make.case(f"case{number}"), replicate=replicate, window=(at, at + window_s))
            )
    moments = np.arange(0.0, 5.0, 0.1).tolist()
    columns = {"temperature": temperature_c, "clock.sm": clock_hz, "event_reasons": mask}
    builder.add(make.samples(moments, **{column: [value] * len(moments) for column, value in columns.items()}))
    return builder.digest(name)


def test_causes_come_from_the_sampled_temperature_throttle_reasons_and_clock():
    digests = [digest_of_a_run(f"gpu{node}", 61.0, 1.98e9, 0.0) for node in range(11)]
    digests.append(digest_of_a_run("gpu11", 88.0, 1.75e9, 0x40, slower=1.13))
    (suspect,) = judge_fleet(Fleet(tuple(FleetNode(digest.node, "answered") for digest in digests)), digests).suspects
    assert suspect.name == "gpu11 cuda:0"
    assert [cause.text for cause in suspect.causes] == [
        "heat slowed it down (88 °C, the others 61 °C)",
        "its core clock was 1.75 GHz, that of the others 1.98 GHz",
    ]


def test_a_case_shorter_than_the_period_of_a_counter_has_the_readings_beside_it():
    digest = digest_of_a_run("gpu0", 61.0, 1.98e9, 0x40, window_s=0.001)
    assert {rate.states for rate in digest.components[0].rates.values()} == {frozenset({"thermal"})}
