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
_INSIDE = 'mount --rbind "$0/sys" /sys && { mount -t tmpfs none /dev/dri 2>/dev/null || true; } && exec "$@"'


def namespace() -> list[str]:
    for words in (["unshare", "-m"], ["unshare", "-rm"]):
        if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0:
            return words
    pytest.skip("replacing /sys needs root, or user namespaces")


def seen(tree: Path, *words: str, **environment: str) -> str:
    """What a Python program of AMD's packages writes on a machine whose /sys is that tree."""
    root = _hiprtc.root()
    if root is None:
        pytest.skip("AMD's libraries are not here: bash ci/rocm.sh fetches them")
    paths = f"{root}/opt/pyrsmi:{root}/usr/lib/python3/dist-packages"
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": paths, "ROCM_PATH": f"{root}/opt/rocm", **environment}
    command = [*namespace(), "sh", "-c", _INSIDE, str(tree), *_hiprtc.command(), *words]
    ran = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout


def values(tree: Path, library: str, *names: str) -> dict[str, dict[str, float | None]]:
    pcis = ",".join(fake.pci(index) for index in range(2))
    found = seen(tree, str(HERE / "_amd_real.py"), library, str(COLLECTORS), pcis, *names)
    answer: dict[str, dict[str, float | None]] = json.loads(found.splitlines()[-1])["values"]
    return answer


def expected(kind: str, index: int) -> dict[str, float]:
    model = fake.MODELS[kind]
    return {
        "amd.power": model.power_w,
        "amd.clock.gfx": model.gfx_mhz * 1e6,
        "amd.clock.memory": model.memory_mhz * 1e6,
        "amd.temperature.hotspot": 61.0,
        "amd.temperature.memory": 49.0,
        "amd.utilization.gfx": 93.0,
        "amd.utilization.memory": 41.0,
        "amd.memory.used": float(fake.USED_BYTES + index),
        "amd.energy": pytest.approx(16.0, rel=0.003),  # the library takes a step for 15.3 µJ, the kernel for 2⁻¹⁶ J
        "amd.pcie.replays": 2.0,
    }


pytestmark = pytest.mark.slow
each_model = pytest.mark.parametrize("kind", fake.MODELS)


@each_model
def test_amdsmi_and_our_reader_find_every_counter_of_both_gpus(tmp_path: Path, kind: str) -> None:
    found = values(fake.build(tmp_path, kind), "amdsmi", *NAMES)
    for index in range(2):
        assert found[fake.pci(index)] == expected(kind, index)


@each_model
def test_pyrsmi_and_our_reader_find_what_it_has_and_no_sentinel(tmp_path: Path, kind: str) -> None:
    root = _hiprtc.root()
    if root is not None and not (root / "opt/pyrsmi").exists():
        pytest.skip("pyrsmi is not here: bash ci/rocm.sh fetches it")
    found = values(fake.build(tmp_path, kind), "pyrsmi", *NAMES)[fake.pci(1)]
    wanted = expected(kind, 1)
    has = {"amd.utilization.gfx", "amd.utilization.memory", "amd.memory.used"}
    has |= {"amd.power"} if kind == "mi300x" else set()  # of an MI250X it gives 0xffffffff, or -1
    assert {name for name, value in found.items() if value is not None} == has
    assert all(found[name] == wanted[name] for name in has)


def test_a_file_that_is_gone_is_missing_though_the_library_says_zero(tmp_path: Path) -> None:
    tree = fake.build(tmp_path, "mi300x")
    (tree / "sys/bus/pci/devices" / fake.pci(0) / "mem_info_vram_used").unlink()
    assert values(tree, "amdsmi", "amd.memory.used")[fake.pci(0)] == {"amd.memory.used": None}


def test_a_power_of_all_ones_is_missing(tmp_path: Path) -> None:
    tree = fake.build(tmp_path, "mi300x")
    (tree / "sys/bus/pci/devices" / fake.pci(0) / "gpu_metrics").write_bytes(fake.gpu_metrics(5, power_w=fake.N_A16))
    for path in (tree / "sys/bus/pci/devices" / fake.pci(0)).glob("hwmon/hwmon*/power1_input"):
        path.unlink()
    assert values(tree, "amdsmi", "amd.power")[fake.pci(0)] == {"amd.power": None}


@each_model
def test_rocm_smis_command_shows_the_same_numbers(tmp_path: Path, kind: str) -> None:
    """What a counter's `source` says: `rocm-smi --show…`."""
    root = _hiprtc.root()
    shown = ["power", "clocks", "temp", "use", "memuse", "energycounter", "replaycount"]
    options = [*(f"--show{each}" for each in shown), "--showmeminfo", "vram", "--json"]
    found = seen(fake.build(tmp_path, kind), f"{root}/usr/bin/rocm-smi", *options)
    card = json.loads(found.splitlines()[-1])["card1"]
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
def test_amd_smis_command_shows_the_same_numbers(tmp_path: Path, kind: str) -> None:
    """What a counter's `source` says: `amd-smi metric …`."""
    root = _hiprtc.root()
    options = ["metric", "-g", "1", "-p", "-c", "-t", "-u", "-m", "-P", "--json"]
    found = seen(fake.build(tmp_path, kind), f"{root}/usr/bin/amd-smi", *options)
    (gpu,) = json.loads(found[found.index("{") :])["gpu_data"]
    wanted = expected(kind, 1)
    assert gpu["power"]["socket_power"] == {"value": wanted["amd.power"], "unit": "W"}
    assert gpu["temperature"]["hotspot"]["value"] == wanted["amd.temperature.hotspot"]
    assert gpu["usage"]["umc_activity"]["value"] == wanted["amd.utilization.memory"]
    assert gpu["clock"]["gfx_0"]["clk"]["value"] * 1e6 == wanted["amd.clock.gfx"]
