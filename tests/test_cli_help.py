"""What a user reads before a command does anything: help at 80 columns, completion by the shell, early refusals."""

import re
import subprocess
import sys

import pytest
import typer
from _command import in_process

from gpubench.cli import app


def paths(command=None, path=()):
    """Yield the words that call each visible command."""
    command = command or typer.main.get_command(app)
    yield path
    for name, child in getattr(command, "commands", {}).items():
        if not child.hidden:
            yield from paths(child, (*path, name))


@pytest.fixture(scope="module")
def helps(tmp_path_factory):
    program = (
        "import sys; from gpubench.__main__ import main\n"
        "for path in sys.stdin.read().split(chr(10)):\n"
        "    sys.argv = ['gpubench', *path.split(), '--help']; main(); print(chr(12))\n"
    )
    words = [" ".join(path) for path in paths()]
    environment = {"COLUMNS": "80", "PATH": "", "LANG": "C.UTF-8"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, input="\n".join(words), capture_output=True, text=True, check=True, env=environment, cwd="/"
    )
    return dict(zip(words, done.stdout.split("\f"), strict=False))


def test_the_help_names_no_python_type_and_cuts_nothing_at_80_columns(helps):
    for words, text in helps.items():
        assert "Usage: gpubench" in text, words
        assert max(map(len, text.splitlines())) <= 80, words
        assert not re.search(r"<(list|str|bool|path|int|float)|Path\]", text), words
        assert not re.search(r"\w…[ │]", text.replace("COMMAND…", "").replace("CASE…", "")), words


def test_the_help_groups_commands_and_the_options_of_a_command_with_many(helps):
    lines = re.findall(r"^(?:╭─ |│ )(Measure|Judge|Read and share|doctor|compare|redact)\b", helps[""], re.MULTILINE)
    assert lines == ["Measure", "doctor", "Judge", "compare", "Read and share", "redact"]
    panels = ["What to measure", "How to measure", "How to judge", "Output"]
    assert re.findall("|".join(panels), helps["gate"]) == panels


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("run ba", ["bandwidth"]),
        ("run gemm --tier sm", ["smoke"]),
        ("run --filter ge", ["gemm/"]),
        ("run gemm --device host --filter gemm/sq", ["gemm/square"]),
        ("run --device host --filter gemm/square[", ["gemm/square[dtype=float32,n=256]"]),
        ("gate --baseline ma", ["main"]),
    ],
)
def test_a_shell_completes_suites_tiers_cases_and_baselines(tmp_path, words, expected):
    (tmp_path / "gpubench-baselines" / "main").mkdir(parents=True)
    asked = {"COMP_WORDS": f"gpubench {words}", "COMP_CWORD": str(len(words.split()))}
    done = in_process(cwd=tmp_path, _GPUBENCH_COMPLETE="complete_bash", **asked)
    assert done.stdout.split()[:1] == expected, done.stderr


@pytest.mark.parametrize("arguments", [["list"], ["gate", "run.jsonl", "--baseline", "mian"]])
def test_a_list_and_a_missing_baseline_are_answered_without_slow_imports(tmp_path, arguments):
    program = (
        f"import sys; sys.argv = ['gpubench', *{arguments}]; from gpubench.__main__ import main; status = main();"
        "print(status, *{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    status, *modules = done.stdout.splitlines()[-1].split()
    assert status == {"list": "0", "gate": "5"}[arguments[0]]
    assert not {"numpy", "numba", "pandas", "psutil", "cupy"} & set(modules)
