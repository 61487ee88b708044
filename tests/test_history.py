"""The history: recording, reading, four writers at once, and a locked or damaged file."""

import dataclasses
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import _files as files
import _make as make
import pytest

from gpubench.analysis.fingerprint import fingerprint
from gpubench.base.errors import FileError
from gpubench.model.store import RunWriter, read_run
from gpubench.tools import history
from gpubench.tools.history import database, reading, recording

RECORDINGS = Path(__file__).parent / "recordings"
FIRST = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CASE = make.case(size_bytes=2**30)
H200 = fingerprint(make.facts(), ("cuda:0",))


def day(number):
    return (FIRST + timedelta(days=number)).isoformat(timespec="seconds")


def run_file(folder, number, *seconds, of=CASE, **fields):
    results = [
        make.result(make.timing(value, value, moved=1e9), of=of, replicate=replicate)
        for replicate, value in enumerate(seconds or (1e-3,))
    ]
    manifest = make.manifest(started=fields.pop("started", day(number)), started_at=float(number), **fields)
    return files.write(folder / f"{number:04}.jsonl", *results, manifest=manifest)


def recorded(store, *paths):
    """Record run files; return the outcome of each."""
    with recording.HistoryRecorder(store) as recorder:
        return [recorder.record(path) for path in paths]


def trend(store, case=CASE.id, series="", runs=400):
    with reading.History(store) as reader:
        (line,) = reader.lines([case], series)
        return reader.trend(line, runs)


def last(store, count, of=CASE, kind=H200, tier="quick", **fields):
    """Return the newest results of a case, as a gate asks for them."""
    with reading.History(store) as reader:
        return reader.last(of.id, of.version, tier, kind.id, count, **fields)


@pytest.fixture
def store(tmp_path):
    return tmp_path / "history.sqlite"


# ---- what is recorded


@pytest.mark.parametrize("started", ["1970-01-01", "9998-12-31T23:59:59-23:59", ""])
def test_every_value_that_a_run_file_may_contain_survives_the_history(tmp_path, store, started):
    """Ids, labels and fingerprints are joined of texts, each of which may be as long as is allowed."""
    ids = [f"{number}" * 4096 for number in range(3)]
    devices = [make.device(device_id, "n" * 4096, arch="a" * 4096) for device_id in ids]
    labels = tuple(f"{number:04096}" for number in range(40))
    result = make.result(
        make.timing(1e-12, items=1e30, item="i" * 4096, stage="s" * 4096, name="hot"),
        of=make.case("c" * 4096, "s" * 4096, **{"p" * 4096: "v" * 4096}),
        devices=ids,
        labels=labels,
    )
    os.utime(
        files.write(tmp_path / "run.jsonl", result, manifest=make.manifest(facts=make.facts(*devices), started=started))
    )
    recorded(store, tmp_path / "run.jsonl")
    with reading.History(store) as reader:
        (line,) = reader.lines()
        (point,) = reader.trend(line, 10).moments
    assert line.line.devices == tuple(ids)
    assert point.labels == labels


def test_a_run_file_whose_name_is_no_text_is_refused_in_one_line(tmp_path, store):
    path = run_file(tmp_path, 1).rename(tmp_path / os.fsdecode(b"\xff.jsonl"))
    with pytest.raises(FileError, match="it is no UTF-8; rename it"):
        recorded(store, path)


def test_recording_a_run_again_changes_nothing(tmp_path, store):
    path = run_file(tmp_path, 1)
    copy = files.write(tmp_path / "copy.jsonl.gz", *read_run(path).results, manifest=read_run(path).manifest)
    assert [outcome.state for outcome in recorded(store, path, path, copy)] == ["new", "known", "known"]
    assert trend(store).values == (1e12,)


def test_the_results_that_a_resumed_run_adds_are_recorded(tmp_path, store):
    path = tmp_path / "a.jsonl"
    with RunWriter.create(path, make.manifest()) as writer:
        writer.result(make.result(make.timing(1e-3, moved=1e9), of=CASE))
    (before,) = recorded(store, path)
    writer, _ = RunWriter.resume(path)
    with writer:
        writer.result(make.result(make.timing(3e-3, moved=1e9), of=CASE, replicate=1))
        writer.end()
    (after,) = recorded(store, path)
    assert (before.state, before.results, after.state, after.results) == ("new", 1, "updated", 2)
    (moment,) = trend(store).moments
    assert (moment.replicates, moment.value) == (2, pytest.approx((1e12 + 1e12 / 3) / 2))


def test_only_results_that_are_ok_have_figures(tmp_path, store):
    bad = [
        make.result(make.timing(1e-3, moved=1e9), of=CASE, replicate=number, status=status)
        for number, status in enumerate(("failed", "invalid", "skipped"))
    ]
    recorded(store, files.write(tmp_path / "a.jsonl", *bad))
    with reading.History(store) as reader:
        assert reader.lines() == []


def test_each_series_has_its_own_trend_and_the_headline_represents_the_case(tmp_path, store):
    result = make.result(make.timing(1e-3, moved=1e9), make.timing(2e-3, moved=1e9, name="cold"), of=CASE)
    recorded(store, files.write(tmp_path / "a.jsonl", result))
    assert trend(store).line.series == "hot"
    assert trend(store, series="cold").values == (5e11,)
    with reading.History(store) as reader:
        assert reader.series(["triad"]) == ["cold", "hot"]
        assert reader.lines(["triad"], "warm") == []


@pytest.mark.parametrize(
    "fields",
    [
        {"of": dataclasses.replace(CASE, version=2)},
        {"settings": dataclasses.replace(make.manifest().settings, tier="full")},
        {"facts": make.facts(make.device(name="NVIDIA H100"))},
    ],
)
def test_another_version_tier_or_device_has_its_own_trend(tmp_path, store, fields):
    recorded(store, run_file(tmp_path, 1), run_file(tmp_path, 2, 2e-3, **fields))
    with reading.History(store) as reader:
        assert sorted(reader.trend(line, 9).values for line in reader.lines()) == [(5e11,), (1e12,)]
    assert [point.interval.centre for point in last(store, 9)] == [1e12]


# ---- trends


def test_a_trend_is_ordered_by_the_starts_of_the_runs_not_by_their_recording(tmp_path, store):
    paths = [run_file(tmp_path, number, 1e-3 * number) for number in (3, 1, 2)]
    recorded(store, *paths)
    assert trend(store).values == pytest.approx((1e12, 1e12 / 2, 1e12 / 3))
    assert trend(store, runs=2).values == pytest.approx((1e12 / 2, 1e12 / 3))
    assert [Path(moment.source.path) for moment in trend(store).moments] == sorted(paths)


def test_a_change_says_how_much_for_better_or_worse_and_what_else_changed(tmp_path, store):
    versions = [(("cublas", "13.1"),)] * 10 + [(("cublas", "13.2"),)] * 10
    recorded(
        store,
        *(
            run_file(tmp_path, number, 1.1e-3 if number >= 10 else 1e-3, facts=make.facts(versions=versions[number]))
            for number in range(20)
        ),
    )
    (change,) = trend(store).changes
    assert (change.index, change.is_worse, change.effect) == (10, True, pytest.approx(1 / 1.1 - 1))
    assert change.text == "9.1 % less (worse); cublas 13.1 → 13.2"


def test_a_lower_time_is_better(tmp_path, store):
    case = make.case("chase", "latency")
    for number in range(12):
        seconds = make.timing(1e-6 if number < 6 else 9e-7, items=1)
        manifest = make.manifest(started=day(number), started_at=float(number))
        recorded(store, files.write(tmp_path / f"{number}.jsonl", make.result(seconds, of=case), manifest=manifest))
    (change,) = trend(store, case.id).changes
    assert change.text == "10.0 % less (better)"


# ---- the newest results, for a gate


def test_the_last_results_are_the_newest_replicates_and_name_their_run_files(tmp_path, store):
    paths = [run_file(tmp_path, number, 1e-3 * number, 2e-3 * number) for number in (1, 2, 3)]
    recorded(store, *paths)
    evidence = last(store, 3)
    assert [(point.replicate, point.interval.centre) for point in evidence] == [
        (1, pytest.approx(1e12 / 4)),
        (0, pytest.approx(1e12 / 3)),
        (1, pytest.approx(1e12 / 6)),
    ]
    with reading.History(store) as read:
        assert read.files(evidence) == tuple(paths[1:])


def test_the_last_results_are_of_all_devices_of_the_fingerprint_and_of_no_other(tmp_path, store):
    pair = make.facts(make.device(), make.device("cuda:1"), make.device("cuda:2", "NVIDIA H100"))
    results = [
        make.result(make.timing(1e-3 * (index + 1), moved=1e9), of=CASE, devices=(f"cuda:{index}",))
        for index in range(3)
    ]
    recorded(store, files.write(tmp_path / "a.jsonl", *results, manifest=make.manifest(facts=pair)))
    assert sorted(point.interval.centre for point in last(store, 9)) == [5e11, 1e12]
    assert last(store, 9, kind=fingerprint(make.facts(make.device(name="NVIDIA A100")), ("cuda:0",))) == ()
    assert last(store, 9, tier="smoke") == ()


# ---- clocks that are off


def test_a_run_with_a_start_after_its_files_time_takes_the_files_time(tmp_path, store):
    path = run_file(tmp_path, 1, started=(datetime.now(UTC) + timedelta(hours=2)).isoformat())
    (outcome,) = recorded(store, path)
    assert "its clock was 2 h 00 min ahead" in outcome.warnings[0]
    assert trend(store).moments[0].source.at == pytest.approx(path.stat().st_mtime, abs=1)
    with reading.History(store) as read:
        assert "1 runs start after their file was written" in read.warnings()[0]


def test_a_run_that_starts_in_the_future_is_no_baseline_before_that_time(tmp_path, store):
    future = datetime.now(UTC) + timedelta(days=1)
    early, late = run_file(tmp_path, 1), run_file(tmp_path, 2, 2e-3, started=future.isoformat())
    os.utime(late, (future.timestamp() + 9, future.timestamp() + 9))  # the clock of this machine was ahead, too
    recorded(store, early, late)
    assert [point.interval.centre for point in last(store, 9)] == [1e12]
    assert len(last(store, 9, now=future.timestamp() + 1)) == 2
    with reading.History(store) as read:
        assert "1 runs start in the future" in read.warnings()[0]
        assert read.warnings(future.timestamp() + 1) == ()


@pytest.mark.parametrize(
    ("started", "hour"),
    [("2026-01-02T03:04:05+00:00", 3), ("2026-01-02T03:04:05", 3), ("2026-01-02T03:04:05+02:00", 1)],
)
def test_a_start_without_a_zone_is_utc(tmp_path, store, started, hour):
    recorded(store, run_file(tmp_path, 1, started=started))
    assert datetime.fromtimestamp(trend(store).moments[0].source.at, UTC).hour == hour


def test_a_run_without_a_start_takes_its_files_time(tmp_path, store):
    imported = make.manifest(started="", started_at=0.0)
    results = [make.result(make.timing(seconds, moved=1e9), of=CASE) for seconds in (1e-3, 2e-3)]
    first, second = (
        files.write(tmp_path / f"{number}.jsonl", result, manifest=imported) for number, result in enumerate(results)
    )
    same = files.write(tmp_path / "same.jsonl.gz", *read_run(first).results, manifest=read_run(first).manifest)
    os.utime(first, (FIRST.timestamp(),) * 2)
    outcomes = recorded(store, first, second, same)
    assert [outcome.state for outcome in outcomes] == ["new", "new", "known"]
    assert "it has no date of measurement" in outcomes[0].warnings[0]
    assert trend(store).moments[0].source.at == FIRST.timestamp()


# ---- many writers

WRITER = """
import sys
from pathlib import Path
from gpubench.tools.history.recording import HistoryRecorder
for name in sys.argv[2:]:
    with HistoryRecorder(Path(sys.argv[1])) as recorder:
        assert recorder.record(Path(name)).state == "new"
"""


def test_four_writers_at_once_lose_nothing(tmp_path, store):
    paths = [run_file(tmp_path, number) for number in range(40)]
    writers = [
        subprocess.Popen([sys.executable, "-P", "-c", WRITER, str(store), *map(str, paths[index::4])])
        for index in range(4)
    ]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    assert len(trend(store).moments) == 40
    with recording.HistoryRecorder(store) as recorder:
        recorder.check()


def test_a_killed_writer_leaves_the_earlier_content(tmp_path, store):
    paths = [run_file(tmp_path, number) for number in range(2)]
    recorded(store, paths[0])
    stop = (
        "HistoryRecorder._add_points = lambda self, *rest: (print('here', flush=True), __import__('time').sleep(60))\n"
    )
    program = WRITER.replace("for name", stop + "for name", 1)
    command = [sys.executable, "-P", "-c", program, str(store), str(paths[1])]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"here\n"
        writer.kill()
    assert len(trend(store).moments) == 1
    assert [outcome.state for outcome in recorded(store, paths[1])] == ["new"]


def test_a_locked_history_is_waited_for_and_then_reported(tmp_path, store, monkeypatch):
    recorded(store, run_file(tmp_path, 1))
    monkeypatch.setattr(database, "WAIT_S", 0.05)
    path = run_file(tmp_path, 2)
    connection = sqlite3.connect(store, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(FileError, match=r"history\.sqlite: another process has kept it locked for 0\.05 s; try again"):
        recorded(store, path)
    (message,) = recording.record_measured_run(path, read_run(path))
    assert "the run file is whole: add it by `gpubench history import" in message
    connection.execute("ROLLBACK")
    connection.close()
    assert recording.record_measured_run(path, read_run(path)) == ()
    assert len(trend(store).moments) == 2


# ---- damage


def dump(store):
    """Return all content of a history but its internal numbers."""
    with reading.History(store) as reader:
        return [
            (trend_line.line, trend_line.headline, reader.trend(trend_line, 10**6)) for trend_line in reader.lines()
        ]


def refill(store, *places):
    """Rebuild the history; return the place of a damaged one, each file's outcome, and the number of deleted runs."""
    recorder, aside = recording.open_for_rebuild(store)
    with recorder:
        return aside, *recording.refill(recorder, places)


def damage_file(store, damage):
    """Truncate the history, replace it by text or reverse its middle, as `how` says."""
    data = store.read_bytes()
    middle = bytes(reversed(data[4096:-4096]))
    store.write_bytes({"cut": data[:5000], "text": b"no database\n" * 99, "middle": data[:4096] + middle}[damage])


@pytest.mark.parametrize("damage", ["cut", "text", "middle"])
def test_a_damaged_history_is_reported_set_aside_and_restored_from_the_run_files(tmp_path, store, damage):
    paths = [run_file(tmp_path, number) for number in range(20)]
    recorded(store, *paths)
    before = dump(store)
    damage_file(store, damage)
    with pytest.raises(database.Damaged, match=r"history\.sqlite: damaged"):
        dump(store)
    assert "not in the history" in recording.record_measured_run(paths[0], read_run(paths[0]))[0]
    aside, _, _ = refill(store)
    assert aside.name.startswith("history.sqlite.damaged-")
    assert dump(store) == before


def read_all(store):
    """Return everything that commands read from a history."""
    with reading.History(store) as reader:
        for line in reader.lines():
            assert reader.trend(line, 100).moments
        reader.series([])
        reader.warnings()
        reader.files(reader.last(CASE.id, 1, "quick", H200.id, 10))
    with recording.HistoryRecorder(store) as recorder:
        recorder.sources()
        recorder.runs_to_delete(1)


COLUMNS = {
    "runs": ("key", "path", "at", "ahead_s", "host", "versions", "results"),
    "fingerprints": ("pairs",),
    "lines": ("case_id", "version", "tier", "series", "unit", "better", "devices", "headline"),
    "points": ("at", "replicate", "low", "centre", "high", "noise", "samples", "labels"),
}
WRONG = ("x", b"\xff\x00", -1, 1e300, "a\x00b", "[1]", "[]", "", 2**62)


def fate(store, paths):
    """Return whether a history is read and recorded in, or refused in one line."""
    try:
        read_all(store)
        recorded(store, *paths)
    except FileError as error:
        return "refused" if len(str(error).splitlines()) == 1 else "refused in several lines"
    return "read"


def fates_of_values(tmp_path, store, places):
    paths = [run_file(tmp_path, number) for number in range(3)]
    recorded(store, *paths[:2])
    content = store.read_bytes()
    for table, column, value in places:
        store.write_bytes(content)
        connection = sqlite3.connect(store)
        with connection:
            connection.execute(f"UPDATE OR REPLACE {table} SET {column} = ?", (value,))
        connection.close()
        yield fate(store, paths)


PLACES = [(table, column) for table, columns in COLUMNS.items() for column in columns]


@pytest.mark.parametrize("values", [1, pytest.param(len(WRONG), marks=pytest.mark.slow)])
def test_a_history_with_changed_values_is_read_or_reported_as_damaged(tmp_path, store, values):
    """A column may hold a value of any type, because SQLite does not enforce types."""
    places = [
        (*place, WRONG[(number + turn) % len(WRONG)]) for number, place in enumerate(PLACES) for turn in range(values)
    ]
    assert set(fates_of_values(tmp_path, store, places)) == {"read", "refused"}


@pytest.mark.parametrize("count", [25, pytest.param(2000, marks=pytest.mark.slow)])
def test_a_history_with_changed_bytes_is_read_or_reported_as_damaged(tmp_path, store, count):
    paths = [run_file(tmp_path, number, 1e-3, 2e-3) for number in range(3)]
    recorded(store, *paths[:2])
    content, chooser, fates = store.read_bytes(), random.Random(3), []
    filled = [place for place, byte in enumerate(content) if byte]
    for _ in range(count):
        changed = bytearray(content)
        for _ in range(chooser.randint(1, 20)):
            changed[chooser.choice(filled)] = chooser.choice((0, 1, 0x22, 0x7F, 0x80, 0xFF))
        store.write_bytes(changed)
        fates.append(fate(store, paths))
    assert set(fates) == {"read", "refused"}


@pytest.mark.parametrize(
    "statement", ["DROP TABLE points", "DELETE FROM points", "DELETE FROM runs", "DROP TABLE runs"]
)
def test_a_history_without_some_rows_or_tables_is_empty_or_reported_as_damaged(tmp_path, store, statement):
    recorded(store, run_file(tmp_path, 1))
    connection = sqlite3.connect(store)
    with connection:
        connection.execute(statement)
    connection.close()
    if statement.startswith("DELETE"):
        read_all(store)
        with reading.History(store) as reader:
            assert reader.lines() == []
    else:
        with pytest.raises(database.Damaged, match="damaged; `gpubench history rebuild`"):
            read_all(store)


def test_a_healthy_history_is_the_same_after_rebuilding(store, tmp_path):
    files = [shutil.copy(path, tmp_path) for path in RECORDINGS.glob("*.gz")]
    recorded(store, *recording.run_files([tmp_path]))
    before = dump(store)
    assert len(before) > 90
    aside, outcomes, gone = refill(store)
    assert (aside, [outcome.state for outcome in outcomes], gone) == (None, ["new"] * len(files), 0)
    assert dump(store) == before


def test_rebuilding_finds_files_elsewhere_and_deletes_missing_or_edited_runs(tmp_path, store):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    kept, gone, edited = run_file(elsewhere, 1), run_file(tmp_path, 2), run_file(tmp_path, 3)
    recorded(store, kept, gone, edited)
    gone.unlink()
    files.edit(edited, 2, '"replicate":0', '"replicate":7')
    _, outcomes, dropped = refill(store)
    assert {outcome.path: outcome.state for outcome in outcomes} == {kept: "new", edited: "refused"}
    assert dropped == 2
    assert [Path(moment.source.path) for moment in trend(store).moments] == [kept]


def test_a_database_of_another_program_is_neither_read_nor_written(tmp_path, store):
    with sqlite3.connect(store) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = store.read_bytes()
    for open_it in (reading.History, recording.HistoryRecorder, recording.open_for_rebuild):
        with pytest.raises(FileError, match="is not a history of gpubench"):
            open_it(store)
    assert store.read_bytes() == before


def test_a_history_of_a_newer_gpubench_is_left_alone(tmp_path, store):
    recorded(store, run_file(tmp_path, 1))
    with sqlite3.connect(store) as connection:
        connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(FileError, match="has version 2, but this gpubench reads version 1; use the newer one"):
        recording.open_for_rebuild(store)


def test_a_missing_or_empty_history_and_a_folder_that_cannot_be_made_say_what_to_do(store, tmp_path):
    with pytest.raises(FileError, match=r"there is no history at .*; `gpubench history import FOLDER` makes one"):
        reading.History(store)
    assert not store.exists()
    store.touch()
    with pytest.raises(FileError, match="is not a history"):
        reading.History(store)
    recorded(store, run_file(tmp_path, 1))
    assert len(trend(store).moments) == 1, "an empty file becomes a history when it is recorded in"
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="set GPUBENCH_HISTORY to another file"):
        recording.HistoryRecorder(tmp_path / "file" / "history.sqlite")


def test_a_run_file_that_cannot_be_read_is_refused_and_the_others_are_recorded(tmp_path, store):
    good = run_file(tmp_path, 1)
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{}\n")
    with recording.HistoryRecorder(store) as recorder:
        outcomes = {
            outcome.path: outcome for outcome in recording.record_files(recorder, recording.run_files([tmp_path]))
        }
    assert outcomes[good].state == "new"
    assert outcomes[bad].state == "refused"
    assert outcomes[bad].warnings[0].startswith(f"{bad}: line 1: ")
    with pytest.raises(FileError, match="there is no such file or folder"):
        list(recording.run_files([tmp_path / "nothing"]))


# ---- moving, forgetting


def test_a_folder_that_moves_keeps_its_history_and_a_moved_file_has_its_new_place(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    recorded(old / "history.sqlite", run_file(old, 1))
    old.rename(new)
    assert Path(trend(new / "history.sqlite").moments[0].source.path) == new / "0001.jsonl"
    moved = (new / "0001.jsonl").rename(tmp_path / "moved.jsonl")
    assert recorded(new / "history.sqlite", moved)[0].state == "known"
    assert Path(trend(new / "history.sqlite").moments[0].source.path) == moved


def test_the_newest_of_every_case_are_kept_and_a_trend_without_points_is_deleted(tmp_path, store):
    rare = make.case("rare")
    paths = [run_file(tmp_path, number, of=rare if number in (0, 3) else CASE) for number in range(8)]
    recorded(store, *paths)
    with recording.HistoryRecorder(store) as recorder:
        sources = recorder.sources()
        runs_to_delete = [sources[key].name for key in recorder.runs_to_delete(2)]
        assert runs_to_delete == ["0001.jsonl", "0002.jsonl", "0004.jsonl", "0005.jsonl"]
        recorder.forget(recorder.runs_to_delete(2))
        assert recorder.runs_to_delete(2) == []
        assert [len(trend(store, case.id).moments) for case in (CASE, rare)] == [2, 2]
        recorder.forget(recorder.sources())
    with sqlite3.connect(store) as direct:
        tables = ("runs", "lines", "points", "fingerprints")
        assert [direct.execute(f"SELECT count(*) FROM {table}").fetchone() for table in tables] == [(0,)] * 4
    direct.close()


# ---- places


@pytest.mark.parametrize(
    ("run", "value", "place"),
    [
        ("gpubench-runs/a.jsonl", "", "gpubench-runs/history.sqlite"),
        ("elsewhere/a.jsonl", "", None),
        ("kept/a.jsonl", "", "kept/history.sqlite"),
        ("elsewhere/a.jsonl", "team.sqlite", "team.sqlite"),
        ("gpubench-runs/a.jsonl", "off", None),
        ("kept/a.jsonl", "off", None),
    ],
)
def test_a_run_is_recorded_in_gpubench_runs_beside_a_history_and_where_the_variable_says(
    tmp_path, monkeypatch, run, value, place
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "history.sqlite").touch()
    chosen_place = history.place_of(Path(run), {history.VARIABLE: value})
    assert chosen_place == (None if place is None else Path(place) if value else tmp_path / place)


def test_commands_read_the_history_of_gpubench_runs_unless_the_variable_names_one():
    assert history.default_place({}) == Path("gpubench-runs/history.sqlite")
    assert history.default_place({history.VARIABLE: "off"}) == Path("gpubench-runs/history.sqlite")
    assert history.default_place({history.VARIABLE: "/team/h.sqlite"}) == Path("/team/h.sqlite")


MOUNTS = """\
/dev/root / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/sdb /home/local\\040disk ext4 rw 0 0
store /scratch lustre rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/tmp/history.sqlite", False),
        ("/home/me/history.sqlite", True),
        ("/home/local disk/history.sqlite", False),
        ("/scratch/history.sqlite", True),
        ("/scratchy/history.sqlite", False),
    ],
)
def test_a_network_file_system_is_recognised_by_its_mount(path, expected):
    assert database.is_on_network(Path(path), MOUNTS) is expected


@pytest.mark.parametrize(("network", "journal"), [(False, "wal"), (True, "delete")])
def test_a_history_on_a_network_file_system_keeps_a_rollback_journal(tmp_path, store, monkeypatch, network, journal):
    monkeypatch.setattr(database, "is_on_network", lambda path: network)
    recorded(store, run_file(tmp_path, 1))
    direct = sqlite3.connect(store)
    assert direct.execute("PRAGMA journal_mode").fetchone() == (journal,)
    direct.close()
    assert len(trend(store).moments) == 1


def test_a_history_in_a_folder_that_may_only_be_read_is_read(tmp_path, store, monkeypatch):
    recorded(store, run_file(tmp_path, 1))
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write into every folder
    assert len(trend(store).moments) == 1
    with pytest.raises(FileError, match="readonly"):
        recorded(store, run_file(tmp_path, 2))


# ---- size
