"""Findings of `doctor` on a machine with AMD GPUs: file trees as broken installations leave them."""

from functools import partial

import _fake_sysfs as fake
import pytest

from gpubench.devices import rocm

WHEEL = {"cupy-rocm-7-0": "14.2.0"}


def rocm_in(root, name="rocm", version="7.0.1", lacks=(), thrust=True, hipcc=True):
    """Write a ROCm below /opt; `lacks` are libraries to leave out."""
    folder = root / "opt" / name
    for library in rocm.NEEDED:
        if library not in lacks:
            fake._write(folder / f"lib/{library}.so.7", b"")
    fake._write(folder / ".info/version", f"{version}-81")
    if thrust:
        fake._write(folder / "include/thrust/version.h", b"")
    if hipcc:
        fake._write(folder / "bin/hipcc", b"")


def machine(tmp_path, **rocms):
    root = fake.build(tmp_path, "mi300x")
    rocm_in(root, **rocms)
    return root


def findings_on(root, environment=None, wheels=WHEEL, may_open=lambda path: True, path="/usr/bin:/opt/rocm/bin"):
    findings = rocm.probe(root, {"PATH": path, **(environment or {})}, wheels, may_open)
    return {absent.reason: absent.how for absent in rocm.findings(findings)}


def remedy_of_only(findings, *texts):
    ((reason, mend),) = findings.items()
    assert all(word in reason for word in texts), reason
    return mend


def no_gpu(root):
    rocm_in(root)
    return root


def no_rocm(root):
    return fake.build(root, "mi250x")


def hipcc_elsewhere(root):
    fake._write(machine(root, hipcc=False) / "usr/bin/hipcc", b"")
    return root


def linked(root):
    (machine(root, name="rocm-7.0.1") / "opt/rocm").symlink_to("rocm-7.0.1")
    return root


def several(root):
    linked(root)
    rocm_in(root, "rocm-6.4.0", "6.4.0")
    return root


def without_kfd(root):
    (machine(root) / "dev/kfd").unlink()
    return root


def without_driver(root):
    (machine(root) / "sys/bus/pci/devices" / fake.pci(1) / "driver").unlink()
    return root


AMDSMI = {**WHEEL, "amdsmi": "7.2.0"}
CUDA = {"cupy-cuda13x": "14.2.0"}


@pytest.mark.parametrize(
    ("made", "options", "texts", "remedy"),
    [
        (no_gpu, {}, ["no AMD GPU is on the PCI bus"], "--device /dev/kfd"),
        (no_rocm, {}, ["no ROCm is under /opt or /usr"], "package rocm"),
        (
            machine,
            {"path": "/usr/bin:"},
            ["hipcc is in /opt/rocm/bin, which is not on the path"],
            "export PATH=/opt/rocm/bin:$PATH",
        ),
        (partial(machine, hipcc=False), {}, ["/opt/rocm is missing hipcc"], "install hipcc"),
        (
            partial(machine, lacks=("librccl", "libhiprtc")),
            {},
            ["incomplete ROCm", "/opt/rocm is missing libhiprtc, librccl"],
            "complete package",
        ),
        (partial(machine, thrust=False), {}, ["rocThrust"], "rocthrust"),
        (several, {}, ["several ROCm installations", "/opt/rocm-6.4.0 (6.4.0)", "/opt/rocm is used"], "ROCM_PATH"),
        (
            machine,
            {"environment": {"ROCM_PATH": "/opt/rocm-9.9"}},
            ["ROCM_PATH is /opt/rocm-9.9, but ROCm is not there"],
            "/opt/rocm",
        ),
        (partial(machine, version="6.4.0"), {}, ["cupy-rocm-7-0 is for ROCm 7, /opt/rocm is 6.4.0"], "ROCm 7"),
        (machine, {"wheels": AMDSMI}, ["amdsmi 7.2.0", "/opt/rocm (7.0.1)"], "pip uninstall amdsmi"),
        (machine, {"wheels": WHEEL | CUDA}, ["cupy-cuda13x and cupy-rocm-7-0", "the package cupy"], "a second environ"),
        (
            machine,
            {"may_open": lambda path: path.name != "renderD129"},
            ["no permission for /dev/dri/renderD129"],
            "usermod -aG render,video",
        ),
        (without_kfd, {}, ["no /dev/kfd"], "--device /dev/kfd"),
        (without_driver, {}, [f"no driver runs {fake.pci(1)}"], "amdgpu"),
        (machine, {"environment": {"HSA_OVERRIDE_GFX_VERSION": "9.0.0"}}, ["HSA_OVERRIDE_GFX_VERSION=9.0.0"], "unset"),
    ],
)
def test_a_problem_is_named_with_its_remedy(tmp_path, made, options, texts, remedy):
    assert remedy in remedy_of_only(findings_on(made(tmp_path), **options), *texts)


@pytest.mark.parametrize(
    ("made", "wheels"),
    [
        (machine, WHEEL),
        (lambda root: root, CUDA),
        (hipcc_elsewhere, WHEEL),
        (linked, WHEEL),
        (machine, {**WHEEL, "amdsmi": "7.0.2"}),
    ],
    ids=["sound", "no-amd", "hipcc-elsewhere-on-the-path", "a-link-is-no-second-rocm", "same-release"],
)
def test_a_sound_machine_has_no_findings(tmp_path, made, wheels):
    assert findings_on(made(tmp_path), wheels=wheels) == {}


def test_a_wheel_without_gpu_and_rocm_is_not_said_to_have_a_gpu_and_several_problems_are_all_reported(tmp_path):
    assert list(findings_on(tmp_path)) == ["no AMD GPU is on the PCI bus", "no ROCm is under /opt or /usr"]
    root = machine(tmp_path, lacks=("librccl",))
    assert len(findings_on(root, wheels={"cupy-rocm-6-0": "13.6.0"}, may_open=lambda path: False)) == 3


@pytest.mark.parametrize(("wheel", "extra"), [("cupy-rocm-7-0", "cuda13"), ("cupy-cuda13x", "rocm7")])
def test_a_machine_with_nvidia_and_amd_gpus_is_told_which_extra_serves_the_other(tmp_path, wheel, extra):
    root = machine(tmp_path)
    fake._write(root / "proc/driver/nvidia/version", "NVRM version: …")
    assert f"[{extra}]" in remedy_of_only(findings_on(root, wheels={wheel: "14.2.0"}), "NVIDIA and AMD GPUs", wheel)
