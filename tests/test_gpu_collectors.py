"""On a real GPU (`pytest -m gpu`): NVML answers, its watch is cheap and quiet, and the joins agree."""

import dataclasses
import statistics
import sys
import time

import pytest

from gpubench import inventory, plugins

pytestmark = pytest.mark.gpu

COLLECTOR = plugins.load("collectors", "nvml")
NVML = sys.modules[f"{type(COLLECTOR).__module__.rpartition('.')[0]}._nvml"]


@pytest.fixture(scope="module")
def device():
    return next(device for device in inventory.facts().devices if COLLECTOR.accepts(device))


@pytest.fixture(scope="module")
def gpu(device):
    """The GPU, open in this process: on its list of processes, as a worker is."""
    return plugins.load("backends", device.backend).open(device)


@pytest.fixture
def watch(device, gpu):
    opened = COLLECTOR.watch(device)
    opened.begin()
    return opened


@pytest.fixture
def source(device):
    opened = COLLECTOR.open([device])
    yield opened
    opened.close()


def test_every_counter_answers(source, device):
    names = [counter.name for counter in COLLECTOR.counters]
    values = source.read(device, names)
    assert [name for name in names if values[name] is None] == []


def test_power_now_lies_between_idle_and_the_limit(source, device):
    limit_w = float(dict(device.details)["power.limit_w"])
    assert 10 < source.read(device, ["nvml.power"])["nvml.power"] < 1.2 * limit_w


def test_energy_rises_by_the_power_over_time(source, device):
    names = ["nvml.energy", "nvml.power"]
    start, before = time.monotonic(), source.read(device, names)
    while time.monotonic() - start < 1.0:
        after = source.read(device, names)
    watts = (after["nvml.energy"] - before["nvml.energy"]) / (time.monotonic() - start)
    assert watts == pytest.approx(after["nvml.power"], rel=0.5)


def test_a_look_takes_less_than_200_microseconds(watch):
    costs = []
    for _ in range(500):
        start = time.perf_counter()
        watch.look()
        costs.append(time.perf_counter() - start)
    assert statistics.median(costs) < 200e-6


def test_an_idle_gpu_is_not_disturbed_and_neither_is_one_at_work(watch, gpu):
    idle = [watch.look() for _ in range(100)]
    source = gpu.xp.ones(2**24, gpu.xp.float32)
    target = gpu.xp.empty_like(source)
    busy = []
    for _ in range(300):
        gpu.time(lambda: gpu.copy(target, source), 10)
        busy.append(watch.look())
    assert {condition.discard for condition in (*idle, *busy)} == {()}


def test_the_uuid_and_the_pci_id_lead_to_the_same_gpu(device):
    nvml = NVML.initialised()
    by_pci = dataclasses.replace(device, uuid="")
    uuids = {nvml.nvmlDeviceGetUUID(NVML.handle(nvml, each)) for each in (device, by_pci)}
    nvml.nvmlShutdown()
    assert uuids == {device.uuid}


def test_the_inventory_knows_the_clock_that_the_watch_compares_with(device):
    default_hz = float(dict(device.details)["clock.sm_hz"])
    assert 5e8 < default_hz <= float(dict(device.details)["clock.sm_most_hz"])
