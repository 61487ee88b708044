"""AMD's counters on a simulated /sys, and with libraries that lie, print, hang or end the process.

What is simulated is this project's own (_fake_sysfs.py) unless a test says that AMD's library read it.
"""

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import _fake_sysfs as fake
import pytest
from _modules import room_module

from gpubench import plugins
from gpubench.base.errors import Unavailable
from gpubench.model import Device

AMD = plugins.load("collectors", "amd")
ROOM = type(AMD).__module__.rpartition(".")[0]
CHILD = room_module("collectors", "amd")
VALUES = room_module("collectors", "_amd_sysfs")
NAMES = tuple(counter.name for counter in AMD.counters)


def gpu(kind, index=0):
    return Device(f"rocm:{index}", "cupy", fake.MODELS[kind].product, fake.ARCH[kind], pci=fake.pci(index).upper())


def files(root):
    """Return the collector on a tree, with no library."""
    return type(AMD)(root, libraries=())


def read(root, kind="mi300x", index=0):
    device = gpu(kind, index)
    source = files(root).open([device])
    try:
        return source.read(device, NAMES)
    finally:
        source.close()


def folder(root, index=0):
    return root / "sys/bus/pci/devices" / fake.pci(index)


def monitor(root, index=0):
    return folder(root, index) / f"hwmon/hwmon{3 + index}"


@pytest.mark.parametrize("kind", fake.MODELS)
def test_every_counter_has_the_value_in_the_files_converted_to_its_unit(tmp_path, kind):
    assert read(fake.build(tmp_path, kind), kind, 1) == fake.readings(kind, 1) | {
        "amd.throttle": 0.0 if kind == "mi250x" else None,
        "amd.dram": 41.0 if kind == "mi300x" else None,
    }


def test_each_counter_names_a_command_of_both_of_amds_tools():
    for counter in AMD.counters:
        assert "amd-smi metric" in counter.source
        assert "rocm-smi" in counter.source
        assert (counter.unit, counter.kind) != ("", "")
        assert counter.name.startswith("amd.")


@pytest.mark.parametrize(
    "value", ["N/A", "", None, True, -1, -1.0, 0xFFFF, 0xFFFFFFFF, 2**64 - 1, 4294967295.0, float("nan"), float("inf")]
)
@pytest.mark.parametrize("name", NAMES)
def test_no_sentinel_becomes_a_number(name, value):
    assert VALUES.valid(name, value) is None


def test_a_sentinel_that_was_scaled_to_another_unit_is_missing_too():
    assert VALUES.valid("amd.power", 4294.967295) is None
    assert VALUES.valid("amd.clock.gfx", 65535e6) is None
    assert VALUES.valid("amd.utilization.gfx", 101) is None
    assert VALUES.valid("amd.power", 750) == 750.0
    assert VALUES.valid("amd.memory.used", 0) is None, "as good as unknown"


@pytest.mark.parametrize(
    ("content", "field"), [("N/A", "gpu_busy_percent"), ("", "mem_busy_percent"), ("-1", "pcie_replay_count")]
)
def test_an_invalid_file_costs_its_own_counter_alone(tmp_path, content, field):
    root = fake.build(tmp_path, "mi300x")
    before = read(root)
    (folder(root) / field).write_text(content)
    after = read(root)
    changed = [name for name in NAMES if before[name] != after[name]]
    assert [after[name] for name in changed] == [None]


def test_files_that_change_during_a_run_are_read_anew(tmp_path):
    root, device = fake.build(tmp_path, "mi300x"), gpu("mi300x")
    source = files(root).open([device])
    assert source.unsupported(device) == {"amd.throttle": "the driver's files do not report it"}
    assert source.read(device, ["amd.power"]) == {"amd.power": 638.0}
    (monitor(root) / "power1_input").write_text("200000000\n")
    (folder(root) / "mem_info_vram_used").unlink()
    assert source.read(device, ["amd.power", "amd.memory.used"]) == {"amd.power": 200.0, "amd.memory.used": None}
    folder(root).unlink()
    assert set(source.read(device, NAMES).values()) == {None}, "a GPU that vanishes raises nothing"


def test_a_hardware_monitor_that_returns_under_another_number_is_found_again(tmp_path):
    root = fake.build(tmp_path, "mi250x")
    monitor(root).rename(folder(root) / "hwmon/hwmon9")
    assert read(root, "mi250x")["amd.power"] == 412.0


@pytest.mark.parametrize(
    ("kind", "table"),
    [
        ("mi300x", b""),
        ("mi300x", b"\x04\x00"),
        ("mi300x", b"\x04\x00\x01\x05"),
        ("mi300x", fake.gpu_metrics(5)[:-8]),
        ("mi300x", b"\x68\x01\x01\x09" + bytes(356)),
        ("mi300x", b"\x78\x00\x02\x03" + bytes(116)),
        ("mi300x", fake.gpu_metrics(5, energy=fake.N_A64)),  # all ones
        ("mi250x", fake.gpu_metrics(3, energy=fake.N_A64)),
    ],
)
def test_truncated_metrics_those_of_an_unknown_revision_and_an_energy_of_all_ones_are_missing(tmp_path, kind, table):
    root = fake.build(tmp_path, kind)
    (folder(root) / "gpu_metrics").write_bytes(table)
    assert read(root, kind)["amd.energy"] is None


def test_throttle_reasons_are_a_bit_mask_where_the_firmware_reports_them(tmp_path):
    root = fake.build(tmp_path, "mi250x")
    (folder(root) / "gpu_metrics").write_bytes(fake.gpu_metrics(3, throttle=1 << 32))
    assert read(root, "mi250x")["amd.throttle"] == 2.0**32


def test_the_settings_of_a_gpu_are_read_from_its_files(tmp_path):
    settings = files(fake.build(tmp_path, "mi300x")).describe(gpu("mi300x"))
    assert settings == {
        "power.limit_w": "750.0",
        "ecc": "on",
        "partition.compute": "SPX",
        "partition.memory": "NPS1",
        "performance_level": "auto",
        "pcie.generation": "5",
        "pcie.width": "16",
    }


def test_a_gpu_without_files_is_unavailable_and_the_error_says_what_to_do(tmp_path):
    with pytest.raises(Unavailable) as caught:
        files(tmp_path).open([gpu("mi300x")])
    assert "mount the host's /sys" in caught.value.remedy


# ---- libraries, each in a process of its own

AMDSMI = """
import ctypes, enum, os, sys
class AmdSmiException(Exception): pass
class AmdSmiClkType(enum.Enum): GFX = 1; MEM = 2
class AmdSmiTemperatureType(enum.Enum): HOTSPOT = 1; VRAM = 2
class AmdSmiTemperatureMetric(enum.Enum): CURRENT = 1
class AmdSmiMemoryType(enum.Enum): VRAM = 1
__version__ = "26.1"
def amdsmi_init(): print("a library that prints")
def amdsmi_get_processor_handles(): return ["gpu"]
def amdsmi_get_gpu_device_bdf(gpu): return "0000:0C:00.0"
def amdsmi_get_power_info(gpu): return {"current_socket_power": "N/A", "average_socket_power": 301}
def amdsmi_get_clock_info(gpu, kind): return {"clk": 2099 if kind is AmdSmiClkType.GFX else "N/A"}
def amdsmi_get_temp_metric(gpu, place, metric):
    if place is AmdSmiTemperatureType.VRAM: raise AmdSmiException("NOT_SUPPORTED")
    return 62
def amdsmi_get_gpu_activity(gpu): return {"gfx_activity": 65535, "umc_activity": 40}
def amdsmi_get_gpu_memory_usage(gpu, kind): return 0
def amdsmi_get_energy_count(gpu): return {"energy_accumulator": 1000000, "counter_resolution": 15.3}
"""


def library(tmp_path, monkeypatch, text, name="amdsmi"):
    """Write a module of that name, which the child imports before any other."""
    path = tmp_path / "libraries" / f"{name.replace('.', '/')}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "libraries/pyrsmi").mkdir(exist_ok=True)
    path.write_text(text)
    fake._write(tmp_path / f"libraries/{name.partition('.')[0]}-9.9.dist-info/METADATA", "Version: 9.9")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "libraries"))


def test_counters_come_from_the_library_first_and_from_the_files_where_it_has_no_value(tmp_path, monkeypatch):
    library(tmp_path, monkeypatch, AMDSMI)
    root, device = fake.build(tmp_path / "root", "mi300x"), gpu("mi300x")
    source = type(AMD)(root).open([device])
    values = source.read(device, NAMES)
    source.close()
    assert source.version == "amdsmi 26.1"
    assert values["amd.power"] == 301.0  # an average, where the current value is N/A
    assert values["amd.clock.gfx"] == 2099e6
    assert values["amd.energy"] == pytest.approx(15.3)
    assert values["amd.temperature.hotspot"] == 62.0
    by_files = {"amd.clock.memory": 1300e6, "amd.temperature.memory": 49.0, "amd.utilization.gfx": 93.0}
    assert {name: values[name] for name in by_files} == by_files
    assert values["amd.memory.used"] == fake.USED_BYTES


ENDINGS = {
    "aborts as it loads": (
        "import os, sys; sys.stderr.write('Assertion `size` failed.\\n'); sys.stderr.flush(); os.abort()",
        "killed by SIGABRT: Assertion `size` failed.",
    ),
    "is of another release than its library": (
        "raise KeyError('libamd_smi.so')",
        "exit status 1: KeyError: 'libamd_smi.so'",
    ),
    "lacks a function of its library": (
        "raise AttributeError('undefined symbol: amdsmi_set_gpu_clk_range')",
        "exit status 1: AttributeError: undefined symbol: amdsmi_set_gpu_clk_range",
    ),
    "leaves the process": ("import sys; sys.exit(1)", "exit status 1"),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_error_of_a_library_that_does_not_load_quotes_its_last_message(tmp_path, monkeypatch, ending):
    text, message = ENDINGS[ending]
    library(tmp_path, monkeypatch, text)
    with pytest.raises(Unavailable, match=re.escape(f"amdsmi ended ({message}")):
        CHILD.LibraryChild("amdsmi")


def test_a_library_that_does_not_load_leaves_the_files(tmp_path, monkeypatch):
    library(tmp_path, monkeypatch, "import os; os.abort()")
    library(tmp_path, monkeypatch, "raise ImportError('no such library')", "pyrsmi.rocml")
    root, device = fake.build(tmp_path / "root", "mi300x"), gpu("mi300x")
    collector = type(AMD)(root)
    versions = collector.versions()
    assert versions["amdgpu.driver"] == "6.10.5"
    assert versions["amd.counters"].startswith("the driver's files; amdsmi ended (")
    source = collector.open([device])
    assert source.read(device, ["amd.power"]) == {"amd.power": 638.0}


PYRSMI = """
import os, types
names = ("processor_handles", "gpu_device_bdf", "power_info", "gpu_activity", "gpu_memory_usage")
def _load_rocm_library():
    global rocm_lib
    rocm_lib = types.SimpleNamespace(**{f"amdsmi_get_{name}": lambda: 0 for name in names})
def smi_initialize(): assert rocm_lib.amdsmi_get_power_info.argtypes
def smi_get_device_count(): return 1
def smi_get_device_pci_id(i): return 0x0C << 8
def smi_get_device_average_power(i): return 4294967295.0
def smi_get_device_utilization(i): return 77
def smi_get_device_memory_busy(i): return -1
def smi_get_device_memory_used(i): return 5
"""


def test_a_library_that_aborts_during_a_run_is_replaced_by_the_next_one_and_then_by_the_files(tmp_path, monkeypatch):
    dying = AMDSMI.replace("def amdsmi_get_power_info(gpu): ", "def amdsmi_get_power_info(gpu): os.abort();")
    library(tmp_path, monkeypatch, dying)
    library(tmp_path, monkeypatch, PYRSMI, "pyrsmi.rocml")
    root, device = fake.build(tmp_path / "root", "mi300x"), gpu("mi300x")
    source = type(AMD)(root).open([device])
    names = ["amd.power", "amd.utilization.gfx", "amd.utilization.memory"]
    assert source.read(device, names) == {
        "amd.power": 638.0,  # pyrsmi gives all ones, so this is the file's value
        "amd.utilization.gfx": 77.0,
        "amd.utilization.memory": 41.0,
    }
    assert source.version == "pyrsmi 9.9"
    (message,) = source.messages(device)
    assert "amdsmi ended (killed by SIGABRT" in message
    assert message.endswith("continuing with pyrsmi 9.9")
    assert source.messages(device) == []
    source.close()


def test_two_groups_that_read_at_the_same_time_each_get_their_own_values(tmp_path, monkeypatch):
    """The sampler has a thread for each group, but there is only one child process to ask."""
    library(tmp_path, monkeypatch, AMDSMI)
    root, device = fake.build(tmp_path / "root", "mi300x"), gpu("mi300x")
    source = type(AMD)(root).open([device])
    wanted = {"amd.power": 301.0, "amd.temperature.hotspot": 62.0, "amd.clock.gfx": 2099e6}
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda name: (name, source.read(device, [name])), [*wanted] * 50)
        assert all(answer == {name: wanted[name]} for name, answer in answers)
    source.close()


def test_a_library_that_does_not_answer_in_time_is_unavailable(tmp_path, monkeypatch):
    library(
        tmp_path,
        monkeypatch,
        AMDSMI.replace("def amdsmi_get_power_info(gpu): ", "def amdsmi_get_power_info(gpu):\n  while 1: pass\n  "),
    )
    monkeypatch.setattr(CHILD, "_ANSWER_S", 0.2)
    child = CHILD.LibraryChild("amdsmi")
    with pytest.raises(Unavailable, match=r"no answer within 0\.2 s"):
        child.read(fake.pci(0), ["amd.power"])


def test_the_child_ends_when_its_input_ends():
    """The child must not outlive a sampling process that dies."""
    program = f"import sys; sys.modules['amdsmi'] = None; from {ROOM} import _amd_libraries as a\n"
    program += "a.serve(type('L', (), {'version': 'x', 'read': lambda *_: None})(), sys.stdin, sys.stdout)"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps([fake.pci(0), ["amd.power"]]),
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert [json.loads(line) for line in ended.stdout.splitlines()] == ["x", {"amd.power": None}]


PROCESSES = (
    AMDSMI
    + """
def amdsmi_get_gpu_process_list(gpu):
    known = {"pid": 71, "name": "train", "memory_usage": {"gtt_mem": 1, "cpu_mem": 2, "vram_mem": 3 * 2**30}}
    return [known, {"pid": 72, "memory_usage": {"vram_mem": "N/A"}}]
"""
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PROCESSES, [(71, 3.0 * 2**30), (72, None)]),
        (AMDSMI, []),
        (AMDSMI + "\ndef amdsmi_get_gpu_process_list(gpu): return ['a handle of an older release']", []),
    ],
    ids=["told", "no such function", "another form"],
)
def test_the_library_lists_the_processes_on_a_gpu_with_their_memory(tmp_path, monkeypatch, text, expected):
    library(tmp_path, monkeypatch, text)
    source = AMD.processes([gpu("mi300x")])
    processes = source.read(gpu("mi300x"))
    source.close()
    assert [(process.pid, process.memory_bytes) for process in processes] == expected
