"""The ctypes table of nvCOMP: layouts by arithmetic, calls on the real library where it is installed."""

import ctypes

import pytest

from gpubench.errors import GpubenchError, Missing
from gpubench.native import _nvcomp_table as table
from gpubench.native import nvcomp

STRUCTS = {struct for row in nvcomp.ALGORITHMS.values() for struct in (row.compress, row.decompress)}


@pytest.fixture
def library():
    try:
        return nvcomp.load()
    except Missing as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("struct", sorted(STRUCTS, key=lambda struct: struct.__name__), ids=lambda s: s.__name__)
def test_every_option_struct_is_64_bytes(struct):
    assert ctypes.sizeof(struct) == 64


@pytest.mark.parametrize(
    ("struct", "offsets"),
    [
        (table.AnsCompress, {"kind": 0, "data_type": 4, "sub_chunks": 8, "histogram_reduction": 10, "reserved": 11}),
        (table.CascadedCompress, {"mode": 4, "terminal_codecs": 8, "fine_encodings": 24, "level": 32}),
        (table.CascadedDecompress, {"backend": 0, "data_type": 8, "mode": 12, "coarse_encodings": 24}),
        (table.BitcompCompress, {"data_type": 4, "delta": 8, "mode": 16, "reserved": 20}),
        (table.Lz4Decompress, {"backend": 0, "sort": 4, "data_type": 8, "bitshuffle": 12}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_fields_lie_where_a_c_compiler_puts_them(struct, offsets):
    assert offsets == {name: getattr(struct, name).offset for name in offsets}


def test_a_missing_library_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(nvcomp, "_SONAME", "libnvcomp.so.none")
    with pytest.raises(Missing, match=r"pip install 'gpubench-suite\[cuda13\]'"):
        nvcomp.load.__wrapped__()


def test_lz4_answers_its_sizes_with_no_gpu(library):
    """The figures that nvCOMP and hipCOMP both give for 10 chunks of 64 KiB."""
    codec = nvcomp.Codec(library, "lz4")
    assert codec.max_output_bytes(65536) == 65800
    assert codec.compress_temp_bytes(10, 65536, 10 * 65536) == 327680
    assert codec.decompress_temp_bytes(10, 65536, 10 * 65536) == 0


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float16", "float32"])
@pytest.mark.parametrize("name", nvcomp.ALGORITHMS)
def test_every_algorithm_takes_every_corpus_type(library, name, dtype):
    codec = nvcomp.Codec(library, name, dtype)
    assert codec.max_output_bytes(65536) >= 65536
    for required in (codec.compress_alignments(), codec.decompress_alignments()):
        assert {required.input, required.output, required.temp} <= {1, 2, 4, 8, 16}


def test_a_type_that_a_codec_has_no_model_for_is_compressed_as_bytes(library):
    assert [
        nvcomp.Codec(library, *chosen).data_type
        for chosen in (("ans", "int32"), ("cascaded", "float32"), ("bitcomp", "float32"))
    ] == ["uint8", "uint32", "float32"]


def test_a_refusal_is_in_the_librarys_words(library):
    codec = nvcomp.Codec(library, "ans")
    codec._compress.data_type = table.TYPES["int32"]
    with pytest.raises(nvcomp.NvcompError, match="not supported") as caught:
        codec.max_output_bytes(65536)
    assert (caught.value.status, caught.value.is_refusal) == (11, True)
    assert isinstance(caught.value, GpubenchError)


def test_an_invalid_argument_is_an_error_and_not_a_refusal(library):
    codec = nvcomp.Codec(library, "lz4")
    with pytest.raises(nvcomp.NvcompError) as caught:
        codec._call("CompressGetMaxOutputChunkSize", chunk_bytes=65536, found=None)
    assert not caught.value.is_refusal


def test_the_library_is_of_the_tables_major_version(library):
    assert library.version.startswith(f"{nvcomp.MAJOR}.")
