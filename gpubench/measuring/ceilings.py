"""State the rates that no device of a kind can exceed: an absurd figure is invalid, though no peak is declared."""

from collections.abc import Sequence

from gpubench import stats
from gpubench.base import units
from gpubench.base.errors import Untrustworthy
from gpubench.model import Device, Series

# Per compute unit and clock: bytes and operations. An SM or CU moves 128 B between its shared memory and registers and
# makes 32 768 operations in 4 bits (Blackwell); a core loads and stores three vectors of 64 B and makes 4096 operations
# with matrix instructions. No device so far has such a high clock.
_GPU_BYTES, _GPU_FLOPS, _GPU_HZ = 256.0, 32_768.0, 3.5e9
_HOST_BYTES, _HOST_FLOPS, _HOST_HZ = 256.0, 4096.0, 6.5e9
IMPOSSIBLE = "impossible-rate"


def ceiling(device: Device, is_gpu: bool, quantity: str) -> float:
    """Return the rate in B/s or FLOP/s that the device cannot exceed; infinite if its compute units are not known."""
    nbytes, flops, hz = (_GPU_BYTES, _GPU_FLOPS, _GPU_HZ) if is_gpu else (_HOST_BYTES, _HOST_FLOPS, _HOST_HZ)
    per_clock = {"moved": nbytes, "payload": nbytes, "flops": flops}.get(quantity)
    return per_clock * hz * device.units if per_clock and device.units else float("inf")


def check_rates(device: Device, is_gpu: bool, series: Sequence[Series]) -> None:
    """Raise Untrustworthy if the median of a timed series has a rate above the device's ceiling."""
    for timed in series:
        most = ceiling(device, is_gpu, timed.quantity)
        if timed.role != "primary" or most == float("inf") or not timed.values:
            continue
        rate, unit = getattr(timed.work, timed.quantity) / stats.median(timed.values), "B/s"
        if rate > most:
            unit = "FLOP/s" if timed.quantity == "flops" else unit
            reached, limit = units.quantity(rate, unit), units.quantity(most, unit)
            message = f"{reached} is more than {device.units} compute units can do at best, {limit}"
            raise Untrustworthy(
                IMPOSSIBLE, f"{timed.label}: {message}: the work is miscounted, or not done where it is timed"
            )
