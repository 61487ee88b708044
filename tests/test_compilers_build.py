"""Builds in fresh interpreters: what is timed, which cache it was, and how one ends that crashes or hangs."""

import contextlib
import importlib
import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from _command import gpubench
from _grid_device import PAPER
from _modules import suite_modules

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import FileError, Skip, Unavailable, Untrustworthy, WrongAnswer
from gpubench.model import Case, Facts

SUITE = plugins.load("suites", "compilers")
(BUILD,) = suite_modules("compilers", "_build")
(HOST,) = plugins.load("backends", "host").devices()
PROVIDERS = f"{SUITE.package}._by_"


def order(by="numpy", op="softmax", is_up=False, device=HOST):
    target = Target(Facts((device,)), device)
    case = Case("compilers", "build", (("op", op), ("by", by)))
    return BUILD.Order(case, target, SUITE.package, 1, op, 64, 128, "float32", by, is_up, None)


def built(made, caches, limit_s):
    """Return the report of a build in a fresh interpreter; the device is opened there."""
    return BUILD.report_of(Bench(None, made.case, made.target, made.package, 1), made, caches, limit_s)


def report(before=0, written=0):
    return BUILD.BuildReport({"first": 1.0}, before, written, 10 * written, 1, 0.0)


@pytest.fixture
def provider(tmp_path, monkeypatch):
    def put(source):
        (tmp_path / "put_provider.py").write_text(textwrap.dedent(source))
        (tmp_path / "sitecustomize.py").write_text(
            "import importlib.abc, importlib.util, sys\n"
            "class Put(importlib.abc.MetaPathFinder):\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            f"        if name == {PROVIDERS + 'numba'!r}:\n"
            f"            return importlib.util.spec_from_file_location(name, {str(tmp_path / 'put_provider.py')!r})\n"
            "sys.meta_path.insert(0, Put())\n"
        )
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    return put


@pytest.mark.parametrize(
    ("cache", "by", "before", "written", "is_right"),
    [
        ("cold", "numba", 0, 2, True),
        ("cold", "numba", 5, 2, True),
        ("cold", "numba", 5, 0, False),
        ("cold", "numba", 0, 0, False),
        ("process", "numba", 4, 2, True),
        ("process", "numba", 4, 0, False),
        ("warm", "numba", 2, 0, True),
        ("warm", "numba", 2, 1, False),
        ("warm", "numba", 0, 0, False),
        ("cold", "numpy", 0, 0, True),
        ("warm", "numpy", 0, 0, True),
        ("cold", "numpy", 0, 1, False),
    ],
)
def test_a_build_was_cold_or_warm_by_what_it_wrote_and_not_by_what_was_asked(cache, by, before, written, is_right):
    if is_right:
        BUILD.expect_state(cache, by, report(before, written))
        return
    with pytest.raises(Untrustworthy, match=f"wrote {written} entries beside {before} old ones") as found:
        BUILD.expect_state(cache, by, report(before, written))
    assert found.value.cause == "cache"


def test_full_has_three_samples_of_the_first_operator_and_each_other_case_has_one():
    counts = {
        (tier, *(params[axis] for axis in ("op", "cache"))): BUILD.samples_of(target, params["op"], params["cache"])
        for tier in ("smoke", "quick", "full")
        for target in [Target(Facts((HOST,)), HOST, tier)]
        for params in [dict(case.params) for case in SUITE.cases(target) if case.name == "build"]
    }
    several = {("full", "softmax", "cold"), ("full", "softmax", "warm")}
    assert {key for key, count in counts.items() if count == 3} == several
    assert {key for key, count in counts.items() if count == 1} == {
        *(("full", "swiglu", cache) for cache in ("cold", "warm")),
        *((tier, "softmax", "cold") for tier in ("smoke", "quick")),
        ("full", "softmax", "process"),
    }


def test_entries_are_files_at_any_depth_and_locks_are_none(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/kernel.cubin").write_bytes(b"1234")
    (tmp_path / "a/kernel.lock").write_bytes(b"1")
    assert BUILD.entries(tmp_path) == {str(tmp_path / "a/b/kernel.cubin"): 4}


def test_caches_are_private_empty_and_gone_afterwards_and_a_folder_that_cannot_be_written_is_said(tmp_path):
    with BUILD.Caches(tmp_path) as caches:
        assert BUILD.entries(caches.folder) == {}
        for name in ("TRITON_CACHE_DIR", "NUMBA_CACHE_DIR", "CUPY_CACHE_DIR", "XDG_CACHE_HOME"):
            assert caches.environment[name].startswith(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match=r"cannot be written: .*; set TMPDIR"):
        BUILD.Caches(tmp_path / "file")


def test_a_fresh_interpreter_reports_its_parts_and_they_make_up_the_first_result(tmp_path):
    begun = time.monotonic()
    with BUILD.Caches(tmp_path) as caches:
        found = built(order(), caches, 60)
    took = time.monotonic() - begun
    seconds = found.seconds
    assert set(seconds) | {"compile"} == {"first", "import", "compile", "again"}
    assert seconds["import"] + seconds.get("compile", 0) + seconds["again"] <= seconds["first"] + 1e-6 < took
    assert found.entries_written == found.bytes_written == 0, "NumPy keeps nothing"
    assert found.resident_bytes > 2**24
    assert 0 < found.error < 1e-6


WRONG_OUTPUT = f"""
    import importlib, numpy as np
    def build(bench, problem):
        print("libraries print what they like")
        outputs = importlib.import_module({SUITE.package + "._providers"!r}).Outputs(bench, problem)
        call = lambda: outputs.arrays[0].fill(1)
        return importlib.import_module({SUITE.package + "._providers"!r}).Built(call, outputs.rows, outputs.poison)
"""


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("import os\ndef build(bench, problem):\n    os.abort()\n", RuntimeError, "by numba ended: killed by SIGABRT"),
        pytest.param(
            "from gpubench.api.suite import Skip\ndef build(bench, problem):\n    raise Skip('pip install it')\n",
            Skip,
            "pip install it",
            marks=pytest.mark.slow,
        ),
        pytest.param(WRONG_OUTPUT, WrongAnswer, "relative error", marks=pytest.mark.slow),
    ],
    ids=["crash", "skip", "wrong output"],
)
def test_what_an_interpreter_finds_and_the_signal_that_ended_it_reach_the_case(
    tmp_path, provider, source, error, message
):
    provider(source)
    with BUILD.Caches(tmp_path) as caches, pytest.raises(error, match=message):
        built(order("numba"), caches, 60)


@pytest.mark.parametrize(
    ("compile_s", "is_measured"), [((0.5, 0.25), True), ((0.5, None), False), ((None, None), False)]
)
def test_a_time_to_compile_is_reported_only_where_every_interpreter_measured_one(monkeypatch, compile_s, is_measured):
    reports = [
        report()._replace(seconds={"first": 2.0, "again": 1.0} | ({"compile": found} if found else {}))
        for found in compile_s
    ]
    monkeypatch.setattr(BUILD, "_reports", lambda *_: reports)
    made = order()
    task = BUILD.build(Bench.untimed(made.case, made.target, made.package, 1), "softmax", "numpy", "cold")
    assert set(task.stages) == {"first", "again", *(["compile"] if is_measured else [])}
    assert ("compile" in task.notes) is not is_measured


@pytest.mark.parametrize("again_s", [1.0, 2.0, 0.25])
def test_a_first_call_that_took_no_longer_than_the_second_has_no_time_to_compile(monkeypatch, again_s):
    clock = iter([0.0, 0.0, 1.0, 1.0 + again_s])  # imported, begun, called, checked
    build = SimpleNamespace(first=lambda: None, compared=lambda: 0.0, again=lambda: again_s)
    monkeypatch.setattr(BUILD, "_Build", lambda *_: build)
    ledger = SimpleNamespace(now=lambda: next(clock), outside=contextlib.nullcontext)
    seconds = BUILD.measured(order(), Path("/nonexistent"), ledger).seconds
    assert seconds.get("compile") == (0.75 if again_s < 1 else None)
    assert seconds["again"] == again_s


@pytest.mark.slow
def test_an_interpreter_that_hangs_ends_in_time_with_all_that_it_started(tmp_path, provider):
    provider(
        f"""
        import pathlib, subprocess, sys, time
        def build(bench, problem):
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            pathlib.Path({str(tmp_path / "number")!r}).write_text(str(child.pid))
            time.sleep(60)
        """
    )
    with BUILD.Caches(tmp_path) as caches, pytest.raises(RuntimeError, match="did not answer within 2 s and was ended"):
        built(order("numba"), caches, 2)
    number = int((tmp_path / "number").read_text())
    assert not psutil.pid_exists(number) or psutil.Process(number).status() == psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_numba_compiles_from_an_empty_cache_and_loads_from_a_full_one():
    pytest.importorskip("numba")
    with BUILD.Caches() as caches:
        cold, warm = (built(order("numba"), caches, 60) for _ in range(2))
        up = built(order("numba", op="swiglu", is_up=True), caches, 60)
    BUILD.expect_state("cold", "numba", cold)
    BUILD.expect_state("warm", "numba", warm)
    BUILD.expect_state("process", "numba", up)
    assert warm.seconds["compile"] < cold.seconds["compile"]
    assert set(up.seconds) == {"first", "compile", "again"}
    assert up.seconds["compile"] < up.seconds["first"] < cold.seconds["first"]


@pytest.mark.slow
def test_a_compiler_that_crashes_costs_its_case_alone(tmp_path, provider):
    """In the worker of an operator, and in the interpreter of a build: the cases after it are measured."""
    provider("import os\ndef build(bench, problem):\n    os.abort()\n")
    words = ("--device", "host", "--filter", "compilers/softmax*", "--filter", "compilers/build*", "-o", "run.jsonl")
    done = gpubench("run", "compilers", *words, cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    results = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    status = {dict(each["case"]["params"])["by"]: each for each in results if each.get("kind") == "result"}
    assert {by: each["status"] for by, each in status.items()} == {"numpy": "ok", "numba": "failed"}


@pytest.mark.slow
def test_a_device_that_is_missing_is_reported_and_not_taken_for_the_host():
    with BUILD.Caches() as caches, pytest.raises(Unavailable, match="CuPy is not usable here"):
        built(order("nvrtc", device=PAPER), caches, 60)


def test_what_a_library_would_import_without_need_cannot_be_imported_in_its_build(monkeypatch):
    """Triton 3.6 imports torch, where it is installed, at its first launch: seconds that are not Triton's."""
    monkeypatch.setattr(BUILD, "LIBRARIES", {})
    monkeypatch.setitem(BUILD._LEFT_OUT, "numpy", ("not_wanted",))
    BUILD.measured(order(), Path("/nonexistent"), BUILD.Ledger(time.monotonic(), 0))
    try:
        with pytest.raises(ImportError):
            importlib.import_module("not_wanted")
    finally:
        del sys.modules["not_wanted"]
    assert BUILD._LEFT_OUT["triton"] == ("torch",)


# ---- `bash ci/compilers.sh` with a Python that installs nothing: which environments are made and what is run.


SCRIPT = Path(__file__).parents[1] / "ci" / "compilers.sh"
PYTHON = """#!/usr/bin/env bash
[ "$1" = -c ] && exit 0
mkdir -p "$3/bin"
name=$(basename "$3")
cat >"$3/bin/python" <<INSTALL
#!/usr/bin/env bash
echo "$name installs \\${@: -1}" >>"$LOG"
[ "$name" != "$NOT_INSTALLABLE" ]
INSTALL
cat >"$3/bin/gpubench" <<RUN
#!/usr/bin/env bash
echo "$name \\$*" >>"$LOG"
[ "\\$1" = report ] || echo run >"\\${@: -1}"
[ "\\$1 $name" != "run $FAILING" ] || exit 3
RUN
chmod +x "$3/bin/python" "$3/bin/gpubench"
"""


@pytest.fixture
def script(tmp_path):
    """Call the script; return its status, what was called, and its messages."""
    (tmp_path / "fake-python").write_text(PYTHON)
    (tmp_path / "fake-python").chmod(0o755)

    def call(*words, extra="cuda13", failing="", not_installable=""):
        done = subprocess.run(
            ["bash", str(SCRIPT), *words],
            env={
                "PATH": os.environ["PATH"],
                "PYTHON": str(tmp_path / "fake-python"),
                "GPUBENCH_EXTRA": extra,
                "GPUBENCH_OUT": str(tmp_path / "out"),
                "TMPDIR": str(tmp_path),
                "LOG": str(tmp_path / "log"),
                "FAILING": failing,
                "NOT_INSTALLABLE": not_installable,
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        log = (tmp_path / "log").read_text().splitlines() if (tmp_path / "log").exists() else []
        return done.returncode, [line.replace(str(tmp_path), "T") for line in log], done.stderr

    return call


def test_each_environment_runs_its_compiler_beside_the_eager_library_and_the_page_has_all_runs(script, tmp_path):
    status, log, messages = script("light", "torch", "tvm", "--", "--tier", "quick")
    assert status == 0
    installed = [line.partition(" installs ")[::2] for line in log if "installs" in line]
    assert [(name, extra.partition("[")[2]) for name, extra in installed] == [
        ("light", "cuda13,compilers,cutile]"),
        ("torch", "cuda13,compilers,torch]"),
        ("tvm", "cuda13,tvm]"),
    ]
    runs = [line for line in log if " run compilers " in line]
    assert runs[0] == "light run compilers --tier full --tier quick --out T/out/light.jsonl"
    assert "--filter *by=torch* --filter *by=inductor* --filter *by=cupy,* --filter *by=cupy]* --tier full" in runs[1]
    assert (
        "--filter *by=tvm* --with-host --filter *by=numpy* --filter *by=cupy,* --filter *by=cupy]* --tier full"
        in runs[2]
    )
    files = "T/out/light.jsonl T/out/torch.jsonl T/out/tvm.jsonl"
    assert log[-1] == f"tvm report {files} -o T/out/compilers.html --force"
    assert "tvm report T/out/tvm.jsonl -o T/out/tvm.html --force" in log
    assert "the columns of compilers.html are light torch tvm" in messages
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fake-python", "log", "out"], "no environment is left"


def test_without_a_name_an_nvidia_gpu_gets_all_environments_and_the_host_those_without_a_gpu(script, tmp_path):
    for extra, expected in (("cuda12", ["light", "torch", "jax", "tvm", "iree"]), ("host", ["light", "tvm", "iree"])):
        (tmp_path / "log").unlink(missing_ok=True)
        _, log, _ = script(extra=extra)
        assert [line.split()[0] for line in log if " run " in line] == expected
    assert [line.count("--filter *by=numpy*") for line in log if " run " in line] == [0, 1, 1], "beside its compiler"
    assert not [line for line in log if "by=cupy" in line]
    (tmp_path / "log").unlink()
    status, log, messages = script("light", "tensorrt")
    assert (status, log) == (2, [])
    assert "unknown environment tensorrt: name light, torch, jax, tvm or iree" in messages


def test_an_environment_that_fails_costs_itself_alone(script):
    status, log, messages = script(failing="torch", not_installable="jax")
    assert status == 3
    assert "jax is left out" in messages
    assert [line.split()[0] for line in log if " run " in line] == ["light", "torch", "tvm", "iree"]
    assert log[-1].count(".jsonl") == 4
