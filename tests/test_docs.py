"""The output in README and docs is what the command above it prints from a recording."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from gpubench.__main__ import main

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ELLIPSIS = "…"  # a line with only this character stands for any lines


def examples():
    """Return each command that a document shows: the document, the command, and the lines that it prints."""
    return [
        (document.name, command, output.splitlines())
        for document in DOCUMENTS
        for block in BLOCK.findall(document.read_text())
        for command, output in re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    ]


def matches(documented, printed):
    """Return whether the lines are those that were printed; a line of an ellipsis stands for any."""
    pattern = "".join(r"(?:.*\n)*?" if line == ELLIPSIS else re.escape(line.rstrip()) + r"\n" for line in documented)
    return re.fullmatch(pattern, "".join(f"{line.rstrip()}\n" for line in printed)) is not None


@pytest.mark.usefixtures("outside_of_ci")
@pytest.mark.parametrize(("document", "command", "documented"), examples())
def test_an_output_in_the_documentation_is_what_its_command_prints(document, command, documented, monkeypatch, capsys):
    assert documented, f"{document} shows no output of {command}"
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    monkeypatch.setenv("COLUMNS", "100")
    try:
        main()
    except SystemExit as end:
        regression = [1] if " gate " in command or " judge " in command else []
        assert end.code in (None, 0, *regression), command  # noqa: PT017 - a command may end so
    printed = capsys.readouterr().out.splitlines()
    assert matches(documented, printed), "\n".join(printed)


def test_an_ellipsis_stands_for_any_lines_and_every_other_line_counts():
    assert matches(["a", ELLIPSIS, "d"], ["a", "b", "c", "d"])
    assert matches(["a", ELLIPSIS], ["a"])
    assert not matches(["a", ELLIPSIS, "c"], ["a", "b"])
    assert not matches(["a"], ["a", "b"])


def test_the_readme_fits_two_screens_and_names_the_two_commands():
    text = (ROOT / "README.md").read_text()
    assert text.count("\n") <= 120
    assert re.search(r"^ +bash ci/bench\.sh +#.*\n +bash ci/test\.sh +#", text, re.MULTILINE)
    assert "README.md" in {document for document, *_ in examples()}
