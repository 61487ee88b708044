"""Cases whose ranks are spread over nodes, some of them faulty. tests/test_nodes.py runs them by their path."""

import os
import signal
import time

from gpubench.api.suite import Skip, Stage, Suite, Task

suite = Suite("cases over several nodes")


def _nodes(target):
    return (target.nodes,)


def _spread(params):
    return int(params["nodes"])


def _case(build):
    return suite.case(ranks=_spread, spread=_spread, nodes=_nodes)(build)


def _task(value=1.0):
    return Task.of(Stage(lambda: value, clock="self"), check=dict)


@_case
def sound(bench, nodes):
    """Every rank receives the values of all ranks, of every plain type."""
    mine = (bench.rank, [None, True, 1.5, "text"], bytes([bench.rank]))
    assert bench.exchange(mine) == [(rank, [None, True, 1.5, "text"], bytes([rank])) for rank in range(nodes)]
    return _task()


@_case
def strange(bench, nodes):
    """A rank offers a value that is not plain data."""
    bench.exchange(object())
    return _task()


@_case
def declined(bench, nodes):
    """The last rank cannot run."""
    if bench.rank == nodes - 1:
        raise Skip("the last rank has no room")
    bench.barrier()
    return _task()


@_case
def killed(bench, nodes):
    """The runner of the last node is killed while all ranks measure."""
    bench.barrier()
    if bench.rank == nodes - 1:
        os.kill(_runner(), signal.SIGKILL)
    time.sleep(0.2)
    bench.barrier()
    return _task()


@_case
def stopped(bench, nodes):
    """The runner of the last node hangs."""
    bench.barrier()
    if bench.rank == nodes - 1:
        os.kill(_runner(), signal.SIGSTOP)
    bench.barrier()
    return _task()


@_case
def afterwards(bench, nodes):
    """A sound case after the others."""
    bench.barrier()
    return _task()


def _runner():
    return int(os.environ["GPUBENCH_RUNNER"])
