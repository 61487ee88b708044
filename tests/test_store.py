"""The run file as a specification: its content, its durability, and resuming."""

import dataclasses
import gzip
import hashlib
import json
import math
import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import _make as make
import pytest
from _files import content, edit, lines, replace, write

from gpubench import model
from gpubench.base.errors import FileError, UsageError
from gpubench.model import disk, limits, record, store

NAMES = ("run.jsonl", "run.jsonl.gz")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


@pytest.fixture
def small(path):
    """Write a file of a manifest, a result and samples, without an end record."""
    return write(path, make.result(), make.samples([1.0, 2.0], power=[300.5, None]), end=False)


# --- what is written is what is read ------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_run_is_read_as_it_was_written(tmp_path, name):
    results = (make.result(make.timing(1e-3, 2e-3, moved=3e9)), make.result(replicate=1, status="failed", cause="hang"))
    samples = (make.samples([100.0, 100.5], power=[300.25, None], energy=[1e9, 1e9 + 150]),)
    path = write(tmp_path / name, *results, *samples)
    assert store.read_run(path) == model.Run(make.manifest(), results, samples)


def test_a_remark_on_the_counters_is_kept_with_the_run_and_read_again(tmp_path):
    lost = model.Remark(3.5, "lost", "nvml", "cuda:0", "missing from here on: cuda:0 is lost")
    lacking = model.Remark(0.1, "absent", "nvml", "cuda:0", "no nvml.nvlink.rx: Not Supported")
    with store.RunWriter.create(tmp_path / "run.jsonl", make.manifest()) as writer:
        writer.remark(lacking)
        writer.remark(lost)
        writer.end()
    run = store.read_run(tmp_path / "run.jsonl")
    assert run.remarks == (lacking, lost)
    assert run.messages == ("counters of nvml on cuda:0: missing from here on: cuda:0 is lost",)
    (tmp_path / "again.jsonl").write_bytes(store.encode_run(run))
    assert store.read_run(tmp_path / "again.jsonl") == run


def test_samples_of_an_older_file_have_no_reading_time(small):
    older = b'{"kind":"samples","collector":"nvml","device":"cuda:0","at":[1.0],"columns":[["nvml.power",[2.0]]]}\n'
    assert record.decode(older) == model.Samples("nvml", "cuda:0", (1.0,), (("nvml.power", (2.0,)),))


def test_records_are_distinguished_by_kind_and_have_the_fields_of_the_model(small):
    assert [record["kind"] for record in lines(small)] == ["manifest", "result", "samples"]
    assert lines(small)[2] == {
        "kind": "samples",
        "collector": "nvml",
        "device": "cuda:0",
        "at": [1.0, 2.0],
        "columns": [["nvml.power", [300.5, None]]],
        "busy_s": 0.0,
        "late_s": 0.0,
    }


def test_the_end_counts_and_hashes_all_earlier_lines(path):
    write(path, make.result())
    body, _, end = content(path).rstrip(b"\n").rpartition(b"\n")
    assert json.loads(end) == {"kind": "end", "records": 2, "sha256": hashlib.sha256(body + b"\n").hexdigest()}


def test_text_of_any_script_is_written_unchanged_and_undecodable_characters_are_replaced(path, tmp_path):
    result = make.result(reason='µ 计算 \U0001f680 \u2028 \x1b[31m "quoted"\n\ttwo lines \x7f')
    write(path, result)
    assert store.read_run(path).results == (result,)
    assert "计算" in path.read_text(encoding="utf-8")
    other = write(tmp_path / "other.jsonl", make.result(reason="cannot open caf\udce9.bin"))
    assert store.read_run(other).results[0].reason == "cannot open caf?.bin"


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (
            {"argv": ("gpubench", "run", "caf\udce9.bin")},
            UsageError,
            r"^'caf\\udce9\.bin' is not UTF-8 text, which a run file is; rename it$",
        ),
        ({"schema": "gpubench.run/2"}, ValueError, r"gpubench\.run/2"),
    ],
)
def test_a_manifest_that_could_not_be_read_again_makes_no_file(path, wrong, error, message):
    with pytest.raises(error, match=message):
        store.RunWriter.create(path, make.manifest(**wrong))
    assert not path.exists()


# --- a run that dies ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("end", [True, False])
def test_a_file_cut_at_any_byte_of_its_last_record_keeps_the_others(tmp_path, name, end):
    path = write(tmp_path / name, make.result(), end=False)
    keeps = path.stat().st_size
    with store.RunWriter.resume(path)[0] as writer:
        keeps = path.stat().st_size
        writer.end() if end else writer.result(make.result(replicate=1))
    original = path.read_bytes()
    for length in range(keeps, len(original)):
        path.write_bytes(original[:length])
        run = store.read_run(path)
        assert run.results[0] == make.result()
        if len(run.results) == 1 and not run.complete:
            torn = bool(content(path).rpartition(b"\n")[2])
            assert run.warnings == ((f"{path}: line 3: the last line is incomplete and was dropped",) if torn else ())


def test_a_file_cut_at_any_byte_is_read_or_refused_in_one_line(path):
    content = write(path, make.result()).read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        if b"\n" in content[:length]:
            assert not store.read_run(path).complete
        else:
            with pytest.raises(FileError, match="line 1: its manifest is missing or incomplete"):
                store.read_run(path)


def test_a_file_without_an_end_is_a_partial_run(small):
    run = store.read_run(small)
    assert (run.complete, len(run.results), run.warnings) == (False, 1, ())


def test_an_exception_in_the_writers_block_leaves_a_partial_run(path):
    def interrupted():
        with store.RunWriter.create(path, make.manifest()) as writer:
            writer.result(make.result())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert store.read_run(path) == model.Run(make.manifest(), (make.result(),), complete=False)


@pytest.mark.parametrize("name", NAMES)
def test_each_record_can_be_read_as_soon_as_it_is_written(tmp_path, name):
    path = tmp_path / name
    with store.RunWriter.create(path, make.manifest()) as writer:
        assert store.read_run(path).results == ()
        for count in range(3):
            writer.result(make.result(replicate=count))
            assert len(store.read_run(path).results) == count + 1


@pytest.mark.parametrize("name", NAMES)
def test_a_killed_process_keeps_every_record_whose_write_returned(tmp_path, name):
    path = tmp_path / name
    program = textwrap.dedent("""
        import itertools, sys
        sys.path.insert(0, sys.argv[2])
        import _make as make
        from gpubench.model.store import RunWriter
        writer = RunWriter.create(sys.argv[1], make.manifest())
        for count in itertools.count():
            writer.result(make.result(replicate=count))
            print(count, flush=True)
    """)
    command = [sys.executable, "-c", program, str(path), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writing:
        reported = [int(writing.stdout.readline()) for _ in range(20)]
        writing.send_signal(signal.SIGKILL)
        reported += [int(line) for line in writing.stdout if line.endswith("\n")]
    kept = [result.replicate for result in store.read_run(path).results]
    assert kept[: len(reported)] == reported
    writer, run = store.RunWriter.resume(path)
    with writer:
        writer.end()
    assert store.read_run(path) == dataclasses.replace(run, complete=True, warnings=())


@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk_is_reported_in_one_line_and_leaves_a_partial_run(tmp_path, name):
    path = tmp_path / name
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with store.RunWriter.create(path, make.manifest()) as writer:
        writer.result(make.result())
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 2, before[1]))
        try:
            with pytest.raises(FileError, match="File too large; the records written before are kept"):
                writer.result(make.result(replicate=1))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        with pytest.raises(ValueError, match="closed"):
            writer.result(make.result(replicate=2))
    assert store.read_run(path).results == (make.result(),)


# --- going on -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("torn", [b"", b'{"kind":"result","ca'])
@pytest.mark.parametrize("end", [True, False])
def test_a_resumed_file_equals_one_written_in_one_go(tmp_path, name, torn, end):
    first, second = make.result(), make.result(replicate=1)
    path = write(tmp_path / name, first, end=end and not torn)
    if torn:
        replace(path, content(path) + torn)
    writer, run = store.RunWriter.resume(path)
    with writer:
        writer.result(second)
        writer.end()
    assert (run.results, run.complete) == ((first,), end and not torn)
    assert len(run.warnings) == bool(torn)
    assert content(path) == content(write(tmp_path / f"whole-{name}", first, second))
    assert store.read_run(path).complete
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([name, f"whole-{name}"])


def test_a_resumed_file_is_whole_for_other_programs_and_takes_no_second_result(tmp_path, small):
    path = write(tmp_path / "run.jsonl.gz", make.result())
    with store.RunWriter.resume(path)[0] as writer:
        writer.result(make.result(replicate=1))
        writer.end()
    assert gzip.decompress(path.read_bytes()) == content(path)
    with store.RunWriter.resume(small)[0] as writer, pytest.raises(ValueError, match="a second result"):
        writer.result(make.result())


def test_a_file_that_is_being_written_is_not_resumed(path):
    with store.RunWriter.create(path, make.manifest()):
        with pytest.raises(UsageError, match="another process is writing it"):
            store.RunWriter.resume(path)
        assert store.read_run(path).results == ()


def test_a_damaged_file_is_not_resumed_and_not_touched(small):
    edit(small, 2, '"status":"ok"', '"status":"good"')
    before = small.read_bytes()
    with pytest.raises(FileError, match="line 2: status"):
        store.RunWriter.resume(small)
    assert small.read_bytes() == before


# --- where a file cannot be made ----------------------------------------------------------------


def test_a_file_is_neither_overwritten_nor_made_where_no_folder_is(path, tmp_path):
    path.write_text("mine")
    for place, message in (
        (path, r"run\.jsonl exists; choose another name, or continue it with `run --resume`"),
        (tmp_path / "no" / "run.jsonl", "the folder does not exist; make it first"),
        (path / "run.jsonl", "Not a directory; choose another place"),
    ):
        with pytest.raises(UsageError, match=message):
            store.RunWriter.create(place, make.manifest())
    assert path.read_text() == "mine"


def test_the_hash_of_a_file_is_that_of_its_bytes_and_a_missing_file_is_refused(small, tmp_path):
    assert store.file_hash(small) == hashlib.sha256(small.read_bytes()).hexdigest()
    for use in (store.file_hash, store.RunWriter.resume):
        with pytest.raises(FileError, match="No such file or directory"):
            use(tmp_path / "missing.jsonl")


# --- a bug in the caller ------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_series_that_is_not_finite_is_a_bug_and_is_not_written(path, value):
    with store.RunWriter.create(path, make.manifest()) as writer:
        with pytest.raises(ValueError, match=r"^bandwidth/triad is not a valid record: series\.0\.values\.1: .*finite"):
            writer.result(make.result(make.timing(1.0, value)))
        writer.end()
    assert store.read_run(path).results == ()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (make.result(elapsed_s=math.nan), "elapsed_s: .*finite"),
        (make.result(of=make.case(scale=math.inf)), r"case\.params\.0\.1.*"),
        (make.result(replicate="1"), "replicate: .*integer"),
        (make.result(make.timing(1.0, 2.0, at=(1.0,))), "series 'hot' has 2 values at 1 times"),
        (make.samples([1.0, 2.0], power=[1.0]), r"column 'nvml\.power' has 1 values at 2 times"),
        (make.result(reason="x" * 2**24), "longer than 16 MiB"),
    ],
)
def test_a_record_that_could_not_be_read_again_is_a_bug_and_is_not_written(path, wrong, message):
    with store.RunWriter.create(path, make.manifest()) as writer, pytest.raises(ValueError, match=message):
        writer.samples(wrong) if isinstance(wrong, model.Samples) else writer.result(wrong)


# --- samples ------------------------------------------------------------------------------------


def test_samples_are_split_so_that_a_record_stays_below_one_mebibyte(path):
    count = 100_000
    at = [index / 8 for index in range(count)]
    samples = make.samples(at, power=[float(index) for index in range(count)], energy=[None] * count)
    write(path, samples)
    lines = content(path).splitlines(keepends=True)
    assert sum(line.startswith(b'{"kind":"samples"') for line in lines) > 1
    assert max(map(len, lines)) <= 2**20
    assert store.read_run(path).samples == (samples,), "in a run they are one again"


def test_chunks_of_other_counters_stay_apart_and_those_of_one_device_are_joined(path):
    power = [make.samples([at], device, power=[at]) for at in (1.0, 2.0) for device in ("cuda:0", "cuda:1")]
    manifest = make.manifest(facts=make.facts(make.device(), make.device("cuda:1")))
    write(path, power[0], make.samples([1.5], energy=[9.0]), *power[1:], manifest=manifest)
    assert store.read_run(path).samples == (
        make.samples([1.0, 2.0], power=[1.0, 2.0]),
        make.samples([1.5], energy=[9.0]),
        make.samples([1.0, 2.0], "cuda:1", power=[1.0, 2.0]),
    )


# ---- What `read_run` refuses: one line with the file, the line's number and the problem.


def refusal(path):
    """Return the one line by which a file is refused, without the file's name."""
    with pytest.raises(FileError) as refused:
        store.read_run(path)
    message = str(refused.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


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
def test_a_file_of_another_program_and_an_empty_one_are_refused_as_such(path, data):
    path.write_bytes(data)
    assert refusal(path).startswith("line 1: cannot be read as a run of gpubench: ")
    path.write_bytes(b"")
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
