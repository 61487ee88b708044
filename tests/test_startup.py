"""Start-up is a feature: what is imported before the first line is printed, and that every word is documented."""

import math
import subprocess
import sys
import time
import types

import numpy as np
import pytest
from _modules import room_module, suite_modules

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import Skip, Untrustworthy, WrongAnswer
from gpubench.model import Case, Device, Facts

HEAVY = {"cupy", "jinja2", "numba", "numpy", "pandas", "psutil", "pynvml", "scipy"}
PROGRAM = """
import sys
from gpubench.__main__ import main
sys.argv = ["gpubench", {option!r}]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print("MODULES", *{{name.partition(".")[0] for name in sys.modules}})
"""


def modules_after(option):
    """Return the top-level modules that are imported once `gpubench OPTION` has answered."""
    program = PROGRAM.format(option=option)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    answer, _, modules = done.stdout.rpartition("MODULES ")
    assert answer.strip(), "nothing was printed"
    return set(modules.split())


def test_help_and_version_import_nothing_heavy():
    assert set() == modules_after("--help") & HEAVY
    assert set() == modules_after("--version") & {"typer", "pydantic", "rich", *HEAVY}


def fastest(*name, times=10):
    """Return seconds of the fastest of several starts of Python: the one that was disturbed least."""

    def once():
        started = time.perf_counter()
        subprocess.run([sys.executable, *name], stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - started

    return min(once() for _ in range(times))


@pytest.mark.slow
@pytest.mark.parametrize(("option", "limit"), [("--version", 8), ("--help", 16)])
def test_the_command_starts_within_a_multiple_of_an_empty_python(option, limit):
    command = "from gpubench.__main__ import main; main()"
    assert fastest("-c", command, option) <= limit * fastest("-c", "pass")


def commands(command, path="gpubench"):
    """Yield every command under this one with the words that call it."""
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, f"{path} {name}")


@pytest.fixture(scope="module")
def command_line():
    import typer

    from gpubench.cli import app

    return list(commands(typer.main.get_command(app)))


def test_every_command_option_and_argument_has_help(command_line):
    assert len(command_line) > 1
    assert [name for name, command in command_line if not command.help] == []
    undocumented = [
        f"{name}: {parameter.name}"
        for name, command in command_line
        for parameter in command.params
        if not getattr(parameter, "help", None)
    ]
    assert undocumented == []


# ---- The ledger of a start: its parts are those of a real process, and they have to explain the whole.


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
    with pytest.raises(Untrustworthy):
        LEDGER.task_of([answer(math.nan, first=1.0)], {})  # it never reported ready
    assert CHILD.parts_of([("first", 1.5), ("second", 1.75)], 1.0) == {"first": 0.5, "second": 0.25}


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
