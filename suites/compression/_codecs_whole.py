"""Compress and restore a user's whole file piece by piece, so that it may be larger than the memory."""

from collections.abc import Callable
from typing import Any

from gpubench.api import suite as gb

from . import _codecs_host, _codecs_nvcomp
from ._axes import CHUNK_BYTES, MIB, corpora
from ._codecs_common import stage
from ._corpora import DATA_PREFIX, Corpus
from ._corpora_user import FileData, pieces

topic = gb.Topic()


@topic.case(
    when=lambda target: bool(target.data) and target.tier == "full",
    corpus=corpora,
    codec=lambda target: ("zstd-1", "lz4") if target.is_host else ("zstd", "ans"),
    piece_bytes=lambda target: (64 * MIB,) if target.is_host else (256 * MIB,),
    chunk_bytes=(CHUNK_BYTES,),
)
def whole(bench: gb.Bench, corpus: str, codec: str, piece_bytes: int, chunk_bytes: int) -> gb.Task:
    """Compress and restore a user's whole file piece by piece: its ratio, and uncompressed bytes per second.

    Every piece of `piece_bytes` is compressed, restored and compared once; then the first piece is timed. The host
    holds one piece at a time, and the device what the round trip of one piece needs."""
    file = {DATA_PREFIX + file.label: file for file in bench.target.data}[corpus]

    def open_piece(piece: FileData) -> Any:
        """Return a round trip of the piece on the device of the case: a `HostRoundTrip` or a `GpuRoundTrip`."""
        piece_corpus = Corpus(corpus, piece.dtype, piece.description, piece.data)
        if bench.target.is_host:
            return _codecs_host.open_trip(piece_corpus, piece.data.size, codec, chunk_bytes)
        return _codecs_nvcomp.open_trip(bench, piece_corpus, piece.data.size, codec, chunk_bytes)

    count, total, compressed = _compress_pieces(file, piece_bytes, open_piece)
    first = next(pieces(file, piece_bytes))
    trip = open_piece(first)

    def check() -> gb.Observation:
        """Check the timed piece, and return the ratio and the compressed bytes of the whole file."""
        file_figures = {
            "ratio": gb.Observed(total / compressed, "", "more"),
            "compressed": gb.Observed(compressed, "B", "less"),
        }
        return {**trip.check(), **file_figures}

    stages = {
        "compress": stage(trip.compress, first.data.size),
        "decompress": stage(trip.restore, first.data.size, waits=getattr(trip.codec, "waits", False)),
    }
    description = f"all {total} bytes of user data, in {count} pieces; the first piece is timed"
    notes = {"corpus": description, "codec": trip.codec.description}
    return gb.Task(stages, check=check, poison=trip.poison, notes=notes)


def _compress_pieces(
    file: gb.DataFile, piece_bytes: int, open_piece: Callable[[FileData], Any]
) -> tuple[int, int, int]:
    """Compress, restore and check every piece of a file."""
    count = total = compressed = 0
    for piece in pieces(file, piece_bytes):
        trip = open_piece(piece)
        trip.poison()
        trip.compress()
        trip.restore()
        compressed += int(trip.check()["compressed"].value)
        count, total = count + 1, total + piece.data.size
    return count, total, compressed
