"""Round trips on the host, on a device in host memory and on a GPU; corpora and the user's data."""

import dataclasses
import itertools
import sys
import types
import zlib

import _codec_device as device_of
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench import plugins
from gpubench.errors import FileError, Missing, Skip, WrongAnswer
from gpubench.measure import Engine
from gpubench.model import DataFile, Device, Facts
from gpubench.native import nvcomp
from gpubench.stopping import RULES
from gpubench.suite import Bench, Target

HOST_CODECS = ("lz4", "zstd-1", "zstd-3", "zlib-1", "zlib-6")
CHUNK = 2**16
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
    return sys.modules[suite.module]._corpora


@pytest.fixture(scope="module")
def host():
    backend = plugins.load("backends", "host")
    return backend.open(backend.devices()[0])


@pytest.fixture
def gpu(host, monkeypatch):
    """A GPU and an nvCOMP in host memory."""
    monkeypatch.setattr(nvcomp, "load", lambda: nvcomp.Library(device_of.Functions()))
    return device_of.GpuInHostMemory(host, GPU)


def file_of(tmp_path, data, label="mine.bin"):
    path = tmp_path / label
    path.write_bytes(data)
    return DataFile(label, str(path), len(data))


def build(suite, opened, codec, tier="smoke", seed=0, data=(), **chosen):
    """The task of one codec on the first corpus, or on the one of `chosen`."""
    target = Target(Facts((opened.device,)), opened.device, tier, tuple(data))
    wanted = {"codec": codec, **chosen}
    case = next(case for case in suite.cases(target) if wanted.items() <= dict(case.params).items())
    return suite.build(Bench(opened, case, target, suite.package, seed))


def verify(opened, task):
    return Engine(opened, RULES["smoke"]).verify(task)


def trip_of(task):
    """The round trip behind a task's stages, to spoil its buffers."""
    return next(iter(task.stages.values())).call.__self__


def noise(size):
    return np.random.default_rng(5).bytes(size)


def run_back(task):
    task.stages["decompress"].call()
    task.check()


# The host.


@pytest.mark.parametrize("codec", HOST_CODECS)
@pytest.mark.parametrize("size", [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 12345])
def test_data_of_any_size_comes_back_bit_for_bit(suite, host, tmp_path, codec, size):
    task = build(suite, host, codec, "full", data=[file_of(tmp_path, (b"abcde fgh " * (size // 10 + 1))[:size])])
    assert size == task.stages["compress"].work.payload == task.stages["decompress"].work.payload
    assert verify(host, task)["ratio"].value > (2 if size > 1 else 0)


@pytest.mark.parametrize("codec", HOST_CODECS)
def test_incompressible_data_comes_back_too_and_grows(suite, host, tmp_path, codec):
    task = build(suite, host, codec, "full", data=[file_of(tmp_path, noise(2 * CHUNK + 1))])
    assert 0.99 < verify(host, task)["ratio"].value < 1


def test_the_ratio_counts_headers_and_eight_bytes_a_chunk(suite, host, tmp_path):
    data = b"so much " * 20000
    chunks = [data[start : start + CHUNK] for start in range(0, len(data), CHUNK)]
    expected = sum(len(zlib.compress(chunk, 1)) + 8 for chunk in chunks)
    found = verify(host, build(suite, host, "zlib-1", data=[file_of(tmp_path, data)]))
    assert (expected, len(data) / expected) == (found["compressed"].value, found["ratio"].value)


@pytest.mark.parametrize("codec", HOST_CODECS)
def test_a_corrupted_chunk_is_never_passed(suite, host, codec):
    task = build(suite, host, codec, "full", corpus="text", chunk_bytes=CHUNK)
    trip = trip_of(task)
    task.stages["compress"].call()
    spoilt = bytearray(trip.compressed[3])
    spoilt[len(spoilt) // 2] ^= 0xFF
    trip.compressed[3] = bytes(spoilt)
    with pytest.raises(WrongAnswer, match=r"bytes differ|wrong length|could not be restored"):
        run_back(task)


@pytest.mark.parametrize("run", [lambda task: task.check(), run_back])
def test_outputs_that_were_only_poisoned_are_not_passed(suite, host, run):
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
    measured = Engine(host, RULES["smoke"]).measure(build(suite, host, "lz4"))
    names = [series.name for series in measured.series]
    assert names == ["compress.hot", "compress.host", "decompress.hot", "decompress.host", "ratio", "compressed"]
    assert {"payload"} == {series.quantity for series in measured.series if series.name.endswith(".hot")}


# Corpora.


@pytest.mark.parametrize("name", NAMES)
def test_a_corpus_is_the_same_for_the_same_seed(corpora, name):
    made = corpora.made.__wrapped__
    assert made(name, 0).data.size == corpora.TILE_BYTES
    assert np.array_equal(made(name, 0).data, made(name, 0).data)
    assert (name in ("zeros", "code")) == np.array_equal(made(name, 0).data, made(name, 1).data)


def test_every_codec_gets_the_same_bytes(suite, host):
    first, second = (trip_of(build(suite, host, codec)).source for codec in ("lz4", "zlib-1"))
    assert np.array_equal(first, second)


def test_a_tile_is_repeated_to_any_length(corpora):
    target = np.empty(2 * corpora.TILE_BYTES + 5, np.uint8)
    corpora.made("ids", 0).fill(target)
    assert np.array_equal(target[: corpora.TILE_BYTES], target[corpora.TILE_BYTES : -5])
    assert np.array_equal(target[:5], target[-5:])


# The user's data.


def test_the_users_files_replace_the_made_corpora(suite, host, tmp_path):
    data = (file_of(tmp_path, b"x", "a.bin"), file_of(tmp_path, b"y", "b.bin"))
    cases = suite.cases(Target(Facts((host.device,)), host.device, "smoke", data))
    assert {"data:a.bin", "data:b.bin"} == {case.param("corpus") for case in cases}


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
def test_blocks_stay_within_the_file_and_the_bound_and_never_overlap(corpora, size, most):
    places = sys.modules[corpora.read_bounded.__module__].blocks(size, most)
    assert min(size, most) == sum(length for _, length in places)
    assert all(start + length <= after for (start, length), (after, _) in itertools.pairwise(places))
    assert places[0][0] == 0
    assert places[-1][0] + places[-1][1] <= size


def test_a_file_that_shrank_since_planning_is_a_file_error(suite, host, tmp_path):
    file = file_of(tmp_path, b"x" * 1000)
    (tmp_path / "mine.bin").write_bytes(b"x")
    with pytest.raises(FileError, match=r"mine\.bin: shorter than the 1000 bytes"):
        build(suite, host, "lz4", data=[file])


def test_a_file_that_is_gone_is_a_file_error(suite, host, tmp_path):
    with pytest.raises(FileError, match=r"gone: No such file"):
        build(suite, host, "lz4", data=[DataFile("gone", str(tmp_path / "gone"), 10)])


def numpy_file(tmp_path, array, label="mine.npy"):
    np.save(tmp_path / label, array)
    return DataFile(label, str(tmp_path / label), (tmp_path / label).stat().st_size)


@pytest.mark.parametrize(("made", "dtype"), [("int32", "int32"), ("float32", "float32"), ("complex64", "uint8")])
def test_an_array_is_its_elements_without_its_header(suite, host, tmp_path, made, dtype):
    array = np.arange(5000).astype(made)
    task = build(suite, host, "lz4", data=[numpy_file(tmp_path, array)])
    assert array.tobytes() == trip_of(task).source.tobytes()
    assert f"the user's {made} array of {array.nbytes}" in task.notes["corpus"]
    taken = sys.modules[suite.module]._corpora.read_bounded(numpy_file(tmp_path, array), 2**20)
    assert dtype == taken.dtype


def test_a_huge_array_is_read_within_bounds(suite, host, tmp_path):
    array = np.lib.format.open_memmap(tmp_path / "huge.npy", "w+", np.float32, (2**31,))
    array[-1] = 7
    array.flush()
    file = DataFile("huge.npy", str(tmp_path / "huge.npy"), (tmp_path / "huge.npy").stat().st_size)
    task = build(suite, host, "lz4", data=[file])
    assert (task.stages["compress"].work.payload, trip_of(task).source.view(np.float32)[-1]) == (4 * 2**20, 7)


def test_what_is_called_an_array_and_is_none_is_a_file_error(suite, host, tmp_path):
    with pytest.raises(FileError, match=r"mine\.npy: not an array in NumPy's format"):
        build(suite, host, "lz4", data=[file_of(tmp_path, b"no array", "mine.npy")])


def test_an_empty_array_is_skipped_with_the_reason(suite, host, tmp_path):
    with pytest.raises(Skip, match="the array is empty"):
        build(suite, host, "lz4", data=[numpy_file(tmp_path, np.zeros(0))])


def table_file(tmp_path, columns, rows_a_group, label="mine.parquet"):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table(columns), tmp_path / label, row_group_size=rows_a_group)
    return DataFile(label, str(tmp_path / label), (tmp_path / label).stat().st_size)


def test_a_table_is_its_columns_as_they_lie_in_memory(suite, host, tmp_path):
    columns = {"key": np.arange(1000, dtype=np.int32), "other": np.arange(1000, dtype=np.int32)[::-1].copy()}
    task = build(suite, host, "lz4", data=[table_file(tmp_path, columns, 1000)])
    assert b"".join(column.tobytes() for column in columns.values()) == trip_of(task).source.tobytes()
    assert "8000 bytes of columns as they lie in memory, 1 of 1 row groups" in task.notes["corpus"]


def test_of_a_long_table_row_groups_far_apart_are_read_within_bounds(suite, tmp_path):
    read = sys.modules[suite.module]._corpora.read_bounded
    file = table_file(tmp_path, {"key": np.arange(10_000, dtype=np.int64)}, 100)
    taken = read(file, 4000)
    groups = np.unique(taken.data.view(np.int64) // 100).tolist()
    assert (taken.data.size, taken.dtype, len(groups)) == (4000, "int64", 5)
    assert max(groups) - min(groups) > 50


def test_a_table_of_texts_is_bytes(suite, tmp_path):
    taken = sys.modules[suite.module]._corpora.read_bounded(table_file(tmp_path, {"name": ["ab", "cde"]}, 2), 2**20)
    assert b"abcde" in taken.data.tobytes()
    assert taken.dtype == "uint8"


def test_a_table_without_a_value_is_skipped_and_what_is_none_is_a_file_error(suite, host, tmp_path):
    with pytest.raises(Skip, match="no column has a value"):
        build(suite, host, "lz4", data=[table_file(tmp_path, {"key": np.zeros(0, np.int32)}, 2)])
    with pytest.raises(FileError, match="not a Parquet file"):
        build(suite, host, "lz4", data=[file_of(tmp_path, b"no table", "other.parquet")])


def test_what_is_no_regular_file_is_not_read(suite, host):
    with pytest.raises(FileError, match="not a regular file"):
        build(suite, host, "lz4", data=[DataFile("zero", "/dev/zero", 10)])


def test_many_threads_are_measured_on_the_host(suite, host):
    target = Target(Facts((host.device,)), host.device, "full")
    case = next(case for case in suite.cases(target) if case.name == "threads" and case.param("threads") > 1)
    task = suite.build(Bench(host, case, target, suite.package))
    assert verify(host, task)["ratio"].value > 1
    assert task.notes["threads"] == str(case.param("threads"))


def test_the_choice_and_its_regret_are_measured_on_the_host(suite, host):
    target = Target(Facts((host.device,)), host.device, "smoke")
    case = next(case for case in suite.cases(target) if case.name == "choice")
    task = suite.build(Bench(host, case, target, suite.package))
    found = verify(host, task)
    assert {"regret.speed", "regret.ratio", "regret.end-to-end", "exhaustive"} == set(found)
    assert found["regret.ratio"].value < 0.2
    assert task.notes["choice.ratio"].startswith("zstd")


# GPUs.


@pytest.mark.parametrize("name", ["deflate", "zstd"])
def test_one_format_is_read_by_both_sides(suite, gpu, monkeypatch, name):
    """The GPU in host memory writes zlib's format whatever it is asked, so that is what the host has to read."""
    host_codecs = sys.modules[suite.module]._codecs_host
    monkeypatch.setattr(host_codecs, "FORMATS", {name: lambda: host_codecs.open_codec("zlib-1")})
    target = Target(Facts((GPU,)), GPU, "full")
    case = next(case for case in suite.cases(target) if case.name == "formats" and case.param("format") == name)
    params = tuple((axis, 2**24 if axis == "size_bytes" else value) for axis, value in case.params)
    task = suite.build(Bench(gpu, dataclasses.replace(case, params=params), target, suite.package))
    found = verify(gpu, task)
    assert found["ratio.gpu"].value == pytest.approx(found["ratio.host"].value)
    trip_of(task).restored.memory[5] ^= 1
    with pytest.raises(WrongAnswer, match="bytes differ"):
        task.check()


def test_the_choice_is_measured_on_a_gpu_of_codecs_in_host_memory(suite, gpu):
    target = Target(Facts((GPU,)), GPU, "smoke")
    case = next(case for case in suite.cases(target) if case.name == "choice")
    params = tuple((axis, 2**21 if axis == "size_bytes" else value) for axis, value in case.params)
    task = suite.build(Bench(gpu, dataclasses.replace(case, params=params), target, suite.package))
    assert verify(gpu, task)["regret.ratio"].value == pytest.approx(0, abs=0.2)


def test_a_codec_that_needs_an_engine_is_skipped_where_there_is_none(suite, gpu, monkeypatch):
    monkeypatch.setattr(nvcomp, "engine_formats", lambda _: frozenset())
    monkeypatch.setattr(device_of.ARRAYS.cuda, "runtime", types.SimpleNamespace(getDevice=lambda: 0), raising=False)
    with pytest.raises(Skip, match="needs a hardware decompression engine for lz4: on this device it is not there"):
        build(suite, gpu, "lz4-engine", "full", corpus="ids")


def test_the_python_codec_that_is_missing_is_a_skip_with_how_to_get_it(suite, gpu, monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia.nvcomp", None)
    target = Target(Facts((GPU,)), GPU, "smoke")
    case = next(case for case in suite.cases(target) if case.name == "python")
    with pytest.raises(Skip, match=r"needs nvidia.nvcomp .*pip install 'gpubench-suite\[cuda13\]'"):
        suite.build(Bench(gpu, case, target, suite.package))


def test_planning_for_a_gpu_touches_no_device(suite):
    cases = [case.id for case in suite.cases(Target(Facts((GPU,)), GPU, "smoke"))]
    expected = [f"compression/roundtrip[corpus=ids,codec={c},size=16MiB,chunk=64KiB]" for c in nvcomp.ALGORITHMS]
    assert expected == [case for case in cases if "/roundtrip" in case]


@pytest.mark.parametrize("size", [1, CHUNK, 5 * CHUNK + 1, 2 * CHUNK + 12345])
def test_batches_point_at_every_chunk_of_odd_sized_data(suite, gpu, tmp_path, size):
    task = build(suite, gpu, "zstd", data=[file_of(tmp_path, noise(size))])
    assert 0 < verify(gpu, task)["ratio"].value < 1
    Engine(gpu, RULES["smoke"]).measure(task)


def test_batches_compress_a_made_corpus(suite, gpu):
    assert verify(gpu, build(suite, gpu, "cascaded"))["ratio"].value > 5


def test_a_failed_chunk_is_told_in_the_librarys_words(suite, gpu):
    task = build(suite, gpu, "lz4")
    task.stages["compress"].call()
    trip_of(task).compressed.memory[:8] = 0
    with pytest.raises(WrongAnswer, match=r"1 chunks were not restored; the first: words of 12 \(status 12\)"):
        run_back(task)


def test_a_wrong_byte_is_named(suite, gpu):
    task = build(suite, gpu, "lz4")
    verify(gpu, task)
    trip_of(task).restored.memory[70_000] ^= 1
    with pytest.raises(WrongAnswer, match="1 of 16777216 bytes differ after the round trip, the first at 70000"):
        task.check()


@pytest.mark.parametrize("ran", [(), ("compress",), ("decompress",)])
def test_spoilt_device_buffers_are_not_passed(suite, gpu, ran):
    task = build(suite, gpu, "lz4")
    verify(gpu, task)
    task.poison()
    for name in ran:
        task.stages[name].call()
    with pytest.raises(WrongAnswer):
        task.check()


def test_bitcomps_restoring_waits_and_is_never_gated(suite, gpu):
    waits = {name: stage.waits for name, stage in build(suite, gpu, "bitcomp").stages.items()}
    assert waits == {"compress": False, "decompress": True}


def test_too_little_memory_is_a_skip(suite, gpu):
    with pytest.raises(Skip, match=r"needs .* MiB of free device memory"):
        build(suite, dataclasses.replace(gpu, free=2**20), "lz4")


def test_a_gpu_of_another_vendor_is_skipped(suite, gpu):
    other = dataclasses.replace(gpu, traits=dataclasses.replace(gpu.traits, kernels="none"))
    with pytest.raises(Skip, match="neither NVIDIA's nor AMD's"):
        build(suite, other, "lz4")


def test_a_missing_nvcomp_is_a_skip_with_how_to_get_it(suite, gpu, monkeypatch):
    def load():
        raise Missing("nvCOMP 6 is not usable here", "pip install it")

    monkeypatch.setattr(nvcomp, "load", load)
    with pytest.raises(Skip, match="not usable here; pip install it"):
        build(suite, gpu, "lz4")


@pytest.mark.parametrize(("status", "raised"), [(11, Skip), (1000, nvcomp.NvcompError)])
def test_a_refusal_is_a_skip_and_a_failure_is_an_error(suite, gpu, monkeypatch, status, raised):
    monkeypatch.setattr(device_of._Answers, "CompressGetMaxOutputChunkSize", lambda *_: status)
    with pytest.raises(raised, match=f"words of {status}"):
        build(suite, gpu, "lz4")


@pytest.fixture(scope="module")
def real_gpu():
    backend = plugins.load("backends", "cupy")
    return backend.open(next(device for device in backend.devices() if device.id.startswith("cuda")))


@pytest.mark.gpu
@pytest.mark.parametrize("size", [1, CHUNK, 5 * CHUNK + 1, 64 * CHUNK + 12345])
@pytest.mark.parametrize("codec", nvcomp.ALGORITHMS)
def test_every_codec_restores_odd_sized_data_on_a_gpu(suite, real_gpu, tmp_path, codec, size):
    data = (noise(3000) + b"text " * 2000) * (size // 13000 + 1)
    verify(real_gpu, build(suite, real_gpu, codec, data=[file_of(tmp_path, data[:size])]))


@pytest.mark.gpu
@pytest.mark.parametrize("corpus", ["ids", "text", "field", "weights", "random", "zeros"])
@pytest.mark.parametrize("codec", nvcomp.ALGORITHMS)
def test_every_codec_restores_every_corpus_on_a_gpu(suite, real_gpu, codec, corpus):
    verify(real_gpu, build(suite, real_gpu, codec, "full", corpus=corpus))
    real_gpu.release()


@pytest.mark.gpu
@pytest.mark.parametrize("codec", nvcomp.ALGORITHMS)
def test_compressed_chunks_tell_their_restored_sizes_on_a_gpu(suite, real_gpu, codec):
    task = build(suite, real_gpu, codec)
    task.stages["compress"].call()
    trip = trip_of(task)
    sizes = real_gpu.xp.zeros(trip.layout.count, real_gpu.xp.uint64)
    stream = real_gpu.xp.cuda.get_current_stream().ptr
    trip.codec.row.restored_sizes(trip.compressed.at_device(), sizes.data.ptr, stream)
    assert [CHUNK] * trip.layout.count == real_gpu.to_host(sizes).tolist()
