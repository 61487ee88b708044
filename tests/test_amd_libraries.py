"""The collector's reader on AMD's own libraries: these are real, the /sys that they read is simulated.

`bash ci/rocm.sh` fetches the libraries. /sys is replaced in a mount namespace, for the library's process alone.
"""

import json
import os
import subprocess
from pathlib import Path

import _fake_sysfs as fake
import _hiprtc
import pytest
from _modules import room_module

METRICS = room_module("collectors", "_amd_sysfs")
HERE = Path(__file__).parent
COLLECTORS = HERE.parent / "collectors"
NAMES = (
    "amd.power",
    "amd.clock.gfx",
    "amd.clock.memory",
    "amd.temperature.hotspot",
    "amd.temperature.memory",
    "amd.utilization.gfx",
    "amd.utilization.memory",
    "amd.memory.used",
    "amd.energy",
    "amd.pcie.replays",
)
# AMD's libraries leave a mutex per GPU in /dev/shm.
_INSIDE = """
mount --rbind "$0/sys" /sys && mount -t tmpfs none /dev/shm && { mount -t tmpfs none /dev/dri 2>/dev/null || true; } &&
exec "$@"
"""


def namespace():
    """Return the command that gives a program its own mounts, or skip the test."""
    for command in (["unshare", "-m"], ["unshare", "-rm"]):
        if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
            return command
    pytest.skip("replacing /sys needs root, or user namespaces")


def run_on_tree(tree, *arguments, asked="", **environment):
    """Run a Python program with AMD's packages on a machine whose /sys is that tree, and return its output."""
    root = _hiprtc.root()
    if root is None:
        pytest.skip("AMD's libraries are not here: bash ci/rocm.sh fetches them")
    paths = f"{root}/opt/pyrsmi:{root}/usr/lib/python3/dist-packages"
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": paths, "ROCM_PATH": f"{root}/opt/rocm", **environment}
    command = [*namespace(), "sh", "-c", _INSIDE, str(tree), *_hiprtc.command(), *arguments]
    ended = subprocess.run(command, input=asked, capture_output=True, text=True, env=variables, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout


def values(tree, library, *names, **environment):
    """Return the counters of both GPUs, as the collector's reader finds them through that library."""
    pcis = ",".join(fake.pci(index) for index in range(2))
    output = run_on_tree(tree, str(HERE / "_amd_real.py"), library, str(COLLECTORS), pcis, *names, **environment)
    answer: dict[str, dict[str, float | None]] = json.loads(output.splitlines()[-1])["values"]
    return answer


def expected(kind, index):
    """Return the values that a library must report for the simulated files."""
    # the library counts a step as 15.3 µJ, the kernel as 2⁻¹⁶ J
    return fake.readings(kind, index) | {"amd.energy": pytest.approx(16.0, rel=0.003)}


pytestmark = pytest.mark.slow
each_model = pytest.mark.parametrize("kind", fake.MODELS)


@each_model
def test_our_reader_finds_every_counter_of_both_gpus_by_amdsmi(tmp_path, kind):
    readings = values(fake.build(tmp_path, kind), "amdsmi", *NAMES)
    for index in range(2):
        assert readings[fake.pci(index)] == expected(kind, index)


@each_model
def test_our_reader_takes_pyrsmis_counters_and_none_of_its_sentinels(tmp_path, kind):
    root = _hiprtc.root()
    if root is not None and not (root / "opt/pyrsmi").exists():
        pytest.skip("pyrsmi is not here: bash ci/rocm.sh fetches it")
    readings = values(fake.build(tmp_path, kind), "pyrsmi", *NAMES)[fake.pci(1)]
    wanted = expected(kind, 1)
    has = {"amd.utilization.gfx", "amd.utilization.memory", "amd.memory.used"}
    has |= {"amd.power"} if kind == "mi300x" else set()  # for an MI250X pyrsmi gives 0xffffffff or -1
    assert {name for name, value in readings.items() if value is not None} == has
    assert all(readings[name] == wanted[name] for name in has)


# ---- pyrsmi's wheel, unmodified: each trap is shown without the collector's reader, then with it

INITIALISE = """
import io, sys
from pyrsmi import rocml
rocml._load_rocm_library()
rocml.smi_initialize()
"""
HIDE_AMDSMI = "import sys; sys.modules['amdsmi'] = None\n"
TYPED = """
import ctypes
for name in ("amdsmi_get_processor_handles", "amdsmi_get_power_info"):
    getattr(rocml.rocm_lib, name).argtypes = [ctypes.c_void_p]
rocml.smi_initialize()
"""
COUNT = "sys.stdout.write(f'{rocml.smi_get_device_count()} GPUs')\n"


def run_pyrsmi(tree, program, **environment):
    """Return the output of a program that calls pyrsmi without the collector's reader, or the error that ends it."""
    root = _hiprtc.root()
    if root is not None and not (root / "opt/pyrsmi").exists():
        pytest.skip("pyrsmi is not here: bash ci/rocm.sh fetches it")
    caught = "import sys\ntry:\n" + "".join(f"    {line}\n" for line in program.splitlines())
    (tree / "program.py").write_text(f"{caught}except Exception as error: sys.stdout.write(repr(error))\n")
    return run_on_tree(tree, str(tree / "program.py"), **environment)


@each_model
def test_pyrsmi_truncates_a_handle_of_64_bits_and_our_reader_does_not(tmp_path, kind):
    tree = fake.build(tmp_path, kind)
    assert run_pyrsmi(tree, HIDE_AMDSMI + INITIALISE + COUNT) == "0 GPUs"
    handles = run_pyrsmi(tree, HIDE_AMDSMI + INITIALISE + TYPED + "sys.stdout.write(f'{rocml._processor_handles}')")
    assert [handle >= 2**32 for handle in json.loads(handles)] == [True, True]
    assert values(tree, "pyrsmi", "amd.memory.used")[fake.pci(1)] == {"amd.memory.used": fake.USED_BYTES + 1.0}


def test_the_power_of_all_ones_that_pyrsmi_gives_for_an_mi250x_is_missing(tmp_path):
    tree = fake.build(tmp_path, "mi250x")
    power = "sys.stdout.write(str(rocml.smi_get_device_average_power(0)))"
    assert run_pyrsmi(tree, HIDE_AMDSMI + INITIALISE + TYPED + power) == "4294967295.0"
    assert values(tree, "pyrsmi", "amd.power")[fake.pci(0)] == {"amd.power": None}


def test_a_binding_of_another_release_ends_pyrsmi_and_not_the_reader(tmp_path):
    tree, second_folder = fake.build(tmp_path / "tree", "mi300x"), tmp_path / "other"
    fake._write(second_folder / "amdsmi.py", "raise KeyError('libamd_smi.so')")
    paths = f"{second_folder}:{_hiprtc.root()}/opt/pyrsmi"
    assert run_pyrsmi(tree, INITIALISE + COUNT, PYTHONPATH=paths) == "KeyError('libamd_smi.so')"
    assert values(tree, "pyrsmi", "amd.power", PYTHONPATH=paths)[fake.pci(0)] == {"amd.power": 638.0}


def test_a_domain_above_zero_is_in_the_address_of_its_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(fake, "pci", lambda index: f"0001:{0x0C + 0x11 * index:02x}:00.0")
    tree = fake.build(tmp_path, "mi300x")
    assert values(tree, "pyrsmi", "amd.memory.used")["0001:1d:00.0"] == {"amd.memory.used": fake.USED_BYTES + 1.0}


@pytest.mark.parametrize("library", ["amdsmi", "pyrsmi"])
def test_the_output_and_log_of_a_library_never_mix_with_its_answers(tmp_path, library):
    """pyrsmi does not start if sys.stderr is no file of the system, as in a notebook; the reader has its own."""
    tree = fake.build(tmp_path, "mi300x")
    output = run_pyrsmi(
        tree, HIDE_AMDSMI + INITIALISE.replace("rocml._load", "sys.stderr = io.StringIO()\nrocml._load")
    )
    assert output == "ROCMLError_LibraryNotFound('AMD SMI library not found: fileno')"
    questions = [[fake.pci(0), ["amd.memory.used"]], [fake.pci(7), ["amd.memory.used"]], [fake.pci(0), None]]
    asked = "".join(f"{json.dumps(question)}\n" for question in questions)
    lines = run_on_tree(tree, str(HERE / "_amd_real.py"), library, str(COLLECTORS), asked=asked).splitlines()
    version, *answers = [json.loads(line) for line in lines]
    assert version.startswith(library)
    assert answers == [{"amd.memory.used": float(fake.USED_BYTES)}, {"amd.memory.used": None}, []]


def test_a_power_of_all_ones_is_missing(tmp_path):
    tree = fake.build(tmp_path, "mi300x")
    (tree / "sys/bus/pci/devices" / fake.pci(0) / "gpu_metrics").write_bytes(fake.gpu_metrics(5, power_w=fake.N_A16))
    for path in (tree / "sys/bus/pci/devices" / fake.pci(0)).glob("hwmon/hwmon*/power1_input"):
        path.unlink()
    (tree / "sys/bus/pci/devices" / fake.pci(0) / "mem_info_vram_used").unlink()  # the library says zero
    missing = values(tree, "amdsmi", "amd.power", "amd.memory.used")[fake.pci(0)]
    assert missing == {"amd.power": None, "amd.memory.used": None}


@each_model
def test_rocm_smis_command_shows_the_same_numbers(tmp_path, kind):
    """The `source` of each counter names this command: `rocm-smi --show…`."""
    root = _hiprtc.root()
    topics = ["power", "clocks", "temp", "use", "memuse", "energycounter", "replaycount"]
    options = [*(f"--show{topic}" for topic in topics), "--showmeminfo", "vram", "--json"]
    answer = run_on_tree(fake.build(tmp_path, kind), f"{root}/usr/bin/rocm-smi", *options)
    card = json.loads(answer.splitlines()[-1])["card1"]
    wanted = expected(kind, 1)
    assert int(card["VRAM Total Used Memory (B)"]) == wanted["amd.memory.used"]
    assert float(card["GPU use (%)"]) == wanted["amd.utilization.gfx"]
    assert float(card["Temperature (Sensor junction) (C)"]) == wanted["amd.temperature.hotspot"]
    assert int(card["PCIe Replay Count"]) == wanted["amd.pcie.replays"]
    assert card["sclk clock speed:"] == f"({fake.MODELS[kind].gfx_mhz}Mhz)"
    power = next(value for name, value in card.items() if "Package Power" in name)
    assert float(power) == wanted["amd.power"]
    assert float(card["Accumulated Energy (uJ)"]) * 1e-6 == wanted["amd.energy"]


@each_model
def test_amd_smis_command_shows_the_same_numbers(tmp_path, kind):
    """The `source` of each counter names this command: `amd-smi metric …`."""
    root = _hiprtc.root()
    options = ["metric", "-g", "1", "-p", "-c", "-t", "-u", "-m", "-P", "--json"]
    answer = run_on_tree(fake.build(tmp_path, kind), f"{root}/usr/bin/amd-smi", *options)
    (gpu,) = json.loads(answer[answer.index("{") :])["gpu_data"]
    wanted = expected(kind, 1)
    assert gpu["power"]["socket_power"] == {"value": wanted["amd.power"], "unit": "W"}
    assert gpu["temperature"]["hotspot"]["value"] == wanted["amd.temperature.hotspot"]
    assert gpu["usage"]["umc_activity"]["value"] == wanted["amd.utilization.memory"]
    assert gpu["clock"]["gfx_0"]["clk"]["value"] * 1e6 == wanted["amd.clock.gfx"]


# ---- the firmware's table: AMD's library and the collector read the same fields of it

READ_TABLE = """
import json, amdsmi
amdsmi.amdsmi_init()
table = amdsmi.amdsmi_get_gpu_metrics_info(amdsmi.amdsmi_get_processor_handles()[0])
names = ("energy_accumulator", "current_gfxclk", "average_umc_activity", "indep_throttle_status")
reasons = ("prochot", "ppt", "socket_thm", "vr_thm", "hbm_thm")
print(json.dumps([*(table[name] for name in names), [table[f"{reason}_residency_acc"] for reason in reasons]]))
"""


@pytest.mark.parametrize("revision", [3, 4, 5, 6, 7, 8])
def test_every_revision_of_the_table_is_read_as_amds_library_reads_it(tmp_path, revision):
    kind, counts = "mi250x" if revision == 3 else "mi300x", (11, 22, 33, 44, 55)
    tree = fake.build(tmp_path, kind, count=1, revision=revision)
    content = fake.gpu_metrics(revision, energy=2**40 + 7, throttle=1 << 36, residencies=counts, gfx_mhz=1777, dram=67)
    (fake.folder(tree) / "gpu_metrics").write_bytes(content)
    (tree / "table.py").write_text(READ_TABLE)
    energy, clock, dram, reasons, residencies = json.loads(run_on_tree(tree, str(tree / "table.py")).splitlines()[-1])
    parsed = METRICS.parsed(content)
    assert parsed.energy_steps == energy == 2**40 + 7
    assert parsed.clock_hz == clock * 1e6 == 1777e6
    assert parsed.dram_percent == (None if revision == 3 else dram)
    assert parsed.reasons == (1 << 36 if revision == 3 else None)
    assert (reasons is True) == (revision == 3), "the library says only that there is a reason"
    assert parsed.residencies == (tuple(residencies) if revision > 5 else None)
    assert (residencies == list(counts)) == (revision > 5)


def test_amds_library_gives_the_devices_of_a_split_card_addresses_of_one_card(tmp_path):
    """The function of the address is the number of the device; only the first has the sums of the card."""
    tree = fake.build(tmp_path, "mi300x", count=2, revision=6, split=8)
    asked = "".join(f"{json.dumps([f'{fake.pci(1)[:-1]}{part}', ['amd.power']])}\n" for part in range(8))
    lines = run_on_tree(tree, str(HERE / "_amd_real.py"), "amdsmi", str(COLLECTORS), asked=asked).splitlines()
    assert [json.loads(line)["amd.power"] for line in lines[1:]] == [638.0, *[None] * 7]
    (tree / "bdf.py").write_text(
        "import amdsmi\namdsmi.amdsmi_init()\n"
        "for each in amdsmi.amdsmi_get_processor_handles(): print(amdsmi.amdsmi_get_gpu_device_bdf(each))"
    )
    addresses = run_on_tree(tree, str(tree / "bdf.py")).split()
    assert addresses == [f"{fake.pci(card)[:-1]}{part}" for card in range(2) for part in range(8)]
