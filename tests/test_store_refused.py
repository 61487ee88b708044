"""What `read_run` refuses: one line with the file, the line's number and the problem."""

from __future__ import annotations

import gzip
import os

import _make as make
import pytest
from _files import content, edit, replace, write

from gpubench import model
from gpubench.base.errors import FileError
from gpubench.model import disk, limits, record, store

NAMES = ("run.jsonl", "run.jsonl.gz")


def refusal(path):
    """Return the one line by which a file is refused, without the file's name."""
    with pytest.raises(FileError) as refused:
        store.read_run(path)
    message = str(refused.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


@pytest.fixture
def small(path):
    """Write a file of a manifest, a result and samples, without an end record."""
    return write(path, make.result(), make.samples([1.0, 2.0], power=[300.5, None]), end=False)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda a, b, c: a + b[:20] + b"\n" + c, "line 2: not JSON"),
        (lambda a, b, c: a + b.replace(b"triad", b"tri\xffd") + c, "line 2: not UTF-8 text"),
        (lambda a, b, c: b, "line 1: cannot be read as a run of gpubench: the manifest does not come first"),
        (lambda a, b, c: a + b + c + a, "line 4: a second manifest"),
        (lambda a, b, c: a + b + c + b, "line 4: a second result of bandwidth/triad, replicate 0"),
    ],
)
def test_a_changed_line_is_refused_and_in_the_middle_not_taken_for_a_torn_one(small, changed, message):
    lines = content(small).splitlines(keepends=True)
    assert refusal(replace(small, changed(*lines))).startswith(message)


@pytest.mark.parametrize(
    "data", [b"hello\n", b"\x1f\x8b\x08 packed\n", b"[]\n", b"3\n", b'{"a":1}\n', b"\n", b"\xff\xfe\n"]
)
def test_a_file_of_another_program_is_refused_as_such(path, data):
    path.write_bytes(data)
    assert refusal(path).startswith("line 1: cannot be read as a run of gpubench: ")


def test_an_empty_file_is_refused_with_the_next_step(path):
    path.touch()
    assert refusal(path) == "line 1: its manifest is missing or incomplete, so nothing was measured; remove the file"


@pytest.mark.parametrize("more", [b'{"kind":"result"', b"\n", b"anything\n"])
def test_any_line_after_the_end_record_is_refused(path, more):
    write(path)
    assert refusal(replace(path, content(path) + more)) == "line 3: the record comes after the end record"


@pytest.mark.parametrize("name", NAMES)
def test_a_number_or_a_record_missing_in_a_complete_file_is_found(tmp_path, name):
    edited = "the records differ from their recorded count and hash: the file was edited or damaged"
    assert refusal(edit(write(tmp_path / name, make.result()), 2, "0.001", "0.002")) == f"line 3: {edited}"
    path = write(tmp_path / f"two-{name}", make.result(), make.result(replicate=1))
    lines = content(path).splitlines(keepends=True)
    assert refusal(replace(path, lines[0] + lines[1] + lines[3])) == f"line 3: {edited}"


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    assert refusal(tmp_path / "run.jsonl") == "No such file or directory"
    assert refusal(tmp_path) == "Is a directory"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read_is_refused(small):
    small.chmod(0)
    assert refusal(small) == "Permission denied"


def test_a_damaged_gzip_and_a_gzip_by_name_only_are_refused(tmp_path, small):
    path = write(tmp_path / "damaged.jsonl.gz", make.result())
    data = bytearray(path.read_bytes())
    data[-5] ^= 0xFF  # this byte belongs to the checksum in the trailer
    path.write_bytes(data)
    problem = "after line 0: damaged gzip data (Error -3 while decompressing data: incorrect"
    assert refusal(path) == f"{problem} data check)"
    assert refusal(small.rename(small.with_suffix(".jsonl.gz"))) == f"{problem} header check)"


def test_a_gzip_of_several_members_is_read_as_one(small):
    first, rest = content(small).split(b"\n", 1)
    packed = small.with_suffix(".jsonl.gz")
    packed.write_bytes(gzip.compress(first + b"\n") + gzip.compress(rest))
    assert store.read_run(packed) == store.read_run(small)


@pytest.mark.parametrize("name", NAMES)
def test_a_record_above_sixteen_mebibytes_is_refused_and_never_held_whole(tmp_path, name):
    path = write(tmp_path / name, end=False)
    replace(path, content(path) + b'{"kind":"result","reason":"' + b"x" * 2**25)
    assert refusal(path) == "line 2: the record is longer than 16 MiB"


def test_a_small_gzip_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    path = write(tmp_path / "run.jsonl.gz", end=False)
    first = content(path)
    filler = record.encode(make.samples([1.0] * 2**16))
    many = first + filler * 8
    assert len(gzip.compress(many)) < len(many) / 100
    monkeypatch.setattr(limits, "FILE_BYTES", len(many) - 1)
    assert refusal(replace(path, many)) == "line 9: the file holds more than 2.002 MiB"
    monkeypatch.setattr(limits, "FILE_BYTES", len(many))
    assert [len(samples.at) for samples in store.read_run(path).samples] == [8 * 2**16]


def test_a_gzip_that_is_packed_tighter_than_any_measurement_is_refused(tmp_path):
    path = write(tmp_path / "run.jsonl.gz", end=False)
    replace(path, content(path) + record.encode(make.samples([1.0] * 2**16)) * 70)
    assert len(gzip.decompress(path.read_bytes())) > limits.PACKED_BYTES > path.stat().st_size * limits.PACKED_RATIO
    assert refusal(path) == "it unpacks to more than 200 times its size: not a run file"


@pytest.mark.parametrize(
    ("limit", "records", "message"),
    [
        ("FILE_RESULTS", [make.result(replicate=number) for number in range(3)], "results"),
        ("FILE_TRACKS", [make.samples([1.0], **{f"power{number}": [1.0]}) for number in range(3)], "sets of counters"),
        ("FILE_REMARKS", [model.Remark(0.0, "lost", "nvml", "", "gone")] * 3, "remarks"),
    ],
)
def test_a_file_holds_a_limited_number_of_each_kind_of_record(path, monkeypatch, limit, records, message):
    write(path, end=False)
    path.write_bytes(path.read_bytes() + b"".join(map(record.encode, records)))
    monkeypatch.setattr(limits, limit, 3)
    store.read_run(path)
    monkeypatch.setattr(limits, limit, 2)
    assert refusal(path) == f"line 4: the file holds more than 2 {message}"


@pytest.mark.parametrize(
    ("wrong", "what"),
    [(make.result(devices=("cuda:7",)), "a result is"), (make.samples([1.0], "cuda:7", power=[1.0]), "samples are")],
)
def test_a_record_of_a_device_that_the_file_does_not_describe_is_refused(path, wrong, what):
    write(path, wrong)
    assert refusal(path) == f"line 2: {what} of the device 'cuda:7', which the manifest does not describe"


@pytest.mark.parametrize("mask", [-1.0, 1.5, 2.0**63, 1e99])
def test_an_event_counter_with_a_value_that_is_no_bit_mask_is_refused(path, mask):
    events = make.counter("nvml.event_reasons", "bit mask", "event")
    write(path, make.samples([1.0, 2.0], event_reasons=[None, 4.0]), manifest=make.manifest(counters=(events,)))
    store.read_run(path)
    assert (
        refusal(edit(path, 2, "4.0", repr(mask)))
        == f"line 2: column 'nvml.event_reasons': {mask:g} is not a mask of bits"
    )


def test_a_gzip_is_unpacked_only_as_far_as_it_is_read(tmp_path):
    path = tmp_path / "zeros.gz"
    path.write_bytes(gzip.compress(bytes(2**26)))
    with disk.open_bytes(path) as file:
        assert file.read(10) == bytes(10)
        assert len(file.raw._packed) > 0
