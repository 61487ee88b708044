"""The user's own data: files, arrays and tables, read within bounds and streamed."""

import dataclasses
import itertools

import numpy as np
import pytest
from _compression_tasks import build, case_named, file_of, noise, trip_of, verify
from _modules import suite_module
from hypothesis import given
from hypothesis import strategies as st

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import FileError, Skip
from gpubench.model import DataFile, Facts


@pytest.fixture(scope="module")
def suite():
    return plugins.load("suites", "compression")


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
    """Return at most `most` bytes from all over the file."""
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
    """Write a Parquet table with `rows_a_group` rows per group and return it as data of the user."""
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


def test_a_table_of_texts_is_bytes(suite, tmp_path):
    taken = bounded(table_file(tmp_path, {"name": ["ab", "cde"]}, 2), 2**20)
    assert b"abcde" in taken.data.tobytes()
    assert taken.dtype == "uint8"


def not_a_table(tmp_path):
    pytest.importorskip("pyarrow")
    return file_of(tmp_path, b"no table", "other.parquet")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda folder: DataFile("gone", str(folder / "gone"), 10), FileError, "gone: No such file"),
        (lambda _: DataFile("zero", "/dev/zero", 10), FileError, "not a regular file"),
        (
            lambda folder: file_of(folder, b"no array", "mine.npy"),
            FileError,
            r"mine\.npy: not an array in NumPy's format",
        ),
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


def test_only_a_full_run_with_data_reads_all_of_them(suite, host, tmp_path):
    target = Target(Facts((host.device,)), host.device, "quick", (file_of(tmp_path, b"x"),))
    assert not [case for case in suite.cases(target) if case.name == "whole"]


def test_pieces_of_arrays_and_tables_are_all_of_their_elements(suite, tmp_path):
    pieces = suite_module("compression", "_corpora").pieces
    array = np.arange(1000, dtype=np.int32)
    for file in (numpy_file(tmp_path, array), table_file(tmp_path, {"key": array}, 300)):
        parts = list(pieces(file, 800))
        assert array.tobytes() == b"".join(part.data.tobytes() for part in parts)
        assert {"int32"} == {part.dtype for part in parts}
        assert max(part.data.size for part in parts) == 800
