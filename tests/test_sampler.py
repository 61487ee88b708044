"""The real sampling process with a faulty collector: the values that are kept and the messages."""

import os
import signal
import time
from pathlib import Path

import _command
import numpy as np
import psutil
import pytest

from gpubench import plugins
from gpubench.measuring import sampler
from gpubench.measuring.channel import Child
from gpubench.measuring.sampler import SamplingProcess
from gpubench.model.store import read_run

PLUGIN = str(Path(__file__).parent / "plugin")
HOST = plugins.load("backends", "host").devices()
FAST_S = 0.01  # tests/plugin/gpubench_sick


@pytest.fixture
def sick(monkeypatch):
    """Makes the third party's collector go wrong in a way, and samples for a while."""

    def sampled(fault, seconds=0.6):
        monkeypatch.setenv("PYTHONPATH", PLUGIN)
        monkeypatch.setenv("GPUBENCH_SICK", fault)
        started_at = time.monotonic()
        process = SamplingProcess(HOST, started_at)
        chunks, end = [], time.monotonic() + seconds
        while time.monotonic() < end and process.channel:
            process.channel.poll(0.1)
            chunks += process.drain()
        chunks += process.stop()
        lacks = {"host"}  # whether RAPL is available depends on this machine
        return process, chunks, [remark for remark in process.remarks() if remark.source not in lacks]

    return sampled


def pid_of(child):
    """Return the number of the process under a child's keeper."""
    (process,) = psutil.Process(child.process.pid).children()
    return process.pid


def track(chunks, name):
    """Return the times and values of one counter, over all chunks."""
    columns = [(chunk.at, dict(chunk.columns)[name]) for chunk in chunks if name in dict(chunk.columns)]
    return [at for ats, _ in columns for at in ats], [value for _, values in columns for value in values]


def test_a_slow_call_has_its_own_period_and_never_delays_the_fast_ones(sick):
    _, chunks, remarks = sick("slow", 2.0)
    fast, _ = track(chunks, "sick.fast")
    slow, _ = track(chunks, "sick.slow")
    gaps = np.diff(fast)
    assert remarks == []
    assert 3 <= len(slow) <= 8
    assert len(fast) > 60, "a slow call before each would leave eight"
    assert np.median(gaps) < 2 * FAST_S
    assert np.quantile(gaps, 0.95) < 0.1, "a slow call takes 0.25 s"


@pytest.mark.slow
def test_chunks_say_how_long_reading_took_and_how_late_it_was(sick):
    _, chunks, _ = sick("slow", 2.0)
    slow = [chunk for chunk in chunks if chunk.columns[0][0] == "sick.slow"]
    fast = [chunk for chunk in chunks if chunk.columns[0][0] == "sick.fast"]
    busy_s, rows = sum(chunk.busy_s for chunk in slow), sum(len(chunk.at) for chunk in slow)
    assert busy_s / rows == pytest.approx(0.25, rel=0.2)
    assert sum(chunk.busy_s for chunk in fast) < 0.2 * busy_s
    assert all(chunk.late_s >= 0 for chunk in chunks)
    (first, *_), (begun, *_) = (track(chunks, name)[0] for name in ("sick.slow", "sick.fast"))
    assert first - begun == pytest.approx(0.125, abs=0.08), "the time of a row is the middle of its reading"


@pytest.mark.slow
def test_a_call_that_never_returns_is_reported_and_the_other_counters_are_kept(sick, monkeypatch):
    start = time.monotonic()
    process, chunks, remarks = sick("stuck", 7.5)
    assert time.monotonic() - start < 15
    assert process.ended == "stopped"
    assert [remark.words for remark in remarks] == ["missing from here on: a reading has not returned for 5 s"]
    assert (remarks[0].state, remarks[0].source, remarks[0].device) == ("lost", "sick", "host")
    assert track(chunks, "sick.slow") == ([], [])
    assert len(track(chunks, "sick.fast")[0]) > 200
    assert len(track(chunks, "host.load")[0]) >= 5


def test_a_lost_device_is_reported_once_and_its_values_are_missing(sick):
    process, chunks, (remark,) = sick("lost")
    _, values = track(chunks, "sick.fast")
    assert remark.words == "missing from here on: the device is lost; look at dmesg"
    assert 0 < remark.at < track(chunks, "sick.fast")[0][-1]
    assert values[:20] == [float(n) for n in range(1, 21)]
    assert set(values[20:]) == {None}
    assert process.ended == "stopped"
    assert track(chunks, "host.cpu.busy")[1].count(None) == 0


@pytest.mark.slow
def test_counters_without_values_for_some_time_are_reported_as_missing_and_single_empty_readings_are_not(sick):
    _, chunks, (remark,) = sick("silent", 2.0)
    assert remark.words == "missing from here on: no counter answers any more"
    assert track(chunks, "sick.fast")[1][19:21] == [20.0, None]
    _, chunks, remarks = sick("hiccup", 1.6)
    values = track(chunks, "sick.fast")[1]
    assert remarks == []
    assert 3 < values.count(None) < len(values) / 2


def test_messages_of_a_driver_during_a_run_are_remarks(sick):
    _, chunks, remarks = sick("event", 0.5)
    assert {(remark.state, remark.text) for remark in remarks} == {
        ("event", "counters of sick on host: error 13 of the engine")
    }
    assert None not in track(chunks, "sick.fast")[1]


def test_an_unsupported_counter_is_named_and_not_read(sick):
    process, chunks, (remark,) = sick("lacks")
    assert tuple(entry for entry in process.unsupported if entry.device == "host" and "sick" in entry.counter) == (
        sampler.UnsupportedCounter("sick.none", "host", "this card has no such sensor", "sick"),
    )
    text = "counters of sick on host: no sick.none: this card has no such sensor"
    assert (remark.state, remark.text) == ("absent", text)
    assert track(chunks, "sick.none") == ([], [])
    assert track(chunks, "sick.fast")[1][0] == 1.0


def test_sources_that_cannot_be_read_are_told_and_the_others_continue(sick):
    process, chunks, (remark,) = sick("denied")
    assert [entry.what for entry in process.unavailable] == ["sick"]
    text = "counters of sick: missing: no permission to read the counters; ask for it"
    assert (remark.state, remark.text) == ("lost", text)
    assert track(chunks, "host.cpu.busy")[0]
    _, chunks, (remark,) = sick("optional")
    text = "counters of sick: missing: its library is not installed; pip install sick"
    assert (remark.state, remark.text) == ("absent", text)
    assert track(chunks, "host.cpu.busy")[0]


def test_a_sampler_that_crashes_is_reported_and_replaced():
    process = SamplingProcess(HOST, time.monotonic())
    chunks, killed = [], None
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not (killed and any(chunk.at[0] > killed for chunk in chunks)):
        process.channel.poll(0.1)
        chunks += process.drain()
        if chunks and killed is None:
            killed = max(at for chunk in chunks for at in chunk.at)
            os.kill(pid_of(process._child), signal.SIGSEGV)
    chunks += process.stop()
    assert process.ended == "stopped"
    (remark,) = [remark for remark in process.remarks() if remark.state == "lost"]
    assert remark.source == "the sampler"
    assert remark.words.startswith("some samples are missing: the sampling process ended (killed by SIGSEGV")
    assert 'File "' in remark.words, "where it was"
    at, values = track(chunks, "host.cpu.busy")
    assert at == sorted(at)
    assert at[-1] > killed
    assert None not in values


@pytest.mark.slow
@pytest.mark.parametrize("collecting", ["", "  Garbage-collecting\n"])
def test_the_description_of_a_crash_names_the_line_of_code(collecting):
    child = Child.__new__(Child)
    child.output = -1
    child._tail = (
        "Fatal Python error: Segmentation fault\n\nThread 0x1 (most recent call first):\n"
        '  File "threading.py", line 359 in wait\n\nCurrent thread 0x2 (most recent call first):\n'
        f'{collecting}  File "pynvml.py", line 7 in ask\n  File "nvml.py", line 1 in read\n\n'
        "Extension modules: numpy (total: 1)\n"
    ).encode()
    assert child.last_line == 'File "pynvml.py", line 7 in ask'


def test_a_sampler_that_crashes_repeatedly_is_not_restarted(sick):
    process, _, remarks = sick("killed", 30.0)
    assert "SIGKILL" in process.ended
    assert {(remark.state, remark.source) for remark in remarks} == {("lost", "the sampler")}
    beginnings = [remark.words.partition(":")[0] for remark in remarks]
    assert beginnings == [*["some samples are missing"] * 3, "missing from here on"]
    assert all("killed by SIGKILL" in remark.words for remark in remarks)


def test_every_counter_of_a_device_is_listed_as_available_or_with_the_reason_why_not(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", PLUGIN)
    monkeypatch.setenv("GPUBENCH_SICK", "lacks")
    listed, absent = sampler.list_counters(HOST)
    reasons = {entry.counter.name: entry.reason for entry in listed}
    assert {entry.device for entry in listed} == {"host"}
    assert reasons["sick.fast"] == ""
    assert reasons["sick.none"] == "this card has no such sensor"
    assert reasons["host.cpu.busy"] == ""
    assert {"nvml", "gpm", "cupti"} <= {library.what for library in absent}
    assert all(library.reason for library in absent)


def gpubench(*arguments):
    """Return the output of the command with a device that is lost during the run."""
    return _command.gpubench(*arguments, PYTHONPATH=PLUGIN, GPUBENCH_SICK="lost", GPUBENCH_HISTORY="off")


def test_unsupported_counters_are_in_the_run_file_with_their_reasons(tmp_path):
    out = str(tmp_path / "run.jsonl")
    done = gpubench("run", "gemm", "--device", "host", "--tier", "smoke", "--filter", "square", "--out", out)
    assert done.returncode == 0, done.stderr
    run = read_run(out)
    assert run.complete
    assert "counters of sick on host: missing from here on: the device is lost; look at dmesg" in run.messages
    assert "the device is lost" in gpubench("show", out).stdout
