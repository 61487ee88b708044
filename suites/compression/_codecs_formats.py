"""Exchange compressed chunks between GPU and host: each restores what the other has compressed in the same format."""

from typing import Any

import numpy as np

from gpubench.api import suite as gb

from . import _codecs_host
from ._axes import CHUNK_BYTES, mebibytes, one_corpus
from ._codecs_bytes import DeviceBytes
from ._codecs_common import LENGTH_BYTES, lengths, stage
from ._codecs_device import DeviceChunks, current_stream
from ._codecs_nvcomp import GpuRoundTrip, open_trip
from ._corpora import Corpus, source_of

topic = gb.Topic(
    views=[
        gb.View(
            "bars",
            "Host decompression throughput of GPU output",
            ("formats",),
            series="host.decompress.host",
            by=("corpus",),
        ),
        gb.View(
            "bars",
            "GPU decompression throughput of host output",
            ("formats",),
            series="gpu.decompress.hot",
            by=("corpus",),
        ),
    ]
)

HOST_BYTES = 4 * 2**20  # bytes of data on the host; the GPU works on several copies of them


class FormatExchange:
    """The chunks that GPU and host have compressed, and the data that each restores from the other's chunks."""

    def __init__(self, bench: gb.Bench, trip: GpuRoundTrip, codec: _codecs_host.HostCodec, source: Any) -> None:
        """Compress the data on both devices, and prepare the call with which the GPU restores the host's chunks."""
        self._bench = bench
        self._trip = trip
        self._host = codec
        self._threads = _codecs_host.cores()
        self._bytes = DeviceBytes(bench)
        self._source = source
        chunk = trip.layout.chunk
        self._sizes = lengths(source.size, chunk)
        self._chunks = [memoryview(source)[start : start + chunk] for start in range(0, source.size, chunk)]
        trip.compress()
        self._gpus = self._fetch_gpu_chunks()
        self.hosts = codec.compress(self._chunks, self._threads)
        self._sent = DeviceChunks.uploaded(bench.xp, self.hosts, trip.layout.total // source.size)
        arguments = (self._sent, trip.restored, trip.written, trip.scratch, trip.restore_statuses)
        self._read = trip.codec.decompressing(*arguments, current_stream(bench.xp))
        self.restored: list[bytes] = []

    def _fetch_gpu_chunks(self) -> list[bytes]:
        """Return the chunks that the GPU has compressed from the first copy of the data, in host memory."""
        sizes = self._bench.device.to_host(self._trip.compressed.sizes)
        stride, count = self._trip.compressed.stride, len(self._sizes)
        rows = self._bench.device.to_host(self._trip.compressed.memory[: count * stride]).reshape(count, stride)
        return [row[:size].tobytes() for row, size in zip(rows, sizes[:count].tolist(), strict=True)]

    def poison(self) -> None:
        """Overwrite the GPU's output with wrong bytes, and drop the host's output."""
        self._trip.poison()
        self.restored = []

    def gpu_reads(self) -> None:
        """Queue restoring the chunks of the host on the GPU."""
        self._read()

    def host_reads(self) -> None:
        """Restore the chunks of the GPU on the host."""
        self.restored = self._host.decompress(self._gpus, self._sizes, self._threads)

    def host_writes(self) -> None:
        """Compress the data on the host."""
        self.hosts = self._host.compress(self._chunks, self._threads)

    def check(self) -> gb.Observation:
        """Compare what each device has restored with the data, bit for bit, and return `ratio.gpu` and `ratio.host`.

        A ratio is uncompressed over compressed bytes. Raises WrongAnswer if a byte differs."""
        self._trip.check()  # checked after `gpu_reads`, so that the restored data came from the host's chunks
        gb.expect(
            b"".join(self.restored) == self._source.tobytes(),
            "the host decompressed other bytes than the GPU compressed",
        )
        headers = LENGTH_BYTES * len(self._sizes)
        written = {"gpu": self._gpus, "host": self.hosts}
        return {
            f"ratio.{name}": gb.Observed(self._source.size / (sum(map(len, chunks)) + headers), "", "more")
            for name, chunks in written.items()
        }


@topic.case(
    when=lambda target: gb.on_gpu(target) and gb.beyond_quick(target),
    corpus=one_corpus,
    format=gb.points((), smoke=("lz4",), full=tuple(_codecs_host.FORMATS)),
    size_bytes=mebibytes(16, 64, 256),
    chunk_bytes=(CHUNK_BYTES,),
)
def formats(bench: gb.Bench, corpus: str, format: str, size_bytes: int, chunk_bytes: int) -> gb.Task:  # noqa: A002 - an axis
    """Compress and restore the same data in one format on GPU and host: uncompressed bytes per second of each.

    The GPU restores what the host compressed, and the host what the GPU compressed; both results are compared bit for
    bit. `format` is a key of FORMATS. The GPU works on up to `size_bytes`, the host with all its cores on at most the
    first 4 MiB. Raises Skip if the format is unavailable on either."""
    source, total = source_of(bench, corpus, size_bytes)
    codec = _codecs_host.open_format(format)
    most = min(HOST_BYTES, source.data.size)
    part = Corpus(source.name, "uint8", source.description, source.data[: most // chunk_bytes * chunk_bytes or most])
    trip = open_trip(bench, part, total - total % part.data.size or part.data.size, format, chunk_bytes)
    exchange = FormatExchange(bench, trip, codec, np.ascontiguousarray(part.data))
    on_gpu_bytes, on_host_bytes = trip.layout.total, part.data.size
    stages = {
        "gpu.compress": stage(trip.compress, on_gpu_bytes),
        "gpu.decompress": stage(exchange.gpu_reads, on_gpu_bytes, waits=trip.codec.waits),
        "host.compress": _on_host(exchange.host_writes, on_host_bytes),
        "host.decompress": _on_host(exchange.host_reads, on_host_bytes),
    }
    notes = {"corpus": source.description, "gpu": trip.codec.description, "host": codec.description}
    threads = {"host.threads": str(_codecs_host.cores())}
    return gb.Task(stages, check=exchange.check, poison=exchange.poison, notes={**notes, **threads})


def _on_host(call: Any, payload: int) -> gb.Stage:
    """Return the stage of a call that works on the host and is timed by its clock."""
    return stage(call, payload, waits=True, clock="host")
