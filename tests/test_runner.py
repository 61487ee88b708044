"""The runner on real worker processes: a fault of one case costs one result and no other."""

import dataclasses
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from _make import manifest

from gpubench import plugins
from gpubench.analysis.summary import Summary
from gpubench.base.errors import DeviceError
from gpubench.measuring import plan as planning
from gpubench.measuring.progress import ProgressEvent
from gpubench.measuring.runner import Runner
from gpubench.measuring.sampler import SamplingProcess
from gpubench.measuring.worker_pool import WorkerPool
from gpubench.model import Facts, Remark, Result, Run, Samples, Settings

RUNTIMES = """
import os

from gpubench.api.suite import Stage, Suite, Task

suite = Suite("cases that load one of two libraries")


@suite.case(n=(1, 2), library=("one", "two", "no"), runtime=lambda params: params["library"].replace("no", ""))
def process(bench, n, library):
    return Task.of(Stage(lambda: None, clock="host"), check=lambda: {"pid": os.getpid()})
"""
PLUGIN = str(Path(__file__).parent / "plugin")
CHILDREN = os.pathsep.join((PLUGIN, str(Path(__file__).parent)))  # the clockwork device too


class ListSink:
    def __init__(self):
        self.results: list[Result] = []
        self.chunks: list[Samples] = []
        self.remarks: list[Remark] = []

    def result(self, result):
        self.results.append(result)

    def samples(self, samples):
        self.chunks.append(samples)

    def remark(self, remark):
        self.remarks.append(remark)


@pytest.fixture
def faults(monkeypatch):
    """Install the third party's suite `faults`, here and in child processes."""
    monkeypatch.setenv("PYTHONPATH", CHILDREN)
    monkeypatch.syspath_prepend(PLUGIN)


def host_facts():
    return Facts(tuple(plugins.load("backends", "host").devices()))


def run(*names, deadline_s=30.0, replicates=1):
    """Run cases of the suite `faults` in the given order and return the sink of results."""
    settings = Settings(("faults",), ("host",), "smoke", replicates=replicates)
    plan = planning.make(host_facts(), settings)
    jobs = [job for name in names for job in plan.jobs if job.case.name == name]
    return executed(plan, jobs, plan.facts.devices, deadline_s)


def executed(plan, jobs, sampled=(), deadline_s=30.0, notify=lambda event: None):
    shelf = ListSink()
    with Runner(plan, SamplingProcess(sampled, 0.0), shelf, deadline_s) as runner:
        runner.run(jobs, 0.0, notify)
    return shelf


def outcomes(shelf):
    return [(result.case.name, result.status, result.cause) for result in shelf.results]


def shared_run(*names):
    """Return a run whose results several tests share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", CHILDREN)
        patch.syspath_prepend(PLUGIN)
        return run(*names)


@pytest.fixture(scope="module")
def failing():
    """Return the results of cases that go wrong and of two sound cases after them."""
    return shared_run("crash", "leave", "bug", "wrong", "nan", "unable", "backwards", "noisy", "good")


@pytest.fixture(scope="module")
def ranked():
    names = ("lost", "pair", "watched", "mourned", "declined", "uneven")
    return {result.case.name: result for result in shared_run(*names).results}


def test_every_outcome_has_a_cause_and_the_next_case_runs(failing):
    assert outcomes(failing) == [
        ("crash", "failed", "crash"),
        ("leave", "failed", "crash"),
        ("bug", "failed", "error"),
        ("wrong", "failed", "wrong-answer"),
        ("nan", "invalid", "not-finite"),
        ("unable", "skipped", "unsupported"),
        ("backwards", "invalid", "discarded"),
        ("noisy", "ok", ""),
        ("good", "ok", ""),
    ]
    assert "host.cpu.busy" in {name for chunk in failing.chunks for name, _ in chunk.columns}, "relayed meanwhile"


def test_a_device_that_does_not_open_once_fails_a_case_and_three_times_in_a_row_ends_its_cases(faults):
    facts = Facts((*plugins.load("backends", "clockwork").devices(), *host_facts().devices))
    settings = Settings(("faults",), ("clockwork", "host"), "smoke", filters=("gone", "good"))
    plan = planning.make(facts, settings)
    jobs = {(job.key[1][0], job.case.name): job for job in plan.jobs}
    once = [jobs["host", "gone"], jobs["host", "good"]]
    pool, shelf = WorkerPool(), ListSink()
    pool.start(plan.jobs)
    assert [*pool._workers.values()] == pool.workers_for(plan.facts.devices[:1], ""), "open before a case needs it"
    pool.end_all()
    with (
        Runner(plan, SamplingProcess((), 0.0), shelf) as runner,
        pytest.raises(DeviceError, match="clockwork can no longer be opened"),
    ):
        runner.run([*once, *[jobs["clockwork", "gone"]] * 3, *once], 0.0, lambda event: None)
    assert [(result.devices[0], result.status, result.cause) for result in shelf.results] == [
        ("host", "failed", "device"),
        ("host", "ok", ""),
        *[("clockwork", "failed", "device")] * 3,
        ("host", "failed", "device"),
        ("host", "ok", ""),
    ]


def test_a_worker_that_dies_between_two_cases_is_replaced_and_one_that_closes_its_output_is_not_taken_for_dead(faults):
    shelf = run("late", "slow", "good", "silent", "good")
    assert outcomes(shelf)[2:] == [("good", "ok", ""), ("silent", "ok", ""), ("good", "ok", "")]


def test_a_reason_says_what_happened_and_quotes_the_last_line(failing):
    crash, leave, bug, wrong, *_ = failing.results
    assert "killed by SIGSEGV" in crash.reason
    assert "about to die" in crash.reason
    assert "exit status 7" in leave.reason
    assert bug.reason == "ZeroDivisionError: a bug in the suite"
    assert wrong.reason == "1 + 1 came out as 3"


def test_a_hang_ends_at_its_deadline_with_all_that_it_started(faults):
    shelf = run("hang", "good", deadline_s=1.5)
    assert outcomes(shelf) == [("hang", "failed", "hang"), ("good", "ok", "")]
    assert "sleep 300.123" not in processes()


def processes():
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


def test_two_ranks_measure_in_lockstep_and_each_has_its_series(ranked):
    pair = ranked["pair"]
    assert pair.status == "ok", pair.reason
    assert [series.rank for series in pair.series if series.label == "hot"] == [0, 1]
    first, second = (series for series in pair.series if series.label == "hot")
    assert (first.calls, first.stop) == (second.calls, second.stop), "rank 0 decides for both"
    assert abs(len(first.values) - len(second.values)) <= sum(count for _, count in pair.discarded)


def test_ranks_wait_for_each_other_and_a_case_that_one_skips_is_skipped(ranked):
    watched = ranked["watched"]
    assert (watched.status, watched.reason) == ("ok", "")
    uneven = ranked["uneven"]
    assert uneven.status == "ok", uneven.reason
    assert {series.rank for series in uneven.series} == {1}
    declined = ranked["declined"]
    assert (declined.status, declined.reason) == ("skipped", "rank 1 has no room")


def test_a_killed_rank_fails_its_case_and_the_next_gets_a_fresh_worker(ranked):
    lost = ranked["lost"]
    assert (lost.status, lost.cause, ranked["pair"].status) == ("failed", "crash", "ok")
    assert "rank 1" in lost.reason
    assert "SIGKILL" in lost.reason


def test_a_task_may_expect_and_time_the_end_of_a_rank(ranked):
    mourned = ranked["mourned"]
    assert mourned.status == "ok", mourned.reason
    values = {series.label: series.values for series in mourned.series}
    assert values["rank"] == (1.0,)
    assert 0 < values["self"][0] < 5


def test_a_bug_in_a_suite_keeps_its_traceback_in_the_result(failing):
    (bug,) = (result for result in failing.results if result.case.name == "bug")
    assert 'raise ZeroDivisionError("a bug in the suite")' in dict(bug.notes)["traceback"]


def test_each_replicate_runs_in_fresh_processes_in_an_order_of_its_own(faults):
    settings = Settings(("faults",), ("host",), "smoke", filters=("good", "noisy", "pair", "unable"), replicates=3)
    plan = planning.make(host_facts(), settings)
    orders = [[job.case.name for job in plan.jobs if job.replicate == n] for n in range(3)]
    assert len({tuple(order) for order in orders}) > 1
    assert {tuple(sorted(order)) for order in orders} == {("good", "noisy", "pair", "unable")}
    assert plan == planning.make(host_facts(), settings), "the same seed gives the same order"


def test_cases_of_one_runtime_run_in_sequence_in_one_separate_process(tmp_path):
    (tmp_path / "runtimes.py").write_text(RUNTIMES, encoding="utf-8")
    settings = Settings((str(tmp_path / "runtimes.py"),), ("host",), "smoke", replicates=2)
    plan = planning.make(host_facts(), settings)
    for jobs in (plan.jobs[:6], plan.jobs[6:]):
        assert len(list(itertools.groupby(jobs, lambda job: job.runtime))) == 3, "each runtime is a block"
    plain, again = (job for job in plan.jobs[:6] if not job.runtime)
    shelf = executed(plan, [plain, *(job for job in plan.jobs[:6] if job.runtime), again], plan.facts.devices)
    libraries = [dict(result.case.params)["library"] for result in shelf.results]
    processes = [series.values[0] for result in shelf.results for series in result.series if series.name == "pid"]
    assert len({*zip(libraries, processes, strict=True)}) == len(set(processes)) == 3, "the plain one stays"


@pytest.mark.slow
def test_a_sampler_that_hangs_or_dies_is_reported_and_delays_no_case():
    hung = SamplingProcess(host_facts().devices, 0.0)
    os.kill(psutil.Process(hung._child.process.pid).children()[0].pid, signal.SIGSTOP)
    start = time.monotonic()
    hung.stop()
    assert time.monotonic() - start < 20
    (remark,) = [remark for remark in hung.remarks() if remark.state == "lost"]
    assert remark.source == "the sampler"
    assert "did not stop" in remark.words
    dead = SamplingProcess(host_facts().devices, 0.0)
    os.kill(dead._child.process.pid, signal.SIGKILL)
    dead.stop()
    assert "SIGKILL" in dead.remarks()[-1].words


@pytest.mark.slow
def test_no_process_is_left_behind(faults):
    run("crash", "good", "pair", "uneven")
    children = subprocess.run(
        ["ps", "-o", "args", "--ppid", str(os.getpid())], capture_output=True, text=True, check=True
    )
    assert "gpubench" not in children.stdout


def test_a_case_that_needs_more_devices_is_skipped_with_the_reason(faults):
    plan = planning.make(host_facts(), Settings(("faults",), ("host",), "smoke", filters=("good",)))
    (job,) = plan.jobs
    wide = dataclasses.replace(job, case=dataclasses.replace(job.case, devices=2))
    events: list[ProgressEvent] = []
    (result,) = executed(plan, [wide], notify=events.append).results
    reason = "needs 2 devices with access to each other's memory; 1 available"
    assert (result.status, result.reason) == ("skipped", reason)
    assert [type(event) for event in events] == [ProgressEvent, ProgressEvent]


def test_workers_and_their_keepers_end_when_the_runner_is_killed(faults, tmp_path):
    script = tmp_path / "killed.py"
    script.write_text(
        "import os, psutil, signal\n"
        "from gpubench.measuring.channel import Child\n"
        "child = Child('gpubench.measuring.worker', ())\n"
        "keeper = psutil.Process(child.process.pid)\n"
        "while not keeper.children(): pass\n"
        "print(keeper.pid, keeper.children()[0].pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    keeper, worker = map(int, done.stdout.split())
    left = [psutil.Process(pid) for pid in (keeper, worker) if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(left, timeout=20)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def run_on_clockwork(*names, deadline_s=30.0, replicates=1):
    """Run cases of the suite `faults` on the device with arithmetic time, in real workers."""
    facts = Facts(tuple(plugins.load("backends", "clockwork").devices()))
    settings = Settings(("faults",), ("clockwork",), "quick", filters=names, replicates=replicates)
    plan = planning.make(facts, settings)
    return plan, executed(plan, plan.jobs, deadline_s=deadline_s)


def test_replicates_of_a_device_without_noise_do_not_differ(faults):
    plan, shelf = run_on_clockwork("ticking", replicates=2)
    recorded = Run(manifest(facts=plan.facts, settings=plan.settings), tuple(shelf.results))
    (spread,) = Summary(recorded).spreads()
    assert [result.replicate for result in shelf.results] == [0, 1]
    for result in shelf.results:
        assert result.series[0].values == pytest.approx([1e-3] * len(result.series[0].values))
    assert spread.between == pytest.approx(0.0, abs=1e-12)


@pytest.mark.slow
def test_a_device_that_hangs_fails_only_its_case(faults):
    _, shelf = run_on_clockwork("stuck", "ticking", deadline_s=3.0)
    assert {result.case.name: (result.status, result.cause) for result in shelf.results} == {
        "stuck": ("failed", "hang"),
        "ticking": ("ok", ""),
    }


TOGETHER = """
import os
import time
from pathlib import Path

from gpubench.api.suite import Stage, Suite, Task

suite = Suite("a case that ends its process on one of the devices")


@suite.case(n=(1,))
def process(bench, n):
    if bench.device.device.id == "card:1":
        os._exit(7)
    return Task.of(Stage(lambda: time.sleep(0.01), clock="host"), check=lambda: None)


@suite.case(n=(1,))
def other(bench, n):
    folder = Path(__file__).parent / "there"
    (folder / bench.device.device.id).touch()
    end = time.monotonic() + 20
    while len(list(folder.iterdir())) < 3 and time.monotonic() < end:
        time.sleep(0.01)
    there = len(list(folder.iterdir()))
    return Task.of(Stage(lambda: time.sleep(0.01), clock="host"), check=lambda: {"there": there})
"""


def test_jobs_of_one_case_run_at_once_and_a_device_that_is_lost_costs_no_other_one(faults, tmp_path):
    (tmp_path / "together.py").write_text(TOGETHER)
    (tmp_path / "there").mkdir()
    (host,) = host_facts().devices
    devices = tuple(dataclasses.replace(host, id=f"card:{number}") for number in range(3))
    names = tuple(device.id for device in devices)
    settings = Settings((str(tmp_path / "together.py"),), names, "smoke", replicates=2)
    plan = planning.make(Facts(devices), settings).at_once()
    groups = list(plan.groups(plan.jobs))
    assert [{job.case.name for job in group} for group in groups[:2]] in (
        [{"process"}, {"other"}],
        [{"other"}, {"process"}],
    )
    assert [len(group) for group in groups] == [3] * 4
    results = executed(plan, [job for job in plan.jobs if not job.replicate]).results
    ended = {(result.case.name, result.devices[0]): (result.status, result.cause) for result in results}
    assert ended.pop(("process", "card:1")) == ("failed", "crash")
    assert set(ended.values()) == {("ok", "")}
    seen = [series.values for result in results for series in result.series if series.name == "there"]
    assert seen == [(3.0,)] * 3, "each device waited for the others"
