"""`bash ci/compilers.sh` with a Python that installs nothing: which environments are made, what is run, how it ends."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

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


def test_on_the_host_every_environment_has_numpy_beside_its_compiler(script):
    _, log, _ = script("torch", "iree", extra="host")
    assert [line.count("--filter *by=numpy*") for line in log if " run " in line] == [1, 1]
    assert not [line for line in log if "by=cupy" in line]


def test_without_a_name_an_nvidia_gpu_gets_all_environments_and_the_host_those_without_a_gpu(script, tmp_path):
    for extra, expected in (("cuda12", ["light", "torch", "jax", "tvm", "iree"]), ("host", ["light", "tvm", "iree"])):
        (tmp_path / "log").unlink(missing_ok=True)
        _, log, _ = script(extra=extra)
        assert [line.split()[0] for line in log if " run " in line] == expected


def test_an_environment_that_fails_costs_itself_alone(script):
    status, log, messages = script(failing="torch", not_installable="jax")
    assert status == 3
    assert "jax is left out" in messages
    assert [line.split()[0] for line in log if " run " in line] == ["light", "torch", "tvm", "iree"]
    assert log[-1].count(".jsonl") == 4


def test_an_unknown_environment_is_refused_before_anything_is_made(script):
    status, log, messages = script("light", "tensorrt")
    assert (status, log) == (2, [])
    assert "unknown environment tensorrt: name light, torch, jax, tvm or iree" in messages
