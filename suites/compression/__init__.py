"""Measure lossless codecs: compression ratio, and throughput in both directions.

Every round trip is compared bit for bit. Throughput counts *uncompressed* bytes per second in both directions; the data
start and end on the device. Chunks are compressed independently. The ratio counts the header of every chunk and 8 bytes
for its length."""

from gpubench.api import suite as gb

from . import _codecs_formats, _codecs_python, _codecs_whole, _roundtrip, _send, _storage

suite = gb.Suite(
    "lossless compression: ratio, throughput and speed-up over a link",
    views=[
        gb.View(
            "breakeven",
            "Throughput of compressed transfers by link",
            ("send", "save", "load"),
            series="overlapped.self",
            by=("link", "codec"),
        )
    ],
    topics=[
        _roundtrip.topic,
        _codecs_python.topic,
        _codecs_formats.topic,
        _codecs_whole.topic,
        _send.topic,
        _storage.topic,
    ],
)
