"""Name the reasons that NVML gives for a GPU's clocks: each bit with its name and its class.

nvml.h: nvmlClocksEventReason…, before driver 535 nvmlClocksThrottleReason…; `nvidia-smi -q -d PERFORMANCE` shows
them."""

from __future__ import annotations

from gpubench.api.collector import EventBit, EventClass

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
    EventBit(IDLE, "idle", EventClass.IDLE),
    EventBit(USER_CLOCKS, "application clocks", EventClass.USER),
    EventBit(SW_POWER_CAP, "power cap", EventClass.POWER_CAP),
    EventBit(HW_SLOWDOWN, "hardware slowdown", EventClass.HARDWARE_SLOWDOWN),
    EventBit(SYNC_BOOST, "sync boost", EventClass.USER),
    EventBit(SW_THERMAL, "thermal, by software", EventClass.THERMAL),
    EventBit(HW_THERMAL, "thermal, by hardware", EventClass.THERMAL),
    EventBit(HW_POWER_BRAKE, "power brake", EventClass.HARDWARE_SLOWDOWN),
    EventBit(DISPLAY_CLOCKS, "display clocks", EventClass.USER),
)


def mask_of(*kinds: EventClass) -> int:
    """Return the mask of all reasons of these classes."""
    return sum(bit.mask for bit in BITS if bit.kind in kinds)
