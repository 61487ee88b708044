"""Codecs in streams: latency at an arrival rate, queues that grow, and weights whose exponents are compressed apart."""

import dataclasses
from typing import Any

import _codec_device as device_of
import _grid
import numpy as np
import pytest
from _compression_tasks import verify
from _earlier import check_in_turn, expect_found
from _modules import bench_on, suite_module
from _poison import called

from gpubench import plugins
from gpubench.base.errors import Untrustworthy, WrongAnswer
from gpubench.devices.native import nvcomp
from gpubench.model import Device

SUITE = plugins.load("suites", "compression")
AT, CODECS = suite_module("compression", "_streams"), suite_module("compression", "_codecs")
GPU = Device("cuda:0", "cupy", "NVIDIA H200", "sm_90", memory_bytes=2**37)


class Clock:
    """A clock that stands still but for the server, which takes the seconds of `service` in turn."""

    def __init__(self, service: list[float]) -> None:
        self.now, self._service, self._served = 0.0, service, 0

    def __call__(self) -> float:
        self.now += 1e-6  # each look at the clock takes a microsecond
        return self.now

    def serve(self) -> None:
        self.now += self._service[self._served % len(self._service)]
        self._served += 1


def arrivals(monkeypatch: pytest.MonkeyPatch, load: float, service: list[float]) -> Any:
    clock = Clock(service)
    monkeypatch.setattr(AT, "perf_counter", clock)
    return AT.Arrivals(clock.serve, load)


def test_blocks_that_arrive_more_slowly_than_they_are_served_never_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = arrivals(monkeypatch, 0.5, [1e-3])
    assert stream() == pytest.approx(1e-3, rel=0.01)
    seen = stream.observed("compress", 2**16)
    assert seen["compress p99"].value == pytest.approx(1e-3, rel=0.01)
    assert seen["compress highest"].value == pytest.approx(2**16 / 1e-3, rel=0.01)


def test_a_block_behind_a_slow_one_waits_from_its_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of nine blocks takes ten times as long; the reference is Lindley's recursion."""
    service = [1e-3] * 8 + [1e-2]
    monkeypatch.setattr(AT, "_SAMPLE_S", 1.0)
    stream = arrivals(monkeypatch, 0.8, service)
    p50 = stream()
    interval, wait, latencies = 2e-3 / 0.8, 0.0, []
    for index in range(1000):
        latencies.append(wait + service[index % 9])
        wait = max(0.0, latencies[-1] - interval)
    assert p50 == pytest.approx(np.median(latencies), rel=0.05)
    assert stream.observed("x", 1)["x p99"].value == pytest.approx(np.percentile(latencies, 99), rel=0.05)


def test_an_arrival_rate_above_the_codec_s_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Untrustworthy, match=r"the queue grows at a load of 1\.2") as caught:
        arrivals(monkeypatch, 1.2, [1e-3])()
    assert caught.value.cause == "growing-queue"


def task_of(opened: Any, name: str, **params: Any) -> Any:
    return SUITE.build(bench_on(opened, SUITE, name, **params))


def test_a_stream_of_the_host_is_compared_bit_for_bit(host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AT, "_SAMPLE_S", 1e-3)
    monkeypatch.setattr(AT, "_GROWTH", float("inf"))  # the machine of the tests may be busy
    params = {"corpus": "bf16-weights", "codec": "split-zstd-1", "block_bytes": 2**16, "load": 0.5}
    seen = verify(host, task_of(host, "arrivals", **params))
    assert seen["ratio"].value > 1.4
    assert seen["decompress highest"].value > 0


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4097])
def test_every_bit_pattern_of_a_weight_comes_back_from_the_host_s_split_codec(size: int) -> None:
    codec = CODECS.ON_HOST["split-zstd-1"]()
    every = np.arange(2**16, dtype="<u2").tobytes()
    for data in (every, every[:size]):
        (packed,) = codec.compress([memoryview(data)])
        assert codec.decompress([packed], [len(data)]) == [data]
        for damaged in (packed[:-1] + b"xx", b"\xff" * 4 + packed[4:], packed[: len(packed) // 2]):
            with pytest.raises(WrongAnswer):
                codec.decompress([damaged], [len(data)])


@pytest.mark.skipif(_grid.COMPILER is None, reason="needs g++")
def test_weights_split_on_a_device_come_back_and_a_plane_that_is_not_merged_is_found(
    host: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvcomp, "load", lambda: nvcomp.NvcompLibrary(device_of.Functions()))
    opened = device_of.GpuInHostMemory(host, GPU)
    task = task_of(opened, "split", corpus="bf16-weights", codec="ans", size_bytes=2**20)
    for redraw in (lambda: None, task.stages["compress"].inputs):
        redraw()
        seen = called(task)
        assert seen["exponents.ratio"].value > seen["ratio"].value > 1.2
    weights = task.stages["compress"].call.__self__
    exponents, rest = CODECS.split(weights.weights.view(np.uint16))
    assert np.array_equal(weights.trip.source.memory, exponents)
    assert np.array_equal(weights._rest, rest)


@pytest.mark.skipif(_grid.COMPILER is None, reason="needs g++")
def test_a_product_of_packed_weights_equals_that_of_the_plain_ones(host: Any) -> None:
    opened = device_of.GpuInHostMemory(host, GPU, dataclasses.replace(device_of.TRAITS, warp=32))
    task = task_of(opened, "fused", rows=64, cols=512)
    for redraw in (lambda: None, task.stages["fused"].inputs):
        redraw()
        assert 1.3 < called(task)["ratio"].value <= 4 / 3
    (result,) = task.stages["fused"].outputs
    result[3] += 0.01
    with pytest.raises(WrongAnswer, match="fused: a sum"):
        task.check()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("arrivals", {"corpus": "text", "codec": "lz4", "block_bytes": 2**20, "load": 0.5}),
        ("split", {"corpus": "bf16-weights", "codec": "ans", "size_bytes": 2**24}),
        ("fused", {"rows": 2048, "cols": 1024}),
    ],
)
def test_streams_on_a_gpu_are_compared_with_both_inputs(gpu: Any, name: str, params: dict[str, Any]) -> None:
    task = task_of(gpu, name, **params)
    check_in_turn(task, gpu)
    if name != "arrivals":  # whose calls hide the memory that they write
        written = [task.stages["compress"].call.__self__.restored] if name == "split" else []
        expect_found(task, gpu, *written)
    gpu.release()


def test_every_weight_is_packed_or_listed() -> None:
    weights = np.arange(2**16, dtype=np.uint16).reshape(256, 256)  # every bit pattern, infinities and NaN too
    packed = AT.PackedWeights(weights, 2)
    codes = np.stack([packed.codes & 15, packed.codes >> 4], -1).reshape(256, 256).astype(np.uint16)
    rest = packed.rest.astype(np.uint16)
    restored = (rest & 0x80) << 8 | (packed.base + codes) << 7 | rest & 0x7F
    for row in range(512):
        place = slice(packed.starts[row], packed.starts[row + 1])
        restored[row % 256, packed.columns[place]] = packed.bits[place]
    assert np.array_equal(restored, weights)
    assert packed.nbytes > 512 * 256 * 1.5
