"""Bad paths: links to devices, pipes, loops, locked folders, names that are too long; and a clock before 1970."""

import datetime
import errno
import os
import shutil
import signal
import socket
import stat
from pathlib import Path

import _files as run_files
import _make as make
import pytest
from _command import gpubench

from gpubench.base import files
from gpubench.base.errors import FileError
from gpubench.measuring import recording
from gpubench.model import store
from gpubench.tools.history.recording import record_measured_run

SPECIAL = "it is not a regular file but a pipe, a socket or a device"
LONG = "n" * 256
FULL = Path("/dev/full")  # a device that takes no byte and harms nothing


class Hung(BaseException):
    """A command that waits for another process would wait for ever; no handler of errors catches this."""


@pytest.fixture(autouse=True)
def hurried():
    """End a test that waits for a pipe."""

    def end(number, frame):
        raise Hung

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def folder(tmp_path):
    for name in ("a.jsonl", "b.jsonl", "runs/c.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        run_files.write(path, make.result(make.timing(1e-3, 1.001e-3)))
    shutil.copy(Path(__file__).parent / "imports/nvbandwidth-v0.8.txt", tmp_path / "output.txt")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


def in_one_line(folder, command, **environment):
    """Return the exit status and the one line on standard error of a command, which is split at blanks."""
    done = gpubench(*command.split(), cwd=folder, GPUBENCH_HISTORY="off", **environment)
    assert done.stderr.count("\n") == 1, done.stderr
    return done.returncode, done.stderr


# --- outputs

WRITING = (
    "gate a.jsonl --baseline b.jsonl --junit",
    "gate a.jsonl --baseline b.jsonl --markdown",
    "report a.jsonl --format md --force -o",
    "report a.jsonl --format csv --force -o",
    "compare a.jsonl b.jsonl --force -o",
    "redact a.jsonl --force -o",
    "fleet judge runs --force -o",
    "import output.txt --from nvbandwidth --force -o",
)


@pytest.mark.parametrize("target", [FULL, "pipe"])
@pytest.mark.parametrize("command", WRITING)
def test_a_link_to_a_device_or_a_pipe_is_replaced_and_not_followed(folder, command, target):
    link = folder / "out.html"
    link.symlink_to(target)
    done = gpubench(*command.split(), link.name, cwd=folder)
    assert done.returncode in (0, 4), done.stderr
    assert stat.S_ISREG(link.lstat().st_mode)
    assert link.stat().st_size
    assert (folder / "pipe").is_fifo()
    assert FULL.is_char_device()


@pytest.mark.parametrize("command", WRITING)
def test_a_pipe_is_no_output_and_stays(folder, command):
    (folder / "pipe").rename(folder / "pipe.html")
    message = f"gpubench: cannot write pipe.html: {SPECIAL}; choose another place\n"
    assert in_one_line(folder, f"{command} pipe.html") == (2, message)
    assert (folder / "pipe.html").is_fifo()


def test_a_socket_and_a_device_are_no_outputs(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(tmp_path / "socket"))
    special = [tmp_path / "socket"]
    if os.geteuid() == 0:
        os.mknod(tmp_path / "null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        special += [tmp_path / "null"]
    for path in special:
        before = path.lstat()
        for write in (files.write_whole, files.append):
            with pytest.raises(OSError, match=r"not a regular file|No such device or address"):
                write(path, b"page")
        assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)


@pytest.mark.parametrize("write", [files.write_whole, files.append])
def test_a_stream_into_a_file_goes_on_where_it_is_and_replaces_nothing(tmp_path, write):
    with (tmp_path / "log").open("wb", buffering=0) as log:
        log.write(b"before, ")
        write(Path(f"/proc/self/fd/{log.fileno()}"), b"page")
        log.write(b", behind")
    assert (tmp_path / "log").read_bytes() == b"before, page, behind"


def test_a_link_to_a_device_is_no_history(folder):
    (folder / "h.sqlite").symlink_to(FULL)
    for command in ("import a.jsonl", "show", "rebuild", "prune --keep 1"):
        assert in_one_line(folder, f"history {command} --store h.sqlite") == (5, f"gpubench: h.sqlite: {SPECIAL}\n")


def test_a_pipe_as_the_index_of_a_site_is_refused(folder):
    (folder / "site").mkdir()
    (folder / "site/index.html").symlink_to("../pipe")
    status, line = in_one_line(folder, "site runs -o site")
    assert (status, "is not the index of a site" in line) == (2, True)


@pytest.mark.parametrize("name", ["pipe", LONG])
def test_a_summary_that_cannot_be_written_costs_a_gate_a_warning(folder, name):
    status, line = in_one_line(folder, "gate a.jsonl --baseline b.jsonl", GITHUB_STEP_SUMMARY=name)
    assert status == 0
    assert line.startswith(f"cannot write {name}: ")


def test_a_file_takes_any_name_that_the_file_system_takes(tmp_path):
    path = tmp_path / f"{'é' * 120}.jsonl.gz"  # 249 bytes
    files.write_whole(path, b"page")
    path.unlink()
    writer = store.RunWriter.create(path, make.manifest())
    path.unlink()
    with pytest.raises(FileError, match="what was measured is in"):
        writer.end()
    assert len(list(tmp_path.glob("rescued-*.jsonl.gz"))) == 1


# --- inputs


@pytest.mark.parametrize(
    ("command", "status"), [("import pipe", 5), ("plan --facts pipe", 5), ("fleet run --on ray:local:1 --map pipe", 2)]
)
def test_a_pipe_is_refused_as_an_input_at_once(folder, command, status):
    assert in_one_line(folder, command) == (status, f"gpubench: pipe: {SPECIAL}; write its content to a file first\n")


def test_output_of_another_tool_is_imported_from_a_stream_that_the_caller_opened(folder):
    with (folder / "output.txt").open("rb") as stream:
        done = gpubench("import", f"/dev/fd/{stream.fileno()}", "-o", "imported.jsonl", cwd=folder)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "gate {} --baseline b.jsonl",
        "gate a.jsonl --baseline {}",
        "gate a.jsonl --baseline b.jsonl --noise {}",
        "history import {} --store h.sqlite",
        "history import a.jsonl --store {}",
        "history show --store {}",
        "history rebuild {} --store h.sqlite",
        "history rebuild --store {}",
        "history prune --keep 1 --store {}",
        "compare {} b.jsonl",
        "compare a.jsonl {}",
        "compare a.jsonl b.jsonl -o {}.html",
        "site {} -o out",
        "redact {} -o out.jsonl",
        "redact a.jsonl -o {}.jsonl",
        "fleet judge {}",
        "fleet judge runs --baseline {}",
        "fleet judge runs -o {}.html",
        "fleet watch {}",
        "show {}",
        "report {} -o out.md",
        "report a.jsonl -o {}.md",
        "import {}",
        "import output.txt -o {}",
        "plan --facts {}",
        "plan ./{}.py",
        "list ./{}.py",
        "run ./{}.py",
        "run --device host --resume --out {}",
        "soak --device host --resume --out {}",
        "doctor --noise --from {}",
        "doctor --bundle {}",
    ],
)
def test_a_name_that_is_too_long_ends_with_status_5_and_is_named_in_one_line(folder, command):
    status, line = in_one_line(folder, command.format(LONG))
    assert (status, LONG in line, line.endswith(": File name too long\n")) == (5, True, True)


def test_a_script_whose_name_is_too_long_has_the_status_of_a_missing_program(folder):
    message = f"gpubench: cannot run ./{LONG}.py: no such script\n"
    assert in_one_line(folder, f"profile --trace -- ./{LONG}.py") == (127, message)


def test_a_history_whose_name_is_too_long_costs_a_run_nothing_but_a_warning(folder, monkeypatch):
    monkeypatch.setenv("GPUBENCH_HISTORY", str(folder / LONG))
    (warning,) = record_measured_run(folder / "a.jsonl", store.read_run(folder / "a.jsonl"))
    assert "not in the history" in warning
    assert "File name too long" in warning


@pytest.mark.parametrize("command", ["gate loop.py --baseline b.jsonl", "list ./loop.py"])
def test_a_link_to_itself_is_no_bug(folder, command):
    (folder / "loop.py").symlink_to("loop.py")
    status, line = in_one_line(folder, command)
    assert status in (2, 5), line
    assert "loop" in line


def test_a_path_in_a_locked_folder_is_no_bug_and_any_other_error_is():
    locked = PermissionError(errno.EACCES, "Permission denied", "locked/a.jsonl")
    assert files.path_problem(locked) == "locked/a.jsonl: Permission denied"
    for bug in (OSError(errno.EIO, "Input/output error", "a"), PermissionError(errno.EACCES, "x"), RuntimeError("x")):
        assert files.path_problem(bug) == ""


# --- the clock


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("run gemm --device host --tier smoke --filter float64 --out new.jsonl", 2),
        ("soak --for 1s --device host --out new.jsonl", 2),
        ("doctor --bundle new.tar.gz --device host", 2),
        ("profile --out new.jsonl -- true", 125),
    ],
)
def test_a_clock_before_1970_is_named_before_anything_is_measured(folder, monkeypatch, command, status):
    class Wrong(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(1969, 12, 31, 23, 59, tzinfo=tz)

    monkeypatch.setattr(recording, "datetime", Wrong)
    assert in_one_line(folder, command) == (
        status,
        "gpubench: the system clock says 1969-12-31; set it: a run file needs the date of the run\n",
    )
    assert not list(folder.glob("new*"))
