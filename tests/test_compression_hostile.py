"""Codecs of the host on small buffers and on hostile streams; ten thousand of each are slow:

pytest -m slow tests/test_compression_hostile.py
"""

import numpy as np
import pytest
from _hostile import buffers, mutated
from _modules import suite_module

from gpubench.base.errors import WrongAnswer

CODECS = ("lz4", "lz4-hc", "zstd-1", "zstd-3", "zlib-1", "zlib-6", "isal-1", "isal-3")
FORMATS = ("lz4", "zstd", "deflate", "gzip")
FEW, MANY = 300, 10_000


@pytest.fixture(scope="module")
def codecs():
    return suite_module("compression", "_codecs")


def opened(codecs, name):
    return codecs.FORMATS[name.removeprefix("of ")]() if name.startswith("of ") else codecs.ON_HOST[name]()


ALL = (*CODECS, *(f"of {name}" for name in FORMATS))


def counts(few, many):
    return [few, pytest.param(many, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]


@pytest.mark.parametrize("count", counts(FEW, MANY))
@pytest.mark.parametrize("name", ALL)
def test_small_buffers_of_every_kind_come_back(codecs, name, count):
    codec, chunks = opened(codecs, name), buffers(np.random.default_rng(7), count)
    packed = codec.compress(chunks)
    assert chunks == codec.decompress(packed, list(map(len, chunks)))
    assert all(len(stream) <= codec.max_output_bytes(len(chunk)) for stream, chunk in zip(packed, chunks, strict=True))


@pytest.mark.parametrize("name", ALL)
def test_many_threads_give_the_results_of_one_thread_in_the_same_order(codecs, name):
    codec, chunks = opened(codecs, name), buffers(np.random.default_rng(8), FEW)
    sizes, packed, alone = list(map(len, chunks)), codec.compress(chunks, threads=3), codec.compress(chunks)
    if not name.startswith("isal"):  # the streams of ISA-L also depend on earlier content of its memory
        assert alone == packed
    assert chunks == codec.decompress(packed, sizes, threads=3)
    assert chunks == codec.decompress(alone, sizes, threads=3)


@pytest.mark.parametrize("count", counts(FEW, MANY))
@pytest.mark.parametrize("name", ALL)
def test_a_mutated_stream_is_refused_or_its_difference_is_found_at_the_right_length(codecs, name, count):
    """LZ4 and raw Deflate have no checksum, so only a comparison with the source finds the difference."""
    codec, rng = opened(codecs, name), np.random.default_rng(9)
    chunks = [chunk for chunk in buffers(rng, count) if chunk]
    packed = codec.compress(chunks)
    refused = changed = 0
    for chunk, stream in zip(chunks, packed, strict=True):
        hostile = mutated(rng, stream, packed)
        try:
            restored = codec.decompress_one(hostile, len(chunk))
        except WrongAnswer:
            refused += 1
        else:
            assert len(restored) == len(chunk)
            changed += restored != chunk
    assert refused > len(chunks) / 4
    if name.startswith(
        ("zlib", "isal", "of gzip")
    ):  # these have a checksum of 32 bits; only the stream of another chunk passes it
        assert changed <= len(chunks) / 10


@pytest.mark.parametrize("name", ["zlib-6", "of deflate", "of gzip", "zstd-3", "isal-1"])
def test_a_stream_that_expands_beyond_its_length_is_stopped(codecs, name, monkeypatch):
    """A stream of 64 MiB in place of a chunk of 100 bytes: at most one byte too many is produced."""
    codec = opened(codecs, name)
    bomb = codec.compress([bytes(2**26)])[0]
    with pytest.raises(WrongAnswer):
        codec.decompress_one(bomb, 100)
