"""On a real GPU (`pytest -m gpu`): NVML answers, its watch is cheap and quiet, and the joins agree."""

import dataclasses
import statistics
import time

import pytest
from _modules import room_module

from gpubench import plugins
from gpubench.base.errors import OptionalUnavailable
from gpubench.measuring import inventory
from gpubench.measuring.sampler import SamplingProcess

pytestmark = pytest.mark.gpu

COLLECTOR = plugins.load("collectors", "nvml")
NVML = room_module("collectors", "_nvml")


@pytest.fixture(scope="module")
def device():
    return next(device for device in inventory.facts().devices if COLLECTOR.accepts(device))


@pytest.fixture(scope="module")
def gpu(device):
    """Return the GPU, open in this process: on its list of processes, as a worker is."""
    return plugins.load("backends", device.backend).open(device)


@pytest.fixture
def watch(device, gpu):
    """Return a watch of the GPU after its first look."""
    opened = COLLECTOR.watch(device)
    opened.begin()
    return opened


@pytest.fixture
def source(device):
    """Yield the counters of NVML for the GPU."""
    opened = COLLECTOR.open([device])
    yield opened
    opened.close()


def opened(name, device):
    """Open a collector's source, or skip the test with the reason."""
    try:
        return plugins.load("collectors", name).open([device])
    except OptionalUnavailable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", ["cupti", "gpm", "nvml"])
def test_every_supported_counter_of_the_card_has_a_value(name, device):
    source = opened(name, device)
    names = [counter.name for counter in plugins.load("collectors", name).counters]
    unsupported = source.unsupported(device)
    time.sleep(0.2)
    values = source.read(device, names)
    source.close()
    assert {name for name in names if values[name] is None} <= set(unsupported)
    assert len(unsupported) <= 2, "one GPU alone has no NVLink"


class Load:
    """Copies within the device's memory, of counted size."""

    def __init__(self, gpu):
        self.gpu = gpu
        self.source = gpu.xp.ones(2**30, gpu.xp.float32)
        self.target = gpu.xp.empty_like(self.source)

    def run(self, calls):
        """Return the bytes that were read; the same number was written."""
        for _ in range(calls):
            self.gpu.copy(self.target, self.source)
        self.gpu.synchronize()
        return calls * self.source.nbytes


@pytest.fixture
def load(gpu):
    """Yield a load that has warmed up the GPU, and free its memory afterwards."""
    loaded = Load(gpu)
    loaded.run(100)
    yield loaded
    del loaded.source, loaded.target
    gpu.release()


def measure_load(source, device, load, names, calls=500):
    """Return what a windowed source measures of a load of known size: values, bytes each way, seconds of the window."""
    source.read(device, names)
    start = time.monotonic()
    nbytes = load.run(calls)
    values = source.read(device, names)
    return values, nbytes, time.monotonic() - start


def test_gpm_sees_the_bytes_that_copies_move_within_five_per_cent(device, load, gpu):
    """Copies run all the time, because a value of GPM may be a tenth of a second old."""
    seconds = gpu.time(lambda: gpu.copy(load.target, load.source), 100).device[0]
    source = opened("gpm", device)
    for _ in range(600):
        gpu.copy(load.target, load.source)
    time.sleep(0.3)
    source.read(device, ["gpm.dram"])
    time.sleep(0.6)
    share = source.read(device, ["gpm.dram"])["gpm.dram"] / 100
    gpu.synchronize()
    source.close()
    nvml = COLLECTOR.open([device])
    clock_hz = nvml.read(device, ["nvml.clock.memory"])["nvml.clock.memory"]
    nvml.close()
    peak = 2 * clock_hz * int(dict(device.details)["memory.bus_bits"]) / 8
    assert share * peak == pytest.approx(2 * load.source.nbytes / seconds, rel=0.05)


def test_the_hardware_counts_the_bytes_that_a_copy_reads_and_writes_within_two_per_cent(device, load):
    source = opened("cupti", device)
    time.sleep(0.1)
    values, nbytes, seconds = measure_load(source, device, load, ["cupti.dram.read", "cupti.dram.write"])
    source.close()
    assert values["cupti.dram.read"] * seconds == pytest.approx(nbytes, rel=0.02)
    assert values["cupti.dram.write"] * seconds == pytest.approx(nbytes, rel=0.02)


def test_a_slow_group_does_not_delay_the_fast_one_of_the_real_sampler(device):
    process = SamplingProcess([device], time.monotonic())
    time.sleep(4)
    chunks = process.stop()
    late = {chunk.columns[0][0]: 0.0 for chunk in chunks}
    for chunk in chunks:
        late[chunk.columns[0][0]] = max(late[chunk.columns[0][0]], chunk.late_s)
    assert late["nvml.power"] < 0.015, "PCIe's throughput takes 0.04 s"
    slow = [chunk for chunk in chunks if chunk.columns[0][0] == "nvml.pcie.tx"]
    assert sum(chunk.busy_s for chunk in slow) / sum(len(chunk.at) for chunk in slow) > 0.02


def test_power_lies_between_idle_and_the_limit_and_energy_is_its_integral(source, device):
    limit_w = float(dict(device.details)["power.limit_w"])
    assert 10 < source.read(device, ["nvml.power"])["nvml.power"] < 1.2 * limit_w
    names = ["nvml.energy", "nvml.power"]
    start, before = time.monotonic(), source.read(device, names)
    while time.monotonic() - start < 1.0:
        after = source.read(device, names)
    watts = (after["nvml.energy"] - before["nvml.energy"]) / (time.monotonic() - start)
    assert watts == pytest.approx(after["nvml.power"], rel=0.5)


def test_one_sample_of_the_watch_takes_less_than_200_microseconds(watch):
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


def test_the_uuid_and_the_pci_id_lead_to_one_gpu_and_the_inventory_knows_the_clock_of_the_watch(device):
    nvml = NVML.initialised()
    by_pci = dataclasses.replace(device, uuid="")
    uuids = {nvml.nvmlDeviceGetUUID(NVML.handle_of(nvml, candidate)) for candidate in (device, by_pci)}
    nvml.nvmlShutdown()
    assert uuids == {device.uuid}
    default_hz = float(dict(device.details)["clock.sm_hz"])
    assert 5e8 < default_hz <= float(dict(device.details)["clock.sm_most_hz"])
