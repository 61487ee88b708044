"""Findings of `doctor` on a machine with AMD GPUs: file trees as broken installations leave them."""

from pathlib import Path

import _fake_sysfs as fake
import pytest

from gpubench.devices import rocm

WHEEL = {"cupy-rocm-7-0": "14.2.0"}


def rocm_in(
    root: Path, name: str = "rocm", version: str = "7.0.1", lacks: tuple[str, ...] = (), thrust=True, hipcc=True
) -> None:
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


def machine(tmp_path: Path, **rocms: object) -> Path:
    """Return a sound machine: two MI300X with a complete ROCm."""
    root = fake.build(tmp_path, "mi300x")
    rocm_in(root, **rocms)
    return root


def findings_on(root: Path, environment=None, wheels=WHEEL, may_open=lambda path: True, path="/usr/bin:/opt/rocm/bin"):
    findings = rocm.probe(root, {"PATH": path, **(environment or {})}, wheels, may_open)
    return {absent.reason: absent.how for absent in rocm.findings(findings)}


def remedy_of_only(findings: dict[str, str], *texts: str) -> str:
    """Return the remedy of the only finding, whose reason must contain these texts."""
    ((reason, mend),) = findings.items()
    assert all(word in reason for word in texts), reason
    return mend


def test_a_sound_machine_has_no_findings(tmp_path):
    assert findings_on(machine(tmp_path)) == {}


def test_a_machine_without_amd_parts_has_no_findings(tmp_path):
    assert findings_on(tmp_path, wheels={"cupy-cuda13x": "14.2.0"}) == {}


def test_a_wheel_without_a_gpu_says_what_a_container_needs(tmp_path):
    rocm_in(tmp_path)
    assert "--device /dev/kfd" in remedy_of_only(findings_on(tmp_path), "no AMD GPU is on the PCI bus")


def test_a_machine_without_rocm_says_how_to_install_it(tmp_path):
    root = fake.build(tmp_path, "mi250x")
    assert "package rocm" in remedy_of_only(findings_on(root), "no ROCm is under /opt or /usr")


def test_a_wheel_without_gpu_and_rocm_is_not_said_to_have_a_gpu(tmp_path):
    assert list(findings_on(tmp_path)) == ["no AMD GPU is on the PCI bus", "no ROCm is under /opt or /usr"]


def test_a_compiler_that_is_not_on_the_path_is_named_with_the_command_that_adds_it(tmp_path):
    findings = findings_on(machine(tmp_path), path="/usr/bin:")
    assert (
        remedy_of_only(findings, "hipcc is in /opt/rocm/bin, which is not on the path")
        == "export PATH=/opt/rocm/bin:$PATH"
    )


def test_a_rocm_without_hipcc_says_to_install_it(tmp_path):
    assert "install hipcc" in remedy_of_only(findings_on(machine(tmp_path, hipcc=False)), "/opt/rocm is missing hipcc")


def test_a_compiler_in_another_folder_of_the_path_is_enough(tmp_path):
    root = machine(tmp_path, hipcc=False)
    fake._write(root / "usr/bin/hipcc", b"")
    assert findings_on(root) == {}


def test_an_incomplete_rocm_names_the_missing_libraries(tmp_path):
    findings = findings_on(machine(tmp_path, lacks=("librccl", "libhiprtc")))
    assert "complete package" in remedy_of_only(findings, "incomplete ROCm", "/opt/rocm is missing libhiprtc, librccl")


def test_a_rocm_without_rocthrust_says_to_install_it(tmp_path):
    assert "rocthrust" in remedy_of_only(findings_on(machine(tmp_path, thrust=False)), "rocThrust")


def test_several_rocms_are_listed_with_the_one_that_is_used(tmp_path):
    root = machine(tmp_path, name="rocm-7.0.1")
    rocm_in(root, "rocm-6.4.0", "6.4.0")
    (root / "opt/rocm").symlink_to("rocm-7.0.1")
    findings = findings_on(root)
    assert "ROCM_PATH" in remedy_of_only(
        findings, "several ROCm installations", "/opt/rocm-6.4.0 (6.4.0)", "/opt/rocm is used"
    )


def test_a_link_to_a_rocm_does_not_count_as_a_second_one(tmp_path):
    root = machine(tmp_path, name="rocm-7.0.1")
    (root / "opt/rocm").symlink_to("rocm-7.0.1")
    assert findings_on(root) == {}


def test_a_rocm_path_without_a_rocm_is_named(tmp_path):
    findings = findings_on(machine(tmp_path), {"ROCM_PATH": "/opt/rocm-9.9"})
    assert "/opt/rocm" in remedy_of_only(findings, "ROCM_PATH is /opt/rocm-9.9, but ROCm is not there")


def test_a_wheel_for_another_rocm_is_named(tmp_path):
    findings = findings_on(machine(tmp_path, version="6.4.0"))
    assert "ROCm 7" in remedy_of_only(findings, "cupy-rocm-7-0 is for ROCm 7, /opt/rocm is 6.4.0")


def test_a_binding_of_another_release_than_its_library_is_named(tmp_path):
    findings = findings_on(machine(tmp_path), wheels={**WHEEL, "amdsmi": "7.2.0"})
    assert "pip uninstall amdsmi" in remedy_of_only(findings, "amdsmi 7.2.0", "/opt/rocm (7.0.1)")
    assert findings_on(machine(tmp_path / "second"), wheels={**WHEEL, "amdsmi": "7.0.2"}) == {}


def test_wheels_of_cupy_that_overwrite_each_other_are_named(tmp_path):
    findings = findings_on(machine(tmp_path), wheels={**WHEEL, "cupy-cuda13x": "14.2.0"})
    assert "a second environment" in remedy_of_only(findings, "cupy-cuda13x and cupy-rocm-7-0", "the package cupy")


@pytest.mark.parametrize(("wheel", "extra"), [("cupy-rocm-7-0", "cuda13"), ("cupy-cuda13x", "rocm7")])
def test_a_machine_with_nvidia_and_amd_gpus_is_told_which_extra_serves_the_other(tmp_path, wheel, extra):
    root = machine(tmp_path)
    fake._write(root / "proc/driver/nvidia/version", "NVRM version: …")
    assert f"[{extra}]" in remedy_of_only(findings_on(root, wheels={wheel: "14.2.0"}), "NVIDIA and AMD GPUs", wheel)


def test_a_missing_permission_names_the_render_node_and_the_group(tmp_path):
    findings = findings_on(machine(tmp_path), may_open=lambda path: path.name != "renderD129")
    assert "usermod -aG render,video" in remedy_of_only(findings, "no permission for /dev/dri/renderD129")


def test_a_container_without_the_compute_device_is_told_the_option_that_passes_it_in(tmp_path):
    root = machine(tmp_path)
    (root / "dev/kfd").unlink()
    assert "--device /dev/kfd" in remedy_of_only(findings_on(root), "no /dev/kfd")


def test_a_gpu_without_a_driver_is_named_with_its_driver(tmp_path):
    root = machine(tmp_path)
    (root / "sys/bus/pci/devices" / fake.pci(1) / "driver").unlink()
    assert "amdgpu" in remedy_of_only(findings_on(root), f"no driver runs {fake.pci(1)}")


def test_an_override_of_the_architecture_is_named_with_the_advice_to_unset_it(tmp_path):
    findings = findings_on(machine(tmp_path), {"HSA_OVERRIDE_GFX_VERSION": "9.0.0"})
    assert "unset" in remedy_of_only(findings, "HSA_OVERRIDE_GFX_VERSION=9.0.0")


def test_several_problems_are_all_reported(tmp_path):
    root = machine(tmp_path, lacks=("librccl",))
    findings = findings_on(root, wheels={"cupy-rocm-6-0": "13.6.0"}, may_open=lambda path: False)
    assert len(findings) == 3
