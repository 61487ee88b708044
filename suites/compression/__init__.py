"""Measure lossless codecs: compression ratio, and throughput in both directions.

Every round trip is compared bit for bit. Throughput counts *uncompressed* bytes per second in both directions; the data
start and end on the device. Chunks are compressed independently. The ratio counts the header of every chunk and 8 bytes
for its length."""

from typing import Any

from gpubench.api import suite as gb

from . import _roundtrip, _send, _streams


def _views(kind: Any, ending: str, case: str, **options: Any) -> list[gb.View]:
    """Return a view of each direction of a case; `ending` completes the titles."""
    directions = {"Compression throughput": "compress.hot", "Decompression throughput": "decompress.hot"}
    return [gb.View(kind, f"{name} {ending}", (case,), series=label, **options) for name, label in directions.items()]


_TRANSFERS, _BREAK_EVEN = "Throughput of compressed transfers by link", "Break-even link bandwidth by codec"
_BY_HOST, _BY_GPU = "Host decompression throughput of GPU output", "GPU decompression throughput of host output"

suite = gb.Suite(
    "lossless compression: ratio, throughput and speed-up over a link",
    views=[
        gb.View("breakeven", _TRANSFERS, ("send", "save", "load"), series="overlapped.self", by=("link", "codec")),
        *_views("pareto", "by ratio", "roundtrip", x="ratio", by=("corpus",), log_x=True, log_y=True),
        gb.View("breakeven", _BREAK_EVEN, ("roundtrip",), series="compress.hot", by=("corpus", "codec")),
        *_views("bars", "by codec", "roundtrip", by=("corpus",)),
        gb.View("bars", "Compression ratio by codec", ("roundtrip",), series="ratio", by=("corpus",)),
        *_views("transfer", "by batch size", "filling", x="size_bytes", by=("codec",), log_x=True, log_y=True),
        *_views("curve", "by threads", "threads", x="threads", by=("codec",)),
        *_views("bars", "with exponents apart", "split", by=("corpus",)),
        gb.View("bars", "Latency of a block at a fixed arrival rate", ("arrivals",), by=("corpus",), log_x=True),
        gb.View("bars", _BY_HOST, ("formats",), series="host.decompress.host", by=("corpus",)),
        gb.View("bars", _BY_GPU, ("formats",), series="gpu.decompress.hot", by=("corpus",)),
    ],
    topics=[_roundtrip.topic, _send.topic, _streams.topic],
)
