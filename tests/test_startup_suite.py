"""The ledger of a start: its parts are those of a real process, and they have to explain the whole."""

from __future__ import annotations

import math
import types

import numpy as np
import pytest
from _modules import room_module, suite_modules

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import Skip, Untrustworthy, WrongAnswer
from gpubench.model import Case, Device, Facts

SUITE = plugins.load("suites", "startup")
CHILD, LEDGER, START = suite_modules("startup", "_child", "_ledger", "_host_start")
FILES = room_module("suites", "_files")
(HOST,) = plugins.load("backends", "host").devices()
SIZE = 2**20


def bench(files="cold", size=SIZE, tier="smoke"):
    case = Case("startup", "ledger", (("loading", "default"), ("files", files), ("size_bytes", size)))
    return Bench.untimed(case, Target(Facts((HOST,)), HOST, tier), SUITE.package, 1)


def answer(total, **parts):
    return LEDGER.Answer(parts, total, 1)


def values(task):
    return {name: list(stage.call()) for name, stage in task.stages.items()}


@pytest.mark.parametrize("files", ["cold", "warm"])
def test_the_parts_of_a_start_sum_to_the_time_that_the_parent_process_measured(files):
    seconds = values(SUITE.build(bench(files)))
    (total,) = seconds.pop("whole")
    assert list(seconds) == ["interpreter", "numpy", "gpubench", "inputs", "product", "weights"]
    assert math.fsum(value for (value,) in seconds.values()) == pytest.approx(total, rel=0.05)
    assert all(value > 0 for (value,) in seconds.values())


def test_a_part_that_is_missing_or_counted_twice_makes_the_ledger_invalid():
    assert values(LEDGER.task_of([answer(1.0, first=0.7, second=0.29)], {})) == {
        "whole": [1.0],
        "first": [0.7],
        "second": [0.29],
    }
    for parts in ({"first": 0.7, "second": 0.2}, {"first": 0.7, "second": 0.4}):
        with pytest.raises(Untrustworthy, match=r"all but -?10\.0% of the whole") as caught:
            LEDGER.task_of([answer(1.0, first=0.7, second=0.3), answer(1.0, **parts)], {})
        assert caught.value.cause == "ledger"


def test_a_process_that_never_reported_ready_gives_no_result():
    with pytest.raises(Untrustworthy):
        LEDGER.task_of([answer(math.nan, first=1.0)], {})


def test_a_disturbed_start_is_repeated_a_few_times():
    prepared, starts = [], iter([answer(1.0, first=0.5), answer(1.0, first=0.98), answer(1.0, first=1.0)])
    assert LEDGER._explained(lambda: next(starts), lambda: prepared.append(1)).parts == {"first": 0.98}
    assert len(prepared) == 2, "the file is as cold before the second start as before the first"


def test_eager_loading_of_kernels_is_measured_with_cold_files_only():
    gpu = Device("cuda:0", "cupy", "NVIDIA H200", "sm_90")
    cases = [case.id for case in SUITE.cases(Target(Facts((gpu,)), gpu, "full"))]
    assert cases == [
        "startup/ledger[loading=lazy,files=cold,size=256MiB]",
        "startup/ledger[loading=lazy,files=warm,size=256MiB]",
        "startup/ledger[loading=eager,files=cold,size=256MiB]",
        "startup/collective[loading=lazy]",
        "startup/contexts[of=1]",
    ]


def test_a_process_sees_and_opens_the_number_of_gpus_that_is_asked(monkeypatch):
    gpus = tuple(
        Device(f"cuda:{i}", "cupy", "NVIDIA H200", "sm_90", uuid=f"GPU-{i}", pci=f"0000:0{i}:00.0") for i in range(3)
    )
    target = Target(Facts((*gpus, HOST)), gpus[1], "full")
    cases = [case for case in SUITE.cases(target) if case.name == "contexts"]
    assert [case.params for case in cases] == [(("of", 1),), (("of", 2),), (("of", 3),)]
    asked = []
    monkeypatch.setattr(LEDGER, "_answer", lambda *arguments: asked.append(arguments) or answer(1.0, first=1.0))
    opened = types.SimpleNamespace(device=gpus[1], traits=types.SimpleNamespace(arch="sm_90", is_gpu=True))
    task = SUITE.build(Bench(opened, cases[1], target, SUITE.package, 1))
    (_, order, environment), *_ = asked
    assert (order.steps, order.pci, order.others) == (LEDGER._CONTEXTS, gpus[1].pci, (gpus[0].pci,))
    assert environment == {"CUDA_MODULE_LOADING": "LAZY", "CUDA_VISIBLE_DEVICES": "GPU-1,GPU-0"}
    assert task.notes["GPUs"] == "cuda:1, cuda:0"


def test_the_parts_of_a_start_are_the_times_between_its_marks():
    marks = [("first", 1.5), ("second", 1.75)]
    assert CHILD.parts_of(marks, 1.0) == {"first": 0.5, "second": 0.25}


def test_the_memory_of_a_start_excludes_that_of_the_parent_process():
    held = np.ones(2**27, np.uint8)
    resident_bytes = SUITE.build(bench()).check()["resident"].value
    assert 2**24 < resident_bytes < held.nbytes


def test_wrong_weights_and_a_wrong_product_are_found(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(b"1234")
    start = START.HostStart(START.StartOrder(("product", "weights"), "", "", 1, str(path), 4, 0))
    start.product()
    start.check()
    start.weights()
    with pytest.raises(WrongAnswer, match="weights in memory are not those of the file"):
        start.check()
    start.loaded = None
    start.result[0, 7] += 0.1
    with pytest.raises(WrongAnswer, match="first product is off"):
        start.check()
    with pytest.raises(WrongAnswer, match="ends 1 bytes early"):
        START.read_into(path, np.empty(5, np.uint8))


def test_without_a_disk_there_is_no_cold_file_and_without_space_no_file_at_all(monkeypatch, tmp_path):
    monkeypatch.setattr(LEDGER, "folder_for_files", lambda: FILES.Path("/dev/shm"))
    with pytest.raises(Skip, match="so no file is cold"):
        SUITE.build(bench())
    monkeypatch.setattr(LEDGER, "folder_for_files", lambda: tmp_path)
    monkeypatch.setattr(FILES.os, "statvfs", lambda _: FILES.os.statvfs_result((1, 1, 1, 0, 0, 0, 0, 0, 0, 255)))
    with pytest.raises(Skip, match=r"needs 1.000 MiB .* are free; set TMPDIR"):
        SUITE.build(bench())
