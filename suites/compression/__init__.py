"""Measure lossless codecs: compression ratio, and throughput in both directions.

Every round trip is compared bit for bit. Throughput counts *uncompressed* bytes per second in both directions; the data
start and end on the device. Chunks are compressed independently. The ratio counts the header of every chunk and 8 bytes
for its length."""

from typing import Any

from gpubench.api import suite as gb

from . import _roundtrip, _send

_WAYS = {"Compression throughput": "compress.hot", "Decompression throughput": "decompress.hot"}


def _of_both_ways(kind: Any, ending: str, case: str, **options: Any) -> list[gb.View]:
    """Return a view of each direction of a case; `ending` completes the titles."""
    return [gb.View(kind, f"{way} {ending}", (case,), series=series, **options) for way, series in _WAYS.items()]


suite = gb.Suite(
    "lossless compression: ratio, throughput and speed-up over a link",
    views=[
        gb.View(
            "breakeven",
            "Throughput of compressed transfers by link",
            ("send", "save", "load"),
            series="overlapped.self",
            by=("link", "codec"),
        ),
        *_of_both_ways("pareto", "by ratio", "roundtrip", x="ratio", by=("corpus",), log_x=True, log_y=True),
        gb.View(
            "breakeven",
            "Break-even link bandwidth by codec",
            ("roundtrip",),
            series="compress.hot",
            by=("corpus", "codec"),
        ),
        *_of_both_ways("bars", "by codec", "roundtrip", by=("corpus",)),
        gb.View("bars", "Compression ratio by codec", ("roundtrip",), series="ratio", by=("corpus",)),
        *_of_both_ways("transfer", "by batch size", "filling", x="size_bytes", by=("codec",), log_x=True, log_y=True),
        *_of_both_ways("curve", "by threads", "threads", x="threads", by=("codec",)),
        *(
            gb.View("bars", f"{reader} output", ("formats",), series=series, by=("corpus",))
            for reader, series in (
                ("Host decompression throughput of GPU", "host.decompress.host"),
                ("GPU decompression throughput of host", "gpu.decompress.hot"),
            )
        ),
    ],
    topics=[_roundtrip.topic, _send.topic],
)
