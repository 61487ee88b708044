"""`gpubench preflight`: what it plans, and whom it accuses on simulated nodes."""

import json
import math
import random
import re

import _make as make
import pytest

from gpubench.analysis.soak import DIGEST
from gpubench.analysis.trust import HEALTH_SOURCE
from gpubench.base.errors import UsageError
from gpubench.measuring import plan
from gpubench.measuring.examination import Examination
from gpubench.measuring.health import RULES, Health, HealthFinding
from gpubench.model import Remark, Settings
from gpubench.plugins.collector import HealthSign
from gpubench.tools import preflight

DRAM, READ = {"limit": "dram", "moved": 4e9}, {"dtype": "float32"}
FLOPS = {"limit": "tensor.float64", "work": make.Work(flops=1e12), "quantity": "flops"}
BITS = make.case("product", "soak", dtype="float16", size=4096)
# Family, fields of the series, and the standard deviation between the GPUs of a kind, as in tests/_fleets.py.
CASES = {
    make.case("read", size_bytes=2**32, **READ): ("memory", DRAM, 0.002),
    make.case("read", size_bytes=2**30, **READ): ("memory", DRAM, 0.002),
    make.case("memory", "soak", pattern="random", size_bytes=2**28): ("memory", {"moved": 4e9}, 0.002),
    make.case("chase", "latency", size_bytes=2**30): ("latency", {"items": 1}, 0.002),
    make.case("chase", "latency", size_bytes=2**24): ("latency", {"items": 1}, 0.002),
    make.case("chase", "latency", size_bytes=2**14): ("latency", {"items": 1}, 0.0005),
    make.case("h2d", memory="pinned", size_bytes=2**28): ("link", {"limit": "link.h2d", "moved": 4e9}, 0.002),
    make.case("d2h", memory="pinned", size_bytes=2**28): ("link", {"limit": "link.d2h", "moved": 4e9}, 0.002),
    make.case("square", "gemm", dtype="float64", n=2048): ("compute", FLOPS, 0.005),
    make.case("square", "gemm", dtype="float32", n=2048): ("compute", FLOPS, 0.005),
    BITS: ("bits", FLOPS, 0.01),
}
WITHIN = 0.001  # between processes


def node(gpus=8, slow=None, passes=4, seed=0, remarks=(), change=lambda result: result):
    """Return the run of a preflight on a simulated node; `slow` maps (device, family) to the slowdown as a fraction."""
    draw, slow = random.Random(seed), slow or {}
    devices = [make.device(f"cuda:{index}", uuid=f"GPU-{index}") for index in range(gpus)]
    results = []
    for device in devices:
        for of, (family, fields, spread) in CASES.items():
            own = math.exp(draw.gauss(0, spread)) / (1 - slow.get((device.id, family), 0.0))
            for number in range(passes):
                seconds = [1e-3 * own * math.exp(draw.gauss(0, WITHIN))] * 10
                series = [make.timing(*seconds, **fields)]
                if family == "latency":  # the time follows the clock of each card, the cycles do not
                    cycles = {"unit": "cycles", "quantity": "value", "name": "cycles", "mode": "", "role": "observed"}
                    values = tuple(6e5 * value for value in seconds)
                    series = [
                        make.timing(*[value * draw.uniform(0.5, 1.5) for value in seconds], **fields),
                        make.dataclasses.replace(series[0], values=values, **cycles),
                    ]
                notes = ((DIGEST, "aa"),) if of is BITS else ()
                known = {"of": of, "devices": (device.id,), "replicate": number, "notes": notes}
                results.append(change(make.result(*series, **known)))
    run = make.run(*results, facts=make.facts(*devices))
    return make.dataclasses.replace(run, remarks=tuple(remarks))


def test_a_sound_node_ends_with_0_and_a_line_for_each_gpu():
    verdict = preflight.judge(node())
    assert (verdict.status, verdict.verdict) == (0, "8 devices are healthy and equally fast")
    assert [device.text.split(";")[0] for device in verdict.devices] == [f"cuda:{index}: ok" for index in range(8)]
    assert re.search(r"chase (59|60)\d\.\d cycles", verdict.devices[0].text)
    assert [preflight.judge(node(seed=seed)).status for seed in range(1, 8)] == [0] * 7, "the study has a thousand"


@pytest.mark.parametrize("family", ["memory", "latency", "link"])
def test_a_gpu_that_is_slower_by_3_percent_is_named(family):
    verdicts = [preflight.judge(node(slow={("cuda:5", family): 0.03}, seed=seed)) for seed in range(5)]
    assert sum(verdict.verdict == "slow: cuda:5" for verdict in verdicts) >= 4
    assert {verdict.status for verdict in verdicts} <= {0, 1}
    assert "below the others" in next(verdict for verdict in verdicts if verdict.status).devices[5].text


def of_gpu(index, **changes):
    def change(result):
        is_meant = result.devices == (f"cuda:{index}",) and result.case == BITS
        return make.dataclasses.replace(result, **changes) if is_meant else result

    return change


FAILED = {"series": (), "notes": ()}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"notes": ((DIGEST, "bb"),)}, "the product has other bits than on half of the devices or more"),
        ({**FAILED, "status": "failed", "cause": "wrong-answer", "reason": "1 of 9 are wrong"}, "1 of 9 are wrong"),
        ({**FAILED, "status": "failed", "cause": "device", "reason": "the GPU fell off the bus"}, "fell off the bus"),
        (
            {**FAILED, "status": "invalid", "cause": "budget", "reason": "the time of the run ended"},
            "the time of the run",
        ),
    ],
)
def test_wrong_bits_a_lost_gpu_and_one_that_alone_does_not_answer_are_sick(changes, reason):
    verdict = preflight.judge(node(change=of_gpu(3, **changes)))
    assert (verdict.status, verdict.verdict) == (6, "sick: cuda:3")
    assert reason in verdict.devices[3].text


def test_a_case_that_fails_on_every_gpu_makes_none_of_them_sick():
    failed = {**FAILED, "status": "failed", "cause": "error", "reason": "ImportError: no library"}
    verdict = preflight.judge(
        node(change=lambda result: make.dataclasses.replace(result, **failed) if result.case == BITS else result)
    )
    assert (verdict.status, {device.state for device in verdict.devices}) == (4, {"not judged"})
    assert "ImportError: no library" in verdict.devices[0].text


def test_a_gpu_that_became_sick_is_named_and_one_that_others_use_is_told_and_not_judged():
    sick = Remark(1.0, "event", HEALTH_SOURCE, "cuda:2", "a memory row waits to be remapped: yes")
    used = of_gpu(4, discarded=(("foreign-process", 9),))
    verdict = preflight.judge(node(remarks=[sick], slow={("cuda:4", "memory"): 0.5}, change=used))
    assert (verdict.status, verdict.verdict) == (6, "sick: cuda:2; busy: cuda:4")
    verdict = preflight.judge(node(slow={("cuda:4", "memory"): 0.5}, change=used))
    assert (verdict.status, verdict.verdict) == (4, "busy: cuda:4")


def test_a_gpu_that_the_driver_no_longer_shows_is_sick_and_nothing_else_is_measured_for_it(call):
    done = call("preflight", "--budget", "10s", "--device", "cuda:7")
    assert done.returncode == 6
    assert done.stdout.splitlines()[0].startswith("cuda:7: sick; the driver shows no such device; available: ")
    assert done.stdout.splitlines()[-1] == "preflight: sick: cuda:7"


def test_gpus_that_are_sick_or_in_use_beforehand_are_not_measured(monkeypatch):
    def finding(sign, severity):
        return HealthFinding(sign, RULES[sign].name, 1.0, "1 (process 4242)", severity)

    answers = (
        Health("cuda:0", (finding(HealthSign.PROCESSES, "warning"),)),
        Health("cuda:1", (finding(HealthSign.REMAP_PENDING, "sick"), finding(HealthSign.PROCESSES, "warning"))),
        Health("cuda:2", ()),
    )
    monkeypatch.setattr(Examination, "read", lambda self: answers)
    found = preflight.unfit([], 1.0)
    assert {name: device.state for name, device in found.items()} == {"cuda:0": "busy", "cuda:1": "sick"}
    assert found["cuda:0"].text == "cuda:0: busy; programs that compute on the device: 1 (process 4242)"
    verdict = preflight.judge(node(6), tuple(preflight.CheckedDevice(f"cuda:{n}", "busy", (), ()) for n in (10, 9)))
    assert (verdict.status, verdict.verdict) == (4, "busy: cuda:9, cuda:10")


@pytest.mark.parametrize(("gpus", "count"), [(1, "1 device"), (2, "2 devices")])
def test_too_few_gpus_are_healthy_and_their_speed_is_not_judged(gpus, count):
    verdict = preflight.judge(node(gpus, slow={("cuda:0", "memory"): 0.5}))
    assert verdict.status == 4
    assert f"speed not judged: {count} to compare" in verdict.verdict
    verdict = preflight.judge(node(slow={("cuda:1", "memory"): 0.2}, passes=1))
    assert (verdict.status, verdict.verdict) == (4, "not judged: cuda:1"), "slow in the only pass"


def test_the_plan_runs_a_case_of_each_kind_on_all_gpus_at_once_within_the_budget():
    devices = [
        make.device(f"cuda:{index}", dtypes=("float64", "float32", "float16"), memory_bytes=2**37) for index in range(3)
    ]
    settings = Settings((), tuple(device.id for device in devices), "quick")
    planned = preflight.plan_of(make.facts(*devices), settings, 30.0, 2.0)
    groups = list(planned.groups(planned.jobs))
    assert [len(group) for group in groups] == [3] * 4 * 11
    names = {"read", "chase", "h2d", "d2h", "square", "product", "memory"}
    assert {group[0].case.name for group in groups} == names
    assert (planned.most_s, planned.ends_s) == (12.5, 25.0)


def test_after_its_end_no_job_of_a_plan_begins():
    from _sinks import ResultSink

    from gpubench.measuring.runner import Runner
    from gpubench.measuring.sampler import SamplingProcess

    job = plan.Job(BITS, (make.device(),), 0)
    planned = plan.Plan(make.facts(), Settings(("bandwidth",), ("cuda:0",)), (), (job,), ends_s=0.0)
    shelf = ResultSink()
    with Runner(planned, SamplingProcess((), 0.0), shelf) as runner:
        runner.run([job], 0.0, lambda event: None)
    assert [(result.status, result.cause) for result in shelf] == [("skipped", "budget")]


def test_a_budget_below_ten_seconds_is_refused(call):
    with pytest.raises(UsageError, match="10s or more"):
        preflight.check_budget(2.0)
    assert call("preflight", "--budget", "2s").returncode == 2


@pytest.mark.slow
def test_a_preflight_of_the_host_keeps_to_its_budget(call, tmp_path):
    done = call("preflight", "--budget", "15s", "--device", "host", "--json", "-o", tmp_path / "p.jsonl")
    document = json.loads(done.stdout)
    assert (done.returncode, document["status"]) == (4, 4)
    assert [device["device"] for device in document["devices"]] == ["host"]
