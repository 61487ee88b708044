"""Messages between two processes: bit for bit, one clock for both, and what happens where one of them ends."""

import importlib.util
import shutil
import time

import pytest
from _modules import suite_module
from _sinks import ResultSink

from gpubench import plugins
from gpubench.measuring import plan as planning
from gpubench.measuring.runner import Runner
from gpubench.measuring.sampler import SamplingProcess
from gpubench.model import Facts, Settings

FACTS = Facts(tuple(plugins.load("backends", "host").devices()))
DYING = '''
"""A message whose sender ends in its middle, and one after it."""

import os

from gpubench.api.suite import Suite
from gpubench.suites.compression import _message, _send

suite = Suite("messages whose sender ends")


def message(bench):
    return _send.send(bench, "process", "ids", "lz4", 2**20, 2**16, 2)


@suite.case(ranks=2)
def ends(bench):
    """Ends at the fourth block."""
    task = message(bench)
    if bench.rank == 0:
        encode = _message.HostBlocks.encode

        def dying(blocks, block):
            if block.index == 3:
                os._exit(9)
            return encode(blocks, block)

        _message.HostBlocks.encode = dying
    return task


@suite.case(ranks=2)
def goes_on(bench):
    """Is sent after that."""
    return message(bench)
'''


DRIVEN = '''
"""Messages whose slots are served by a thread per step in each rank, as on a GPU."""

from gpubench.api.suite import Suite
from gpubench.suites.compression import _message, _send

suite = Suite("messages as a GPU sends them")
_message.Slots.are_streams = True


@suite.case(ranks=2, flight=(1, 2, 8))
def message(bench, flight):
    """As between processes, in a megabyte."""
    return _send.send(bench, "process", "ids", "lz4", 2**20, 2**16, flight)
'''


def measure_on_host(suites, filters=(), tier="smoke"):
    plan = planning.make(FACTS, Settings(suites, ("host",), tier, filters))
    shelf = ResultSink()
    with Runner(plan, SamplingProcess((), 0.0), shelf) as runner:
        runner.run(plan.jobs, 0.0, lambda event: None)
    return shelf


def test_a_message_between_processes_has_one_clock_and_arrives():
    (result,) = measure_on_host(("compression",), ("send[link=process",))
    assert (result.status, result.reason) == ("ok", "")
    series = {(series.label, series.rank): series.values for series in result.series}
    for stage in ("overlapped", "staged", "raw", "compress", "decompress"):
        assert series[f"{stage}.self", 0] == pytest.approx(series[f"{stage}.self", 1]), stage
    assert [rank for name, rank in series if name == "ratio"] == [1]
    assert dict(result.notes)["ends"] in ("apart", "shared")


def test_a_rank_that_dies_during_a_message_fails_its_case_at_once_and_no_other(tmp_path):
    path = tmp_path / "dying.py"
    path.write_text(DYING)
    start = time.monotonic()
    first, second = measure_on_host((str(path),))
    assert time.monotonic() - start < 30
    assert first.status == "failed"
    assert first.cause in ("crash", "peer", "error"), first.reason
    assert (second.status, second.reason) == ("ok", "")


def test_sender_and_receiver_with_one_thread_each_do_not_deadlock(tmp_path):
    path = tmp_path / "driven.py"
    path.write_text(DRIVEN)
    results = measure_on_host((str(path),))
    assert [(result.status, result.reason) for result in results] == [("ok", "")] * 3


NEEDS_MPI = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or shutil.which("mpirun") is None,
    reason="no MPI here: pip install mpi4py, and an mpirun on the PATH",
)


@NEEDS_MPI
@pytest.mark.parametrize("codec", ["lz4", "zlib-1"])
def test_a_message_arrives_through_mpi(codec):
    case = f"send[link=mpi,corpus=ids,codec={codec},size=16MiB,block=1MiB,flight=2"
    (result,) = measure_on_host(("compression",), (case,), "full")
    assert (result.status, result.reason) == ("ok", "")
    assert {"overlapped.self", "staged.self", "raw.self", "compress.self", "decompress.self", "ratio"} == {
        series.label for series in result.series
    }


def test_without_mpi_its_cases_are_skipped_with_how_to_get_it(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    cases = ("send[link=mpi,corpus=ids,codec=lz4,size=16MiB,block=1MiB,flight=2", "ipc/mpi[path=same,size=8B]")
    results = measure_on_host(("compression", "ipc"), cases, "full")
    assert [result.status for result in results] == ["skipped"] * 2
    assert all("pip install mpi4py" in result.reason for result in results)


def test_an_mpi_that_does_not_read_the_memory_of_gpus_is_named():
    buffers = suite_module("ipc", "_mpi_buffers")
    rank = object.__new__(buffers.BufferRank)
    rank.mpi = importlib.import_module("_ctypes")  # a library without MPI's query
    assert "MPIX_Query_cuda_support" in rank.open(["0", "1"], 8)


@NEEDS_MPI
def test_a_buffer_arrives_through_mpi():
    (result,) = measure_on_host(("ipc",), ("ipc/mpi[path=same,size=1MiB]",), "full")
    assert (result.status, result.reason) == ("ok", "")
