"""NVML's counters without a GPU: the real binding's names and errors, and a library that plays a card."""

import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pynvml
import pytest
from _modules import room_module

from gpubench import plugins
from gpubench.base.errors import OptionalUnavailable, Unavailable
from gpubench.model import Device

H200 = Device("cuda:0", "cupy", "NVIDIA H200", "sm_90", pci="0000:01:00.0")
GPM, NVML = plugins.load("collectors", "gpm"), plugins.load("collectors", "nvml")
COMMON = room_module("collectors", "_nvml")
COUNTERS = room_module("collectors", "nvml")
refusals = room_module("collectors", "_strangers").refusals


def refuses(code):
    """Return a call that NVML answers with this error."""

    def call():
        raise pynvml.NVMLError(code)

    return call


# ---- what an error means

LOST = [
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_GPU_NOT_FOUND,
    pynvml.NVML_ERROR_UNINITIALIZED,
]


@pytest.mark.parametrize("code", LOST)
def test_a_lost_gpu_is_named_with_the_next_step_and_has_no_number(code):
    with pytest.raises(Unavailable, match=r"cuda:0 is lost \(.+\); look at dmesg"):
        COMMON.answer(pynvml, H200, refuses(code))


@pytest.mark.parametrize(
    "code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_UNKNOWN]
)
def test_a_refused_call_gives_a_missing_value(code):
    assert COMMON.answer(pynvml, H200, refuses(code)) is None
    calls = {"nvml.nvlink.tx": refuses(code), "nvml.power": lambda: 80.0}
    assert refusals(calls, pynvml.NVMLError) == {"nvml.nvlink.tx": str(pynvml.NVMLError(code))}


@pytest.mark.parametrize("counter", COUNTERS.READERS, ids=lambda counter: counter.name)
def test_every_reader_calls_functions_that_exist_in_the_binding(counter):
    """Without the library each call of the real binding raises an NVML error and never an AttributeError."""
    with pytest.raises(pynvml.NVMLError):
        COUNTERS.READERS[counter](pynvml, None)


# ---- Xid errors


class XidEvents:
    NVMLError, NVML_ERROR_TIMEOUT = pynvml.NVMLError, pynvml.NVML_ERROR_TIMEOUT
    nvmlEventTypeXidCriticalError = pynvml.nvmlEventTypeXidCriticalError  # noqa: N815

    def __init__(self, *xids):
        self.xids = deque(xids)

    def nvmlEventSetCreate(self):  # noqa: N802
        return "set"

    def nvmlDeviceRegisterEvents(self, gpu, kinds, events):  # noqa: N802
        assert kinds == pynvml.nvmlEventTypeXidCriticalError

    def nvmlEventSetWait_v2(self, events, milliseconds):  # noqa: N802
        assert milliseconds == 0, "a wait would hold up every other counter"
        if not self.xids:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        return SimpleNamespace(eventData=self.xids.popleft())


def test_xid_errors_are_counted_without_waiting_and_each_number_is_reported_once():
    nvml = XidEvents(13, 31)
    xids = room_module("collectors", "nvml").Xids(nvml, "gpu")
    assert xids.read() == 2
    nvml.xids.append(79)
    assert xids.read() == 3
    assert xids.take() == [13, 31, 79]
    assert xids.take() == []
    assert xids.read() == 3


# ---- threads


FAST = ("nvml.power", "nvml.clock.sm", "nvml.xid.errors")
SLOW = ("nvml.energy", "nvml.violation.power", "nvml.nvlink.tx", "nvml.processes")
SLOWEST = "nvml.pcie.tx"


@pytest.fixture
def source(monkeypatch):
    """Return NVML opened for two GPUs; a test patches its readings into `COUNTERS.READ`."""
    module = room_module("collectors", "nvml")
    monkeypatch.setattr(COMMON, "initialised", lambda: pynvml)
    opened = module.Source(())
    opened._handles = {"cuda:0": 0, "cuda:1": 1}
    return opened


def test_calls_of_one_kind_are_made_one_at_a_time(monkeypatch, source):
    """Two GPUs and a thread for each counter: each call waits a while and reports the calls that run beside it."""
    inside, together = [], []

    def staying(name):
        def read(nvml, gpu):
            inside.append(name)
            time.sleep(0.002)
            together.append(tuple(inside))
            inside.remove(name)
            return 1.0

        return read

    kinds = (FAST, SLOW, (SLOWEST,))
    for name in (name for kind in kinds for name in kind):
        monkeypatch.setitem(COUNTERS.READ, name, staying(name))
    monkeypatch.setattr(source, "_count_xids", lambda device: staying("nvml.xid.errors")(None, device))
    devices = [H200, replace(H200, id="cuda:1")]
    with ThreadPoolExecutor(16) as pool:
        asked = [(device, [name]) for device in devices for kind in kinds for name in kind for _ in range(8)]
        answers = list(pool.map(lambda request: source.read(*request), asked))
    assert all(list(answer.values()) == [1.0] for answer in answers)
    for kind in kinds:
        assert max(sum(name in kind for name in names) for names in together) == 1, kind


def test_slow_calls_do_not_delay_fast_ones(monkeypatch, source):
    begun, end = threading.Event(), threading.Event()

    def stays(nvml, gpu):
        begun.set()
        return float(end.wait(timeout=30))

    monkeypatch.setitem(COUNTERS.READ, "nvml.energy", stays)
    monkeypatch.setitem(COUNTERS.READ, "nvml.power", lambda nvml, gpu: 80.0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(source.read, H200, ["nvml.energy"])
        assert begun.wait(timeout=30)
        assert source.read(H200, ["nvml.power"]) == {"nvml.power": 80.0}
        end.set()
        assert waiting.result() == {"nvml.energy": 1.0}


def test_a_slow_call_that_never_returns_delays_the_others_for_a_bounded_time(monkeypatch, source):
    monkeypatch.setattr(COMMON, "_PATIENCE_S", 0.01)
    begun, end = threading.Event(), threading.Event()

    def stays(nvml, gpu):
        if gpu == 0:
            begun.set()
            end.wait(timeout=30)
        return 1.0

    monkeypatch.setitem(COUNTERS.READ, "nvml.energy", stays)
    second_gpu = replace(H200, id="cuda:1")
    with ThreadPoolExecutor(1) as pool:
        hung = pool.submit(source.read, H200, ["nvml.energy"])
        assert begun.wait(timeout=30)
        for _ in range(3):
            assert source.read(second_gpu, ["nvml.energy"]) == {"nvml.energy": 1.0}
        assert not hung.done()
        end.set()
        assert hung.result() == {"nvml.energy": 1.0}
    assert source.read(second_gpu, ["nvml.energy"]) == {"nvml.energy": 1.0}, "and then one goes after the other again"
    assert not COMMON.slow._lock.locked()
    assert not COMMON.slow._is_stuck


# ---- GPM


class GpmCard:
    def __init__(self, lacks=()):
        self.lacks = lacks
        for name in ("NVMLError", "c_nvmlGpmMetricsGet_t", "NVML_GPM_METRICS_GET_VERSION"):
            setattr(self, name, getattr(pynvml, name))

    def nvmlGpmSampleAlloc(self):  # noqa: N802
        return pynvml.c_nvmlGpmSample_t()

    def nvmlGpmSampleGet(self, gpu, sample):  # noqa: N802
        return sample

    def nvmlGpmMetricsGet(self, ask):  # noqa: N802
        for place in range(ask.numMetrics):
            metric = ask.metrics[place]
            metric.value = metric.metricId
            metric.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED if metric.metricId in self.lacks else 0
        return ask


@pytest.fixture
def clock(monkeypatch):
    """Return the clock of GPM's samples, in seconds."""
    now = [100.0]
    monkeypatch.setattr(room_module("collectors", "gpm").time, "monotonic", lambda: now[0])
    return now


def test_gpms_metrics_are_those_of_the_binding():
    module = room_module("collectors", "gpm")
    numbers = {metric.name: getattr(pynvml, f"NVML_GPM_METRIC_{metric.nvml_name}") for metric in module._METRICS}
    assert numbers == {metric.name: metric.number for metric in module._METRICS}


def test_gpm_gives_figures_in_si_units_a_tenth_of_a_second_apart(clock):
    samples = room_module("collectors", "gpm").GpmSamples(GpmCard(lacks=(pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,)), "gpu")
    clock[0] += 0.12
    values = samples.read()
    assert values["gpm.sm"] == (0, 2.0)
    assert values["gpm.pcie.rx"] == (0, 21 * 2**20), "NVML's are MiB/s"
    assert values["gpm.dram"][0] == pynvml.NVML_ERROR_NOT_SUPPORTED
    samples = room_module("collectors", "gpm").GpmSamples(GpmCard(), "gpu")
    clock[0] += 0.09
    assert samples.read() == {}
    clock[0] += 0.011
    assert samples.read()


# ---- CUPTI


def test_without_cupti_its_counters_are_unavailable_and_the_message_says_how_to_install_it():
    with pytest.raises(
        OptionalUnavailable, match=r"cupti-python is not installed; .*pip install 'gpubench-suite\[counters\]'"
    ):
        plugins.load("collectors", "cupti").open([H200])


# ---- the host's energy

HOST_MODULE = room_module("collectors", "host")


def package(folder, number, energy_uj, most_uj=1000):
    """Write the energy counter of a processor package as the kernel does."""
    zone = folder / f"intel-rapl:{number}"
    zone.mkdir(exist_ok=True)
    (zone / "energy_uj").write_text(f"{energy_uj}\n")
    (zone / "max_energy_range_uj").write_text(f"{most_uj}\n")


def test_the_energy_of_the_host_is_the_sum_over_packages_and_never_falls(tmp_path):
    with pytest.raises(OSError, match="no energy counter"):
        HOST_MODULE.Rapl(tmp_path).read()
    for number, energy in (("0", 100), ("0:0", 50), ("1", 200)):
        package(tmp_path, number, energy)
    rapl = HOST_MODULE.Rapl(tmp_path)
    assert rapl.read() == 0.0
    for number, energy in (("0", 150), ("0:0", 90), ("1", 230)):
        package(tmp_path, number, energy)
    assert rapl.read() == pytest.approx(80e-6)
    package(tmp_path, "0", 900)
    rapl = HOST_MODULE.Rapl(tmp_path)
    rapl.read()
    package(tmp_path, "0", 100)
    assert rapl.read() == pytest.approx(200e-6)
