"""Which GPU, node or link of a fleet is slow: the rule on fleets made from a recording, and on recorded runs."""

import gzip
import math
import shutil
from dataclasses import replace
from pathlib import Path

import _command as command
import numpy as np
import pytest
from _fleets import fleet

from gpubench.analysis.fingerprint import Fingerprint
from gpubench.analysis.overview import CaseFailure
from gpubench.base.errors import FileError
from gpubench.judging import fleet_text
from gpubench.judging.fleet import Place, SlowCause, fleet_status
from gpubench.judging.fleet_rule import SecondMeasurement, judge_fleet
from gpubench.judging.policy import built_in
from gpubench.model.fleet import Fleet, FleetNode, Remeasured, encode_fleet, read_fleet
from gpubench.tools.fleet import judging
from gpubench.tools.fleet.judging import read

RECORDINGS = Path(__file__).parent / "recordings"
SLOW = ("gpu03", "cuda:1")


def judged(nodes=8, gpus=2, **changes):
    return judge_fleet(*fleet(nodes, gpus, **changes))


def places(judgement):
    return [suspect.place for suspect in judgement.suspects]


def moved(digest, device, family, slowdown):
    def rates(component):
        return {
            key: rate._replace(log=rate.log + math.log1p(-slowdown)) if key.family == family else rate
            for key, rate in component.rates.items()
        }

    parts = tuple(
        replace(part, rates=rates(part)) if device in ("all", *part.devices) else part for part in digest.components
    )
    return replace(digest, components=parts)


def test_no_component_of_a_healthy_fleet_is_accused_and_the_detectable_slowdown_is_named():
    judgement = judged()
    assert (judgement.suspects, fleet_status(judgement, strict=True)) == ((), 0)
    assert fleet_text.fleet_answer(judgement) == "no slow component among 24, compared with each other"
    assert fleet_text.detectable_text(judgement).startswith("memory 2.")
    judgement = judged(silent={"gpu05": ("timed out", "no answer in 600 s")})
    assert (fleet_status(judgement), fleet_status(judgement, strict=True)) == (0, 4)
    assert fleet_text.missing_node_lines(judgement) == ["gpu05: timed out: no answer in 600 s"]


def test_a_gpu_that_is_three_per_cent_slow_is_found_and_named_with_its_family():
    judgement = judged(slow={SLOW: {"memory": 0.03}})
    assert places(judgement) == [Place("gpu03", ("cuda:1",))]
    (suspect,) = judgement.suspects
    assert (suspect.unit, suspect.state, suspect.uuids) == ("GPU", "suspect", ("GPU-gpu03-cuda:1",))
    assert suspect.slowdown == pytest.approx(0.03, abs=0.01)
    assert fleet_text.causes_text(suspect) == "unexplained"
    assert (fleet_status(judgement), fleet_status(judgement, strict=True)) == (0, 4)


def test_several_slow_gpus_do_not_hide_each_other():
    slow = {(f"gpu0{node}", "cuda:0"): {"memory": 0.03} for node in (1, 4, 6)}
    assert {place.node for place in places(judged(16, 2, slow=slow))} == {"gpu01", "gpu04", "gpu06"}


def test_heat_that_only_the_slow_gpu_has_explains_it_and_its_clock_too():
    (suspect,) = judged(slow={SLOW: {"memory": 0.05}}, states={SLOW: {"thermal"}}).suspects
    assert suspect.causes == (
        SlowCause("thermal", "heat slowed it down (66 °C, the others 48 °C)"),
        SlowCause("clock", "its core clock was 1.88 GHz, that of the others 1.98 GHz"),
    )
    capped = {(f"gpu0{node}", f"cuda:{gpu}"): {"power-capped"} for node in range(8) for gpu in range(2)}
    (suspect,) = judged(slow={SLOW: {"memory": 0.05}}, states=capped).suspects
    assert suspect.causes == (), "a power cap that all share explains nothing"


def test_a_node_whose_gpus_are_all_slow_is_the_suspect():
    slow = {("gpu02", f"cuda:{gpu}"): {"memory": 0.05} for gpu in range(2)}
    (suspect,) = judged(16, 2, slow=slow).suspects
    assert (suspect.unit, suspect.place) == ("node", Place("gpu02", ("cuda:0", "cuda:1")))


def test_a_slow_link_is_explained_by_a_slow_gpu_at_its_end():
    slow = {SLOW: {"memory": 0.05}, ("gpu03", ("cuda:0", "cuda:1")): {"ipc": 0.05}}
    link = next(suspect for suspect in judged(slow=slow).suspects if suspect.unit == "link")
    assert link.causes == (SlowCause("device", "cuda:1 is slow by itself"),)


def test_a_narrow_link_to_the_host_explains_slow_copies_only():
    record, digests = fleet(8, 1)
    made = []
    for digest in digests:
        key, rate = next(iter(digest.components[0].rates.items()))
        width = "8" if digest.node == "gpu03" else "16"
        copy = replace(digest.components[0], details=(("pcie.width", width),))
        copy.rates[key._replace(family="host link", case="bandwidth/h2d")] = rate._replace(
            log=rate.log + (math.log(0.5) if width == "8" else 0.0)
        )
        made.append(replace(digest, components=(copy,)))
    (suspect,) = judge_fleet(record, made).suspects
    assert suspect.causes == (SlowCause("link width", "its pcie width is 8, that of the others 16"),)


def test_two_populations_are_reported_with_their_differences_and_not_as_suspects():
    record, digests = fleet(12, 1)
    made = []
    for index, digest in enumerate(digests):
        old = index < 5
        part = replace(digest.components[0], details=(("pcie.generation", "4" if old else "5"),))
        made.append(moved(replace(digest, components=(part,)), "all", "memory", 0.08 if old else 0.0))
    judgement = judge_fleet(record, made)
    assert judgement.suspects == ()
    (sentence,) = fleet_text.population_sentences(judgement)
    assert sentence.startswith("two populations in memory: 5 of 12 components are 8.")
    assert sentence.endswith("pcie generation 4 in the slower part, 5 in the other")


def test_a_slow_gpu_in_the_slower_of_two_populations_is_found():
    record, digests = fleet(24, 1)
    made = [moved(digest, "all", "memory", 0.08 if index < 12 else 0.0) for index, digest in enumerate(digests)]
    made[4] = moved(made[4], "all", "memory", 0.04)
    assert places(judge_fleet(record, made)) == [Place("gpu04", ("cuda:0",))]


def test_gpus_of_another_model_or_driver_are_compared_separately():
    record, digests = fleet(8, 1)
    part = digests[0].components[0]
    older = replace(part, fingerprint=Fingerprint((("model", "NVIDIA A100"), *part.fingerprint.pairs[1:])))
    judgement = judge_fleet(record, [replace(digests[0], components=(older,)), *digests[1:]])
    assert [group.components for group in judgement.groups] == [1, 7]
    assert judgement.notes[0].startswith("1 comparable GPU (NVIDIA A100,")
    assert judgement.standings[0].state == "not compared"


def test_fewer_than_five_gpus_cannot_be_judged_and_the_message_says_what_to_do():
    judgement = judged(2, 1)
    assert fleet_status(judgement) == 4
    assert fleet_text.fleet_answer(judgement).startswith("cannot be judged: 2 comparable GPUs (")
    assert "compare them with --baseline or --floor; the largest difference: gpu0" in fleet_text.fleet_answer(judgement)


def test_a_sick_device_ends_with_6_besides_any_other_finding():
    record, digests = fleet(8, 1)
    sick = replace(digests[2].components[0], sick=("uncorrected ECC errors since the driver was loaded: 3",))
    digests[2] = replace(digests[2], components=(sick,))
    judgement = judge_fleet(record, digests)
    assert fleet_status(judgement) == 6
    assert fleet_text.fleet_answer(judgement) == (
        "1 sick device: gpu02 cuda:0: uncorrected ECC errors since the driver was loaded: 3"
    )


def test_other_programs_on_one_gpu_are_noted_though_it_is_not_slow(tmp_path):
    """Two H200, a GPU for each of two nodes, and on the second a program that copies all the time.

    The GPU gives each program a slice of time in turn, so that a sample of a millisecond hardly sees the other.
    """
    quiet = read(shutil.copytree(RECORDINGS / "fleet/quiet", tmp_path / "quiet"))
    shared = judging.judge(read(shutil.copytree(RECORDINGS / "fleet/shared", tmp_path / "shared")), built_in(), quiet)
    assert (shared.suspects, fleet_status(shared)) == ((), 0)
    assert shared.notes[0] == "vm-1 cuda:1: other programs used it in 5 of 5 cases"
    used = {(f"gpu0{node}", "cuda:0"): {"shared-device"} for node in range(6)}
    assert judged(8, 1, states=used).notes == ("other programs used 6 of 8 components in half of their cases or more",)


def test_a_gpu_whose_host_link_another_program_loads_is_found_with_the_cause(tmp_path):
    """The same two H200, and on the second a program that copies between host and GPU, both ways, all the time."""
    alone = read(shutil.copytree(RECORDINGS / "fleet/alone", tmp_path / "alone"))
    loaded = judging.judge(read(shutil.copytree(RECORDINGS / "fleet/link-loaded", tmp_path / "l")), built_in(), alone)
    (suspect,) = loaded.suspects
    assert (suspect.place.text, suspect.state, fleet_status(loaded)) == ("vm-1 cuda:1", "confirmed", 1)
    assert 0.4 < suspect.slowdown < 0.6
    assert "other programs" in {cause.kind for cause in suspect.causes}
    assert fleet_text.next_steps_text(loaded) == [
        "stop the other programs on vm-1 cuda:1, or wait until they end, and measure again"
    ]


def test_a_gpu_that_two_nodes_claim_counts_once():
    record, digests = fleet(8, 1)
    judgement = judge_fleet(record, [*digests, replace(digests[3], node="liar")])
    assert len(judgement.standings) == 8
    assert judgement.notes[0].startswith("liar and gpu03 both measured NVIDIA H200 GPU-gpu03-cuda:0; it counts once")


@pytest.mark.parametrize(("again", "state"), [(0.05, "confirmed"), (0.0, "transient")])
def test_a_component_that_is_slow_again_is_confirmed_and_one_that_recovers_is_transient(again, state):
    record, digests = fleet(8, 1, slow={("gpu03", "cuda:0"): {"memory": 0.05}})
    _, second = fleet(8, 1, slow={("gpu03", "cuda:0"): {"memory": again}}, seed=1)
    judgement = judge_fleet(record, digests, [SecondMeasurement(second[3], False), SecondMeasurement(second[5], True)])
    (suspect,) = judgement.suspects
    assert suspect.state == state
    assert suspect.findings[0].again == pytest.approx(again, abs=0.012)
    assert fleet_status(judgement) == (1 if state == "confirmed" else 0)


def test_a_slowdown_of_the_controls_too_confirms_no_suspect():
    """The second measurement ran in a hotter hour: suspect and controls are all 5 % slower than before."""
    record, digests = fleet(8, 1, slow={("gpu03", "cuda:0"): {"memory": 0.05}})
    _, second = fleet(8, 1, seed=1)
    later = [moved(digest, "all", "memory", 0.05) for digest in second]
    again = [SecondMeasurement(later[3], False), *(SecondMeasurement(later[index], True) for index in (5, 6))]
    assert judge_fleet(record, digests, again).suspects[0].state == "transient"


def test_a_family_of_noisy_cases_shows_a_slowdown_that_no_single_case_shows():
    rng = np.random.default_rng(5)
    record, digests = fleet(32, 1)
    made = []
    for index, digest in enumerate(digests):
        part = digest.components[0]
        key, rate = next((key, rate) for key, rate in part.rates.items() if key.family == "memory")
        rates = {
            key._replace(case=f"noisy-{number}"): rate._replace(
                log=rng.normal(0.0, 0.01) - (0.03 if index == 7 else 0.0)
            )
            for number in range(16)
        }
        made.append(replace(digest, components=(replace(part, rates=rates),)))
    (suspect,) = judge_fleet(record, made).suspects
    assert suspect.place.node == "gpu07"
    assert [(finding.case, finding.family) for finding in suspect.findings] == [("", "memory")]
    assert suspect.slowdown == pytest.approx(0.03, abs=0.01)


def saved(folder, **files):
    """Return a folder with these recordings under these names, and without a record of the fleet."""
    folder.mkdir()
    for name, recording in files.items():
        shutil.copyfile(RECORDINGS / f"{recording}.jsonl.gz", folder / f"{name}.jsonl.gz")
    return folder


def test_kernels_that_are_three_per_cent_longer_are_found_against_a_baseline_of_the_same_gpu(tmp_path):
    earlier = read(saved(tmp_path / "before", gpu07="longer/base"))
    same = judging.judge(read(saved(tmp_path / "same", gpu07="longer/0")), built_in(), earlier)
    slower = judging.judge(read(saved(tmp_path / "slower", gpu07="longer/3")), built_in(), earlier)
    assert (same.suspects, fleet_status(same), same.bases) == ((), 0, ("baseline",))
    (suspect,) = slower.suspects
    slowdowns = {finding.case: finding.slowdown for finding in suspect.findings}
    assert slowdowns["longer/chase"] == pytest.approx(1 - 1 / 1.03, abs=0.002)
    assert (suspect.state, fleet_status(slower)) == ("confirmed", 1)


def test_gpus_that_the_baseline_does_not_have_are_not_compared_with_it(tmp_path):
    earlier = read(saved(tmp_path / "before", a="headline/1"))
    judgement = judging.judge(read(saved(tmp_path / "now", a="headline/2")), built_in(), earlier)
    assert fleet_status(judgement) == 4
    assert "no component of this fleet was measured with the same cases in the baseline" in judgement.notes


def test_each_gpu_is_compared_with_the_floors_of_its_model(tmp_path):
    judgement = judging.judge(read(saved(tmp_path / "now", a="h200-quick")), built_in(), floor=True)
    assert judgement.bases == ("floor",)
    assert all(finding.basis == "floor" for suspect in judgement.suspects for finding in suspect.findings)


def test_a_file_that_is_no_run_costs_its_node_alone(tmp_path):
    folder = saved(tmp_path / "fleet", a="headline/1", b="headline/2")
    (folder / "c.jsonl").write_text("{}")
    fleet = read(folder)
    assert [digest.node for digest in fleet.digests] == ["a", "b"]
    bad = fleet.fleet.nodes[2]
    assert (bad.name, bad.status, bad.file) == ("c", "refused", "")
    assert bad.reason


def test_a_record_names_the_files_and_second_measurements(tmp_path):
    folder = saved(tmp_path / "fleet", a="headline/1")
    saved(folder / "again", a="headline/1")
    nodes = (FleetNode("a", "answered", 2.0, "a.jsonl.gz"), FleetNode("b", "died", 1.0, reason="killed"))
    record = Fleet(nodes, "slurm", again=(Remeasured("a", "control", "answered", 1.0, "a.jsonl.gz"),))
    (folder / "fleet.json").write_bytes(encode_fleet(record))
    fleet = read(folder)
    assert fleet.fleet == record
    assert [(again.digest.node, again.is_control) for again in fleet.again] == [("a", True)]


def test_a_node_that_is_listed_twice_counts_once(tmp_path):
    folder = saved(tmp_path / "fleet", a="headline/1")
    nodes = (FleetNode("a", "died"), FleetNode("a", "answered", 2.0, "a.jsonl.gz"))
    (folder / "fleet.json").write_bytes(encode_fleet(Fleet(nodes)))
    fleet = read(folder)
    assert [node.status for node in fleet.fleet.nodes] == ["answered"]
    assert judging.judge(fleet, built_in()).notes[-1] == "2 nodes have the name a; only one of them counts (a.jsonl.gz)"


@pytest.mark.usefixtures("outside_of_ci")
def test_two_files_that_give_a_node_the_same_name_are_told(tmp_path):
    folder = saved(tmp_path / "fleet", a="headline/1", b="headline/1")
    (folder / "a.jsonl").write_bytes(gzip.decompress((folder / "b.jsonl.gz").read_bytes()))
    told = command.gpubench("fleet", "judge", folder)
    assert "- 2 nodes have the name a; only one of them counts (a.jsonl)" in told.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "nodes: Field required"),
        ('{"nodes": [{"name": "a", "status": "fine"}]}', "nodes.0.status: Input should be"),
        ('{"nodes": [{"name": "a", "status": "answered", "file": "../b.jsonl"}]}', "not the name of a run file"),
        ('{"nodes": [], "schema": "gpubench.fleet/9"}', "schema: Input should be 'gpubench.fleet/1'"),
        ("[" * 10**5, "Invalid JSON"),
    ],
)
def test_an_invalid_record_is_refused_in_one_line(tmp_path, text, message):
    (tmp_path / "fleet.json").write_text(text)
    with pytest.raises(FileError) as refused:
        read_fleet(tmp_path)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    (tmp_path / "fleet.json").unlink()
    with pytest.raises(FileError, match=r"neither fleet\.json nor a run file"):
        read_fleet(tmp_path)


def judge_with_failure(status, node="gpu02"):
    record, digests = fleet(8, 1)
    case = next(iter(digests[0].components[0].rates)).case
    made = []
    for digest in digests:
        part = digest.components[0]
        bad = (CaseFailure(case, status, "3 of 9 elements are wrong"),) if digest.node == node else ()
        rates = {key: rate for key, rate in part.rates.items() if not bad or key.case != case}
        made.append(replace(digest, components=(replace(part, failures=bad, rates=rates),)))
    return judge_fleet(record, made)


def test_a_wrong_answer_of_one_gpu_ends_with_3_and_is_reported():
    judgement = judge_with_failure("failed")
    assert fleet_status(judgement) == 3
    answer = fleet_text.fleet_answer(judgement)
    assert answer.startswith("1 component with failed cases: gpu02 cuda:0: 1 case failed, unlike others: ")
    assert answer.endswith("3 of 9 elements are wrong")


def test_a_case_that_is_invalid_on_one_gpu_leaves_a_strict_judgement_open():
    judgement = judge_with_failure("invalid")
    assert (fleet_status(judgement), fleet_status(judgement, strict=True)) == (0, 4)


def test_a_case_that_fails_on_every_gpu_accuses_no_gpu():
    record, digests = fleet(8, 1)
    everywhere = (CaseFailure("gemm/other", "failed", "no such kernel"),)
    made = [replace(digest, components=(replace(digest.components[0], failures=everywhere),)) for digest in digests]
    assert judge_fleet(record, made).failures == ()
