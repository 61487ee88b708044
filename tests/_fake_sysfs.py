"""A simulated /sys of AMD GPUs: the files that amdgpu, KFD and hwmon have for an MI300X or an MI250X.

Written from the kernel's documentation and headers, recorded from no machine: what firmware really puts there is not
modelled. `build` writes a tree below a root; values are then changed by writing the files again.
"""

import struct
from dataclasses import dataclass, replace
from pathlib import Path

N_A16, N_A64 = 0xFFFF, 0xFFFFFFFFFFFFFFFF


@dataclass(frozen=True)
class AmdModel:
    """The properties that differ between models; the gpu_metrics of its firmware has revision 1.`revision`."""

    product: str
    device: int
    gfx_version: int
    units: int
    dies: int
    vram_bytes: int
    gfx_mhz: int
    memory_mhz: int
    cap_w: int
    power_w: int
    revision: int
    has_edge: bool
    partitions: str
    is_apu: bool = False


MODELS = {
    "mi300x": AmdModel(
        "AMD Instinct MI300X OAM", 0x74A1, 90402, 304, 8, 206141652992, 2100, 1300, 750, 638, 5, False, "SPX, CPX"
    ),
    "mi250x": AmdModel("AMD INSTINCT MI250X", 0x7408, 90010, 110, 1, 68702699520, 1700, 1600, 560, 412, 3, True, "SPX"),
}  # fmt: skip
# The host's cores and the compute dies share one memory.
APU = AmdModel(
    "AMD Instinct MI300A", 0x74A0, 90402, 228, 6, 137438953472, 2100, 1300, 550, 412, 5, False, "SPX, CPX", True
)
ARCH = {"mi300x": "gfx942", "mi250x": "gfx90a", "mi300a": "gfx942"}
USED_BYTES = 12345678848
ENERGY_STEPS = 2**20  # 16 J


def pci(index):
    """Return the PCI address of a GPU."""
    return f"0000:{0x0C + 0x11 * index:02x}:00.0"


def readings(kind, index):
    """Return the values that every reader must find in the files of a GPU."""
    model = MODELS[kind]
    return {
        "amd.power": model.power_w,
        "amd.clock.gfx": model.gfx_mhz * 1e6,
        "amd.clock.memory": model.memory_mhz * 1e6,
        "amd.temperature.hotspot": 61.0,
        "amd.temperature.memory": 49.0,
        "amd.utilization.gfx": 93.0,
        "amd.utilization.memory": 41.0,
        "amd.memory.used": float(USED_BYTES + index),
        "amd.energy": 16.0,
        "amd.pcie.replays": 2.0,
    }


def _write(path, content):
    """Write a file and its folders; text ends with a line break."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(f"{content}\n")


def _link(path, target):
    """Make a symbolic link and its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def gpu_metrics(
    revision, energy=ENERGY_STEPS, throttle=0, power_w=N_A16, residencies=(0, 0, 0, 0, 0), gfx_mhz=2100, dram=41
):
    """Return the binary table (kgd_pp_interface.h): of revision 3 as of the MI200, 4 to 8 as of the MI300X.

    `throttle` is the mask of revision 3, `residencies` are PROCHOT, PPT, socket, VR and HBM from revision 6 on.
    """
    if revision == 3:
        table = struct.pack("<6H4H", 45, 61, 49, 50, 47, 46, 93, 41, 0, power_w)
        table += struct.pack("<QQ14H", energy, 9876543210, 1650, 1090, 1590, *[0] * 4, gfx_mhz, 1090, 1600, *[0] * 4)
        table += struct.pack("<I4H2I4H", throttle & 0xFFFFFFFF, 0, 16, 160, 0, 111, 222, 47, 48, 49, 50)
        table += struct.pack("<Q4HQ", 5555, 800, 850, 900, 0, throttle)
    else:
        table = struct.pack("<6H", 61, 49, 55, power_w, 93, dram)
        table += b"\0" * {4: 8, 5: 72}.get(revision, 0)  # the utilisation of the video and image engines
        table += struct.pack("<Q", 5300) if revision > 6 else b""
        table += struct.pack("<QQ", energy, 1234567890123)
        table += struct.pack("<6I", 10**6, *residencies) if revision > 5 else struct.pack("<I", 0)
        table += struct.pack("<I4H2I", 0, 16, 320, 16, 32, 1000, 2000)
        table += b"\0" * ((-len(table) - 4) % 8)
        table += struct.pack("<5Q", 5000, 25, 3, 0, 0) + (struct.pack("<2I", 0, 0) if revision > 4 else b"")
        table += struct.pack("<16Q", *[1000] * 16)
        table += struct.pack("<9H6x", *[1] * 8, 0) if revision > 6 else b""
        table += struct.pack("<Q8H4H4H4H2H4x", 77777, *[gfx_mhz] * 8, *[1200] * 4, *[1143] * 8, 1300, 1)
        parts = {6: 168, 7: 232, 8: 440}.get(revision)  # bytes for each of the eight partitions
        table += b"\0" * (8 * parts + 8) if parts else b""
    return struct.pack("<HBB", len(table) + 4, 1, revision) + table


def build(root, kind, count=2, revision=0, split=1):
    """Write the files of `count` GPUs below `root`, and return `root`.

    `revision` is that of gpu_metrics, by default the model's; `split` is the number of devices per card.
    """
    model = APU if kind == "mi300a" else MODELS[kind]
    model = replace(model, revision=revision or model.revision)
    _write(root / "sys/module/amdgpu/initstate", "live")
    _write(root / "sys/module/amdgpu/version", "6.10.5")
    (root / "sys/bus/pci/drivers/amdgpu").mkdir(parents=True)
    nodes = root / "sys/devices/virtual/kfd/kfd/topology/nodes"
    _link(root / "sys/class/kfd/kfd", "../../devices/virtual/kfd/kfd")
    (nodes.parent.parent / "proc").mkdir(parents=True)
    _write(nodes.parent / "generation_id", 2)
    _write(nodes.parent / "system_properties", "platform_oem 0\nplatform_id 0\nplatform_rev 0")
    _node(nodes / "0", 0, {"cpu_cores_count": 64, "io_links_count": count, "vendor_id": 4130}, 10**9)
    for index in range(count):
        _gpu(root, model, index, split)
        if split > 1:
            _write(folder(root, index) / "current_compute_partition", "CPX")
    for device in range(count * split):
        _link_between(nodes, 0, device + 1, device)
        _kfd_gpu(nodes, model, device, count * split, split)
        if device % split:
            _part(root, count + device, 128 + device)
    _write(root / "dev/kfd", b"")
    return root


def folder(root, index=0):
    """Return the folder of a card's files."""
    return root / "sys/bus/pci/devices" / pci(index)


def gpu_id(device):
    """Return the driver's number of a device, which names the files of its processes."""
    return 41000 + device


def process(root, pid, memory, queue=None):
    """Write the files of a process that has opened ROCm: its bytes on each device, and a queue to one of them."""
    files = root / "sys/class/kfd/kfd/proc" / str(pid)
    _write(files / "pasid", 0)
    for device, size in memory.items():
        _write(files / f"vram_{gpu_id(device)}", size)
    if queue is not None:
        _write(files / "queues/0/gpuid", gpu_id(queue))
    return files


def _drm(root, above, card, render):
    """Write both device files of a device (card and render node), and their folders."""
    for name, minor in ((f"card{card}", card), (f"renderD{render}", render)):
        _link(root / "sys/class/drm" / name, f"../../{above}/drm/{name}")
        _write(root / "sys" / above / "drm" / name / "dev", f"226:{minor}")
        _link(root / "sys" / above / "drm" / name / "device", f"../../../{Path(above).name}")
        _write(root / "dev/dri" / name, b"")


def _part(root, card, render):
    """Write a further device of a split card, which has only these files."""
    above = f"devices/platform/amdgpu_xcp_{render}"
    _drm(root, above, card, render)
    _write(root / "sys" / above / "uevent", "MODALIAS=platform:amdgpu_xcp")


def _gpu(root, model, index, split):
    above = f"devices/pci0000:00/0000:00:{index + 1:02x}.1/{pci(index)}"
    files = root / "sys" / above
    _drm(root, above, index, 128 + index * split)
    _link(root / "sys/bus/pci/devices" / pci(index), f"../../../{above}")
    _link(files / "driver", "../../../../bus/pci/drivers/amdgpu")
    for name, content in _files(model, index).items():
        _write(files / name, content)
    monitor = files / f"hwmon/hwmon{3 + index}"
    for name, content in _monitor(model).items():
        _write(monitor / name, content)
    _link(root / f"sys/class/hwmon/hwmon{3 + index}", f"../../{above}/hwmon/hwmon{3 + index}")
    _link(monitor / "device", f"../../../{pci(index)}")


def _files(model, index):
    number = f"0x{model.device:04x}"
    content: dict[str, object] = {
        "vendor": "0x1002", "device": number, "subsystem_vendor": "0x1002", "subsystem_device": number,
        "revision": "0x00", "class": "0x120000", "numa_node": 0, "product_name": model.product,
        "unique_id": f"{0x1F2E3D4C5B6A0000 + index:016x}", "serial_number": f"692{index:09d}",
        "vbios_version": "113-M3000100-103", "gpu_busy_percent": 93, "mem_busy_percent": 41,
        "mem_info_vram_total": model.vram_bytes, "mem_info_vram_used": USED_BYTES + index,
        "mem_info_vis_vram_total": model.vram_bytes, "mem_info_vis_vram_used": USED_BYTES,
        "mem_info_gtt_total": 540899860480, "mem_info_gtt_used": 24125440, "mem_info_vram_vendor": "hynix",
        "power_dpm_force_performance_level": "auto", "pcie_replay_count": 2, "pcie_bw": "1000 2000 256",
        "current_compute_partition": "SPX", "available_compute_partition": model.partitions,
        "current_memory_partition": "NPS1", "available_memory_partition": "NPS1", "xgmi_error": 0,
        "xgmi_device_id": f"0x{0xABC0 + index:016x}", "xgmi_physical_id": index,
        "max_link_speed": "32.0 GT/s PCIe", "max_link_width": 16,
        "current_link_speed": "32.0 GT/s PCIe", "current_link_width": 16,
        "pp_dpm_sclk": f"0: 500Mhz\n1: {model.gfx_mhz}Mhz *", "pp_dpm_mclk": f"0: 900Mhz\n1: {model.memory_mhz}Mhz *",
        "pp_dpm_socclk": "0: 800Mhz\n1: 1000Mhz *", "pp_dpm_fclk": "0: 1200Mhz\n1: 1800Mhz *",
        "pp_dpm_pcie": "0: 16.0GT/s, x16 \n1: 32.0GT/s, x16 *",
        "uevent": f"DRIVER=amdgpu\nPCI_CLASS=120000\nPCI_ID=1002:{model.device:04X}\nPCI_SLOT_NAME={pci(index)}",
        "gpu_metrics": gpu_metrics(model.revision, power_w=model.power_w, gfx_mhz=model.gfx_mhz),
        "xgmi_hive_info/xgmi_hive_id": 0x5EED0001, "ras/features": "feature mask: 0x3fff",
    }  # fmt: skip
    if model.is_apu:
        content = {name: value for name, value in content.items() if not name.startswith(("pcie_", "pp_dpm_pcie"))}
    blocks = ("umc", "sdma", "gfx", "mmhub", "pcie_bif", "hdp", "xgmi_wafl")
    return content | {f"ras/{block}_err_count": "ue: 0\nce: 0" for block in blocks}


def _monitor(model):
    """Return the files of the hardware monitor: the families differ in the power, and only MI200 has an edge sensor."""
    power = "power1_average" if model.has_edge else "power1_input"
    content: dict[str, object] = {
        "name": "amdgpu", power: model.power_w * 10**6, "power1_label": "PPT", "power1_cap": model.cap_w * 10**6,
        "power1_cap_max": model.cap_w * 10**6, "power1_cap_min": 0, "power1_cap_default": model.cap_w * 10**6,
        "temp2_input": 61000, "temp2_label": "junction", "temp2_crit": 100000,
        "temp3_input": 49000, "temp3_label": "mem", "temp3_crit": 105000,
        "freq1_input": model.gfx_mhz * 10**6, "freq1_label": "sclk",
        "freq2_input": model.memory_mhz * 10**6, "freq2_label": "mclk", "in0_input": 820, "in0_label": "vddgfx",
    }  # fmt: skip
    edge = {"temp1_input": 45000, "temp1_label": "edge", "temp1_crit": 100000} if model.has_edge else {}
    return content | edge


def _node(folder, gpu_id, properties, memory_bytes, width=64):
    """Write a node of KFD's topology, with one bank of memory."""
    _write(folder / "gpu_id", gpu_id)
    _write(folder / "name", "")
    link = {"simd_count": 0, "mem_banks_count": 1, "caches_count": 0, "p2p_links_count": 0, **properties}
    _write(folder / "properties", "\n".join(f"{name} {value}" for name, value in link.items()))
    bank = f"heap_type {int(gpu_id > 0)}\nsize_in_bytes {memory_bytes}\nflags 0\nwidth {width}\nmem_clk_max 1600"
    _write(folder / "mem_banks/0/properties", bank)


def _kfd_gpu(nodes, model, index, count, split):
    """Write the node of a device in KFD's topology, linked to the host and to every other device."""
    node = index + 1
    domain, bus, _ = pci(index // split).split(":")
    properties = {
        "cpu_cores_count": 0, "simd_count": 4 * model.units // split, "io_links_count": count, "cpu_core_id_base": 0,
        "simd_id_base": 2147487744 + index * 4096, "max_waves_per_simd": 8, "lds_size_in_kb": 64,
        "wave_front_size": 64, "array_count": 32 if model.dies > 1 else 8, "simd_arrays_per_engine": 1,
        "cu_per_simd_array": 10, "simd_per_cu": 4, "gfx_target_version": model.gfx_version, "vendor_id": 4098,
        "device_id": model.device, "location_id": int(bus, 16) << 8 | index % split, "domain": int(domain, 16),
        "drm_render_minor": 128 + index, "hive_id": 0x5EED0001, "max_engine_clk_fcompute": model.gfx_mhz,
        "unique_id": 0x1F2E3D4C5B6A0000 + index // split, "num_xcc": model.dies // split or 1,
    }  # fmt: skip
    _node(nodes / str(node), gpu_id(index), properties, model.vram_bytes // split, 8192)
    _link_between(nodes, node, 0, 0)
    for place, neighbour in enumerate(number for number in range(count) if number != index):
        _link_between(nodes, node, neighbour + 1, place + 1, kind=11)


def _link_between(nodes, here, there, place, kind=2):
    """Write the link from one node to another: type 2 is PCI Express, 11 is xGMI (kfd_crat.h)."""
    properties = {"type": kind, "node_from": here, "node_to": there, "weight": 15 if kind == 11 else 20, "flags": 1}
    properties |= {"min_bandwidth": 64000 if kind == 11 else 0, "max_bandwidth": 64000}
    text = "\n".join(f"{name} {value}" for name, value in properties.items())
    _write(nodes / str(here) / "io_links" / str(place) / "properties", text)
