"""Ranks of a pattern that start late, never or twice, or that answer wrongly, and a host without room in /dev/shm.

Each test runs real processes, by the command or by the supervisor that the command uses.
"""

import os
import shutil
import subprocess
import sys
import time

import psutil
import pytest

from gpubench.model import store

pytestmark = pytest.mark.slow

# A suite of a user with ranks of a ring, one of which is faulty.
SUITE = '''"""Ranks of a pattern, one of which has a fault."""
import os
import time

from gpubench.api.suite import Stage, Suite, Task, Work
from gpubench.suites.patterns import _topology

suite = Suite("ranks of a pattern, one of which has a fault")


def wrong(rank):
    rank.own[7] ^= 1


FAULTS = {
    "none": lambda rank: None,
    "late": lambda rank: time.sleep(1.0),
    "never": lambda rank: time.sleep(300),
    "dead": lambda rank: os._exit(9),
    "wrong": wrong,
}


@suite.case(ranks=3, fault=tuple(FAULTS))
def ring(bench, fault):
    """The ring of three ranks, whose rank 1 has the fault before its first call."""
    rank = _topology.ScheduledRank(bench, _topology.ring(3), 2**16)
    task, call, calls = rank.task("memory"), rank.call, []

    def faulty():
        if not calls and bench.rank == 1:
            FAULTS[fault](rank)
        calls.append(fault)
        return call()

    stage = Stage(faulty, Work(payload=6 * 2**16), "payload", clock="self")
    return Task.of(stage, check=task.check, poison=task.poison, close=task.close, release=task.release)


@suite.case()
def after(bench):
    """A case without a fault."""
    return Task.of(Stage(lambda: time.sleep(1e-3)), check=lambda: None)
'''


@pytest.fixture
def suite(tmp_path):
    path = tmp_path / "faulty.py"
    path.write_text(SUITE)
    return path


def measured(suite, *filters, prefix=()):
    """Return the results by the name of the fault, and how long the command took."""
    out = suite.parent / "run.jsonl"
    arguments = [word for pattern in filters for word in ("--filter", pattern)]
    words = ["run", str(suite), "--device", "host", "--tier", "smoke"]
    command = [*prefix, sys.executable, "-P", "-m", "gpubench", *words]
    environment = {**os.environ, "GPUBENCH_HISTORY": "off"}
    start = time.monotonic()
    subprocess.run(
        [*command, *arguments, "-o", str(out)], env=environment, capture_output=True, timeout=110, check=False
    )
    seconds = time.monotonic() - start
    results = store.read_run(out).results
    return {dict(result.case.params).get("fault", result.case.name): result for result in results}, seconds


def left_over(suite):
    """Return processes that still have the suite's path among their arguments."""
    running = psutil.process_iter(["cmdline"])
    return [process.pid for process in running if str(suite) in (process.info["cmdline"] or ())]


def test_a_late_rank_is_waited_for_and_its_answer_is_right(suite):
    results, seconds = measured(suite, "*late*", "*none*")
    assert {name: result.status for name, result in results.items()} == {"late": "ok", "none": "ok"}
    assert seconds < 30


@pytest.mark.parametrize(
    ("fault", "cause", "reason"),
    [
        ("never", "", "rank 1 made no progress for 5 s"),  # it has 60 s; the other ranks gave up after 5
        ("dead", "crash", ""),
        ("wrong", "wrong-answer", "of rank 1, received by rank"),
    ],
)
def test_a_rank_that_never_comes_dies_or_is_wrong_costs_its_case_in_bounded_time_and_the_next_one_runs(
    suite, fault, cause, reason
):
    results, seconds = measured(suite, f"*{fault}*", "*after*")
    assert results[fault].status == "failed"
    assert not cause or results[fault].cause == cause
    assert reason in results[fault].reason
    assert results["after"].status == "ok"
    assert seconds < 90
    assert left_over(suite) == []


def small_shm():
    """Return the command that gives a program a /dev/shm of 64 KiB, or nothing where this machine refuses mounts."""
    mount = 'mount -t tmpfs -o size=64k none /dev/shm && exec "$@"'
    for command in (["unshare", "-m"], ["unshare", "-rm"]):
        prefix = [*command, "sh", "-ec", mount, "sh"]
        if (
            shutil.which("unshare")
            and subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
        ):
            return prefix
    return []


def test_the_patterns_of_the_host_need_no_room_in_dev_shm(tmp_path):
    prefix = small_shm()
    if not prefix:
        pytest.skip("this machine lets nobody mount a file system: unshare(1) is refused")
    out = tmp_path / "run.jsonl"
    arguments = ["run", "patterns", "--device", "host", "--tier", "smoke"]
    arguments += ["--filter", "topology*", "--filter", "batch*", "--filter", "pipeline*", "--filter", "incast*"]
    command = [*prefix, sys.executable, "-P", "-m", "gpubench", *arguments, "-o", str(out)]
    environment = {**os.environ, "GPUBENCH_HISTORY": "off"}
    subprocess.run(command, env=environment, capture_output=True, timeout=100, check=False)
    statuses = {result.case.name: (result.status, result.reason) for result in store.read_run(out).results}
    assert statuses.keys() >= {"topology", "batch", "pipeline", "incast"}
    assert set(statuses.values()) == {("ok", "")}
