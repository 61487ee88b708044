"""Name the reasons that NVML gives for a GPU's clocks: each bit with its name and its class.

nvml.h: nvmlClocksEventReason…, before driver 535 nvmlClocksThrottleReason…; `nvidia-smi -q -d PERFORMANCE` shows
them."""

from gpubench.api import collector as gb

IDLE = 0x1
USER_CLOCKS = 0x2
SW_POWER_CAP = 0x4
HW_SLOWDOWN = 0x8
SYNC_BOOST = 0x10
SW_THERMAL = 0x20
HW_THERMAL = 0x40
HW_POWER_BRAKE = 0x80
DISPLAY_CLOCKS = 0x100

BITS = (
    gb.EventBit(IDLE, "idle", gb.EventClass.IDLE),
    gb.EventBit(USER_CLOCKS, "application clocks", gb.EventClass.USER),
    gb.EventBit(SW_POWER_CAP, "power cap", gb.EventClass.POWER_CAP),
    gb.EventBit(HW_SLOWDOWN, "hardware slowdown", gb.EventClass.HARDWARE_SLOWDOWN),
    gb.EventBit(SYNC_BOOST, "sync boost", gb.EventClass.USER),
    gb.EventBit(SW_THERMAL, "thermal, by software", gb.EventClass.THERMAL),
    gb.EventBit(HW_THERMAL, "thermal, by hardware", gb.EventClass.THERMAL),
    gb.EventBit(HW_POWER_BRAKE, "power brake", gb.EventClass.HARDWARE_SLOWDOWN),
    gb.EventBit(DISPLAY_CLOCKS, "display clocks", gb.EventClass.USER),
)


def mask_of(*kinds: gb.EventClass) -> int:
    """Return the mask of all reasons of these classes."""
    return sum(bit.mask for bit in BITS if bit.kind in kinds)
