"""Round trips on the host, on a device in host memory and on a GPU; corpora."""

import dataclasses
import itertools
import sys
import types
import zlib

import _codec_device as device_of
import numpy as np
import pytest
from _compression_tasks import build, case_named, file_of, noise, run_back, sized, trip_of, verify
from _earlier import check_in_turn, expect_found
from _modules import suite_module
from hypothesis import given
from hypothesis import strategies as st

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import FileError, Skip, Unavailable, WrongAnswer
from gpubench.devices.native import nvcomp
from gpubench.measuring.engine import Engine
from gpubench.measuring.stopping import POLICIES
from gpubench.model import DataFile, Device, Facts

HOST_CODECS = ("lz4", "zstd-1", "zstd-3", "zlib-1", "zlib-6")
CHUNK = 2**16
MEGABYTE = 2**20  # sixteen chunks; with the sizes of real cases the GPU in host memory would take a second
NAMES = (
    *("ids", "runs", "categories", "lineitem", "text", "logs", "field", "turbulence"),
    *("bf16-weights", "fp16-gradients", "fp8-cache", "code", "random", "zeros"),
)
GPU = Device("cuda:0", "cupy", "NVIDIA H200", "sm_90", memory_bytes=2**37)


@pytest.fixture(scope="module")
def suite():
    return plugins.load("suites", "compression")


@pytest.fixture(scope="module")
def corpora(suite):
    return suite_module("compression", "_corpora")


@pytest.fixture
def gpu(host, monkeypatch):
    monkeypatch.setattr(nvcomp, "load", lambda: nvcomp.NvcompLibrary(device_of.Functions()))
    return device_of.GpuInHostMemory(host, GPU)


# The host.


@pytest.mark.parametrize("codec", HOST_CODECS)
@pytest.mark.parametrize("size", [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 12345])
def test_data_of_any_size_comes_back_bit_for_bit(suite, host, tmp_path, codec, size):
    task = build(suite, host, codec, "full", data=[file_of(tmp_path, (b"abcde fgh " * (size // 10 + 1))[:size])])
    assert size == task.stages["compress"].work.payload == task.stages["decompress"].work.payload
    assert verify(host, task)["ratio"].value > (2 if size > 1 else 0)
    if size == CHUNK + 1:  # incompressible data come back too, and grow
        task = build(suite, host, codec, "full", data=[file_of(tmp_path, noise(2 * CHUNK + 1))])
        assert 0.99 < verify(host, task)["ratio"].value < 1


def test_the_ratio_counts_headers_and_eight_bytes_a_chunk(suite, host, tmp_path):
    data = b"so much " * 20000
    chunks = [data[start : start + CHUNK] for start in range(0, len(data), CHUNK)]
    expected = sum(len(zlib.compress(chunk, 1)) + 8 for chunk in chunks)
    observed = verify(host, build(suite, host, "zlib-1", data=[file_of(tmp_path, data)]))
    assert (expected, len(data) / expected) == (observed["compressed"].value, observed["ratio"].value)


@pytest.mark.parametrize("codec", HOST_CODECS)
def test_a_corrupted_chunk_fails_the_check(suite, host, codec):
    task = build(suite, host, codec, "full", corpus="text", chunk_bytes=CHUNK)
    trip = trip_of(task)
    task.stages["compress"].call()
    spoilt = bytearray(trip.compressed[3])
    spoilt[len(spoilt) // 2] ^= 0xFF
    trip.compressed[3] = bytes(spoilt)
    with pytest.raises(WrongAnswer, match=r"bytes differ|wrong length|could not be decompressed"):
        run_back(task)


@pytest.mark.parametrize("run", [lambda task: task.check(), run_back])
def test_outputs_that_were_only_poisoned_fail_the_check(suite, host, run):
    task = build(suite, host, "lz4")
    verify(host, task)
    task.poison()
    with pytest.raises(WrongAnswer):
        run(task)


def test_a_codec_that_is_not_installed_is_skipped_with_how_to_get_it(suite, host, monkeypatch):
    monkeypatch.setitem(sys.modules, "lz4.block", None)
    with pytest.raises(Skip, match=r"needs lz4.block .*pip install 'gpubench-suite\[host\]'"):
        build(suite, host, "lz4")


def test_both_directions_and_the_ratio_are_measured(suite, host):
    measured = Engine(host, POLICIES["smoke"]).measure(build(suite, host, "lz4"))
    names = [series.label for series in measured.series]
    assert names == ["compress.hot", "compress.host", "decompress.hot", "decompress.host", "ratio", "compressed"]
    assert {"payload"} == {series.quantity for series in measured.series if series.label.endswith(".hot")}


# Corpora.


@pytest.mark.parametrize("tile_bytes", [2**20, pytest.param(2**23, marks=pytest.mark.slow)], ids=["1MiB", "8MiB"])
@pytest.mark.parametrize("name", NAMES)
def test_a_corpus_is_the_same_for_the_same_seed(corpora, monkeypatch, name, tile_bytes):
    monkeypatch.setattr(corpora, "TILE_BYTES", tile_bytes)
    first, second, third = (corpora.make_corpus.__wrapped__(name, seed).data for seed in (0, 0, 1))
    assert first.size == tile_bytes
    assert np.array_equal(first, second)
    assert (name in ("zeros", "code")) == np.array_equal(first, third)


def test_many_threads_are_measured_on_the_host(suite, host):
    target = Target(Facts((host.device,)), host.device, "full")
    case = next(case for case in suite.cases(target) if case.name == "threads" and case.param("threads") > 1)
    task = suite.build(Bench(host, case, target, suite.package))
    assert verify(host, task)["ratio"].value > 1
    assert task.notes["threads"] == str(case.param("threads"))


# GPUs.


@pytest.mark.parametrize("name", ["deflate", "zstd"])
def test_host_and_device_read_the_same_format(suite, gpu, monkeypatch, name):
    """The GPU in host memory always writes the format of zlib, so the host has to read that."""
    host_codecs = suite_module("compression", "_codecs")
    monkeypatch.setattr(host_codecs, "FORMATS", {name: host_codecs.ON_HOST["zlib-1"]})
    task = task_of(suite, gpu, "formats", 2**21, format=name)
    observed = verify(gpu, task)
    assert observed["ratio.gpu"].value == pytest.approx(observed["ratio.host"].value)
    trip_of(task).restored.memory[5] ^= 1
    with pytest.raises(WrongAnswer, match="bytes differ"):
        task.check()


def task_of(suite, gpu, name, size_bytes, tier="full", **chosen):
    target, wanted = Target(Facts((gpu.device,)), gpu.device, tier), chosen.items()
    case = next(case for case in suite.cases(target) if case.name == name and wanted <= dict(case.params).items())
    return suite.build(Bench(gpu, sized(case, size_bytes), target, suite.package))


@pytest.mark.parametrize(("name", "size"), [("roundtrip", MEGABYTE), ("filling", CHUNK), ("filling", 3 * CHUNK)])
def test_chunks_of_an_earlier_call_are_found_because_each_check_has_another_input(suite, gpu, name, size):
    task = task_of(suite, gpu, name, size, codec="lz4", chunk_bytes=CHUNK)
    trip = trip_of(task)
    expect_found(task, gpu, trip.compressed.memory, trip.compressed.sizes)
    expect_found(task, gpu, trip.restored.memory)


def test_earlier_chunks_are_found_on_both_devices_where_each_reads_what_the_other_wrote(suite, gpu, monkeypatch):
    codecs, trips = suite_module("compression", "_codecs"), suite_module("compression", "_roundtrip")
    monkeypatch.setattr(codecs, "FORMATS", {"lz4": codecs.ON_HOST["zlib-1"]})
    task = task_of(suite, gpu, "formats", 2**21, format="lz4")
    expect_found(task, gpu, trip_of(task).restored.memory)
    restore = trips.HostRoundTrip.restore

    def earlier(trip):
        restore(trip)
        trip.restored = vars(trip).setdefault("kept", trip.restored)

    monkeypatch.setattr(trips.HostRoundTrip, "restore", earlier)
    with pytest.raises(WrongAnswer, match="bytes differ"):
        check_in_turn(task_of(suite, gpu, "formats", 2**21, format="lz4"), gpu)


class Binding(types.ModuleType):
    __version__ = "0"

    def __init__(self, is_cached):
        super().__init__("nvidia.nvcomp")
        self.is_cached, self.first = is_cached, None

    def Codec(self, **_):  # noqa: N802 - the name that the library has
        return self

    def as_array(self, array):
        return array

    def encode(self, array):
        packed = zlib.compress(array.tobytes())
        return types.SimpleNamespace(packed=packed, buffer_size=len(packed))

    def decode(self, encoded):
        decoded = device_of.ARRAYS.asarray(np.frombuffer(zlib.decompress(encoded.packed), np.uint8))
        if self.first is None:
            self.first = decoded
        return self.first if self.is_cached else decoded


def test_an_array_that_the_python_codec_decoded_earlier_is_found(suite, gpu, monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia.nvcomp", Binding(is_cached=False))
    check_in_turn(task_of(suite, gpu, "python", MEGABYTE, "smoke"), gpu)
    monkeypatch.setitem(sys.modules, "nvidia.nvcomp", Binding(is_cached=True))
    with pytest.raises(WrongAnswer, match="bytes differ"):
        check_in_turn(task_of(suite, gpu, "python", MEGABYTE, "smoke"), gpu)


def test_quick_has_every_codec_for_the_users_data_and_the_main_ones_for_three_corpora(suite, tmp_path):
    def codecs_by_corpus(data=()):
        cases = [case for case in suite.cases(Target(Facts((GPU,)), GPU, "quick", data)) if case.name == "roundtrip"]
        by_corpus = {}
        for case in map(dict, (case.params for case in cases)):
            by_corpus.setdefault(case["corpus"], set()).add(case["codec"])
        return by_corpus

    every = set(nvcomp.ALGORITHMS) - {"gzip"}
    made = codecs_by_corpus()
    main = {"lz4", "zstd", "ans", "cascaded", "bitcomp"}
    assert made == {"ids": main, "text": {"lz4", "zstd"}, "field": {"ans", "bitcomp"}}
    assert codecs_by_corpus((file_of(tmp_path, b"data"),)) == {"data:mine.bin": every}


@pytest.mark.parametrize("size", [1, CHUNK, 5 * CHUNK + 1, 2 * CHUNK + 12345])
def test_batches_point_at_every_chunk_of_odd_sized_data(suite, gpu, tmp_path, size):
    task = build(suite, gpu, "zstd", data=[file_of(tmp_path, noise(size))])
    assert 0 < verify(gpu, task)["ratio"].value < 1
    Engine(gpu, POLICIES["smoke"]).measure(task)


def test_a_failed_chunk_is_reported_in_the_librarys_words_and_a_wrong_byte_is_named(suite, gpu):
    task = build(suite, gpu, "lz4", size_bytes=MEGABYTE)
    verify(gpu, task)
    trip_of(task).restored.memory[70_000] ^= 1
    with pytest.raises(WrongAnswer, match="1 of 1048576 bytes differ after the round trip, the first at 70000"):
        task.check()
    trip_of(task).compressed.memory[:8] = 0
    with pytest.raises(WrongAnswer, match=r"1 chunks were not restored; the first: words of 12 \(status 12\)"):
        run_back(task)


@pytest.mark.parametrize("ran", [(), ("compress",), ("decompress",)])
def test_device_buffers_that_were_only_poisoned_fail_the_check(suite, gpu, ran):
    task = build(suite, gpu, "lz4", size_bytes=MEGABYTE)
    verify(gpu, task)
    task.poison()
    for name in ran:
        task.stages[name].call()
    with pytest.raises(WrongAnswer):
        task.check()


def test_bitcomps_decompression_waits_for_the_device_and_is_never_gated(suite, gpu):
    waits = {name: stage.waits for name, stage in build(suite, gpu, "bitcomp").stages.items()}
    assert waits == {"compress": False, "decompress": True}


def test_what_a_machine_does_not_have_is_a_skip_with_how_to_get_it(suite, gpu, monkeypatch):
    with pytest.raises(Skip, match=r"needs .* MiB of memory"):
        build(suite, dataclasses.replace(gpu, free=2**20), "lz4")
    another_vendor = dataclasses.replace(gpu, traits=dataclasses.replace(gpu.traits, kernels="none"))
    with pytest.raises(Skip, match="GPU codecs need nvCOMP"):
        build(suite, another_vendor, "lz4")
    monkeypatch.setattr(nvcomp, "engine_formats", lambda _: frozenset())
    monkeypatch.setattr(device_of.ARRAYS.cuda, "runtime", types.SimpleNamespace(getDevice=lambda: 0), raising=False)
    with pytest.raises(Skip, match="needs a hardware decompression engine for lz4; this device has none"):
        build(suite, gpu, "lz4-engine", "full", corpus="ids")
    monkeypatch.setitem(sys.modules, "nvidia.nvcomp", None)
    with pytest.raises(Skip, match=r"needs nvidia.nvcomp .*pip install 'gpubench-suite\[cuda13\]'"):
        task_of(suite, gpu, "python", MEGABYTE, "smoke")

    def load():
        raise Unavailable("nvCOMP 6 is not usable here", "pip install it")

    monkeypatch.setattr(nvcomp, "load", load)
    with pytest.raises(Skip, match="not usable here; pip install it"):
        build(suite, gpu, "lz4")


@pytest.mark.parametrize(("status", "raised"), [(11, Skip), (1000, nvcomp.NvcompError)])
def test_a_refusal_is_a_skip_and_a_failure_is_an_error(suite, gpu, monkeypatch, status, raised):
    monkeypatch.setattr(device_of._Answers, "CompressGetMaxOutputChunkSize", lambda *_: status)
    with pytest.raises(raised, match=f"words of {status}"):
        build(suite, gpu, "lz4")


@pytest.mark.gpu
@pytest.mark.parametrize("size", [1, CHUNK, 5 * CHUNK + 1, 64 * CHUNK + 12345])
@pytest.mark.parametrize("codec", nvcomp.ALGORITHMS)
def test_every_codec_restores_odd_sized_data_on_a_gpu(suite, real_gpu, tmp_path, codec, size):
    data = (noise(3000) + b"text " * 2000) * (size // 13000 + 1)
    verify(real_gpu, build(suite, real_gpu, codec, data=[file_of(tmp_path, data[:size])]))


@pytest.mark.gpu
@pytest.mark.parametrize("corpus", NAMES)
@pytest.mark.parametrize("codec", nvcomp.ALGORITHMS)
def test_every_codec_restores_every_corpus_on_a_gpu(suite, real_gpu, codec, corpus):
    verify(real_gpu, build(suite, real_gpu, codec, "full", corpus=corpus))
    real_gpu.release()


@pytest.mark.gpu
@pytest.mark.parametrize("codec", nvcomp.ALGORITHMS)
@pytest.mark.parametrize("name", ["roundtrip", "filling"])
def test_chunks_of_an_earlier_call_are_found_on_a_gpu(suite, real_gpu, name, codec):
    task = task_of(suite, real_gpu, name, MEGABYTE, codec=codec, chunk_bytes=CHUNK)
    trip = trip_of(task)
    expect_found(task, real_gpu, trip.compressed.memory, trip.compressed.sizes)
    expect_found(task, real_gpu, trip.restored.memory)
    real_gpu.release()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["formats", "python"])
def test_each_check_of_shared_formats_and_of_the_python_binding_has_another_input_on_a_gpu(suite, real_gpu, name):
    check_in_turn(task_of(suite, real_gpu, name, 16 * MEGABYTE, "smoke"), real_gpu)
    real_gpu.release()


@pytest.mark.gpu
@pytest.mark.parametrize("codec", nvcomp.ALGORITHMS)
def test_compressed_chunks_state_their_decompressed_sizes_on_a_gpu(suite, real_gpu, codec):
    task = build(suite, real_gpu, codec)
    task.stages["compress"].call()
    trip = trip_of(task)
    count = len(trip.source.sizes)
    sizes = real_gpu.xp.zeros(count, real_gpu.xp.uint64)
    stream = real_gpu.xp.cuda.get_current_stream().ptr
    pointers, lengths = (array.data.ptr for array in (trip.compressed.pointers, trip.compressed.sizes))
    arguments = {"pointers": pointers, "sizes": lengths, "target_sizes": sizes.data.ptr, "count": count}
    trip.codec.row._call("GetDecompressSizeAsync", **arguments, stream=stream)
    assert [CHUNK] * count == real_gpu.to_host(sizes).tolist()


# ---- The user's own data: files, arrays and tables, read within bounds and streamed.


def test_the_users_files_replace_the_corpora_and_only_a_full_run_reads_all_of_them(suite, host, tmp_path):
    data = (file_of(tmp_path, b"x", "a.bin"), file_of(tmp_path, b"y", "b.bin"))
    cases = suite.cases(Target(Facts((host.device,)), host.device, "smoke", data))
    assert {"data:a.bin", "data:b.bin"} == {case.param("corpus") for case in cases}
    target = Target(Facts((host.device,)), host.device, "quick", (file_of(tmp_path, b"x"),))
    assert not [case for case in suite.cases(target) if case.name == "whole"]


def test_a_huge_file_is_read_within_bounds_and_to_its_end(suite, host, tmp_path):
    path, size = tmp_path / "huge", 10 * 2**30
    with path.open("wb") as file:
        file.truncate(size)
        file.seek(size - 2**20)
        file.write(b"end" * 1000)
    task = build(suite, host, "lz4", data=[DataFile("huge", str(path), size)])
    assert task.stages["compress"].work.payload == 4 * 2**20
    assert trip_of(task).source[3 * 2**20 :][:6].tobytes() == b"endend"
    verify(host, task)


@given(st.integers(1, 2**50), st.integers(1, 300).map(lambda count: count * 2**20))
def test_blocks_stay_within_the_file_and_the_bound_and_never_overlap(size, most):
    places = suite_module("compression", "_corpora").blocks(size, most)
    assert min(size, most) == sum(length for _, length in places)
    assert all(start + length <= after for (start, length), (after, _) in itertools.pairwise(places))
    assert places[0][0] == 0
    assert places[-1][0] + places[-1][1] <= size


def test_a_file_that_shrank_since_planning_is_a_file_error(suite, host, tmp_path):
    file = file_of(tmp_path, b"x" * 1000)
    (tmp_path / "mine.bin").write_bytes(b"x")
    with pytest.raises(FileError, match=r"mine\.bin: shorter than the 1000 bytes"):
        build(suite, host, "lz4", data=[file])


def bounded(file, most):
    return next(suite_module("compression", "_corpora").pieces(file, most, is_whole=False))


def numpy_file(tmp_path, array, label="mine.npy"):
    np.save(tmp_path / label, array)
    return DataFile(label, str(tmp_path / label), (tmp_path / label).stat().st_size)


@pytest.mark.parametrize(("made", "dtype"), [("int32", "int32"), ("float32", "float32"), ("complex64", "uint8")])
def test_an_array_is_its_elements_without_its_header(suite, host, tmp_path, made, dtype):
    array = np.arange(5000).astype(made)
    task = build(suite, host, "lz4", data=[numpy_file(tmp_path, array)])
    assert array.tobytes() == trip_of(task).source.tobytes()
    assert f"of {array.nbytes} bytes of the user's {made} array" in task.notes["corpus"]
    taken = bounded(numpy_file(tmp_path, array), 2**20)
    assert dtype == taken.dtype


def test_a_huge_array_is_read_within_bounds(suite, host, tmp_path):
    array = np.lib.format.open_memmap(tmp_path / "huge.npy", "w+", np.float32, (2**31,))
    array[-1] = 7
    array.flush()
    file = DataFile("huge.npy", str(tmp_path / "huge.npy"), (tmp_path / "huge.npy").stat().st_size)
    task = build(suite, host, "lz4", data=[file])
    assert (task.stages["compress"].work.payload, trip_of(task).source.view(np.float32)[-1]) == (4 * 2**20, 7)


def table_file(tmp_path, columns, rows_a_group, label="mine.parquet"):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table(columns), tmp_path / label, row_group_size=rows_a_group)
    return DataFile(label, str(tmp_path / label), (tmp_path / label).stat().st_size)


def test_a_table_is_its_columns_as_they_lie_in_memory(suite, host, tmp_path):
    columns = {"key": np.arange(1000, dtype=np.int32), "other": np.arange(1000, dtype=np.int32)[::-1].copy()}
    task = build(suite, host, "lz4", data=[table_file(tmp_path, columns, 1000)])
    assert b"".join(column.tobytes() for column in columns.values()) == trip_of(task).source.tobytes()
    assert "8000 bytes of columns in Arrow's memory layout, 1 of 1 row groups" in task.notes["corpus"]


def test_row_groups_from_all_over_a_long_table_are_read_within_bounds(suite, tmp_path):
    file = table_file(tmp_path, {"key": np.arange(10_000, dtype=np.int64)}, 100)
    taken = bounded(file, 4000)
    groups = np.unique(taken.data.view(np.int64) // 100).tolist()
    assert (taken.data.size, taken.dtype, len(groups)) == (4000, "int64", 5)
    assert max(groups) - min(groups) > 50
    taken = bounded(table_file(tmp_path, {"name": ["ab", "cde"]}, 2), 2**20)
    assert (b"abcde" in taken.data.tobytes(), taken.dtype) == (True, "uint8")


def not_a_table(tmp_path):
    pytest.importorskip("pyarrow")
    return file_of(tmp_path, b"no table", "other.parquet")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda folder: DataFile("gone", str(folder / "gone"), 10), FileError, "gone: No such file"),
        (lambda _: DataFile("zero", "/dev/zero", 10), FileError, "not a regular file"),
        (lambda folder: file_of(folder, b"none", "mine.npy"), FileError, r"mine\.npy: not an array in NumPy's format"),
        (not_a_table, FileError, "not a Parquet file"),
        (lambda folder: numpy_file(folder, np.zeros(0)), Skip, "the array is empty"),
        (lambda folder: table_file(folder, {"key": np.zeros(0, np.int32)}, 2), Skip, "no column has a value"),
    ],
    ids=["gone", "no regular file", "no array", "no table", "empty array", "empty table"],
)
def test_data_that_cannot_be_compressed_are_refused_with_the_reason(suite, host, tmp_path, make, error, message):
    with pytest.raises(error, match=message):
        build(suite, host, "lz4", data=[make(tmp_path)])


def test_a_whole_file_is_streamed_in_pieces_and_its_ratio_covers_all_of_them(suite, host, tmp_path):
    """Pieces of 1 MiB of 2.5 MiB, of which the last one alone is incompressible."""
    file = file_of(tmp_path, bytes(2**21) + noise(2**19))
    case, target = case_named(suite, host, "whole", [file])
    params = tuple((axis, 2**20 if axis == "piece_bytes" else value) for axis, value in case.params)
    task = suite.build(Bench(host, dataclasses.replace(case, params=params), target, suite.package))
    observed = verify(host, task)
    assert task.stages["compress"].work.payload == 2**20
    assert observed["ratio"].value == pytest.approx(5, rel=0.01)
    assert observed["ratio"].value * observed["compressed"].value == pytest.approx(file.bytes)
    assert "in 3 pieces" in task.notes["corpus"]


def test_pieces_of_arrays_and_tables_are_all_of_their_elements(suite, tmp_path):
    pieces = suite_module("compression", "_corpora").pieces
    array = np.arange(1000, dtype=np.int32)
    for file in (numpy_file(tmp_path, array), table_file(tmp_path, {"key": array}, 300)):
        parts = list(pieces(file, 800))
        assert array.tobytes() == b"".join(part.data.tobytes() for part in parts)
        assert {"int32"} == {part.dtype for part in parts}
        assert max(part.data.size for part in parts) == 800
