"""List the C functions of nvCOMP and hipCOMP: option structs, algorithms and signatures.

They were read from the headers of nvCOMP 6.0.0 and of hipCOMP, a fork of nvCOMP 2.2 (snapshot of 2024-10-08). nvCOMP's
option structs are 64 bytes each and passed by value, with the unused bytes zero. hipCOMP's functions have other names
and fewer arguments. hipCOMP's rows have never run on a device."""

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, c_char, c_double, c_int, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field
from typing import Any

# nvcompType_t by NumPy's name.
TYPES = {
    "int8": 0,
    "uint8": 1,
    "int16": 2,
    "uint16": 3,
    "int32": 4,
    "uint32": 5,
    "int64": 6,
    "uint64": 7,
    "float8_e4m3": 9,
    "float16": 10,
    "float32": 11,
    "float64": 12,
}
ANY_TYPE = 0xFF  # the type of a decompressor that reads it from its input


class Alignments(ctypes.Structure):
    """The smallest alignment in bytes of each input, each output and the scratch memory."""

    _fields_ = (("input", c_size_t), ("output", c_size_t), ("temp", c_size_t))


class Properties(ctypes.Structure):
    """The versions of the library and of the CUDA runtime it was built with, as numbers."""

    _fields_ = (("version", c_uint32), ("cudart_version", c_uint32))


class Plain(ctypes.Structure):
    """The empty options of a compressor without options."""

    _fields_ = (("reserved", c_char * 64),)


class BackendChoice(ctypes.Structure):
    """The options of a decompressor that has only a choice of backend (0: the library chooses)."""

    _fields_ = (("backend", c_int), ("reserved", c_char * 60))


class SortedBackend(ctypes.Structure):
    """The options of a decompressor that can also use a hardware engine."""

    _fields_ = (("backend", c_int), ("sort", c_int), ("reserved", c_char * 56))


class CompressionLevel(ctypes.Structure):
    """The options of a compressor with levels, from 0 (entropy coding only) to 5 (highest ratio)."""

    _fields_ = (("level", c_int), ("reserved", c_char * 60))


class Lz4Compress(ctypes.Structure):
    """The options of LZ4's compressor; the type sets the granularity of its matches."""

    _fields_ = (("data_type", c_int), ("bitshuffle", c_int), ("reserved", c_char * 56))


class Lz4Decompress(ctypes.Structure):
    """The options of LZ4's decompressor; type and bit shuffle matter only after compression with a bit shuffle."""

    _fields_ = (
        ("backend", c_int),
        ("sort", c_int),
        ("data_type", c_int),
        ("bitshuffle", c_int),
        ("reserved", c_char * 48),
    )


class GzipDecompress(ctypes.Structure):
    """The options of gzip's decompressor; the algorithm is one of CUDA's two."""

    _fields_ = (("backend", c_int), ("algorithm", c_int), ("sort", c_int), ("reserved", c_char * 52))


class AnsCompress(ctypes.Structure):
    """The options of the rANS compressor."""

    _fields_ = (
        ("kind", c_int),
        ("data_type", c_int),
        ("sub_chunks", c_uint8),
        ("states", c_uint8),
        ("histogram_reduction", c_uint8),
        ("reserved", c_char * 53),
    )


class AnsDecompress(ctypes.Structure):
    """The options of the rANS decompressor."""

    _fields_ = (
        ("backend", c_int),
        ("data_type", c_int),
        ("sub_chunks", c_uint8),
        ("states", c_uint8),
        ("skip_validate", c_uint8),
        ("reserved", c_char * 53),
    )


class CascadedCompress(ctypes.Structure):
    """The options of Cascaded: delta, run lengths and frame of reference before bit packing."""

    _fields_ = (
        ("data_type", c_int),
        ("mode", c_int),
        ("terminal_codecs", c_uint64),
        ("coarse_encodings", c_uint64),
        ("fine_encodings", c_uint64),
        ("level", c_uint8),
        ("reserved", c_char * 31),
    )


class CascadedDecompress(ctypes.Structure):
    """The options of Cascaded's decompressor; mode 0 accepts any mode of the compressor."""

    _fields_ = (
        ("backend", c_int),
        ("padding", c_int),
        ("data_type", c_int),
        ("mode", c_int),
        ("terminal_codecs", c_uint64),
        ("coarse_encodings", c_uint64),
        ("reserved", c_char * 32),
    )


class BitcompCompress(ctypes.Structure):
    """The options of Bitcomp's compressor; mode 0 is lossless."""

    _fields_ = (
        ("algorithm", c_int),
        ("data_type", c_int),
        ("delta", c_double),
        ("mode", c_int),
        ("reserved", c_char * 44),
    )


class HipLz4(ctypes.Structure):
    """The options of hipCOMP's LZ4."""

    _fields_ = (("data_type", c_int),)


class HipSnappy(ctypes.Structure):
    """The options of hipCOMP's Snappy."""

    _fields_ = (("reserved", c_int),)


class HipCascaded(ctypes.Structure):
    """The options of hipCOMP's Cascaded: run lengths, deltas and bit packing of pieces of `chunk` bytes."""

    _fields_ = (
        ("chunk", c_size_t),
        ("data_type", c_int),
        ("run_lengths", c_int),
        ("deltas", c_int),
        ("bit_packing", c_int),
    )


_INTEGERS = {name: name for name in TYPES if "int" in name}
_HALVES_AS_INTEGERS = {"float16": "uint16", "bfloat16": "uint16"}
_FLOATS_AS_INTEGERS = {**_HALVES_AS_INTEGERS, "float32": "uint32", "float64": "uint64", "float8_e4m3": "uint8"}


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One row of the table: the name in the C functions, the option structs, and the accepted types.

    `compress_options` and `decompress_options` are fields that differ from the library's defaults."""

    prefix: str
    compress: type[ctypes.Structure]
    decompress: type[ctypes.Structure] | None
    types: Mapping[str, str] = field(default_factory=dict)
    compress_options: Mapping[str, int] = field(default_factory=dict)
    decompress_options: Mapping[str, int] = field(default_factory=dict)
    decompress_waits: bool = False
    engine: bool = False


ALGORITHMS: Mapping[str, Algorithm] = {
    "lz4": Algorithm("LZ4", Lz4Compress, Lz4Decompress, engine=True),
    "snappy": Algorithm("Snappy", Plain, SortedBackend, engine=True),
    "zstd": Algorithm("Zstd", Plain, BackendChoice),
    "deflate": Algorithm("Deflate", CompressionLevel, SortedBackend, compress_options={"level": 1}, engine=True),
    "gdeflate": Algorithm("Gdeflate", CompressionLevel, BackendChoice, compress_options={"level": 1}),
    "gzip": Algorithm("Gzip", CompressionLevel, GzipDecompress, compress_options={"level": 1}, engine=True),
    "ans": Algorithm(
        "ANS",
        AnsCompress,
        AnsDecompress,
        # "applicable to all half-precision data formats" (ans.h)
        types={"float16": "float16", "bfloat16": "float16", "float32": "float32", "float8_e4m3": "float8_e4m3"},
        decompress_options={"data_type": ANY_TYPE},
    ),
    "cascaded": Algorithm(
        "Cascaded",
        CascadedCompress,
        CascadedDecompress,
        types={**_INTEGERS, **_FLOATS_AS_INTEGERS},
        compress_options={"mode": 1, "terminal_codecs": 1, "fine_encodings": 7, "level": 3},
        decompress_options={"data_type": ANY_TYPE},
    ),
    "bitcomp": Algorithm(
        "Bitcomp",
        BitcompCompress,
        BackendChoice,
        types={**_INTEGERS, "float16": "float16", "bfloat16": "uint16", "float32": "float32", "float64": "float64"},
        decompress_waits=True,
    ),
}

HIP_ALGORITHMS: Mapping[str, Algorithm] = {
    "lz4": Algorithm("LZ4", HipLz4, None),
    "snappy": Algorithm("Snappy", HipSnappy, None),
    "cascaded": Algorithm(
        "Cascaded",
        HipCascaded,
        None,
        types={**_INTEGERS, **_FLOATS_AS_INTEGERS},
        compress_options={"chunk": 4096, "run_lengths": 2, "deltas": 1, "bit_packing": 1},
    ),
}

Arguments = tuple[tuple[str, Any], ...]


def signatures(algorithm: Algorithm, since_4: bool = True) -> dict[str, Arguments]:
    """Return the arguments of every batched function of `algorithm`, each as name and C type, in order.

    The key is the end of the function's name (`CompressAsync`)."""
    size, address, sizes = c_size_t, c_void_p, POINTER(c_size_t)
    batch: Arguments = (("pointers", address), ("sizes", address))
    scratch: Arguments = (("scratch", address), ("scratch_bytes", size))
    compress_options: Arguments = (("options", algorithm.compress),)
    decompress_options: Arguments = (("options", algorithm.decompress),) if algorithm.decompress else ()
    stream: Arguments = (("stream", address),)
    status: Arguments = (("statuses", address),)
    total: Arguments = (("total_bytes", size), *stream) if since_4 else ()
    chunks: Arguments = (("count", size), ("chunk_bytes", size))
    result: Arguments = (("result", sizes),)
    output: Arguments = (("target_pointers", address),)
    table: dict[str, Arguments] = {
        "CompressGetMaxOutputChunkSize": (("chunk_bytes", size), *compress_options, *result),
        "CompressGetTempSize": (*chunks, *compress_options, *result, *total),
        "CompressAsync": (
            *batch,
            ("chunk_bytes", size),
            ("count", size),
            *scratch,
            *output,
            ("target_sizes", address),
            *compress_options,
            *(status if since_4 else ()),
            *stream,
        ),
        "DecompressGetTempSize": (*chunks, *decompress_options, *result, *total),
        "DecompressAsync": (
            *batch,
            ("target_sizes", address),
            ("written", address),
            ("count", size),
            *scratch,
            *output,
            *decompress_options,
            *status,
            *stream,
        ),
        "GetDecompressSizeAsync": (*batch, ("target_sizes", address), ("count", size), *stream),
    }
    if since_4:
        alignments: Arguments = (("result", POINTER(Alignments)),)
        table["CompressGetRequiredAlignments"] = (*compress_options, *alignments)
        table["DecompressGetRequiredAlignments"] = (*decompress_options, *alignments)
    return table
