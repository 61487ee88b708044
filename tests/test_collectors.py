"""The collectors: their declarations, the host's readings on this machine, and the verdicts of their watches."""

import inspect
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import _parade
import psutil
import pynvml
import pytest
from _modules import room_module

from gpubench import plugins
from gpubench.base.errors import DeviceError
from gpubench.model import Device, Measure
from gpubench.model.store import read_run
from gpubench.plugins.collector import Condition

COLLECTORS = ("cupti", "gpm", "host", "nvml")
HOST = Device("host", "host", "a processor", "x86_64")
DETAILS = (("clock.sm_hz", "1980000000"), ("power.limit_w", "700.0"))
H200 = Device("cuda:0", "cupy", "NVIDIA H200", "sm_90", details=DETAILS)
RECORDINGS = sorted((Path(__file__).parent / "recordings").glob("*.jsonl.gz"))


def collector(name):
    return plugins.load("collectors", name)


NVML = room_module("collectors", "_nvml_watch")
OTHERS = room_module("collectors", "_strangers")
WATCH = room_module("collectors", "host")

# ---- what is declared


@pytest.mark.parametrize("name", COLLECTORS)
def test_counter_names_are_unique_and_begin_with_their_collector(name):
    names = [counter.name for counter in collector(name).counters]
    assert all(counter_name.startswith(f"{name}.") for counter_name in names)
    assert len(set(names)) == len(names)
    assert [collector(name).accepts(device) for device in (HOST, H200)] == [name == "host", name != "host"]


# ---- the host's counters on this machine


def read_host(*names):
    source = collector("host").open([HOST])
    values = source.read(HOST, names)
    source.close()
    return values


def test_the_host_reads_sane_numbers_here():
    unsupported = collector("host").open([HOST]).unsupported(HOST)
    values = read_host(*(counter.name for counter in collector("host").counters))
    assert {name for name, value in values.items() if value is None} == set(unsupported)
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    total = os.cpu_count() * uptime
    assert 0 < values["host.cpu.busy"] < 1.01 * total
    assert 0 <= values["host.cpu.steal"] < total
    assert values["host.cpu.clock"] is None or 1e8 < values["host.cpu.clock"] < 1e10
    assert 0 < values["host.memory.available"] < psutil.virtual_memory().total
    assert 0 <= values["host.load"] < 1e5


def test_busy_time_is_that_of_proc_stat_with_guests_counted_once(monkeypatch):
    cpu = psutil._pslinux.scputimes(
        user=10.0,
        nice=2.0,
        system=3.0,
        idle=100.0,
        iowait=5.0,
        irq=0.5,
        softirq=0.5,
        steal=1.0,
        guest=4.0,
        guest_nice=1.0,
    )
    monkeypatch.setattr(psutil, "cpu_times", lambda: cpu)
    assert read_host("host.cpu.busy", "host.cpu.steal") == {"host.cpu.busy": 17.0, "host.cpu.steal": 1.0}


def unavailable():
    raise NotImplementedError("can't find current frequency file")


@pytest.mark.parametrize("answer", [unavailable, lambda: None], ids=["it raises", "it has none"])
def test_a_counter_that_fails_is_missing_and_the_others_continue(monkeypatch, answer):
    monkeypatch.setattr(psutil, "cpu_freq", answer)
    values = read_host("host.cpu.clock", "host.load")
    assert values["host.cpu.clock"] is None
    assert values["host.load"] >= 0


# ---- the GPU's verdict, of plain numbers

IDLE, USER, CAP, SLOW, BOOST, SW_HOT, HW_HOT, BRAKE, DISPLAY = 1, 2, 4, 8, 0x10, 0x20, 0x40, 0x80, 0x100
DEFAULT_HZ = 1980e6


def verdict(reasons, clock_hz=DEFAULT_HZ, default_hz=DEFAULT_HZ, processes=1, baseline=1, drawn=None):
    return NVML.condition_of(reasons, clock_hz, default_hz, processes, baseline, drawn)


LOW_HZ = 345e6


@pytest.mark.parametrize(
    ("reasons", "clock_hz", "discard"),
    [
        (SLOW, DEFAULT_HZ, ("hw-slowdown",)),
        (SW_HOT, DEFAULT_HZ, ("thermal",)),
        (SW_HOT | HW_HOT, DEFAULT_HZ, ("thermal",)),
        (BRAKE, DEFAULT_HZ, ("power-brake",)),
        (SLOW | HW_HOT, DEFAULT_HZ, ("thermal",)),
        (SLOW | BRAKE, DEFAULT_HZ, ("power-brake",)),
        (SLOW | HW_HOT | BRAKE, DEFAULT_HZ, ("thermal", "power-brake")),
        (SLOW | CAP, DEFAULT_HZ, ("hw-slowdown",)),
        (0, 0.749 * DEFAULT_HZ, ("low-clock",)),
        (0, 0.75 * DEFAULT_HZ, ()),
        (0, 1.1 * DEFAULT_HZ, ()),
        *[(reasons, LOW_HZ, ()) for reasons in (IDLE, USER, CAP, None)],  # they explain a low clock
        *[(reasons, LOW_HZ, ("low-clock",)) for reasons in (BOOST, DISPLAY)],
        (HW_HOT, LOW_HZ, ("thermal",)),  # counted once where a slow-down lowers the clock
        (BRAKE, LOW_HZ, ("power-brake",)),
        (SLOW, LOW_HZ, ("hw-slowdown",)),
        (0, None, ()),
    ],
)
def test_a_slow_down_is_discarded_by_its_most_specific_name_and_so_is_a_low_clock_alone(reasons, clock_hz, discard):
    assert verdict(reasons, clock_hz).discard == discard
    assert verdict(reasons, LOW_HZ, None).discard == verdict(reasons).discard, "without a default no clock is low"


@pytest.mark.parametrize(
    ("reasons", "clock_hz", "drawn", "condition"),
    [
        *[(r, DEFAULT_HZ, None, Condition()) for r in (0, IDLE, USER, BOOST, DISPLAY, IDLE | USER | BOOST | DISPLAY)],
        (CAP, DEFAULT_HZ, None, Condition((), ("power-capped",))),
        (CAP, 0.5 * DEFAULT_HZ, None, Condition((), ("power-capped",))),
        # an H200 0.15 s into a large product: its clock was lower, and no reason was reported yet
        (0, 1470e6, 684.885 / 700, Condition((), ("power-capped",))),
        (0, 1635e6, 848.863 / 700, Condition((), ("power-capped",))),
        (0, 1470e6, 0.89, Condition(("low-clock",))),
        (0, 1470e6, None, Condition(("low-clock",))),
        (0, DEFAULT_HZ, 1.0, Condition()),
        (HW_HOT, 1470e6, 1.0, Condition(("thermal",))),
        (USER, 1470e6, 1.0, Condition()),
    ],
)
def test_the_power_cap_is_a_label_and_explains_a_low_clock_only_without_another_reason(
    reasons, clock_hz, drawn, condition
):
    assert verdict(reasons, clock_hz, drawn=drawn) == condition
    assert (NVML.default_clock_hz(H200), NVML.default_clock_hz(HOST)) == (DEFAULT_HZ, None), "of the inventory"


@pytest.mark.parametrize(
    ("processes", "baseline", "is_foreign"),
    [(2, 1, True), (1, 0, True), (1, 1, False), (0, 1, False), (None, 1, False), (5, None, False)],
)
def test_a_process_more_than_at_the_start_is_foreign(processes, baseline, is_foreign):
    assert verdict(0, processes=processes, baseline=baseline).discard == ("foreign-process",) * is_foreign
    both = verdict(HW_HOT | CAP, processes=processes, baseline=baseline)
    assert both == Condition(("thermal", *("foreign-process",) * is_foreign), ("power-capped",))
    assert NVML.condition_of(None, None, None, None, None) == Condition()


def test_the_bits_of_throttle_reasons_are_those_of_nvmls_binding():
    (reasons,) = (counter for counter in collector("nvml").counters if counter.measures is Measure.THROTTLE_REASONS)
    assert {bit.mask: (bit.name, bit.kind.value) for bit in reasons.bits} == {
        pynvml.nvmlClocksEventReasonGpuIdle: ("idle", "idle"),
        pynvml.nvmlClocksEventReasonApplicationsClocksSetting: ("application clocks", "user's choice"),
        pynvml.nvmlClocksEventReasonSwPowerCap: ("power cap", "power cap"),
        pynvml.nvmlClocksEventReasonHwSlowdown: ("hardware slowdown", "hardware slowdown"),
        pynvml.nvmlClocksEventReasonSyncBoost: ("sync boost", "user's choice"),
        pynvml.nvmlClocksEventReasonSwThermalSlowdown: ("thermal, by software", "thermal"),
        pynvml.nvmlClocksEventReasonHwThermalSlowdown: ("thermal, by hardware", "thermal"),
        pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: ("power brake", "hardware slowdown"),
        pynvml.nvmlClocksEventReasonDisplayClockSetting: ("display clocks", "user's choice"),
    }


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
def test_no_recorded_state_of_a_measured_h200_would_be_discarded(path):
    """Between the cases its clocks may be low without a reason: they are on their way up or down."""
    run = read_run(path)
    windows = [result.window for result in run.results if "cuda:0" in result.devices]
    conditions = [
        verdict(int(reasons), clock_hz)
        for samples in run.samples
        if samples.device == "cuda:0" and "nvml.event_reasons" in (columns := dict(samples.columns))
        for at, reasons, clock_hz in zip(
            samples.at, columns["nvml.event_reasons"], columns["nvml.clock.sm"], strict=True
        )
        if any(start <= at <= end for start, end in windows)
    ]
    assert {condition.discard for condition in conditions} == {()}
    assert {condition.labels for condition in conditions} <= {(), ("power-capped",)}
    assert conditions


# ---- whose processes

BEYOND = int(Path("/proc/sys/kernel/pid_max").read_text()) + 7  # no process of this machine has such an id
PARENT = os.getppid()


@pytest.fixture
def child():
    with psutil.Popen([sys.executable, "-c", "input()"], stdin=-1) as process:
        yield process.pid
        process.stdin.close()


def test_processes_of_the_runner_are_not_foreign_and_unseen_ones_have_no_program(child):
    assert OTHERS.Strangers(runner=os.getpid()).among((os.getpid(), child)) == ()
    assert OTHERS.Strangers(runner=PARENT).among((PARENT, os.getpid(), child)) == ()
    runner = OTHERS.Strangers(runner=child)
    assert runner.among((os.getpid(), PARENT)) == (PARENT,)
    assert runner.are_seen((os.getpid(), PARENT))
    strangers = OTHERS.Strangers(runner=os.getppid())
    assert strangers.among((BEYOND, BEYOND + 1)) == (BEYOND, BEYOND + 1)
    assert not strangers.are_seen((BEYOND, BEYOND + 1))
    assert not strangers.are_seen((BEYOND, 1)), "this process is not in the list: the numbers are not ours to see"
    assert not strangers.are_seen((os.getpid(), BEYOND)), "it is in the list, and the other has ended"


# ---- the GPU's watch, on a driver that plays a state


class StubbedNvml:
    """NVML in one state: a call that is in `broken` raises that error; calls are counted."""

    NVMLError = pynvml.NVMLError
    NVML_CLOCK_SM = pynvml.NVML_CLOCK_SM
    NVML_ERROR_GPU_IS_LOST = pynvml.NVML_ERROR_GPU_IS_LOST
    NVML_ERROR_FUNCTION_NOT_FOUND = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    NVML_FI_DEV_POWER_INSTANT = pynvml.NVML_FI_DEV_POWER_INSTANT

    def __init__(self, reasons=0, clock_mhz=1980, pids=(), broken=None, power_mw=100_000):
        self.reasons, self.clock_mhz, self.pids, self.power_mw = reasons, clock_mhz, pids, power_mw
        self.broken = broken or {}
        self.calls = []

    def _answer(self, name, value):
        """Note the call and return the value, or raise the error that is planned for it."""
        self.calls.append(name)
        if name in self.broken:
            raise pynvml.NVMLError(self.broken[name])
        return value

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu):  # noqa: N802
        return self._answer("reasons", self.reasons)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu):  # noqa: N802
        return self._answer("old reasons", self.reasons)

    def nvmlDeviceGetClockInfo(self, gpu, clock):  # noqa: N802
        return self._answer("clock", self.clock_mhz)

    def nvmlDeviceGetFieldValues(self, gpu, asked):  # noqa: N802
        assert asked == [(self.NVML_FI_DEV_POWER_INSTANT, 0)]
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=self._answer("power", self.power_mw)))]

    def nvmlDeviceGetComputeRunningProcesses(self, gpu):  # noqa: N802
        return self._answer("processes", [SimpleNamespace(pid=pid) for pid in self.pids])


def started_watch(driver):
    watch = NVML.NvmlWatch(driver, None, H200)
    watch.begin()
    return watch


@pytest.fixture
def every_look(monkeypatch):
    """Let the watch read the list of processes at every sample."""
    monkeypatch.setattr(OTHERS, "PERIOD_S", 0.0)


READS = ("clock", "reasons", "processes")


@pytest.mark.parametrize("broken", [*[(name,) for name in READS], READS], ids="+".join)
def test_a_failed_read_discards_no_sample(broken, every_look):
    clock_mhz = 345 if "reasons" in broken else 1980  # the clock is low without a reported reason
    driver = StubbedNvml(0, clock_mhz, (1,), dict.fromkeys(broken, pynvml.NVML_ERROR_NOT_SUPPORTED))
    condition = started_watch(driver).look()
    assert (condition.discard, condition.labels) == ((), ())
    assert condition.clock_hz == (None if "clock" in broken else clock_mhz * 1e6)


@pytest.mark.parametrize(("clock_mhz", "reasons", "asked"), [(1980, 0, 0), (1470, CAP, 0), (1470, 0, 1)])
def test_power_is_read_only_where_it_could_explain_a_low_clock(clock_mhz, reasons, asked):
    driver = StubbedNvml(reasons, clock_mhz, power_mw=690_000)
    assert started_watch(driver).look().discard == ()
    assert driver.calls.count("power") == asked


@pytest.mark.parametrize(
    ("driver", "discard"),
    [
        (StubbedNvml(0, 1470, broken={"power": pynvml.NVML_ERROR_NOT_SUPPORTED}), ("low-clock",)),
        # a driver before 535 knows the reasons by their old name
        (StubbedNvml(HW_HOT, broken={"reasons": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}), ("thermal",)),
    ],
)
def test_a_gpu_without_a_power_reading_or_with_an_old_driver_is_judged(driver, discard):
    assert started_watch(driver).look().discard == discard


@pytest.mark.parametrize("name", READS)
def test_an_unreachable_gpu_is_a_device_error_that_names_it(name, every_look):
    driver = StubbedNvml()
    watch = started_watch(driver)
    driver.broken = {name: pynvml.NVML_ERROR_GPU_IS_LOST}
    with pytest.raises(DeviceError, match="cuda:0 is lost"):
        watch.look()


def test_a_process_that_comes_is_foreign_until_it_goes(every_look):
    driver = StubbedNvml(pids=(BEYOND,))
    watch = started_watch(driver)
    seen = []
    for pids in [(BEYOND,), (BEYOND, BEYOND + 1), (BEYOND, BEYOND + 1), (BEYOND,)]:
        driver.pids = pids
        seen.append(watch.look().discard)
    assert seen == [(), ("foreign-process",), ("foreign-process",), ()]


def test_another_rank_of_ours_is_not_foreign(child, every_look, monkeypatch):
    monkeypatch.setattr(os, "getppid", lambda: os.getpid())  # this process is the runner too
    driver = StubbedNvml(pids=(os.getpid(),))
    watch = started_watch(driver)
    driver.pids = (os.getpid(), child)
    assert watch.look().discard == ()


def test_a_gpu_that_others_use_from_the_start_is_labelled_shared(child, monkeypatch):
    monkeypatch.setattr(os, "getppid", lambda: child)  # the parent of this process is then no descendant of the runner
    assert started_watch(StubbedNvml(pids=(os.getpid(), PARENT))).look().labels == ("shared-device",)
    assert started_watch(StubbedNvml(pids=(os.getpid(),))).look().labels == ()


def test_the_list_of_processes_is_read_every_50_ms_and_the_rest_at_every_sample(monkeypatch):
    driver = StubbedNvml()
    clock = iter([0.0, 0.01, 0.049, 0.05, 0.06, 0.1])
    monkeypatch.setattr(OTHERS.time, "monotonic", lambda: next(clock))
    watch = started_watch(driver)
    for _ in range(5):
        watch.look()
    assert driver.calls == [
        *("processes", "clock", "reasons", "clock", "reasons"),
        *("clock", "reasons", "processes", "clock", "reasons"),
        *("clock", "reasons", "processes"),
    ]


# ---- the host's verdict, of plain numbers

TICK = WATCH.TICK_S


@pytest.mark.parametrize(
    ("rise_s", "elapsed_s", "stolen"),
    [
        (0.0, 0.02, False),
        (TICK, 0.02, True),
        (TICK, 99 * TICK, True),
        (TICK, 101 * TICK, False),
        (5 * TICK, 400 * TICK, True),
        (5 * TICK, 600 * TICK, False),
    ],
)
def test_steal_counts_from_one_tick_and_one_hundredth_of_the_time(rise_s, elapsed_s, stolen):
    before = WATCH.CpuTimes(1000.0, 10.0)
    after = WATCH.CpuTimes(1000.0 + elapsed_s, 10.0 + rise_s)
    assert WATCH.is_stolen(before, after) == stolen


def test_the_files_of_the_kernel_are_read_with_care():
    assert not WATCH.is_stolen(WATCH.CpuTimes(1.0, None), WATCH.CpuTimes(2.0, None)), "steal may be unreported"
    assert WATCH.runnable_in("1.12 0.92 0.92 3/89 32475\n") == 3
    assert WATCH.state_in("17 (a (b) R c) S 1 17") == "S", "a thread's name may hold anything"


@pytest.mark.parametrize(
    ("stolen", "migrated", "others", "condition"),
    [
        (False, False, 0, Condition()),
        (True, False, 0, Condition(("steal",))),
        (False, True, 0, Condition((), ("migrated",))),
        (True, True, 4, Condition(("steal",), ("migrated", "loaded"))),
        (False, False, 0.9, Condition()),
        (False, False, 1, Condition((), ("loaded",))),
        (False, False, None, Condition()),
    ],
)
def test_steal_is_a_discard_and_a_move_and_load_are_labels(stolen, migrated, others, condition):
    assert WATCH.condition_of(stolen, migrated, others, 4) == condition


# ---- the host's watch on this machine


@pytest.fixture
def watch():
    return collector("host").watch(HOST)


NODES = [int(path.name.removeprefix("node")) for path in Path("/sys/devices/system/node").glob("node[0-9]*")] or [0]


def test_a_thread_that_moves_to_another_node_is_reported_once(watch, monkeypatch):
    nodes = iter([0, 0, 1, 1, 0, 0])
    monkeypatch.setattr(watch, "_node", lambda: next(nodes))
    watch.begin()
    assert ["migrated" in watch.look().labels for _ in range(3)] == [False, True, False]
    watch.begin()
    assert "migrated" not in watch.look().labels, "a move before the case's start is in no sample"


@pytest.mark.skipif(len(NODES) > 1, reason="needs a machine of one node")
def test_a_move_to_another_cpu_of_the_same_node_is_not_reported(watch):
    allowed = os.sched_getaffinity(0)
    conditions = []
    try:
        for cpu in sorted(allowed)[:2]:
            os.sched_setaffinity(0, {cpu})
            conditions.append(watch.look())
    finally:
        os.sched_setaffinity(0, allowed)
    assert {*conditions} <= {Condition(), Condition(("steal",))}


def test_load_is_judged_on_its_mean_since_the_start(watch, monkeypatch):
    readings = iter([9, 0, 0, 0, 40, 40])
    monkeypatch.setattr(WATCH, "_count_foreign_threads", lambda: next(readings))
    monkeypatch.setattr(WATCH, "_LOAD_S", 0.0)
    watch.begin()
    means = [watch._load(now) for now in (1e12, 2e12, 3e12, 4e12, 5e12)]
    assert means == [None, 3.0, 2.25, 9.8, 89 / 6]


# ---- the document


def test_the_document_lists_every_counter_as_it_is():
    rows = [
        [counter.name, *counter.unit.split(), counter.kind, *f"{counter.period_s:g} s {counter.source}".split()]
        for name in ("amd", *COLLECTORS)
        for counter in collector(name).counters
    ]
    document = (Path(__file__).parents[1] / "docs" / "counters.md").read_text()
    ours = tuple(f"    {name}." for name in ("amd", *COLLECTORS))
    listed = [line.split() for line in document.splitlines() if line.startswith(ours)]
    assert listed == rows


def test_the_processes_of_another_slice_are_nobody_s_business_of_a_mig_instance():
    places = ((3, 0), (4, 0), (0xFFFFFFFF, 0xFFFFFFFF), (3, 1))
    listed = [
        SimpleNamespace(pid=pid, gpuInstanceId=instance, computeInstanceId=part)
        for pid, (instance, part) in enumerate(places, 1)
    ]
    nvml = SimpleNamespace(
        nvmlDeviceGetComputeRunningProcesses=lambda gpu: listed,
        nvmlDeviceGetGpuInstanceId=lambda gpu: 3,
        nvmlDeviceGetComputeInstanceId=lambda gpu: 0,
    )
    assert NVML.process_ids(nvml, None, is_mig=True) == (1, 3)
    assert NVML.process_ids(nvml, None, is_mig=False) == (1, 2, 3, 4)
    refusing = silent_nvml(**{name: call(0) for name, call in vars(nvml).items()})
    card = room_module("collectors", "_nvml_health").CardHealth(refusing, 0, _parade.facts_of("mig").devices[0])
    (processes,) = (reading for reading in card.readings() if reading.sign.name == "PROCESSES")
    assert (processes.value, processes.note) == (2, "process numbers 1, 3")


def silent_nvml(**answers):
    """Return NVML's binding whose calls are refused as not supported, but for these answers by name."""

    def refuse(*_):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    calls = {name: refuse for name in vars(pynvml) if name.startswith("nvmlDevice") or name == "nvmlEventSetCreate"}
    return SimpleNamespace(
        **{**vars(pynvml), **calls, **{name: lambda *_, v=value: v for name, value in answers.items()}}
    )


@pytest.mark.parametrize(
    ("card", "ecc", "is_wsl", "reason"),
    [
        ("rtx-4090", None, False, "Not Supported; this GPU has no ECC"),
        ("a10", [0, 0], False, "Not Supported; ECC is off"),
        ("h100-sxm", [1, 1], False, "Not Supported"),
        ("mig", None, False, "Not Supported; a MIG instance shares clocks, power and links with the other instances"),
        ("vgpu", None, False, "Not Supported; the host of a virtual GPU keeps its clocks, power and errors"),
        ("orin", None, False, "Not Supported; an integrated GPU has no power sensor"),
        ("wsl", None, True, "Not Supported; under WSL the driver belongs to Windows"),
    ],
)
def test_a_device_that_reads_no_health_says_why_of_each_reading(card, ecc, is_wsl, reason, monkeypatch, tmp_path):
    nvml = silent_nvml(nvmlDeviceGetGpuInstanceId=3, nvmlDeviceGetComputeInstanceId=0, nvmlDeviceGetHandleByUUID=0)
    nvml.nvmlDeviceGetHandleByPciBusId = nvml.nvmlDeviceGetHandleByUUID
    if ecc:
        nvml.nvmlDeviceGetEccMode = lambda _: ecc
    monkeypatch.setattr(room_module("collectors", "_nvml"), "_WSL", tmp_path if is_wsl else tmp_path / "none")
    rooms = room_module("collectors", "_nvml_health")
    device = _parade.facts_of(card).devices[0]
    xids = inspect.getmodule(plugins.load("collectors", "nvml").__class__).Xids
    alive, *readings = rooms.NvmlHealth(nvml, xids, tmp_path / "log").read(device)
    assert (alive.value, len(readings)) == (0.0, 18)
    notes = {reading.sign.name: reading.note for reading in readings if reading.value is None}
    assert len(notes) == 18
    assert notes["ECC_UNCORRECTED"].startswith(reason)
    assert notes["PAGES_RETIRED"].startswith(reason)
    assert all(note.partition("; ")[2].startswith(reason.partition("; ")[2]) for note in notes.values()) or card in (
        "rtx-4090",
        "a10",
    )


def test_the_errors_of_another_slice_are_nobody_s_business_of_a_mig_instance(tmp_path):
    log = tmp_path / "log"
    places = (" GPU-I:03 GPU-CI:00", " GPU-I:04 GPU-CI:00", "")
    log.write_text("".join(f"4,1,2,-;NVRM: Xid (PCI:0000:0a:00{at}): {31 + i}, x\n" for i, at in enumerate(places)))
    xids_in_log = room_module("collectors", "_nvml_health").xids_in_log
    assert xids_in_log(log, "0000:0a:00.0", 3) == [31, 33]
    assert xids_in_log(log, "0000:0a:00.0") == [31, 32, 33]
    module = inspect.getmodule(plugins.load("collectors", "nvml").__class__)
    events = iter([SimpleNamespace(eventData=13, gpuInstanceId=at, computeInstanceId=0) for at in (4, 3)])

    def wait(*_):
        if event := next(events, None):
            return event
        raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)

    nvml = silent_nvml(nvmlDeviceGetGpuInstanceId=3, nvmlDeviceGetComputeInstanceId=0, nvmlEventSetCreate=0)
    nvml.nvmlEventSetWait_v2, nvml.nvmlDeviceRegisterEvents = wait, lambda *_: None
    assert module.Xids(nvml, 0, True).read() == 1


@pytest.mark.parametrize(
    ("card", "kind", "clause"),
    [
        ("mig", "mig", "shares clocks, power and links with the other instances"),
        ("vgpu", "vgpu", "the host of a virtual GPU keeps its clocks"),
        ("orin", "integrated", "has no power sensor"),
        ("rtx-4090", "card", ""),
    ],
)
def test_a_missing_counter_has_the_reason_of_its_kind_of_device(card, kind, clause):
    device = _parade.facts_of(card).devices[0]
    assert device.kind == kind
    (reason,) = room_module("collectors", "_nvml").lacking(device, {"nvml.power": "Not Supported"}).values()
    assert (reason.partition("; ")[0], clause in reason) == ("Not Supported", True)
    assert reason.count(";") == bool(clause)


def test_a_card_without_gpm_says_whether_its_architecture_or_its_kind_is_the_reason():
    gpm, cards = inspect.getmodule(plugins.load("collectors", "gpm").__class__), ("rtx-4090", "mig", "gb10", "rtx-5090")
    reasons = [gpm._why_without(_parade.facts_of(card).devices[0]) for card in cards]
    assert reasons == [
        "GPM counters begin with sm_90 (Hopper); this GPU is sm_89",
        *(f"the driver gives {kind} no GPM counters" for kind in ("a MIG instance", "an integrated GPU", "this GPU")),
    ]
