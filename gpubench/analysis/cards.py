"""Say what is known of a device without a measurement: peaks with sources, and whether its model was measured."""

from collections.abc import Iterator

from gpubench.base import units
from gpubench.knowledge import hardware
from gpubench.knowledge.data_sheets import recorded_deviations
from gpubench.model import LIMITS, Device


def described(device: Device) -> Iterator[str]:
    """Yield lines about a device: products, features of kernels, peaks by source, unknown peaks, and what never ran."""
    features = device.architecture.features
    scaled = ("mxfp8", "nvfp4") if "block_scales" in features else ()
    yield f"products: {', '.join((*device.dtypes, *scaled))}"
    yield f"kernels: {', '.join(sorted(features)) or 'nothing beyond the oldest'}"
    by_source: dict[str, list[str]] = {}
    for limit in LIMITS:
        if peak := hardware.peak(device, limit):
            by_source.setdefault(peak.source, []).append(f"{limit} {_rate_text(limit, peak.value)}")
    for source, peaks in by_source.items():
        yield f"peaks: {', '.join(peaks)} ({source})"
    if address := hardware.address_of(device):
        yield f"data sheet: {address}"
    unknown = [limit for limit in LIMITS if not hardware.peak(device, limit)]
    yield f"peaks unknown: {', '.join(unknown) or 'none'}"
    models = sorted({model for model, _ in recorded_deviations()})
    if device.name in models:
        yield "measured: this project has measured this model"
    else:
        yield f"never ran: this project has measured {', '.join(models)} and no {device.name}"


def _rate_text(limit: str, rate: float) -> str:
    """Return a peak in the unit of what it limits; products of integers are no floating-point operations."""
    if limit == "dram" or limit.startswith("link."):
        return units.quantity(rate, "B/s")
    text = units.quantity(rate, "FLOP/s")
    return text.replace("FLOP/s", "OP/s") if "int" in limit else text
