"""The watch of AMD GPUs, the processes on them, split cards and APUs: all on a simulated /sys (_fake_sysfs.py)."""

import os

import _fake_sysfs as fake
import pytest
from _modules import room_module

from gpubench import plugins
from gpubench.base.errors import DeviceError, Unavailable
from gpubench.model import Device, EventClass
from gpubench.plugins.collector import Condition, OpensWatch

AMD = plugins.load("collectors", "amd")
WATCH = room_module("collectors", "amd")
EVENTS = room_module("collectors", "_amd_events")
METRICS = room_module("collectors", "_amd_sysfs")
PROCESSES = room_module("collectors", "_amd_health")
OTHERS = room_module("collectors", "_strangers")
PPT, HOTSPOT, PROCHOT = 1 << 0, 1 << 36, 1 << 47
FIRST_PID = 10**7  # no process of this machine has such an id


def gpu(kind, index=0, pci=None):
    return Device(f"rocm:{index}", "cupy", fake.MODELS["mi300x"].product, fake.ARCH[kind], pci=pci or fake.pci(index))


def files(root):
    """Return the collector on a tree, with no library."""
    return type(AMD)(root, libraries=())


def write(root, **fields):
    """Write a new table of the firmware for the first GPU, in its present revision."""
    path = fake.folder(root) / "gpu_metrics"
    path.write_bytes(fake.gpu_metrics(path.read_bytes()[3], **fields))


@pytest.fixture
def every_look(monkeypatch):
    """Let the watch read the table and the list of processes at every sample."""
    monkeypatch.setattr(OTHERS, "PERIOD_S", 0.0)
    monkeypatch.setattr(WATCH, "_MOST", float("inf"))


def started_watch(root, kind="mi300x", index=0):
    """Return the watch of a GPU below `root` at the start of a case."""
    collector = files(root)
    assert isinstance(collector, OpensWatch)
    watch = collector.watch(gpu(kind, index))
    watch.begin()
    return watch


# ---- throttling


@pytest.mark.parametrize(
    ("mask", "discard", "labels"),
    [
        (0, (), ()),
        (PPT, (), ("power-capped",)),
        (1 << 18, (), ("power-capped",)),  # a current limit
        (HOTSPOT, ("thermal",), ()),
        (PROCHOT, ("hw-slowdown",), ()),
        (PPT | HOTSPOT | PROCHOT, ("thermal", "hw-slowdown"), ("power-capped",)),
        (1 << 57, (), ()),  # a reliability limit, which discards no sample
    ],
)
def test_each_throttle_reason_of_an_mi250x_has_its_verdict(tmp_path, every_look, mask, discard, labels):
    root = fake.build(tmp_path, "mi250x")
    watch = started_watch(root, "mi250x")
    write(root, throttle=mask, gfx_mhz=1700)
    assert watch.look() == Condition(discard, labels, 1700e6)
    write(root)
    assert watch.look().discard == ()


@pytest.mark.parametrize(
    ("place", "condition"),
    [
        (0, Condition(("hw-slowdown",))),
        (1, Condition((), ("power-capped",))),
        (2, Condition(("thermal",))),
        (3, Condition(("thermal",))),
        (4, Condition(("thermal",))),
    ],
    ids=["PROCHOT", "package power", "socket", "voltage regulator", "HBM"],
)
def test_a_reason_that_lasted_between_two_samples_of_an_mi300x_disturbs_the_last_one(
    tmp_path, every_look, place, condition
):
    """The firmware counts how long each reason held. The count starts far from 0, and rises or starts again."""
    root = fake.build(tmp_path, "mi300x", revision=6)
    counts = [2**32 - 2] * 5
    write(root, residencies=counts)
    watch = started_watch(root)
    assert watch.look() == Condition((), (), 2100e6)
    for value in (2**32 - 1, 3):  # a count with all bits set is missing
        counts[place] = value
        write(root, residencies=counts, gfx_mhz=900)
    assert watch.look() == Condition(condition.discard, condition.labels, 900e6)
    assert watch.look().discard == ()


def test_without_throttle_reasons_a_sample_is_labelled_and_clock_and_processes_are_watched(tmp_path, every_look):
    root = fake.build(tmp_path, "mi300x")  # the throttle status of revision 5 is always 0
    watch = started_watch(root)
    assert watch.look() == Condition((), ("unwatched",), 2100e6)
    fake.process(root, FIRST_PID, {0: 2**20})
    assert watch.look().discard == ("foreign-process",)


def test_no_list_of_processes_and_no_table_discard_no_sample_and_a_gpu_that_is_gone_is_an_error(tmp_path, every_look):
    root = fake.build(tmp_path, "mi300x", revision=6)
    (root / "sys/class/kfd/kfd").unlink()
    watch = started_watch(root)
    assert watch.look() == Condition((), (), 2100e6)
    (fake.folder(root) / "gpu_metrics").unlink()
    assert watch.look() == Condition((), ("unwatched",), None)
    fake.folder(root).unlink()
    with pytest.raises(DeviceError, match="rocm:0 is gone"):
        watch.look()


def test_a_gpu_without_files_has_no_watch(tmp_path):
    with pytest.raises(Unavailable, match="no files for rocm:0"):
        files(tmp_path).watch(gpu("mi300x"))


def test_a_slow_table_is_read_for_two_per_cent_of_the_time_and_its_last_value_holds_between(tmp_path, monkeypatch):
    """A reading that takes 1 ms: the next one comes 50 ms later."""
    root = fake.build(tmp_path, "mi250x")
    now = [0.0]
    monkeypatch.setattr(WATCH.time, "monotonic", lambda: now[0])
    read = METRICS.parsed

    def slow(table):
        now[0] += 0.001
        return read(table)

    monkeypatch.setattr(room_module("collectors", "_amd_sysfs"), "parsed", slow)
    watch = started_watch(root, "mi250x")
    write(root, throttle=HOTSPOT)
    verdicts = []
    for _ in range(6):
        now[0] += 0.01
        verdicts.append(watch.look().discard)
    assert verdicts == [(), (), (), (), ("thermal",), ("thermal",)]


def test_the_counter_of_throttle_reasons_shows_the_bits_that_the_watch_sees(tmp_path):
    root = fake.build(tmp_path, "mi300x", revision=6)
    source = files(root).open([gpu("mi300x")])
    assert source.unsupported(gpu("mi300x")) == {}
    write(root, residencies=(0, 7, 0, 0, 9))
    values = source.read(gpu("mi300x"), ["amd.throttle", "amd.energy", "amd.dram"])
    bits = next(counter for counter in AMD.counters if counter.name == "amd.throttle").events(
        int(values["amd.throttle"])
    )
    assert [bit.kind for bit in bits] == [EventClass.POWER_CAP, EventClass.THERMAL]
    assert (values["amd.energy"], values["amd.dram"]) == (16.0, 41.0)
    assert source.read(gpu("mi300x"), ["amd.throttle"]) == {"amd.throttle": 0.0}


def test_every_bit_of_a_residency_counter_is_a_declared_throttle_reason():
    declared = {bit.mask: bit.kind for bit in EVENTS.BITS}
    kinds = [declared[bit] for bit in METRICS.RESIDENCIES]
    assert kinds == [EventClass.HARDWARE_SLOWDOWN, EventClass.POWER_CAP, *[EventClass.THERMAL] * 3]


def test_residency_counts_that_the_firmware_leaves_empty_give_no_throttle_reasons():
    table = fake.gpu_metrics(6, residencies=(2**32 - 1,) * 5)
    assert METRICS.ThrottleReasons().since(METRICS.parsed(table)) is None


# ---- processes


def test_a_process_that_comes_is_foreign_until_it_goes(tmp_path, every_look):
    root = fake.build(tmp_path, "mi300x", revision=6)
    fake.process(root, FIRST_PID, {0: 2**20})
    watch = started_watch(root)
    verdicts = [watch.look().discard]
    here = fake.process(root, FIRST_PID + 1, {0: 2**30})
    verdicts.append(watch.look().discard)
    (here / f"vram_{fake.gpu_id(0)}").write_text("0\n")
    verdicts.append(watch.look().discard)
    assert verdicts == [(), ("foreign-process",), ()]


def test_a_process_on_another_gpu_or_on_none_is_not_foreign(tmp_path, every_look):
    """Each process that opens ROCm has a file for every GPU; it uses those on which it has bytes or a queue."""
    root = fake.build(tmp_path, "mi300x", revision=6)
    watch = started_watch(root)
    fake.process(root, FIRST_PID, {0: 0, 1: 2**30})
    fake.process(root, FIRST_PID + 1, {0: 0, 1: 0})
    assert watch.look().discard == ()
    fake.process(root, FIRST_PID + 2, {0: 0, 1: 0}, queue=0)
    assert watch.look().discard == ("foreign-process",)


def test_a_gpu_of_another_pci_domain_is_another_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(fake, "pci", lambda index: f"0001:{0x0C + 0x11 * index:02x}:00.0")
    root = fake.build(tmp_path, "mi300x")
    assert PROCESSES.KfdProcesses(root, "0001:1d:00.0").gpu_ids == {fake.gpu_id(1)}
    assert PROCESSES.KfdProcesses(root, "0000:1d:00.0").read() is None


def test_a_rank_of_ours_is_not_foreign(tmp_path, every_look, monkeypatch):
    monkeypatch.setattr(os, "getppid", lambda: os.getpid())  # this process is the runner too
    root = fake.build(tmp_path, "mi300x", revision=6)
    watch = started_watch(root)
    fake.process(root, os.getpid(), {0: 2**30})
    assert watch.look().discard == ()


def test_the_monitor_lists_the_processes_by_the_files_where_no_library_answers(tmp_path, monkeypatch):
    broken = tmp_path / "libraries/amdsmi.py"
    fake._write(broken, "raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(broken.parent))
    root = fake.build(tmp_path / "root", "mi300x")
    fake.process(root, FIRST_PID, {0: 3 * 2**30, 1: 0})
    source = files(root).processes([gpu("mi300x")])
    assert [(process.pid, process.memory_bytes) for process in source.read(gpu("mi300x"))] == [(FIRST_PID, 3.0 * 2**30)]
    assert source.read(gpu("mi300x", 1)) == []
    (root / "sys/class/kfd/kfd").unlink()
    with pytest.raises(Unavailable, match="does not list processes"):
        source.read(gpu("mi300x"))
    source.close()


# ---- a card that is split, and an APU


@pytest.mark.parametrize("shift", [0, 28], ids=["in the function", "in the highest bits"])
def test_processes_on_any_partition_of_a_card_are_foreign_and_those_of_another_card_are_not(
    tmp_path, every_look, shift
):
    """Versions of Linux write the number of the partition into different bits of the location."""
    root = fake.build(tmp_path, "mi300x", revision=6, split=8)
    for device in range(16):
        path = root / f"sys/class/kfd/kfd/topology/nodes/{device + 1}/properties"
        bus = int(fake.pci(device // 8)[5:7], 16) << 8
        path.write_text(
            path.read_text().replace(f"location_id {bus | device % 8}", f"location_id {bus | device % 8 << shift}")
        )
    assert PROCESSES.KfdProcesses(root, fake.pci(1)).gpu_ids == {fake.gpu_id(device) for device in range(8, 16)}
    watch = started_watch(root)
    fake.process(root, FIRST_PID, {9: 2**30})
    assert watch.look().discard == ()
    fake.process(root, FIRST_PID + 1, {5: 2**30})
    assert watch.look().discard == ("foreign-process",)


@pytest.mark.parametrize("function", range(8))
def test_a_device_of_a_split_card_reports_its_clock_and_no_sum_over_the_card(tmp_path, function):
    root = fake.build(tmp_path, "mi300x", revision=6, split=8)
    device = gpu("mi300x", function, f"{fake.pci(0)[:-1]}{function}")
    source = files(root).open([device])
    missing = source.unsupported(device)
    assert set(missing) == {
        *("amd.power", "amd.energy", "amd.utilization.gfx", "amd.utilization.memory", "amd.dram", "amd.memory.used")
    }
    assert all("several devices (CPX)" in reason for reason in missing.values())
    assert source.read(device, ["amd.clock.gfx"]) == {"amd.clock.gfx": 2100e6}
    assert files(root).describe(device)["partition.compute"] == "CPX"


def test_every_device_of_a_split_card_sees_the_same_throttle_reason(tmp_path):
    root = fake.build(tmp_path, "mi300x", revision=6, split=8)
    devices = [gpu("mi300x", index, fake.pci(0)) for index in range(8)]
    source = files(root).open(devices)
    for counts in ((0, 0, 0, 0, 0), (0, 0, 5, 0, 0)):
        write(root, residencies=counts)
        readings = [source.read(device, ["amd.throttle"])["amd.throttle"] for device in devices]
    assert readings == [float(1 << 32)] * 8


def test_an_apu_supports_every_counter_but_those_of_the_host_bus(tmp_path, every_look):
    root = fake.build(tmp_path, "mi300a", count=4, revision=6)
    device = gpu("mi300a", 3)
    assert files(root).open([device]).unsupported(device) == {"amd.pcie.replays": "the driver's files do not report it"}
    assert started_watch(root, "mi300a", 3).look() == Condition((), (), 2100e6)
    assert files(root).describe(device)["power.limit_w"] == "550.0"
