"""Compress and restore a buffer through nvCOMP's Python binding `nvidia.nvcomp`.

It allocates memory and waits for the device within each call."""

from typing import Any

from gpubench.api import suite as gb

from ._axes import CHUNK_BYTES, mebibytes, one_corpus
from ._codecs_bytes import DeviceBytes
from ._codecs_common import observed, stage
from ._codecs_device import VARIANTS, current_stream, open_codec
from ._codecs_nvcomp import uploaded
from ._corpora import source_of

topic = gb.Topic()

_CODECS = ("lz4", "snappy", "zstd", "deflate", "gdeflate", "gzip", "ans", "cascaded", "bitcomp")
_NAMES = {"lz4": "LZ4", "gdeflate": "GDeflate", "ans": "ANS"}
_HOW = "pip install 'gpubench-suite[cuda13]' (or [cuda12])"
_RESERVE = 2**28  # bytes that stay free for the driver
_TYPES = {  # NumPy's type strings; here |f1 is E4M3
    "uint8": "|u1",
    "int32": "<i4",
    "uint16": "<u2",
    "uint32": "<u4",
    "float16": "<f2",
    "float32": "<f4",
    "float8_e4m3": "|f1",
}


class PythonRoundTrip:
    """A round trip of a buffer on a GPU, whose encoded and decoded arrays are made anew by each call."""

    def __init__(self, bench: gb.Bench, handle: Any, wrap: Any, source: Any, chunk_bytes: int) -> None:
        """Keep the buffer `source`, a CuPy array of dtype uint8, and drop both outputs."""
        self._bytes = DeviceBytes(bench)
        self._xp = bench.xp
        self._handle = handle
        self._chunk_bytes = chunk_bytes
        self.source = source
        self._wrapped = wrap(source)
        self.compressed: Any = None
        self.restored: Any = None

    def poison(self) -> None:
        """Drop both outputs."""
        self.compressed = self.restored = None

    def compress(self) -> None:
        """Encode the buffer, and wait until that is done."""
        self.compressed = self._handle.encode(self._wrapped)

    def restore(self) -> None:
        """Decode the encoded array, and wait until that is done."""
        self.restored = self._handle.decode(self.compressed)

    def check(self) -> gb.Observation:
        """Compare every restored byte with the buffer, and return the ratio and the compressed bytes.

        Raises WrongAnswer if a byte differs or nothing was restored."""
        gb.expect(self.restored is not None, "nothing was decompressed")
        restored = self._xp.asarray(self.restored).reshape(-1).view(self._xp.uint8)
        self._bytes.expect_same(restored, self.source)
        return observed(self.source.size, self._chunk_bytes, int(self.compressed.buffer_size))


@topic.case(
    when=gb.on_gpu,
    corpus=one_corpus,
    codec=gb.points((), smoke=("lz4",), full=_CODECS),
    size_bytes=mebibytes(16, 256, 256),
    chunk_bytes=(CHUNK_BYTES,),
)
def python(bench: gb.Bench, corpus: str, codec: str, size_bytes: int, chunk_bytes: int) -> gb.Task:
    """Compress and restore a buffer through `nvidia.nvcomp`: uncompressed bytes per second, by the host's clock.

    The corpus is repeated to `size_bytes`. Unlike in `roundtrip`, each call allocates its output and waits for the
    device, and its time includes both. Raises Skip if the binding is not installed."""
    source, total = source_of(bench, corpus, size_bytes)
    elements = open_codec(bench, codec, source.dtype).row.data_type  # the same type as in the C interface
    try:
        from nvidia import nvcomp as binding
    except ImportError as error:
        raise gb.Skip(f"needs nvidia.nvcomp ({error}): {_HOW}") from error
    bench.need(4 * total + _RESERVE)
    type_option = {"data_type": _TYPES[elements]} if codec in ("ans", "cascaded", "bitcomp") else {}
    handle = binding.Codec(
        algorithm=_NAMES.get(codec, VARIANTS[codec].algorithm.capitalize()),
        uncomp_chunk_size=chunk_bytes,
        cuda_stream=current_stream(bench.xp),
        **type_option,
    )
    trip = PythonRoundTrip(bench, handle, binding.as_array, uploaded(bench, source, total), chunk_bytes)
    stages = {
        "compress": stage(trip.compress, total, waits=True, clock="host"),
        "decompress": stage(trip.restore, total, waits=True, clock="host"),
    }
    description = f"nvidia.nvcomp {binding.__version__}, its own container, elements {elements}"
    return gb.Task(
        stages, check=trip.check, poison=trip.poison, notes={"corpus": source.description, "codec": description}
    )
