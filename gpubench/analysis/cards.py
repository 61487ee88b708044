"""Say what is known of a device without a measurement: peaks with sources, and whether its model was measured."""

from collections.abc import Iterator

from gpubench.knowledge import hardware
from gpubench.knowledge.data_sheets import recorded_deviations
from gpubench.model import LIMITS, Device


def described(device: Device) -> Iterator[str]:
    """Yield lines about a device: products, features of kernels, peaks by source, unknown peaks, and what never ran."""
    yield f"products: {', '.join(device.dtypes)}"
    yield f"kernels: {', '.join(sorted(device.architecture.features)) or 'nothing beyond the oldest'}"
    by_source: dict[str, list[str]] = {}
    for limit in LIMITS:
        if peak := hardware.peak(device, limit):
            unit = "B/s" if limit == "dram" or limit.startswith("link.") else "FLOP/s"
            by_source.setdefault(peak.source, []).append(f"{limit} {peak.value / 1e12:.4g} T{unit}")
    for source, peaks in by_source.items():
        yield f"peaks: {', '.join(peaks)} ({source})"
    unknown = [limit for limit in LIMITS if not hardware.peak(device, limit)]
    yield f"peaks unknown: {', '.join(unknown) or 'none'}"
    models = sorted({model for model, _ in recorded_deviations()})
    if device.name in models:
        yield "measured: this project has measured this model"
    else:
        yield f"never ran: this project has measured {', '.join(models)} and no {device.name}"
