"""A fault in a case costs that case alone, and the next is measured; the study `faults` has many more."""

import psutil
import pytest
from test_runner import PLUGIN, ListSink, host_facts

from gpubench.measuring import plan as planning
from gpubench.measuring import runner as job_ranks
from gpubench.measuring import runner as running
from gpubench.measuring.runner import Runner
from gpubench.measuring.sampler import SamplingProcess
from gpubench.measuring.time_limits import Phase
from gpubench.measuring.worker import OfferedValue
from gpubench.model import Settings

SLEEPER = "300.321"  # this argument marks the processes that the attacks start


@pytest.fixture
def attacks(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", PLUGIN)
    monkeypatch.setenv("GPUBENCH_FAULTS_MARK", str(tmp_path / "executed"))
    monkeypatch.syspath_prepend(PLUGIN)


def run(*names, deadline_s=60.0):
    """Run each attack and after it a case without a fault; return the results of the attacks and the other statuses."""
    plan = planning.make(host_facts(), Settings(("attacks",), ("host",), "smoke"))
    jobs = {dict(job.case.params).get("what", job.case.name): job for job in plan.jobs}
    shelf = ListSink()
    with Runner(plan, SamplingProcess((), 0.0), shelf, deadline_s) as runner:
        runner.run([jobs[name] for label in names for name in (label, "after")], 0.0, lambda event: None)
    return shelf.results[::2], [result.status for result in shelf.results[1::2]]


def sleepers():
    return [process.pid for process in psutil.process_iter(["cmdline"]) if SLEEPER in (process.info["cmdline"] or ())]


def check_attacks(expected, mark):
    """Check the status, the cause and a part of the reason of each attack, and that nothing else was harmed."""
    faulty, others = run(*expected)
    for result, (name, (status, cause, message)) in zip(faulty, expected.items(), strict=True):
        assert (result.status, result.cause) == (status, cause), name
        assert message in result.reason
        assert len(result.reason.splitlines()) <= 1
    assert others == ["ok"] * len(expected)
    assert not mark.exists(), "the supervisor has executed what a worker sent"
    assert sleepers() == []


MORE = {
    "100 000 observed values": ("failed", "suite", "what the check returns has 100000 entries, more than 1000"),
    "note that is no text": ("failed", "suite", "Task.notes['x'] is object"),
    "error of control characters": ("failed", "error", "RuntimeError: a"),
    "double fork": ("ok", "", ""),
    "part of no record": ("ok", "", ""),
}
EACH_CLASS = {
    "result of 32 MB": ("failed", "suite", "the result of the case cannot be kept: 30."),
    "SystemExit(0)": ("failed", "crash", "rank 0: the worker ended: exit status 0"),
    "pickle that runs a command": ("failed", "message", "rank 0: the worker sent bytes that are no message"),
    "keeper killed": ("failed", "crash", "rank 0: the worker ended: killed by SIGKILL"),
    "two parts": ("ok", "", ""),
}


@pytest.mark.parametrize("expected", [EACH_CLASS, pytest.param(MORE, marks=pytest.mark.slow)], ids=["each", "more"])
def test_a_fault_of_each_class_fails_only_its_case_with_a_reason_in_one_line(attacks, tmp_path, expected):
    check_attacks(expected, tmp_path / "executed")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("rubbish on the channel", "message"),
        ("absurd length", "message"),
        ("ended, a child holds the channel", "crash"),
        ("endless message", "message"),
        ("phases for ever", "message"),
        ("offer of a case with one rank", "message"),
        ("part of 8 million values", "message"),
        ("channel closed, worker alive", "crash"),
        ("all descriptors closed", "crash"),
    ],
)
def test_a_worker_that_sends_invalid_messages_fails_its_case(attacks, name, cause):
    (result,), others = run(name)
    assert (result.status, result.cause, others) == ("failed", cause, ["ok"])


@pytest.mark.slow
def test_a_fork_that_goes_on_as_the_worker_fails_only_its_case(attacks):
    (result,), others = run("fork that goes on as the worker")
    assert result.status == "ok" or result.cause == "message", "it depends on who comes first"
    assert others == ["ok"]


@pytest.mark.slow
def test_a_phase_that_never_ends_is_ended_at_its_own_time_limit(attacks):
    (result,), _ = run("hang in close")
    assert result.cause == "hang"
    assert "no answer within 30 s while closing the case (limit: memory is freed, files are removed)" in result.reason
    assert 30 < result.elapsed_s < 60


class FaultClock:
    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(running.time, "monotonic", lambda: self.now)


def test_the_time_that_a_rank_waits_for_others_does_not_count_towards_its_limit(monkeypatch):
    clock, ranks = FaultClock(monkeypatch), job_ranks.JobRanks([])
    ranks.begin(0, Phase("building", 10.0, ""))
    for _ in range(4):  # one second of its own work and a hundred seconds of waiting
        clock.now += 1
        ranks.offers[0], ranks.offered_at[0] = OfferedValue(b""), clock.now
        clock.now += 100
        assert ranks.left_s(0, clock.now) == float("inf")
        del ranks.offers[0]
        ranks.resume(0)
    assert ranks.left_s(0, clock.now) == 6.0, "ranks that wait for each other for ever come to their limit"


def test_the_time_limit_of_an_idle_rank_restarts_with_each_answer(monkeypatch):
    clock, ranks = FaultClock(monkeypatch), job_ranks.JobRanks([])
    ranks.begin(0, Phase("waiting for the other ranks", 10.0, "", restarts=True))
    for _ in range(100):
        clock.now += 1
        ranks.offered_at[0] = clock.now
        ranks.resume(0)
    assert ranks.left_s(0, clock.now) == 10.0
