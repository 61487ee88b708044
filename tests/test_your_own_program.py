"""The worked example of docs/your-own-program.md, block by block as a newcomer copies it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpubench.model import store

PAGE = (Path(__file__).parents[1] / "docs" / "your-own-program.md").read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("program")
    for name, block in re.findall(r"`([\w.]+\.(?:py|cu))`[^`]*\n\n```(?:python|cuda)\n(.*?)```", PAGE, re.DOTALL):
        if not (place / name).exists():
            (place / name).write_text(block)
    return place


def run_tests(folder, *options):
    command = [sys.executable, "-B", "-m", "pytest", *options]
    # the program must not count as a neighbour
    alone = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=100, check=False, env=alone)


def shapes(text):
    """Return lines without numbers, units, tiers, processors and labels, which differ between machines."""
    text = re.sub(r"(?<![=\w])[\d.]+( [kMGT]?B/s)?", "N", re.sub(r"tier \w+", "tier", text))
    text = re.sub(r" \([a-z, -]+\)$", "", text, flags=re.MULTILINE)  # a busy machine labels a case as loaded
    return [
        re.sub(r"^host, .*, tier$", "host, tier", " ".join(line.split())) for line in text.splitlines() if line.strip()
    ]


def test_every_file_of_the_page_is_present(folder):
    names = {"blend.py", "test_blend.py", "blend.cu", "test_blend_kernel.py"}
    assert names == {path.name for path in folder.iterdir()}


def test_the_tests_of_the_page_pass_on_the_host_and_write_a_run_file(folder):
    done = run_tests(folder, "--gpubench-tier", "smoke", "--gpubench-device", "host", "--gpubench-out", "a.jsonl")
    assert done.returncode == 0, done.stdout
    assert "2 passed, 1 skipped" in done.stdout
    assert set(shapes(PAGE[PAGE.index("    host, Intel") : PAGE.index("- **The call**")])) <= set(shapes(done.stdout))
    results = store.read_run(folder / "a.jsonl").results
    assert [result.case.id for result in results] == [
        "test_blend/test_blend[side=64]",
        "test_blend/test_blend[side=512]",
    ]


def test_every_option_of_the_plugin_is_on_the_page():
    source = (Path(__file__).parents[1] / "gpubench" / "testing" / "__init__.py").read_text()
    options = re.findall(r'"(--gpubench-[\w-]+)"', source)
    assert len(options) == 5
    assert [option for option in options if f"`{option}" not in PAGE] == []
