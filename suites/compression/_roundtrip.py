"""Time round trips of a buffer: through every codec, by batch and threads, by the Python binding, in shared formats."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np

from gpubench.api import libraries as lib
from gpubench.api import suite as gb

from .._checks import in_turn
from . import _codecs, _corpora

MIB = 2**20
CHUNK_BYTES = 2**16  # the size that nvCOMP's documentation recommends, and the unit of many file formats
_LENGTH_BYTES = 8  # a 64-bit compressed length, which a reader needs for each chunk
_POISON = 0xA5
_HOST_BYTES = 4 * MIB  # bytes of data of the case `formats` on the host; the GPU works on several copies of them
# the codecs of GPUs and of the host in the quick tier; the user's data have all codecs
_QUICK = {
    "ids": ("lz4", "zstd", "ans", "cascaded", "bitcomp", "zstd-1", "zstd-3", "zlib-1", "isal-1"),
    "text": ("lz4", "zstd", "zstd-1", "isal-1"),
    "field": ("ans", "bitcomp", "zstd-1", "isal-1"),
}
_PYTHON_NAMES = {"lz4": "LZ4", "gdeflate": "GDeflate", "ans": "ANS"}

topic = gb.Topic()


def mebibytes(smoke: int, quick: int, full: int) -> Any:
    """Return the axis with one size in bytes per tier (a `Points`); the arguments are in MiB."""
    return gb.points(smoke=(smoke * MIB,), quick=(quick * MIB,), full=(full * MIB,))


_EVERY_CORPUS = _corpora.axis(_corpora.FEW, ("ids",), tuple(_corpora.RECIPES))
_ONE_CORPUS = _corpora.axis(("text",), full=_corpora.FEW)


def _codec_axis(target: gb.Target) -> Any:
    """Return the axis of codecs by tier; codecs with options are in the full tier only."""
    if target.is_host:
        few = ("lz4", "zstd-1", "zstd-3", "zlib-1", "isal-1")
        return gb.points(few, few, tuple(_codecs.ON_HOST))
    quick = tuple(name for name in _codecs.ON_GPU if name != "gzip")  # gzip is Deflate with a header
    return gb.points(smoke=_codecs.ON_GPU, quick=quick, full=(*_codecs.ON_GPU, *_codecs.OPTIONS))


def _is_measured(target: gb.Target, params: Mapping[str, Any]) -> bool:
    """Return True unless the tier leaves out the codec, or the size of the chunks, for this corpus."""
    if target.tier == "quick" and params["corpus"] in _QUICK:
        return params["codec"] in _QUICK[params["corpus"]]
    plain = target.is_host or params["codec"] in _codecs.ON_GPU
    return params["chunk_bytes"] == CHUNK_BYTES or (plain and (bool(target.data) or params["corpus"] in _corpora.FEW))


# Round trips.


def observed(total: int, chunk_bytes: int, compressed: int) -> dict[str, gb.Observed]:
    """Return the observations of a round trip: the ratio, and the compressed bytes with their lengths."""
    stored = compressed + _LENGTH_BYTES * len(_codecs.lengths(total, chunk_bytes))
    return {"ratio": gb.Observed(total / stored, "", "more"), "compressed": gb.Observed(stored, "B", "less")}


def rotate(copy: Callable[[Any, Any], object], array: Any, spare: Any, chunk_bytes: int) -> None:
    """Rotate the data of a round trip in place, so that no chunk has earlier contents: `spare` is overwritten.

    It is by three eighths of a chunk and 8 bytes, so that no chunk soon returns, or by half of a shorter buffer. `copy`
    writes to its first array."""
    rest = array.size - min(chunk_bytes * 3 // 8 // 8 * 8 + 8, array.size // 2)
    for target, source in ((spare[:rest], array[-rest:]), (spare[rest:], array[:-rest]), (array, spare)):
        copy(target, source)


class HostRoundTrip:
    """A round trip on the host: a buffer, its chunks compressed, and its chunks restored, by `threads` threads.

    An output has one bytes object per chunk, as the binding returns it, and is not copied into one buffer. `arrived`
    are the chunks to restore if they are not this round trip's own."""

    def __init__(self, codec: _codecs.HostCodec, source: Any, chunk_bytes: int, threads: int = 1) -> None:
        self.codec, self.source, self.threads, self._chunk_bytes = codec, source, threads, chunk_bytes
        self._squeeze, self._rng = codec.squeeze, np.random.default_rng(source.size)
        self.total, self.sizes = source.size, _codecs.lengths(source.size, chunk_bytes)
        self._chunks, self._spare = _codecs.chunks_of(source, chunk_bytes), np.empty_like(source)
        self.arrived: list[bytes] | None = None
        self.poison()

    def redraw(self) -> None:
        rotate(np.copyto, self.source, self._spare, self._chunk_bytes)

    def poison(self) -> None:
        self.compressed: list[bytes] = [b""] * len(self.sizes)
        self.restored: list[bytes] = [b""] * len(self.sizes)

    def compress(self) -> None:
        self.compressed = self.codec.compress(self._chunks, self.threads)

    def restore(self) -> None:
        """Restore every compressed chunk; raises WrongAnswer if one is not valid or has a wrong length."""
        self.restored = self.codec.decompress(self.arrived or self.compressed, self.sizes, self.threads)

    def check(self) -> gb.Observation:
        """Compare every restored byte with the buffer, and return its ratio and its compressed bytes.

        A random chunk must have the bytes that a new compressor of the named codec makes of it."""
        place = int(self._rng.integers(len(self.sizes)))
        gb.expect(self.compressed[place] == self._squeeze()(self._chunks[place]), f"chunk {place} is of another codec")
        self.codec.buffers.expect_same(np.frombuffer(b"".join(self.restored), np.uint8), self.source)
        return observed(self.total, self._chunk_bytes, sum(map(len, self.compressed)))


class GpuRoundTrip:
    """A round trip on a GPU: a buffer, its chunks compressed, its chunks restored, and all memory that a call needs."""

    def __init__(self, codec: _codecs.DeviceCodec, corpus: _corpora.Corpus, chunk_bytes: int) -> None:
        """Allocate all memory for a buffer of the corpus; raises Skip if the library refuses chunks of this size."""
        bench, xp, self.codec, self.total = codec.bench, codec.bench.xp, codec, corpus.total
        self._chunk_bytes, self._count = chunk_bytes, len(_codecs.lengths(corpus.total, chunk_bytes))
        try:
            most_bytes = codec.max_output_bytes(chunk_bytes)
            self._scratch_bytes = codec.temp_bytes(self._count, chunk_bytes)
        except lib.nvcomp.NvcompError as error:
            if error.is_refusal:
                raise gb.Skip(str(error)) from error
            raise
        scratch_bytes = max(self._scratch_bytes.values())
        bench.need(2 * self.total + self._count * _codecs.aligned(most_bytes) + scratch_bytes + _codecs.RESERVE_BYTES)
        self.source = _codecs.DeviceChunks.side_by_side(xp, corpus.buffer(bench), chunk_bytes)
        self.compressed = _codecs.DeviceChunks.room(xp, self._count, most_bytes)
        self.restored = _codecs.DeviceChunks.side_by_side(xp, xp.empty(self.total, xp.uint8), chunk_bytes)
        self._scratch = xp.empty(scratch_bytes, xp.uint8)
        self._compressing = _codecs.Batch(codec, self.source, self.compressed, self._scratch, chunk_bytes)
        self._restoring = _codecs.Batch(codec, self.compressed, self.restored, self._scratch)

    def receive(self, chunks: Sequence[bytes]) -> None:
        """Restore from now on `chunks`, repeated to the size of the buffer, in place of this round trip's own."""
        arrived = _codecs.DeviceChunks.uploaded(self.codec.bench.xp, chunks, self._count // len(chunks))
        self._restoring = _codecs.Batch(self.codec, arrived, self.restored, self._scratch)
        self._restoring()  # prepares the call outside of the timing

    def redraw(self) -> None:
        """Put a new input in place, by way of the memory for the compressed chunks, which is overwritten next."""
        spare = self.compressed.memory[: self.total]
        rotate(self.codec.bench.device.copy, self.source.memory, spare, self._chunk_bytes)

    def poison(self) -> None:
        """Overwrite every output with a wrong value: restored bytes, sizes and statuses."""
        self.codec.buffers.invert(self.source.memory, self.restored.memory)
        self.codec.buffers.fill(self.compressed.memory, _POISON)
        self._compressing.poison()
        self._restoring.poison()

    def compress(self) -> None:
        self._compressing()

    def restore(self) -> None:
        self._restoring()

    def check(self) -> gb.Observation:
        """Check the status, the size and every byte of all chunks, and return the observations of the round trip.

        These are the ratio, the compressed bytes and the scratch memory of both directions."""
        sizes, _ = self._compressing.check(), self._restoring.check()
        self.codec.buffers.expect_same(self.restored.memory, self.source.memory)
        scratch = {f"{way}.scratch": gb.Observed(nbytes, "B", "less") for way, nbytes in self._scratch_bytes.items()}
        return {**observed(self.total, self._chunk_bytes, int(sizes.sum())), **scratch}


class PythonRoundTrip:
    """A round trip of a buffer on a GPU, whose encoded and decoded arrays are made anew by each call."""

    def __init__(self, bench: gb.Bench, codec: Any, binding: Any, source: Any, chunk_bytes: int) -> None:
        """Take the buffer `source` (CuPy, uint8), and `codec`, which `binding`, the module nvidia.nvcomp, has made."""
        self._bytes, self._bench, self._codec, self._wrap = _codecs.DeviceBytes(bench), bench, codec, binding.as_array
        self._source, self._spare, self._chunk_bytes = source, bench.xp.empty(source.size, bench.xp.uint8), chunk_bytes
        self._wrapped, self.total = self._wrap(source), source.size
        self.poison()

    def redraw(self) -> None:
        rotate(self._bench.device.copy, self._source, self._spare, self._chunk_bytes)
        self._wrapped = self._wrap(self._source)

    def poison(self) -> None:
        self.compressed = self.restored = None

    def compress(self) -> None:
        self.compressed = self._codec.encode(self._wrapped)

    def restore(self) -> None:
        self.restored = self._codec.decode(self.compressed)

    def check(self) -> gb.Observation:
        """Compare every restored byte with the buffer, and return the ratio and the compressed bytes."""
        gb.expect(self.restored is not None, "nothing was decompressed")
        restored = self._bench.xp.asarray(self.restored).reshape(-1).view(self._bench.xp.uint8)
        self._bytes.expect_same(restored, self._source)
        return observed(self.total, self._chunk_bytes, int(self.compressed.buffer_size))  # type: ignore[attr-defined]


# Cases.


_WAYS = ("compress", "decompress")


def _stages(trip: Any, names: tuple[str, str], clock: Literal["device", "host"] = "device") -> dict[str, gb.Stage]:
    """Return the stages of both directions of a round trip; by the host's clock each call waits for the device."""
    waits = clock == "host"
    stage = partial(gb.Stage, work=gb.Work(payload=trip.total), quantity="payload", clock=clock, max_calls=4)
    stage = partial(stage, effort=gb.POINT, inputs=trip.redraw)
    calls = stage(trip.compress, waits=waits), stage(trip.restore, waits=waits or trip.codec.waits)
    return dict(zip(names, calls, strict=True))


def _task(bench: gb.Bench, corpus: _corpora.Corpus, codec: str, chunk_bytes: int, threads: int = 1) -> gb.Task:
    """Return the task of both directions of a round trip of the corpus on the device of `bench`."""
    opened, notes = _codecs.open_codec(bench, codec, corpus.dtype), {"corpus": corpus.description}
    if opened.bench:
        trip: Any = GpuRoundTrip(opened, corpus, chunk_bytes)
    else:
        trip = HostRoundTrip(opened, corpus.buffer(bench), chunk_bytes, threads)
        notes["threads"] = str(threads)
    return gb.Task(_stages(trip, _WAYS), trip.check, trip.poison, notes={**notes, "codec": opened.description})


@topic.case(
    corpus=_EVERY_CORPUS,
    codec=_codec_axis,
    size_bytes=lambda target: (4 * MIB,) if target.is_host else gb.points(smoke=(16 * MIB,), quick=(256 * MIB,)),
    chunk_bytes=gb.points((CHUNK_BYTES,), full=gb.powers_of_two(12, 20, step=2)),
    where=_is_measured,
    headline={"corpus": "ids", "codec": "lz4", "chunk_bytes": CHUNK_BYTES},
)
def roundtrip(bench: gb.Bench, corpus: str, codec: str, size_bytes: int, chunk_bytes: int) -> gb.Task:
    """Compress and restore a buffer in independent chunks: uncompressed bytes per second, and the ratio.

    The corpus is repeated to `size_bytes`; a user's shorter file is taken once. On the host one thread works through
    the chunks; on a GPU one batched call takes them all. Raises Skip if the codec is unavailable."""
    return _task(bench, _corpora.corpus_of(bench, corpus, size_bytes), codec, chunk_bytes)


@topic.case(
    when=lambda target: gb.on_gpu(target) and gb.beyond_quick(target),
    corpus=_corpora.axis(("text",)),
    codec=gb.points((), smoke=("lz4",), full=_codecs.ON_GPU),
    chunk_bytes=gb.points((CHUNK_BYTES,), full=(2**14, CHUNK_BYTES, 2**18)),
    size_bytes=gb.points((), smoke=(2**18, 2**22), full=gb.powers_of_two(16, 30, step=2)),
    where=lambda _, params: int(params["size_bytes"]) >= int(params["chunk_bytes"]),
)
def filling(bench: gb.Bench, corpus: str, codec: str, chunk_bytes: int, size_bytes: int) -> gb.Task:
    """Compress and restore batches from one chunk to many on a GPU: uncompressed bytes per second.

    A batch has `size_bytes`. A chunk occupies only a few warps, so that only many chunks fill a GPU. The half-bandwidth
    size n½ divided by the bytes of a chunk is the number of chunks that reach half of the full rate."""
    return _task(bench, _corpora.corpus_of(bench, corpus, size_bytes), codec, chunk_bytes)


@topic.case(
    when=gb.on_host,
    corpus=_ONE_CORPUS,
    codec=gb.points(quick=("lz4", "zstd-3"), full=tuple(_codecs.ON_HOST)),
    threads=lambda _: gb.points(
        (_codecs.cores(),), full=sorted({*gb.powers_of_two(0, _codecs.cores().bit_length() - 1), _codecs.cores()})
    ),
    size_bytes=mebibytes(4, 16, 64),
    chunk_bytes=(CHUNK_BYTES,),
)
def threads(bench: gb.Bench, corpus: str, codec: str, threads: int, size_bytes: int, chunk_bytes: int) -> gb.Task:
    """Compress and restore chunks in several threads of one process: uncompressed bytes per second of all together.

    The corpus is repeated to `size_bytes`. The bindings release Python's global lock while they work."""
    return _task(bench, _corpora.corpus_of(bench, corpus, size_bytes), codec, chunk_bytes, threads)


@topic.case(
    when=gb.on_gpu,
    corpus=_ONE_CORPUS,
    codec=gb.points((), smoke=("lz4",), full=_codecs.ON_GPU),
    size_bytes=mebibytes(16, 256, 256),
    chunk_bytes=(CHUNK_BYTES,),
)
def python(bench: gb.Bench, corpus: str, codec: str, size_bytes: int, chunk_bytes: int) -> gb.Task:
    """Compress and restore a buffer through `nvidia.nvcomp`: uncompressed bytes per second, by the host's clock.

    The corpus is repeated to `size_bytes`. Unlike in `roundtrip`, each call allocates its output and waits for the
    device, and its time includes both. Raises Skip if the binding is not installed."""
    source = _corpora.corpus_of(bench, corpus, size_bytes)
    elements = _codecs.DeviceCodec(bench, codec, source.dtype).row.data_type  # the same type as in the C interface
    binding = _codecs.imported("nvidia.nvcomp", "cuda13")
    bench.need(5 * source.total + _codecs.RESERVE_BYTES)
    # a type string of NumPy, in which |f1 is E4M3
    text = "|f1" if elements == "float8_e4m3" else np.dtype(elements).str
    handle = binding.Codec(
        algorithm=_PYTHON_NAMES.get(codec, codec.capitalize()),
        uncomp_chunk_size=chunk_bytes,
        cuda_stream=_codecs.current_stream(bench.xp),
        **({"data_type": text} if codec in ("ans", "cascaded", "bitcomp") else {}),
    )
    trip = PythonRoundTrip(bench, handle, binding, source.buffer(bench), chunk_bytes)
    description = f"nvidia.nvcomp {binding.__version__}, its own container, elements {elements}"
    notes = {"corpus": source.description, "codec": description}
    return gb.Task(_stages(trip, _WAYS, "host"), check=trip.check, poison=trip.poison, notes=notes)


@topic.case(
    when=lambda target: gb.on_gpu(target) and gb.beyond_quick(target),
    corpus=_ONE_CORPUS,
    format=gb.points((), smoke=("lz4",), full=tuple(_codecs.FORMATS)),
    size_bytes=mebibytes(16, 64, 256),
    chunk_bytes=(CHUNK_BYTES,),
)
def formats(bench: gb.Bench, corpus: str, format: str, size_bytes: int, chunk_bytes: int) -> gb.Task:  # noqa: A002 - an axis
    """Compress and restore the same data in one format on GPU and host: uncompressed bytes per second of each.

    The GPU restores what the host compressed, and the host what the GPU compressed; both results are compared bit for
    bit. `format` is a key of FORMATS. The GPU works on up to `size_bytes`, the host with all its cores on at most the
    first 4 MiB. Raises Skip if the format is unavailable on either."""
    source = _corpora.corpus_of(bench, corpus, size_bytes)
    codec, most = _codecs.FORMATS[format](), min(_HOST_BYTES, source.data.size)
    data = source.data[: most // chunk_bytes * chunk_bytes or most].copy()
    part = replace(source, data=data, dtype="uint8", total=source.total - source.total % data.size or data.size)
    on_gpu = GpuRoundTrip(_codecs.DeviceCodec(bench, format), part, chunk_bytes)
    on_host = HostRoundTrip(codec, data, chunk_bytes, _codecs.cores())

    def exchange() -> None:
        on_host.arrived = on_gpu.compressed.downloaded(bench, len(on_host.sizes))
        on_gpu.receive(on_host.compressed)

    def check() -> gb.Observation:
        """Compare what each device has restored from the other's chunks with the data, and return both ratios."""
        return {"ratio.gpu": on_gpu.check()["ratio"], "ratio.host": on_host.check()["ratio"]}

    compress = in_turn(on_gpu.compress, on_host.compress, exchange)
    compress()
    redraw = in_turn(on_gpu.redraw, on_host.redraw, compress)
    stages = _stages(on_gpu, ("gpu.compress", "gpu.decompress"))
    stages |= _stages(on_host, ("host.compress", "host.decompress"), "host")
    stages = {name: replace(stage, inputs=redraw) for name, stage in stages.items()}
    notes = {"gpu": on_gpu.codec.description, "host": codec.description, "host.threads": str(_codecs.cores())}
    notes["corpus"] = source.description
    return gb.Task(stages, check=check, poison=in_turn(on_gpu.poison, on_host.poison), notes=notes)


@topic.case(
    when=lambda target: bool(target.data) and target.tier == "full",
    corpus=_EVERY_CORPUS,
    codec=lambda target: ("zstd-1", "lz4") if target.is_host else ("zstd", "ans"),
    piece_bytes=lambda target: (64 * MIB,) if target.is_host else (256 * MIB,),
    chunk_bytes=(CHUNK_BYTES,),
)
def whole(bench: gb.Bench, corpus: str, codec: str, piece_bytes: int, chunk_bytes: int) -> gb.Task:
    """Compress and restore a user's whole file piece by piece: its ratio, and uncompressed bytes per second.

    Every piece of `piece_bytes` is compressed, restored and compared once; then the first piece is timed. The host
    holds one piece at a time, and the device what the round trip of one piece needs."""
    file, results = _corpora.file_named(bench, corpus), list[tuple[int, Any]]()
    for piece in _corpora.pieces(file, piece_bytes):
        task = _task(bench, piece, codec, chunk_bytes)
        in_turn(task.poison, *(stage.call for stage in task.stages.values()))()
        results.append((piece.total, task.check()))
    total, compressed = sum(size for size, _ in results), sum(int(seen["compressed"].value) for _, seen in results)
    first = _task(bench, next(_corpora.pieces(file, piece_bytes)), codec, chunk_bytes)

    def check() -> gb.Observation:
        """Check the timed piece, and return the ratio and the compressed bytes of the whole file."""
        ratio = gb.Observed(total / compressed, "", "more")
        return {**(first.check() or {}), "ratio": ratio, "compressed": gb.Observed(compressed, "B", "less")}

    description = f"all {total} bytes of user data, in {len(results)} pieces; the first piece is timed"
    return replace(first, check=check, notes={**first.notes, "corpus": description})
