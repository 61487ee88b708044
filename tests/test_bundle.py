"""`doctor --bundle`: its content, its limits, and that the collector reads it as it read the machine."""

import io
import subprocess
import tarfile

import _fake_sysfs as fake
import pytest
from _command import gpubench
from test_amd_collector import NAMES, files, folder, gpu

from gpubench.tools import bundle


@pytest.mark.parametrize("kind", fake.MODELS)
def test_a_bundle_of_a_machine_replays_every_counter_and_setting(tmp_path, kind):
    there, here = fake.build(tmp_path / "there", kind), tmp_path / "here"
    with tarfile.open(fileobj=io.BytesIO(bundle.archive(bundle.device_files(there)))) as packed:
        packed.extractall(here, filter="data")
    content = bundle.device_files(there)
    assert bundle.archive(content) == bundle.archive(dict(reversed(content.items()))), "the same files, the same bytes"
    for index in range(2):
        device = gpu(kind, index)
        was, replayed = (files(root).open([device]).read(device, NAMES) for root in (there, here))
        assert replayed == was
        assert replayed["amd.power"] == fake.MODELS[kind].power_w
        assert files(here).describe(device) == files(there).describe(device)


def test_identifiers_of_one_gpu_are_blanked_and_keep_their_length(tmp_path):
    root = fake.build(tmp_path, "mi300x")
    content = bundle.device_files(root)
    joined = b"".join(content.values())
    for word in (b"1f2e3d4c5b6a", b"69200", str(0x1F2E3D4C5B6A0000).encode(), str(0x5EED0001).encode(), b"abc0"):
        assert word not in joined
    address = f"sys/bus/pci/devices/{fake.pci(0)}"
    assert content[f"{address}/unique_id"] == b"0" * 16 + b"\n"
    assert content[f"{address}/xgmi_device_id"] == b"0x" + b"0" * 16 + b"\n"
    assert b"gfx_target_version 90402" in content["sys/class/kfd/kfd/topology/nodes/1/properties"]


def test_only_files_of_the_list_are_read_and_only_of_gpus(tmp_path):
    root = fake.build(tmp_path, "mi300x", 1)
    (folder(root) / "secret").write_text("no")
    fake._write(root / "sys/bus/pci/devices/0000:01:00.0/class", "0x020000")
    fake._write(root / "sys/bus/pci/devices/0000:01:00.0/unique_id", "a network card")
    (folder(root) / "gpu_metrics").unlink()
    (folder(root) / "gpu_metrics").mkdir()  # cannot be read
    names = " ".join(bundle.device_files(root))
    assert not [word for word in ("secret", "0000:01:00.0", "gpu_metrics") if word in names]
    assert bundle.device_files(tmp_path / "nothing") == {}


@pytest.mark.slow
def test_the_command_writes_inventory_files_and_a_run_without_this_machines_names(tmp_path):
    target = tmp_path / "machine.tar.gz"
    ended = gpubench("doctor", "--bundle", str(target), "--device", "host")
    assert ended.returncode == 0, ended.stderr
    with tarfile.open(target) as tar:
        assert {"README", "facts.json", "run.jsonl.gz"} <= set(tar.getnames())
        facts = tar.extractfile("facts.json")
        assert isinstance(facts, io.BufferedReader)
        assert subprocess.check_output(["uname", "-n"]).strip() not in facts.read()


def test_the_command_takes_no_other_option_and_replaces_no_file(tmp_path):
    target = tmp_path / "machine.tar.gz"
    assert "goes with --device only" in gpubench("doctor", "--bundle", str(target), "--noise").stderr
    target.write_bytes(b"")
    ended = gpubench("doctor", "--bundle", str(target))
    assert ended.returncode == 2
    assert "exists" in ended.stderr


def test_a_bundle_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path):
    done = gpubench("doctor", "--bundle", tmp_path / "missing" / "bundle.tar.gz")
    assert done.returncode == 2
    assert done.stderr.endswith("its folder is missing or read-only; choose another place\n")
    assert "ok in" not in done.stderr
