"""Start-up is a feature: what is imported before the first line is printed, and that every word is documented."""

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

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


def modules_after(option: str) -> set[str]:
    """Return the top-level modules that are imported once `gpubench OPTION` has answered."""
    program = PROGRAM.format(option=option)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    answer, _, modules = done.stdout.rpartition("MODULES ")
    assert answer.strip(), "nothing was printed"
    return set(modules.split())


def test_help_imports_nothing_heavy():
    assert set() == modules_after("--help") & HEAVY


def test_version_is_answered_before_typer_and_pydantic_are_imported():
    assert set() == modules_after("--version") & {"typer", "pydantic", "rich", *HEAVY}


def fastest(*name: str, times: int = 10) -> float:
    """Return seconds of the fastest of several starts of Python: the one that was disturbed least."""

    def once() -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, *name], stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - started

    return min(once() for _ in range(times))


@pytest.mark.slow
@pytest.mark.parametrize(("option", "limit"), [("--version", 8), ("--help", 16)])
def test_the_command_starts_within_a_multiple_of_an_empty_python(option, limit):
    command = "from gpubench.__main__ import main; main()"
    assert fastest("-c", command, option) <= limit * fastest("-c", "pass")


def commands(command: Any, path: str = "gpubench") -> Iterator[tuple[str, Any]]:
    """Yield every command under this one with the words that call it."""
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, f"{path} {name}")


@pytest.fixture(scope="module")
def command_line() -> list[tuple[str, Any]]:
    """Return every command of gpubench with its path."""
    import typer

    from gpubench.cli import app

    return list(commands(typer.main.get_command(app)))


def test_every_command_has_a_description(command_line):
    assert len(command_line) > 1
    assert [name for name, command in command_line if not command.help] == []


def test_every_option_and_argument_has_help(command_line):
    undocumented = [
        f"{name}: {parameter.name}"
        for name, command in command_line
        for parameter in command.params
        if not getattr(parameter, "help", None)
    ]
    assert undocumented == []
