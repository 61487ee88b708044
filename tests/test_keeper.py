"""A keeper ends every process below it, however it was started."""

import subprocess
import sys

import pytest

# The chain holds the write end of a pipe, so the reader sees its end when no process of the chain is left.
CHAIN = """
import os, select, time
from gpubench.measuring import keeper

keeper._prctl(keeper._PR_SET_CHILD_SUBREAPER, 1)
reading, writing = os.pipe()
if os.fork() == 0:
    os.setsid()
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if os.fork():
            os._exit(0)
        time.sleep({delay_s})
    os._exit(0)
os.close(writing)
time.sleep(0.1)
print(keeper.has_descendants(()))
keeper.end_descendants(os.getpid())
print(keeper.has_children(), select.select([reading], [], [], 5)[0] == [reading])
"""
ENDED = """
import subprocess
from gpubench.measuring import keeper

child = subprocess.Popen(["true"], stdout=subprocess.PIPE)
child.stdout.read()
while keeper.has_descendants(()):
    pass
print(keeper.has_children())
child.wait()
print(keeper.has_children())
other = subprocess.Popen(["sleep", "30"])
print(keeper.has_descendants(()), keeper.has_descendants({other.pid}))
other.kill()
"""


def printed(program):
    command = [sys.executable, "-P", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()


@pytest.mark.parametrize("delay_s", [0.002, pytest.param(0, marks=pytest.mark.slow)])
def test_a_process_that_forks_and_ends_again_and_again_is_ended(delay_s):
    assert printed(CHAIN.format(delay_s=delay_s)) == ["True", "False", "True"]


def test_ended_and_expected_children_are_not_counted_as_left_behind():
    assert printed(ENDED) == ["True", "False", "True", "False"]
