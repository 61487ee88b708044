"""Run files read as evidence: the same whether one process reads them or several."""

import _files as files
import _make as make
import pytest

from gpubench.base.errors import FileError
from gpubench.judging.evidence import Evidence, Reading
from gpubench.model import store
from gpubench.tools.gating import readings

COUNTER = make.counter("nvml.clock.sm", "Hz", "gauge", 0.1, "nvidia-smi")


@pytest.fixture
def paths(tmp_path):
    """Write three files with all that a gate reads: several processes, clocks, labels, failures."""
    paths = []
    for index in range(3):
        results = [
            make.result(make.timing(1.0 + index, 2.0), replicate=0, labels=("loaded",), window=(0.0, 1.0)),
            make.result(make.timing(1.5), replicate=1),
            make.result(of=make.case("copy"), status="failed", cause="crash", reason="the worker ended"),
            make.samples([0.1, 0.5], **{"clock.sm": [1.9e9, 1.8e9]}),
            make.samples([0.1, 0.5], power=[1.0, 2.0]),
        ]
        paths.append(files.write(tmp_path / f"{index}.jsonl", *results, manifest=make.manifest(counters=(COUNTER,))))
    return paths


def test_the_evidence_of_a_file_is_that_of_its_run(paths):
    assert readings.read(paths[0]) == Reading.of(store.read_run(paths[0]), str(paths[0]))


def test_several_processes_read_the_same_evidence_as_one(paths, monkeypatch):
    alone = readings.read_all(paths)
    monkeypatch.setattr(readings, "_LARGE_BYTES", 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    together = readings.read_all(paths)
    results = [[repr(reading.gathered.results) for reading in side_readings] for side_readings in (together, alone)]
    assert results[0] == results[1]
    (side, _) = Evidence([together]).sides.values()
    assert Evidence([together]).clocks(side)[0] == 1.85e9


def test_a_damaged_file_is_refused_in_every_process_that_reads_it(paths, monkeypatch):
    files.edit(paths[1], 2, '"replicate":0', '"replicate":5')
    monkeypatch.setattr(readings, "_LARGE_BYTES", 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    with pytest.raises(FileError, match=r"1\.jsonl: line 7: .*edited or damaged"):
        readings.read_all(paths)


def test_clocks_are_kept_and_other_counters_are_not(paths):
    assert [chunk.columns[0][0] for chunk in readings.read(paths[0]).gathered.clocks] == ["nvml.clock.sm"]
