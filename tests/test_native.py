"""The ctypes table of nvCOMP: layouts by arithmetic, calls on the real library where it is installed."""

import ctypes
import re

import pytest

from gpubench.base import installation
from gpubench.base.errors import GpubenchError, Unavailable
from gpubench.devices.native import nvcomp

STRUCTS = {struct for row in nvcomp.ALGORITHMS.values() for struct in (row.compress, row.decompress) if struct}
SIX = (  # the suffixes of the function names in both libraries
    *("CompressAsync", "CompressGetMaxOutputChunkSize", "CompressGetTempSize"),
    *("DecompressAsync", "DecompressGetTempSize", "GetDecompressSizeAsync"),
)


@pytest.fixture
def library():
    """Return nvCOMP, or skip the test without it."""
    try:
        return nvcomp.load()
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("struct", sorted(STRUCTS, key=lambda struct: struct.__name__), ids=lambda s: s.__name__)
def test_every_option_struct_is_64_bytes(struct):
    assert ctypes.sizeof(struct) == 64


@pytest.mark.parametrize(
    ("struct", "offsets"),
    [
        (nvcomp.AnsCompress, {"kind": 0, "data_type": 4, "sub_chunks": 8, "histogram_reduction": 10, "reserved": 11}),
        (nvcomp.CascadedCompress, {"mode": 4, "terminal_codecs": 8, "fine_encodings": 24, "level": 32}),
        (nvcomp.CascadedDecompress, {"backend": 0, "data_type": 8, "mode": 12, "coarse_encodings": 24}),
        (nvcomp.BitcompCompress, {"data_type": 4, "delta": 8, "mode": 16, "reserved": 20}),
        (nvcomp.Lz4Decompress, {"backend": 0, "sort": 4, "data_type": 8, "bitshuffle": 12}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_fields_lie_where_a_c_compiler_puts_them(struct, offsets):
    assert offsets == {name: getattr(struct, name).offset for name in offsets}


def test_a_missing_library_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(nvcomp, "_SONAME", "libnvcomp.so.none")
    with pytest.raises(Unavailable, match=re.escape(installation.for_gpu())):
        nvcomp.load.__wrapped__()
    with pytest.raises(Unavailable, match=r"build ROCm's hipCOMP-core"):
        nvcomp.load_hip.__wrapped__()


def test_lz4_returns_its_sizes_without_a_gpu(library):
    """nvCOMP and hipCOMP document the same sizes for 10 chunks of 64 KiB."""
    codec = nvcomp.Codec(library, "lz4")
    assert codec.max_output_bytes(65536) == 65800
    assert codec.temp_bytes(10, 65536, 10 * 65536) == {"compress": 327680, "decompress": 0}


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float16", "float32"])
@pytest.mark.parametrize("name", nvcomp.ALGORITHMS)
def test_every_algorithm_takes_every_corpus_type(library, name, dtype):
    codec = nvcomp.Codec(library, name, dtype)
    assert codec.max_output_bytes(65536) >= 65536
    for way, options in (("Compress", codec._compress), ("Decompress", codec._decompress)):
        query = getattr(library.handle, codec._function_name(f"{way}GetRequiredAlignments"))
        query.argtypes, required = (type(options), ctypes.c_void_p), (ctypes.c_size_t * 3)()
        assert query(options, ctypes.byref(required)) == 0
        assert set(required) <= {1, 2, 4, 8, 16}, "of inputs, outputs and scratch memory"


def test_a_type_that_a_codec_does_not_support_is_compressed_as_bytes(library):
    assert [
        nvcomp.Codec(library, *chosen).data_type
        for chosen in (("ans", "int32"), ("cascaded", "float32"), ("bitcomp", "float32"))
    ] == ["uint8", "uint32", "float32"]


def test_a_refusal_has_the_librarys_own_message(library):
    codec = nvcomp.Codec(library, "ans")
    codec._compress.data_type = nvcomp.TYPES["int32"]
    with pytest.raises(nvcomp.NvcompError, match="not supported") as caught:
        codec.max_output_bytes(65536)
    assert (caught.value.status, caught.value.is_refusal) == (11, True)
    assert isinstance(caught.value, GpubenchError)
    with pytest.raises(nvcomp.NvcompError) as caught:
        nvcomp.Codec(library, "lz4")._call("CompressGetMaxOutputChunkSize", chunk_bytes=65536, result=None)
    assert not caught.value.is_refusal
    assert library.version.startswith(f"{nvcomp.MAJOR}.")


class RecordedCalls:
    """A stand-in for hipCOMP, whose functions keep their arguments."""

    def __init__(self):
        self.calls = {}

    def __getattr__(self, name):
        """Return a function that keeps its arguments and succeeds."""

        def function(*arguments):
            self.calls[name] = arguments
            return 0

        setattr(self, name, function)
        return function


@pytest.fixture
def hip():
    return nvcomp.NvcompLibrary(RecordedCalls(), "hipcomp")


@pytest.mark.parametrize(
    ("name", "size", "offsets"),
    [
        ("lz4", 4, {"data_type": 0}),
        ("snappy", 4, {"reserved": 0}),
        ("cascaded", 24, {"chunk": 0, "data_type": 8, "run_lengths": 12, "deltas": 16, "bit_packing": 20}),
    ],
)
def test_hipcomps_options_have_the_sizes_and_places_of_its_headers(name, size, offsets):
    struct = nvcomp.HIP_ALGORITHMS[name].compress
    assert ctypes.sizeof(struct) == size
    assert offsets == {field: getattr(struct, field).offset for field in offsets}


@pytest.mark.parametrize(("name", "prefix"), [("lz4", "LZ4"), ("snappy", "Snappy"), ("cascaded", "Cascaded")])
def test_hipcomps_functions_have_its_names_and_its_arguments(hip, name, prefix):
    nvcomp.Codec(hip, name)
    declared = {end: getattr(hip.handle, f"hipcompBatched{prefix}{end}").argtypes for end in SIX}
    assert {
        end: len(declared[end])
        for end in ("CompressGetTempSize", "DecompressGetTempSize", "CompressAsync", "DecompressAsync")
    } == {"CompressGetTempSize": 4, "DecompressGetTempSize": 3, "CompressAsync": 10, "DecompressAsync": 10}
    assert (len(declared["CompressGetMaxOutputChunkSize"]), len(declared["GetDecompressSizeAsync"])) == (3, 5)
    assert nvcomp.HIP_ALGORITHMS[name].compress in declared["CompressAsync"]


def test_a_call_of_hipcomp_leaves_out_arguments_that_it_does_not_have(hip):
    """compress(u_ptrs, u_bytes, max_chunk, n, tmp, tmp_b, c_ptrs, c_bytes, opts, stream)."""
    codec = nvcomp.Codec(hip, "lz4")
    batches, scratch = (nvcomp.Chunks(1, 2, 3), nvcomp.Chunks(4, 5, 3)), nvcomp.Scratch(6, 7)
    codec.compress(batches[0], 8, scratch, batches[1], 9, 10)()
    sent = hip.handle.calls["hipcompBatchedLZ4CompressAsync"]
    assert (*sent[:8], sent[9]) == (1, 2, 8, 3, 6, 7, 4, 5, 10)
    assert isinstance(sent[8], nvcomp.HipLz4)
    codec.decompress(batches[1], batches[0], 11, scratch, 9, 10)()
    assert hip.handle.calls["hipcompBatchedLZ4DecompressAsync"] == (4, 5, 2, 11, 3, 6, 7, 1, 9, 10)


@pytest.mark.parametrize("name", nvcomp.ALGORITHMS)
def test_the_library_has_the_functions_of_every_algorithm(library, name):
    prefix = nvcomp.ALGORITHMS[name].prefix
    assert all(hasattr(library.handle, f"nvcompBatched{prefix}{end}") for end in SIX)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lz4", {"bitshuffle": 1}),
        ("deflate", {"level": 5}),
        ("ans", {"histogram_reduction": 4}),
        ("bitcomp", {"algorithm": 1}),
    ],
)
def test_options_are_stored_in_their_fields_and_accepted_by_the_library(library, name, options):
    codec = nvcomp.Codec(library, name, options=options)
    assert options == {field: getattr(codec._compress, field) for field in options}
    assert codec.max_output_bytes(65536) >= 65536
