"""The helpers of a case: what they answer, how they end, and that their processes end with the case."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from _command import gpubench
from _modules import opened

from gpubench.api.libraries import DriverCallError
from gpubench.api.suite import Bench, HelperEndedError, Skip, SuiteError, Unavailable, Untrustworthy, WrongAnswer
from gpubench.model import Case

TESTS = Path(__file__).parent


def act(what, *args):
    """Do in the helper what a test asks for."""
    actions = {
        "add": lambda left, right: left + right,
        "print": lambda: (os.system("echo noise; cat"), "printed")[-1],
        "sleep": time.sleep,
        "start": lambda: subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid,
        "fill": lambda size: int(np.ones(size, np.uint8).sum()),
        "marks": lambda: importlib.import_module("__main__").marks,
        "variable": os.environ.get,
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "exit": lambda: sys.exit("why"),
        "crash": os.abort,
        "raise": _raise,
    }
    return actions[what](*args)


def _raise(error_type, *args):
    raise error_type(*args)


class Counter:
    """A served object that keeps its state between questions."""

    def __init__(self):
        self._count = 0

    def count(self, more):
        self._count += more
        return self._count


@pytest.fixture
def bench(monkeypatch):
    """Yield a bench whose helpers can import this module."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    made = Bench(opened(), Case("any", "case"), target=None, package="")
    yield made
    made.end_helpers()


def has_ended(pid):
    """Return whether the process has ended within five seconds; a zombie counts as ended."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.01)
    return False


def test_a_helper_answers_every_question_and_what_it_prints_is_no_answer(bench):
    with bench.helper(act) as helper:
        assert helper.ask(20, "add", 1, 2) == 3
        assert helper.ask(20, "print") == "printed", "a program that it starts reads no question"
        held = helper.ask(20, "add", np.arange(3), b"\n"[0])
        assert (held == np.arange(3) + 10).all()
        helper.tell("sleep", 0.2)
        assert not helper.has_answer()
        assert helper.answer(20) is None
        before = helper.resident_bytes()
        assert helper.ask(20, "fill", 2**26) == 2**26
        assert helper.resident_bytes() > before + 2**25, "the peak is the helper's own"
    assert has_ended(helper.pid)
    helper = bench.helper(Counter)
    assert [helper.ask(20, "count", more) for more in (1, 2)] == [1, 3], "a class is made once"


def test_the_environment_and_the_code_before_gpubench_are_the_callers(bench, monkeypatch):
    monkeypatch.setenv("REMOVED", "1")
    prelude = "import sys, time; marks = [time.monotonic(), 'numpy' in sys.modules or 'gpubench' in sys.modules]"
    helper = bench.helper(act, environment={"REMOVED": None, "ADDED": "2"}, prelude=prelude)
    assert [helper.ask(20, "variable", name) for name in ("REMOVED", "ADDED")] == [None, "2"]
    begun, is_late = helper.ask(20, "marks")
    assert 0 < begun - helper.started_s < 5
    assert not is_late


ERRORS = [
    (Skip, ("not here",)),
    (WrongAnswer, ("7 words differ",)),
    (Unavailable, ("no library", "install it")),
    (Untrustworthy, ("disturbed", "why")),
    (SuiteError, ("a mistake",)),
    (DriverCallError, ("CUDA_ERROR_NOT_SUPPORTED",)),
]


def test_errors_of_gpubench_reach_the_case_and_the_helper_goes_on(bench):
    helper = bench.helper(act)
    for error_type, args in ERRORS:
        with pytest.raises(error_type) as caught:
            helper.ask(20, "raise", error_type, *args)
        expected = error_type(*args)
        assert (str(caught.value), vars(caught.value)) == (str(expected), vars(expected))
    assert helper.ask(20, "add", 1, 1) == 2


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (("kill",), "it ended: killed by SIGKILL; last line: it printed nothing"),
        (("exit",), "it ended: exit status 1; last line: why"),
        (("crash",), "it ended: killed by SIGABRT"),
        (("raise", ValueError, "a broken program"), "exit status 1; last line: ValueError: a broken program"),
        (("raise", RuntimeError, "not gpubench's"), "exit status 1; last line: RuntimeError: not gpubench's"),
        (("sleep", 60), r"it did not answer within 0\.3 s and was ended"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_the_end_of_a_helper_is_reported_with_its_last_line(bench, question, message):
    helper = bench.helper(act, "it")
    helper.ask(20, "add", 1, 1)
    with pytest.raises(HelperEndedError, match=message):
        helper.ask(0.3 if question[0] == "sleep" else 20, *question)
    assert has_ended(helper.pid)
    for call in (lambda: helper.ask(1, "add", 1, 1), lambda: helper.answer(1)):
        with pytest.raises(HelperEndedError, match="it ended"):
            call()


def test_a_helper_ends_with_its_process_group_and_may_end_by_itself_before(bench):
    helper = bench.helper(act)
    child = helper.ask(20, "start")
    helper.end()
    helper.end()
    assert has_ended(child)
    patient = bench.helper(act)
    patient.ask(20, "add", 1, 1)
    began = time.monotonic()
    patient.end(20.0)
    assert time.monotonic() - began < 10
    with pytest.raises(HelperEndedError, match="exit status 0"):
        patient.answer(1)


def test_a_helper_cannot_import_what_stands_inside_a_function_and_takes_small_questions(bench):
    with pytest.raises(SuiteError, match=r"at the top level of an imported module, not .*lambda"):
        bench.helper(lambda: None)
    with pytest.raises(SuiteError, match="at the top level"):
        bench.helper(Counter.count)
    with pytest.raises(SuiteError, match=r"a question to the helper takes .* bytes, more than 65536"):
        bench.helper(act).tell(bytes(2**16))


SUITE = """
import os, subprocess, sys, time
from gpubench.api import suite as gb
suite = gb.Suite("mine")

def work(path):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    with open(path, "a") as file:
        file.write(f"{child.pid}\\n")
    return 0.001

@suite.case(when=gb.on_host, how=("well", "broken", "badly"))
def starts(bench, how):
    "Seconds that a helper reports."
    helper = bench.helper(work)
    seconds = helper.ask(20, os.environ["PIDS"])
    if how == "broken":
        raise ValueError("a bug")
    check = lambda: gb.expect(how == "well", "wrong")
    return gb.Task.of(gb.Stage(lambda: seconds, clock="self"), check=check)
"""


def test_the_helpers_of_a_suite_in_a_file_end_with_each_case_however_it_ends(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(SUITE)
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    done = gpubench("run", "./mine.py", "--device", "host", "--tier", "smoke", "-o", "run.jsonl", cwd=tmp_path)
    records = map(json.loads, (tmp_path / "run.jsonl").read_text().splitlines())
    ends = [(record["status"], record.get("cause", "")) for record in records if record.get("kind") == "result"]
    assert ends == [("ok", ""), ("failed", "error"), ("failed", "wrong-answer")], done.stderr
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 3
    assert all(has_ended(int(pid)) for pid in pids)
