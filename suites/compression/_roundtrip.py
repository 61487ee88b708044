"""Time round trips of a buffer: through every codec, by batch and threads, by the Python binding, in shared formats."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from gpubench.api import suite as gb

from . import _codecs_device as device
from . import _codecs_host as host
from . import _corpora
from ._corpora_user import pieces

MIB = 2**20
CHUNK_BYTES = 2**16  # the size that nvCOMP's documentation recommends, and the unit of many file formats
_HOST_BYTES = 4 * MIB  # bytes of data of the case `formats` on the host; the GPU works on several copies of them
# the codecs of GPUs and of the host in the quick tier; the user's data have all codecs
_QUICK = {
    "ids": ("lz4", "zstd", "ans", "cascaded", "bitcomp", "zstd-1", "zstd-3", "zlib-1", "isal-1"),
    "text": ("lz4", "zstd", "zstd-1", "isal-1"),
    "field": ("ans", "bitcomp", "zstd-1", "isal-1"),
}
_PYTHON_CODECS = ("lz4", "snappy", "zstd", "deflate", "gdeflate", "gzip", "ans", "cascaded", "bitcomp")
_PYTHON_NAMES = {"lz4": "LZ4", "gdeflate": "GDeflate", "ans": "ANS"}
_PYTHON_HOW = "pip install 'gpubench-suite[cuda13]' (or [cuda12])"

topic = gb.Topic()


def mebibytes(smoke: int, quick: int, full: int) -> Any:
    """Return the axis with one size in bytes per tier (a `Points`); the arguments are in MiB."""
    return gb.points(smoke=(smoke * MIB,), quick=(quick * MIB,), full=(full * MIB,))


def _corpora_axis(target: gb.Target) -> Any:
    """Return the axis of corpora by tier: one, three and all, or in each tier the user's files (`--data`)."""
    tiers = {"smoke": ("ids",), "quick": _corpora.FEW, "full": tuple(_corpora.RECIPES)}
    return gb.points(**{tier: _corpora.names(target, names) for tier, names in tiers.items()})


def _one_corpus(target: gb.Target) -> Any:
    return gb.points(quick=_corpora.names(target, ("text",)), full=_corpora.names(target, _corpora.FEW))


def _codecs(target: gb.Target) -> Any:
    """Return the axis of codecs by tier; codecs with options are in the full tier only."""
    if target.is_host:
        few = ("lz4", "zstd-1", "zstd-3", "zlib-1", "isal-1")
        return gb.points(few, few, tuple(host.CODECS))
    quick = tuple(name for name in device.CODECS if name != "gzip")  # gzip is Deflate with a header
    return gb.points(smoke=device.CODECS, quick=quick, full=(*device.CODECS, *device.OPTIONS))


def _is_measured(target: gb.Target, params: Mapping[str, Any]) -> bool:
    """Return True unless the tier leaves out the codec, or the size of the chunks, for this corpus."""
    if target.tier == "quick" and params["corpus"] in _QUICK:
        return params["codec"] in _QUICK[params["corpus"]]
    plain = target.is_host or params["codec"] in device.CODECS
    return params["chunk_bytes"] == CHUNK_BYTES or (plain and (bool(target.data) or params["corpus"] in _corpora.FEW))


def _stage(
    trip: Any, way: str, nbytes: int, clock: Literal["device", "host"] = "device", waits: bool = False
) -> gb.Stage:
    call: Callable[[], object] = getattr(trip, way)
    stage = gb.Stage(call, gb.Work(payload=nbytes), "payload", waits=waits, clock=clock, max_calls=4, effort=gb.POINT)
    return replace(stage, inputs=trip.redraw) if isinstance(trip, host.HostRoundTrip) else stage


def _open(bench: gb.Bench, source: _corpora.Corpus, total: int, codec: str, chunk_bytes: int, threads: int = 1) -> Any:
    if bench.target.is_host:
        return host.HostRoundTrip(host.CODECS[codec](), source.repeated(total), chunk_bytes, threads)
    return device.GpuRoundTrip(bench, source, total, codec, chunk_bytes)


def _task(trip: Any, total: int, corpus: str, check: Callable[[], gb.Observation] | None = None) -> gb.Task:
    """Return the task of both directions of a round trip of `total` bytes; `corpus` describes the data."""
    stages = {
        "compress": _stage(trip, "compress", total),
        "decompress": _stage(trip, "restore", total, waits=getattr(trip.codec, "waits", False)),
    }
    notes = {"corpus": corpus, "codec": trip.codec.description}
    if isinstance(trip, host.HostRoundTrip):
        notes["threads"] = str(trip.threads)
    return gb.Task(stages, check=check or trip.check, poison=trip.poison, notes=notes)


@topic.case(
    corpus=_corpora_axis,
    codec=_codecs,
    size_bytes=lambda target: (4 * MIB,) if target.is_host else gb.points(smoke=(16 * MIB,), quick=(256 * MIB,)),
    chunk_bytes=gb.points((CHUNK_BYTES,), full=gb.powers_of_two(12, 20, step=2)),
    where=_is_measured,
    headline={"corpus": "ids", "codec": "lz4", "chunk_bytes": CHUNK_BYTES},
)
def roundtrip(bench: gb.Bench, corpus: str, codec: str, size_bytes: int, chunk_bytes: int) -> gb.Task:
    """Compress and restore a buffer in independent chunks: uncompressed bytes per second, and the ratio.

    The corpus is repeated to `size_bytes`; a user's shorter file is taken once. On the host one thread works through
    the chunks; on a GPU one batched call takes them all. Raises Skip if the codec is unavailable."""
    source, total = _corpora.source_of(bench, corpus, size_bytes)
    return _task(_open(bench, source, total, codec, chunk_bytes), total, source.description)


@topic.case(
    when=lambda target: gb.on_gpu(target) and gb.beyond_quick(target),
    corpus=lambda target: _corpora.names(target, ("text",)),
    codec=gb.points((), smoke=("lz4",), full=device.CODECS),
    chunk_bytes=gb.points((CHUNK_BYTES,), full=(2**14, CHUNK_BYTES, 2**18)),
    size_bytes=gb.points((), smoke=(2**18, 2**22), full=gb.powers_of_two(16, 30, step=2)),
    where=lambda _, params: int(params["size_bytes"]) >= int(params["chunk_bytes"]),
)
def filling(bench: gb.Bench, corpus: str, codec: str, chunk_bytes: int, size_bytes: int) -> gb.Task:
    """Compress and restore batches from one chunk to many on a GPU: uncompressed bytes per second.

    A batch has `size_bytes`. A chunk occupies only a few warps, so that only many chunks fill a GPU. The half-bandwidth
    size n½ divided by the bytes of a chunk is the number of chunks that reach half of the full rate."""
    source, total = _corpora.source_of(bench, corpus, size_bytes)
    return _task(_open(bench, source, total, codec, chunk_bytes), total, source.description)


def _threads(_: gb.Target) -> Any:
    """Return the axis of threads by tier (a `Points`): all cores, and in the full tier also the powers of two below."""
    cores = host.cores()
    return gb.points(quick=(cores,), full=tuple(sorted({*(2**k for k in range(cores.bit_length())), cores})))


@topic.case(
    when=gb.on_host,
    corpus=_one_corpus,
    codec=gb.points(quick=("lz4", "zstd-3"), full=tuple(host.CODECS)),
    threads=_threads,
    size_bytes=mebibytes(4, 16, 64),
    chunk_bytes=(CHUNK_BYTES,),
)
def threads(bench: gb.Bench, corpus: str, codec: str, threads: int, size_bytes: int, chunk_bytes: int) -> gb.Task:
    """Compress and restore chunks in several threads of one process: uncompressed bytes per second of all together.

    The corpus is repeated to `size_bytes`. The bindings release Python's global lock while they work."""
    source, total = _corpora.source_of(bench, corpus, size_bytes)
    return _task(_open(bench, source, total, codec, chunk_bytes, threads), total, source.description)


class PythonRoundTrip:
    """A round trip of a buffer on a GPU, whose encoded and decoded arrays are made anew by each call."""

    def __init__(self, bench: gb.Bench, codec: Any, wrapped: Any, source: Any, chunk_bytes: int) -> None:
        self._bytes, self._xp, self._codec, self._wrapped = device.DeviceBytes(bench), bench.xp, codec, wrapped
        self._source, self._chunk_bytes = source, chunk_bytes
        self.poison()

    def poison(self) -> None:
        self.compressed = self.restored = None

    def compress(self) -> None:
        self.compressed = self._codec.encode(self._wrapped)

    def restore(self) -> None:
        self.restored = self._codec.decode(self.compressed)

    def check(self) -> gb.Observation:
        """Compare every restored byte with the buffer, and return the ratio and the compressed bytes."""
        gb.expect(self.restored is not None, "nothing was decompressed")
        self._bytes.expect_same(self._xp.asarray(self.restored).reshape(-1).view(self._xp.uint8), self._source)
        return host.observed(self._source.size, self._chunk_bytes, int(self.compressed.buffer_size))  # type: ignore[attr-defined]


@topic.case(
    when=gb.on_gpu,
    corpus=_one_corpus,
    codec=gb.points((), smoke=("lz4",), full=_PYTHON_CODECS),
    size_bytes=mebibytes(16, 256, 256),
    chunk_bytes=(CHUNK_BYTES,),
)
def python(bench: gb.Bench, corpus: str, codec: str, size_bytes: int, chunk_bytes: int) -> gb.Task:
    """Compress and restore a buffer through `nvidia.nvcomp`: uncompressed bytes per second, by the host's clock.

    The corpus is repeated to `size_bytes`. Unlike in `roundtrip`, each call allocates its output and waits for the
    device, and its time includes both. Raises Skip if the binding is not installed."""
    source, total = _corpora.source_of(bench, corpus, size_bytes)
    elements = device.open_codec(bench, codec, source.dtype).row.data_type  # the same type as in the C interface
    try:
        from nvidia import nvcomp as binding
    except ImportError as error:
        raise gb.Skip(f"needs nvidia.nvcomp ({error}): {_PYTHON_HOW}") from error
    bench.need(4 * total + device.RESERVE_BYTES)
    # a type string of NumPy, in which |f1 is E4M3
    text = "|f1" if elements == "float8_e4m3" else np.dtype(elements).str
    handle = binding.Codec(
        algorithm=_PYTHON_NAMES.get(codec, codec.capitalize()),
        uncomp_chunk_size=chunk_bytes,
        cuda_stream=device.current_stream(bench.xp),
        **({"data_type": text} if codec in ("ans", "cascaded", "bitcomp") else {}),
    )
    data = device.uploaded(bench, source, total)
    trip = PythonRoundTrip(bench, handle, binding.as_array(data), data, chunk_bytes)
    stages = {
        "compress": _stage(trip, "compress", total, "host", waits=True),
        "decompress": _stage(trip, "restore", total, "host", waits=True),
    }
    description = f"nvidia.nvcomp {binding.__version__}, its own container, elements {elements}"
    notes = {"corpus": source.description, "codec": description}
    return gb.Task(stages, check=trip.check, poison=trip.poison, notes=notes)


class FormatExchange:
    """The chunks that GPU and host have compressed, and the data that each restores from the other's chunks."""

    def __init__(self, bench: gb.Bench, trip: device.GpuRoundTrip, codec: host.HostCodec, source: Any) -> None:
        """Compress the data on both devices, and prepare the call with which the GPU restores the host's chunks."""
        self._trip, self._codec, self._source, self._threads = trip, codec, source, host.cores()
        self._chunks = host.chunks_of(source, trip.chunk_bytes)
        self._sizes = list(map(len, self._chunks))
        trip.compress()
        chunks, count, to_host = trip.compressed, len(self._sizes), bench.device.to_host
        sizes = to_host(chunks.sizes)[:count].tolist()
        rows = to_host(chunks.memory[: count * chunks.stride]).reshape(count, chunks.stride)
        self._gpus = [row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)]
        self.host_writes()
        self._sent = device.DeviceChunks.uploaded(bench.xp, self.hosts, trip.total // source.size)
        self.gpu_reads = trip.restoring(self._sent, device.current_stream(bench.xp))
        self.restored: list[bytes] = []

    def poison(self) -> None:
        self._trip.poison()
        self.restored = []

    def host_reads(self) -> None:
        self.restored = self._codec.decompress(self._gpus, self._sizes, self._threads)

    def host_writes(self) -> None:
        self.hosts = self._codec.compress(self._chunks, self._threads)

    def check(self) -> gb.Observation:
        """Compare what each device has restored with the data, bit for bit, and return `ratio.gpu` and `ratio.host`.

        A ratio is uncompressed over compressed bytes. Raises WrongAnswer if a byte differs."""
        self._trip.check()  # checked after `gpu_reads`, so that the restored data came from the host's chunks
        is_same = b"".join(self.restored) == self._source.tobytes()
        gb.expect(is_same, "the host decompressed other bytes than the GPU compressed")
        headers = host.LENGTH_BYTES * len(self._sizes)
        written = {"ratio.gpu": self._gpus, "ratio.host": self.hosts}
        sizes = {name: sum(map(len, chunks)) + headers for name, chunks in written.items()}
        return {name: gb.Observed(self._source.size / size, "", "more") for name, size in sizes.items()}


@topic.case(
    when=lambda target: gb.on_gpu(target) and gb.beyond_quick(target),
    corpus=_one_corpus,
    format=gb.points((), smoke=("lz4",), full=tuple(host.FORMATS)),
    size_bytes=mebibytes(16, 64, 256),
    chunk_bytes=(CHUNK_BYTES,),
)
def formats(bench: gb.Bench, corpus: str, format: str, size_bytes: int, chunk_bytes: int) -> gb.Task:  # noqa: A002 - an axis
    """Compress and restore the same data in one format on GPU and host: uncompressed bytes per second of each.

    The GPU restores what the host compressed, and the host what the GPU compressed; both results are compared bit for
    bit. `format` is a key of FORMATS. The GPU works on up to `size_bytes`, the host with all its cores on at most the
    first 4 MiB. Raises Skip if the format is unavailable on either."""
    source, total = _corpora.source_of(bench, corpus, size_bytes)
    codec, most = host.FORMATS[format](), min(_HOST_BYTES, source.data.size)
    data = np.ascontiguousarray(source.data[: most // chunk_bytes * chunk_bytes or most])
    part = _corpora.Corpus(source.name, "uint8", source.description, data)
    trip = device.GpuRoundTrip(bench, part, total - total % data.size or data.size, format, chunk_bytes)
    exchange = FormatExchange(bench, trip, codec, data)
    stages = {
        "gpu.compress": _stage(trip, "compress", trip.total),
        "gpu.decompress": _stage(exchange, "gpu_reads", trip.total, waits=trip.codec.waits),
        "host.compress": _stage(exchange, "host_writes", data.size, "host", waits=True),
        "host.decompress": _stage(exchange, "host_reads", data.size, "host", waits=True),
    }
    notes = {"gpu": trip.codec.description, "host": codec.description, "host.threads": str(host.cores())}
    return gb.Task(stages, check=exchange.check, poison=exchange.poison, notes={"corpus": source.description, **notes})


@topic.case(
    when=lambda target: bool(target.data) and target.tier == "full",
    corpus=_corpora_axis,
    codec=lambda target: ("zstd-1", "lz4") if target.is_host else ("zstd", "ans"),
    piece_bytes=lambda target: (64 * MIB,) if target.is_host else (256 * MIB,),
    chunk_bytes=(CHUNK_BYTES,),
)
def whole(bench: gb.Bench, corpus: str, codec: str, piece_bytes: int, chunk_bytes: int) -> gb.Task:
    """Compress and restore a user's whole file piece by piece: its ratio, and uncompressed bytes per second.

    Every piece of `piece_bytes` is compressed, restored and compared once; then the first piece is timed. The host
    holds one piece at a time, and the device what the round trip of one piece needs."""
    file, count, total, compressed = _corpora.file_named(bench, corpus), 0, 0, 0

    def open_piece(piece: Any) -> Any:
        data = _corpora.Corpus(corpus, piece.dtype, piece.description, piece.data)
        return _open(bench, data, piece.data.size, codec, chunk_bytes)

    for piece in pieces(file, piece_bytes):
        trip = open_piece(piece)
        for work in (trip.poison, trip.compress, trip.restore):
            work()
        count, total = count + 1, total + piece.data.size
        compressed += int(trip.check()["compressed"].value)
    first = next(pieces(file, piece_bytes))
    trip = open_piece(first)

    def check() -> gb.Observation:
        """Check the timed piece, and return the ratio and the compressed bytes of the whole file."""
        ratio = gb.Observed(total / compressed, "", "more")
        return {**trip.check(), "ratio": ratio, "compressed": gb.Observed(compressed, "B", "less")}

    description = f"all {total} bytes of user data, in {count} pieces; the first piece is timed"
    return _task(trip, first.data.size, description, check)
