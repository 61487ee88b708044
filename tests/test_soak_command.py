"""`gpubench soak`: passes until the time is over, the ledger, exit statuses, and soaks that end early."""

import json
import math
import re
import signal
import subprocess
import sys
import textwrap
import time

import _make as make
import pytest
from _command import gpubench
from _sinks import ResultSink

from gpubench import plugins
from gpubench.analysis.soak import DIGEST, ledger_of, soak_tables
from gpubench.analysis.summary import Summary
from gpubench.analysis.trust import HEALTH_SOURCE
from gpubench.base.errors import UsageError
from gpubench.measuring.plan import Job, Plan
from gpubench.measuring.progress import ProgressEvent
from gpubench.measuring.runner import Runner
from gpubench.measuring.sampler import SamplingProcess
from gpubench.model import Counter, EventBit, EventClass, Measure, Remark, Samples, Settings
from gpubench.model.store import read_run
from gpubench.tools import soak as soaking

CASE = make.case("product", "soak", dtype="float16", size=8192)
GPUS = make.facts(make.device("cuda:0"), make.device("cuda:1"))


def passed_result(replicate, seconds=1e-3, digest="aa", device="cuda:0", window=(0.0, 0.0), **fields):
    """Return the result of one pass of a soak."""
    return make.result(
        make.timing(seconds, moved=1e9, name="self"),
        of=CASE,
        devices=(device,),
        replicate=replicate,
        notes=((DIGEST, digest),),
        window=window,
        **fields,
    )


def failed(replicate):
    return make.result(of=CASE, replicate=replicate, status="failed", cause="wrong-answer", reason="1 of 9 are wrong")


def test_the_forecast_of_a_soak_is_at_most_its_remaining_time():
    job = Job(CASE, (make.device(),), 0)
    seen = []
    watch = soaking.limit_remaining_time(5.0, seen.append)
    for left_s in (1.0, 3600.0):
        watch(ProgressEvent(job, 0, [job], left_s))
    assert seen[0].left_s == 1.0
    assert 4.0 < seen[1].left_s <= 5.0


@pytest.mark.parametrize(("most_s", "replicates"), [(0.0, [0, 0]), (math.inf, [0, 0, 1, 1, 2, 2])])
def test_after_its_time_a_run_begins_no_further_replicate_and_the_first_is_whole(most_s, replicates):
    pair = make.dataclasses.replace(CASE, devices=2)  # it needs missing devices, so no worker is started
    jobs = tuple(Job(pair, (make.device(f"cuda:{number}"),), place) for place in range(3) for number in range(2))
    facts = make.facts()
    plan = Plan(facts, Settings(("soak",), ("cuda:0",)), (), jobs, most_s)
    shelf = ResultSink()
    with Runner(plan, SamplingProcess((), 0.0), shelf) as runner:
        runner.run(jobs, 0.0, lambda event: None)
    assert [result.replicate for result in shelf] == replicates


def test_reports_show_the_ledger_of_a_soak_and_no_other_run_has_one():
    run = make.run(passed_result(0), failed(1))
    page = plugins.load("reports", "html").render(run)
    for text in (plugins.load("reports", "md").render(run), page if isinstance(page, str) else page.decode()):
        assert "Soak: 2 passes" in text
        assert "Soak: findings" in text
        assert re.search(r"pass 2,.*soak.*1 of 9 are wrong", text)
    assert soak_tables(Summary(make.run(make.result()))) == []


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10min", 600), ("1h", 3600), ("1.5 h", 5400), ("2d", 172800), ("5m", 300)]
)
def test_a_time_is_a_number_with_its_unit(text, seconds):
    assert soaking.seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "h", "-1h", "1 hour", "0s", "31d", "1e3s"])
def test_a_text_without_a_number_and_unit_is_refused_as_a_time(text):
    with pytest.raises(UsageError, match="not a time; give a number with s, min, h or d"):
        soaking.seconds_of(text)


def test_the_ledger_has_the_rates_over_the_passes():
    rates = [1e-3, 2e-3, 1.25e-3]
    ledger = ledger_of(make.run(*(passed_result(number, seconds) for number, seconds in enumerate(rates))))
    (case,) = ledger.cases
    assert (ledger.passes, ledger.compared, ledger.exit_status, ledger.wrong) == (3, 3, 0, ())
    assert case.medians == pytest.approx((1e12, 5e11, 8e11))
    assert case.drift == pytest.approx(-0.2)
    assert case.row[2:] == ("3 ok", "3", "1000 GB/s", "500.0 GB/s", "800.0 GB/s", "-20.0%")
    assert "no wrong bit was found" in ledger.verdict
    wrong = ledger_of(make.run(passed_result(0), failed(1), passed_result(2)))
    assert (wrong.wrong, wrong.exit_status) == ((f"pass 2, {CASE.id}: 1 of 9 are wrong",), 3)
    assert wrong.cases[0].row[2] == "2 ok, 1 failed"


def test_a_case_without_a_valid_result_is_named_and_a_soak_of_such_cases_alone_fails():
    memory_case = make.case("memory", "soak", pattern="random")
    skipped = make.result(of=memory_case, status="skipped", cause="unsupported", reason="needs 104 GiB of memory")
    ledger = ledger_of(make.run(passed_result(0), skipped))
    assert ledger.unproven == ((f"{memory_case.id} on cuda:0", "needs 104 GiB of memory"),)
    assert ledger.exit_status == 0
    assert ledger_of(make.run(skipped)).exit_status == 3
    assert "0 samples compared: nothing could be compared" in ledger_of(make.run(skipped)).verdict


def test_a_pass_whose_first_result_has_other_bits_is_found_also_between_gpus_of_one_model():
    results = [
        passed_result(0),
        passed_result(1),
        passed_result(0, device="cuda:1"),
        passed_result(1, digest="bb", device="cuda:1"),
    ]
    ledger = ledger_of(make.run(*results, facts=GPUS))
    (sentence,) = ledger.wrong
    assert sentence.startswith(f"pass 2, {CASE.id} on cuda:1: its first result has other bits (bb)")
    assert ledger.exit_status == 3
    assert ledger_of(make.run(*results[:3], facts=GPUS)).exit_status == 0


def test_an_unhealthy_device_ends_with_6_for_any_results():
    for results in ([passed_result(0)], [failed(0)]):
        run = make.run(*results)
        sick = Remark(1.0, "event", HEALTH_SOURCE, "cuda:0", "uncorrected ECC errors: 3, before the run 1")
        unknown = Remark(1.0, "absent", HEALTH_SOURCE, "cuda:0", "unavailable: no NVML")
        ledger = ledger_of(make.dataclasses.replace(run, remarks=(sick, unknown)))
        assert ledger.sick == ("cuda:0: uncorrected ECC errors: 3, before the run 1",)
        assert ledger.exit_status == 6
        later = [make.dataclasses.replace(one, window=(5.0 * one.replicate, 9.0)) for one in results]
        found = ledger_of(make.dataclasses.replace(run, results=tuple(later), remarks=(sick,)))
        assert found.sick == ("cuda:0: uncorrected ECC errors: 3, before the run 1 (pass 1)",)
        assert "a device is unhealthy" in ledger.verdict


def test_the_ledger_has_temperatures_throttle_reasons_and_errors_of_the_whole_soak():
    counters = (
        Counter("a", "°C", "gauge", 1.0, "", Measure.TEMPERATURE),
        Counter(
            "b", "mask", "event", 1.0, "", Measure.THROTTLE_REASONS, (EventBit(4, "power cap", EventClass.POWER_CAP),)
        ),
        Counter("c", "errors", "cumulative", 1.0, ""),
    )
    columns = (("a", (40.0, 60.0, 80.0)), ("b", (0.0, 4.0, 4.0)), ("c", (7.0, 7.0, 9.0)))
    sampled = [Samples("nvml", "cuda:0", (1.0, 2.0, 3.0), columns)]
    passes = (passed_result(0, window=(0.5, 2.5)), passed_result(1, window=(2.6, 3.5)))
    ledger = ledger_of(make.run(*passes, sampled=sampled, counters=counters))
    (device,) = ledger.devices
    assert device.gauges == ("temperature 40.00 °C to 80.00 °C, mean 60.00 °C",)
    assert device.throttled == ("power cap 66.7 % of the time",)
    assert device.errors == ("c +2 (pass 2)",)


def test_the_ledger_compares_each_gpu_with_the_others_and_with_its_first_pass():
    power = (Counter("p", "W", "gauge", 1.0, "", Measure.BOARD_POWER),)
    burn = make.case("burn", "soak", load="constant")
    results = []
    for device, seconds in (("cuda:0", (1.0, 1.0)), ("cuda:1", (1.0, 1.0)), ("cuda:2", (1.05, 1.1))):
        for number, value in enumerate(seconds):
            series = make.timing(value, name="self", moved=1e9), make.Series("beside", "B/s", (2e12,), role="observed")
            fields = {
                "replicate": number,
                "window": (10.0 * number, 10.0 * number + 5),
                "notes": (("soak.load", "constant"),),
            }
            results.append(make.result(*series, of=burn, devices=(device,), **fields))
    sampled = [Samples("nvml", "cuda:2", (1.0, 2.0, 8.0), (("p", (690.0, 700.0, 100.0)),))]
    facts = make.facts(*(make.device(f"cuda:{number}") for number in range(3)))
    first, _, slow = ledger_of(make.run(*results, sampled=sampled, counters=power, facts=facts)).compared_devices
    assert first == ("cuda:0", "", "3274 TiB an hour", "", "")
    assert slow[:2] == ("cuda:2", "constant 695.0 W")
    assert slow[3:] == (f"-6.9% in {burn.id}", f"-4.5% in {burn.id}")


FAULT = """
    import numpy as np
    multiply, products = np.matmul, []
    def faulty(left, right, out=None):
        found = multiply(left, right, out=out)
        products.append(1)
        if len(products) == 9 and out is not None:  # the first, those in float64, and some of the first call
            out.view(np.uint64)[3, 2] ^= np.uint64(1)
        return found
    np.matmul = faulty
"""


@pytest.mark.slow
def test_an_injected_bit_is_found_within_one_pass_and_ends_with_3(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(FAULT))
    out = tmp_path / "soak.jsonl"
    done = gpubench("soak", "--for", "0.1s", "--device", "host", "-o", out, PYTHONPATH=str(tmp_path))
    assert done.returncode == 3, done.stderr
    run = read_run(out)
    assert run.complete
    (finding,) = ledger_of(run).wrong
    assert finding.startswith("pass 1, soak/product[dtype=float64,size=512]: host (")
    assert "(element 1538)" in finding
    assert "wrong bits: 1" in finding
    assert finding[:60] in done.stdout
    assert gpubench("show", out).returncode == 0
    done = gpubench("soak", "--for", "0.1s", "--device", "host", "--json", "-o", tmp_path / "again.jsonl")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


def test_a_soak_needs_a_file_to_resume_and_refuses_bad_options(tmp_path):
    assert gpubench("soak", "--for", "soon", cwd=tmp_path).returncode == 2
    done = gpubench("soak", "--resume", cwd=tmp_path)
    assert (done.returncode, "name it with --out" in done.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_soak_prints_its_ledger_and_can_be_resumed(tmp_path, number):
    out = tmp_path / "soak.jsonl"
    command = [sys.executable, "-m", "gpubench", "soak", "--for", "60s", "--device", "host", "-o", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (out.exists() and b'"result"' in out.read_bytes()):
        time.sleep(0.1)
    process.send_signal(number)
    printed, _ = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert "no wrong bit was found" in printed
    before = read_run(out)
    assert before.results
    assert not before.complete
    command = ("soak", "--device", "host", "-o", out, "--resume")
    again = gpubench(*command, "--for", "60s", "--seed", "1")
    assert (again.returncode, "seed was 0, is 1" in again.stderr) == (2, True)
    assert gpubench(*command, "--for", "1s").returncode == 0
    later = read_run(out)
    assert later.complete
    assert {result.key for result in before.results} <= {result.key for result in later.results}


@pytest.mark.slow
def test_a_disk_that_fills_ends_the_soak_with_5_and_keeps_what_was_written(tmp_path):
    out = tmp_path / "soak.jsonl"
    program = "import resource, signal, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000)); "
    program += "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); from gpubench.__main__ import main; sys.exit(main())"
    arguments = ["soak", "--for", "40s", "--device", "host", "-o", str(out)]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=100)
    assert done.returncode == 5, done.stderr
    assert "the records written before are kept" in done.stderr
    assert not read_run(out).complete
    assert out.stat().st_size <= 20000
