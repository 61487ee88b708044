"""Standard output: a window is fitted, a pipe is never folded, a full disk is reported in one line."""

import subprocess
import sys
from pathlib import Path

import _make as make
import pytest
from _files import write

COMMAND = [sys.executable, "-P", "-m", "gpubench"]
LONG = make.case("device_copy", engine="bulk-copy", size_bytes=2**28, dtype="float32", more="x" * 60)
NAME = LONG.id.removeprefix("bandwidth/")


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / "run.jsonl", make.result(make.timing(*[1e-3] * 8, moved=1e9), of=LONG))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no file here that is always full")
@pytest.mark.parametrize("arguments", [["show"], ["--version"]], ids=lambda arguments: arguments[0])
def test_a_full_standard_output_is_reported_in_one_line(arguments, file):
    files = {"show": [file], "compare": [file, file]}.get(arguments[0], [])
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, *arguments, *files], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr == (
        "gpubench: cannot write to standard output: No space left on device; make room or send it elsewhere\n"
    )


def test_an_id_is_never_folded_in_a_pipe(file, call):
    (line,) = [line for line in call("show", file).stdout.splitlines() if line.startswith("device_copy")]
    assert NAME in line
    assert "1000 GB/s" in line


BAD = {
    "truncated": lambda data: data[:200],
    "damaged": lambda data: data.replace(b'"status":"ok"', b'"status":"fine"'),
    "edited": lambda data: data.replace(b"0.001", b"0.002"),
    "foreign": lambda data: b'{"name": "somebody else\'s"}\n',
    "newer": lambda data: data.replace(b"gpubench.run/1", b"gpubench.run/9"),
    "hostile": lambda data: b"[" * 100_000,
    "empty": lambda data: b"",
}


@pytest.mark.parametrize("bad", BAD)
def test_a_damaged_file_gives_one_line_and_no_output(bad, file, call):
    wrong = file.with_name("wrong.jsonl")
    wrong.write_bytes(BAD[bad](file.read_bytes()))
    for arguments in (["report", wrong], ["compare", file, wrong]):
        status, printed, said = call(*arguments, "-o", "page.html")
        assert (status, printed) == (5, "")
        assert said.startswith(f"gpubench: {wrong}: line ")
        assert said.count("\n") == 1
        assert sorted(path.name for path in file.parent.iterdir()) == ["run.jsonl", "wrong.jsonl"]
