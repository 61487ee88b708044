"""Findings of `gpubench doctor` on simulated machines with AMD GPUs, with CuPy's unmodified wheel for ROCm.

/sys, /opt and /dev are replaced in a mount namespace, for the command alone. `bash ci/rocm.sh` fetches the wheel.
"""

import os
import subprocess
import sys

import _fake_sysfs as fake
import pytest
from _paper import WHEEL, needs_wheel
from test_amd_libraries import namespace
from test_amd_machine import rocm_in

# /dev keeps the devices that Python needs; the rest is replaced by the simulated machine.
MACHINE = """
set -e
mount --rbind "$0/sys" /sys
mkdir -p "$0/opt" && mount --bind "$0/opt" /opt
mkdir "$0/devices" && mount --rbind /dev "$0/devices"
mount -t tmpfs none /dev
for name in null zero random urandom; do touch "/dev/$name"; mount --bind "$0/devices/$name" "/dev/$name"; done
mkdir /dev/shm && chmod 1777 /dev/shm
cp -r "$0"/dev/* /dev/ && chmod 660 /dev/kfd /dev/dri/*
exec "$@"
"""

pytestmark = [pytest.mark.slow, *needs_wheel]


def doctor(tree, *first, wheels=str(WHEEL), path="/opt/rocm/bin"):
    """Return each missing part as reason and remedy. `first` are arguments before the command."""
    command = [*namespace(), "sh", "-c", MACHINE, str(tree), *first, sys.executable, "-P", "-W", "ignore"]
    variables = {"PATH": f"{os.environ['PATH']}:{path}", "PYTHONPATH": wheels, "COLUMNS": "400", "HOME": str(tree)}
    ended = subprocess.run(
        [*command, "-m", "gpubench", "doctor"], env=variables, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    first, _, rest = ended.stdout.partition("\n\nunavailable\n")
    assert first.startswith("no GPU is usable")
    lines = rest.partition("\n\n")[0].splitlines()
    return {reason: remedy.strip() for reason, remedy in zip(lines[::2], lines[1::2], strict=True)}


LOADED = "cupy: CuPy cannot be loaded (libamdhip64.so.7: cannot open shared object file: No such file or directory)"


def test_doctor_names_a_rocm_of_another_release_than_the_wheel(tmp_path):
    tree = fake.build(tmp_path, "mi250x")
    rocm_in(tree, version="6.4.0")
    for path in (tree / "opt/rocm/lib").iterdir():
        path.rename(path.with_suffix(".6"))
    findings = doctor(tree)
    assert list(findings) == [LOADED, "rocm: cupy-rocm-7-0 is for ROCm 7, /opt/rocm is 6.4.0"]
    assert "install ROCm 7 beside it" in findings["rocm: cupy-rocm-7-0 is for ROCm 7, /opt/rocm is 6.4.0"]


def test_doctor_names_wheels_that_overwrite_each_other(tmp_path):
    """Both wheels install the same files, so the second overwrote the first, and both are listed as installed."""
    tree, second_folder = fake.build(tmp_path / "tree", "mi300x"), tmp_path / "other"
    rocm_in(tree)
    fake._write(second_folder / "cupy_cuda13x-14.2.0.dist-info/METADATA", "Name: cupy-cuda13x\nVersion: 14.2.0")
    findings = doctor(tree, wheels=f"{WHEEL}:{second_folder}")
    finding = "rocm: cupy-cuda13x and cupy-rocm-7-0 overwrite each other: both install the package cupy"
    assert list(findings) == [LOADED, finding]
    assert findings[finding] == "pip uninstall both, then install one; use a second environment for the other"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a render node of another user")
def test_doctor_names_a_render_node_without_permission(tmp_path):
    """The node belongs to another user, and the command has no right to read what belongs to others."""
    tree = fake.build(tmp_path, "mi300x")
    rocm_in(tree)
    given = 'chown 1:1 /dev/dri/renderD129; exec setpriv --bounding-set=-dac_override,-dac_read_search "$@"'
    findings = doctor(tree, "sh", "-c", given, "sh")
    finding = "rocm: no permission for /dev/dri/renderD129"
    assert list(findings) == [LOADED, finding]
    assert findings[finding].startswith("sudo usermod -aG render,video $USER, then log in again")


@pytest.mark.parametrize(
    ("lacks", "part", "remedy"),
    [
        (None, "rocm: no ROCm is under /opt or /usr", "install AMD's package rocm"),
        ({}, "hipcc", "export PATH=/opt/rocm/bin:$PATH"),
        ({"hipcc": False}, "hipcc", "install hipcc"),
        ({"thrust": False}, "the rocThrust headers, which CuPy's kernels include", "install rocthrust-dev"),
    ],
)
def test_doctor_says_how_to_get_a_missing_rocm_its_compiler_and_its_headers(tmp_path, lacks, part, remedy):
    tree = fake.build(tmp_path, "mi300x")
    if lacks is not None:
        rocm_in(tree, **lacks)
    findings = doctor(tree, path="/nowhere")
    ((_, said),) = [(reason, said) for reason, said in findings.items() if part in reason]
    assert said.startswith(remedy)
