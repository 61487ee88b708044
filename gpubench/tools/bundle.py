"""Pack the system files that describe the GPUs of a machine into one archive that its owner can share.

Only the files of a fixed list are read from /sys. Serial numbers, unique ids and the names of the platform are blanked.
The collectors can read an unpacked archive like the machine itself, with its folder as the root."""

import gzip
import io
import re
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

_GPU_CLASSES = ("0x03", "0x12")  # PCI: display controllers and processing accelerators
_MOST_BYTES = 65536  # the most bytes read from one file
# Files of a GPU of any vendor, and of amdgpu (kernel documentation, "amdgpu driver", "sysfs"); `*` is anything.
_DEVICE_FILES = (
    "vendor", "device", "subsystem_vendor", "subsystem_device", "revision", "class", "numa_node", "current_link_*",
    "max_link_*", "product_name", "product_number", "unique_id", "serial_number", "gpu_metrics", "gpu_busy_percent",
    "mem_busy_percent", "mem_info_*", "pcie_bw", "pcie_replay_count", "power_dpm_*", "pp_dpm_*", "pp_features",
    "thermal_throttling_logging", "current_*_partition", "available_*_partition", "xgmi_*", "xgmi_hive_info/*", "ras/*",
    "hwmon/hwmon*/name", "hwmon/hwmon*/power*", "hwmon/hwmon*/temp*", "hwmon/hwmon*/freq*", "hwmon/hwmon*/fan*",
    "hwmon/hwmon*/in*", "hwmon/hwmon*/energy*",
)  # fmt: skip
_MACHINE_FILES = (
    "sys/module/amdgpu/version",
    "sys/module/amdgpu/initstate",
    "sys/class/kfd/kfd/topology/generation_id",
    "sys/class/kfd/kfd/topology/system_properties",
    "sys/class/kfd/kfd/topology/nodes/*/name",
    "sys/class/kfd/kfd/topology/nodes/*/gpu_id",
    "sys/class/kfd/kfd/topology/nodes/*/properties",
    "sys/class/kfd/kfd/topology/nodes/*/mem_banks/*/properties",
    "sys/class/kfd/kfd/topology/nodes/*/caches/*/properties",
    "sys/class/kfd/kfd/topology/nodes/*/io_links/*/properties",
)
_BLANKED = ("unique_id", "serial_number", "xgmi_device_id", "xgmi_hive_id")
_BLANKED_LINES = re.compile(rb"^(unique_id|hive_id|platform_oem|platform_id) .*$", re.MULTILINE)


def device_files(root: Path = Path("/")) -> dict[str, bytes]:
    """Return the content of the files that describe the GPUs, by path below `root`, with serial numbers blanked."""
    contents: dict[str, bytes] = {}
    for path in _listed_files(root):
        content = _read_content(path)
        if content is not None:
            contents[str(path.relative_to(root))] = _blank_identifiers(path.name, content)
    return contents


def _listed_files(root: Path) -> Iterator[Path]:
    """Yield the paths that match the fixed lists: the files of each GPU below `root`, then the files of the machine."""
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        if (_read_content(device / "class") or b"").decode(errors="replace").startswith(_GPU_CLASSES):
            for pattern in _DEVICE_FILES:
                yield from sorted(device.glob(pattern))
    for pattern in _MACHINE_FILES:
        yield from sorted(root.glob(pattern))


def _read_content(path: Path) -> bytes | None:
    """Return the first 64 KiB of a file; None if the path is no file, or if the file cannot be read."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return file.read(_MOST_BYTES)
    except OSError:
        return None


def _blank_identifiers(name: str, content: bytes) -> bytes:
    """Return the `content` of the file called `name` with its serial numbers and unique ids replaced by zeros."""
    if name in _BLANKED:
        return re.sub(rb"[0-9a-wyzA-WYZ]", b"0", content)  # keeps the x of 0x
    if name in ("properties", "system_properties"):
        return _BLANKED_LINES.sub(rb"\1 0", content)
    return content


def archive(entries: Mapping[str, bytes]) -> bytes:
    """Return a gzipped tar archive of `entries` by path; the same entries give the same bytes."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as stream, tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in sorted(entries.items()):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()
