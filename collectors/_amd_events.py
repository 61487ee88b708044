"""Name the throttle reasons of AMD's driver: the bits of `indep_throttle_status` in its gpu_metrics.

amdgpu_smu.h of the Linux kernel, SMU_THROTTLER_…_BIT: sixteen bits each for power, current, temperature and the
rest."""

from gpubench.api import collector as gb

_POWER = ("PPT0", "PPT1", "PPT2", "PPT3", "SPL", "FPPT", "SPPT", "SPPT APU")
_CURRENT = ("TDC GFX", "TDC SOC", "TDC memory", "TDC VDD", "TDC CVIP", "EDC CPU", "EDC GFX", "APCC")
_TEMPERATURE = (
    *("GPU", "core", "memory", "edge", "hotspot", "SOC", "VR GFX", "VR SOC", "VR memory 0", "VR memory 1"),
    *("liquid 0", "liquid 1", "VR hot 0", "VR hot 1"),
)
_HOT = ("PROCHOT CPU", "PROCHOT GFX")
_REST = ("PPM", "FIT")
# The bits for which later firmware has counters instead of a mask
PACKAGE_POWER, SOCKET_THERMAL, HBM_THERMAL, VR_THERMAL, PROCHOT = 1 << 0, 1 << 32, 1 << 34, 1 << 38, 1 << 47


def _group(first: int, names: tuple[str, ...], label: str, kind: gb.EventClass) -> list[gb.EventBit]:
    """Return an event of one class for each name, with consecutive bits from bit number `first` on."""
    return [gb.EventBit(1 << (first + place), f"{label} ({name})", kind) for place, name in enumerate(names)]


BITS = (
    *_group(0, _POWER, "power cap", gb.EventClass.POWER_CAP),
    *_group(16, _CURRENT, "current limit", gb.EventClass.POWER_CAP),
    *_group(32, _TEMPERATURE, "thermal", gb.EventClass.THERMAL),
    *_group(46, _HOT, "forced by the platform", gb.EventClass.HARDWARE_SLOWDOWN),
    *_group(56, _REST, "other", gb.EventClass.OTHER),
)


def mask_of(kind: gb.EventClass) -> int:
    """Return the mask of all throttle reasons of the class `kind`."""
    return sum(bit.mask for bit in BITS if bit.kind is kind)
