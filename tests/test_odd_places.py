"""Unusual environments: closed or full streams, low limits, signals, pipes for files, a broken installation."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import tomllib
from functools import partial
from pathlib import Path

import _make as make
import pytest
from _modules import opened

from gpubench import plugins
from gpubench.base import files, installation, limits
from gpubench.base.errors import FileError, Interrupted, UsageError
from gpubench.devices import rocm
from gpubench.model import store
from gpubench.tools import session
from gpubench.tools.history import recording

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-P", "-m", "gpubench"]
# behaves as a Latin-1 locale, which this machine may not have
NO_UTF8 = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def gpubench(*arguments, **settings):
    environment = os.environ | settings.pop("env", {})
    settings = {"capture_output": True, "text": True, "encoding": "utf-8"} | settings
    return subprocess.run([*COMMAND, *arguments], env=environment, timeout=60, check=False, **settings)


def shell(line, **settings):
    arguments = ["bash", "-c", f'gpubench() {{ {sys.executable} -P -m gpubench "$@"; }}; {line}']
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False, **settings)


def main_with(change, **settings):
    program = f"import os, sys; from gpubench import __main__ as m\n{change}; sys.exit(m.main())"
    command = [sys.executable, "-P", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False, **settings)


# --- streams


def test_a_closed_stream_changes_no_exit_status_and_no_file_of_a_run_gets_its_number():
    assert shell("gpubench --version >&-").returncode == 0
    done = shell("gpubench --nonsense >&-")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    program = "from gpubench.base import streams; streams.make_safe(False); import os; print(os.open('/', 0) > 2)"
    assert shell(f'{sys.executable} -P -c "{program}" 2>&- <&-').stdout == "True\n"


@pytest.mark.parametrize("stream", ["2>/dev/full", "2>&-"])
def test_a_standard_error_that_cannot_be_written_changes_no_exit_status(stream):
    assert shell(f"gpubench --nonsense {stream}").returncode == 2


@pytest.mark.parametrize("command", ["--version", pytest.param("list", marks=pytest.mark.slow)])
def test_a_reader_that_closes_early_gives_the_exit_status_of_other_tools_and_not_that_of_a_regression(command):
    reading, writing = os.pipe()
    os.close(reading)
    done = gpubench(command, capture_output=False, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_characters_outside_the_locale_are_replaced_and_in_json_escaped():
    program = "import sys; from gpubench.base import streams; streams.make_safe({}); print('{}')"
    text = r"1 \u2013 2 \u00b5s, \u4e16\U0001f600"

    def printed(is_json):
        command = [sys.executable, "-P", "-c", program.format(is_json, text)]
        return subprocess.run(command, capture_output=True, env=NO_UTF8, check=True).stdout.decode("ascii")

    assert printed(False) == "1 - 2 us, \\u4e16\\ud83d\\ude00\n"
    assert printed(True) == "1 \\u2013 2 \\u00b5s, \\u4e16\\ud83d\\ude00\n"


@pytest.mark.slow
def test_a_run_and_its_report_need_no_locale_of_utf_8(tmp_path):
    run = ("run", "latency", "--device", "host", "--tier", "smoke", "--filter", "chase", "--out", "é.jsonl")
    done = gpubench(*run, env=NO_UTF8, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert store.read_run(tmp_path / "é.jsonl").manifest.argv[-1] == "é.jsonl"
    done = gpubench("report", "é.jsonl", "-o", "é.md", env=NO_UTF8, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "–" in (tmp_path / "é.md").read_text(encoding="utf-8")


# Calls that use the encoding of the locale unless one is given. Files of the kernel (/proc, /sys) are ASCII.
BY_LOCALE = re.compile(r"\.(read|write)_text\((?![^\n]*encoding=)|\btext=True\b|\.open\(\"[aw]\"\)")
OF_THE_KERNEL = re.compile(r"/proc/|zone /|task /|_YAMA|index /")


def test_text_is_read_and_written_as_utf_8_in_any_locale():
    shipped = [path for room in ("gpubench", "suites", "reports", "collectors") for path in (ROOT / room).rglob("*.py")]
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in shipped
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if BY_LOCALE.search(line) and not OF_THE_KERNEL.search(line)
    ]
    assert wrong == []


# --- limits


def test_too_few_descriptors_give_one_line_with_a_command_and_those_that_run_out_later_are_no_bug():
    done = shell("ulimit -n 20; gpubench list")
    assert done.returncode == 2
    assert done.stderr == (
        "gpubench: only 20 files may be open at once, and 64 are needed; raise the limit with `ulimit -n 1024`\n"
    )
    done = main_with("import errno\ndef fail(): raise OSError(errno.EMFILE, 'Too many open files')\nm._run = fail")
    message = "gpubench: too many files are open; raise the limit with `ulimit -n 1024`\n"
    assert (done.returncode, done.stderr) == (2, message)


def test_too_few_processes_are_reported_before_anything_is_started(monkeypatch):
    started = []

    def start(thread):
        if len(started) == 3:
            raise RuntimeError("can't start new thread")
        started.append(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(threading.Thread, "join", lambda thread: None)
    with pytest.raises(UsageError, match=r"only 3 of \d+ processes and threads could be started; .*`ulimit -u`"):
        limits.check()


def test_a_limit_of_memory_is_named_as_such():
    done = shell("ulimit -v 400000; gpubench list")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "raise the limit of address space with `ulimit -v`" in done.stderr
    done = shell(
        f"ulimit -v 400000; {sys.executable} -c 'from gpubench.base import limits; print(limits.reason(MemoryError()))'"
    )
    assert done.stdout.startswith("no more memory can be had; raise the limit of address space"), done.stderr
    assert limits.reason(MemoryError()) == "", "without a limit it is a bug or the machine's memory"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_folders_of_another_user_are_refused_and_on_the_path_ignored():
    with tempfile.TemporaryDirectory() as folder:  # mode 0700
        os.setresuid(65534, 65534, 0)
        try:
            machine = rocm.probe(environment={"PATH": folder}, wheels={})
            with pytest.raises(FileError, match="Permission denied"):
                list(recording.run_files([Path(folder)]))
        finally:
            os.setresuid(0, 0, 0)
    assert machine.hipcc == ""


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can be another user, by setpriv"
)
def test_another_user_with_too_few_processes_gets_the_same_message():
    rights = "+dac_read_search,+dac_override"
    user = f"setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps={rights} --ambient-caps={rights}"
    done = shell(f"ulimit -u 4; exec {user} {sys.executable} -P -m gpubench run latency --device host")
    assert done.returncode == 2
    assert done.stderr.startswith("gpubench: only 3 of ")
    assert done.stderr.count("\n") == 1


# --- signals


def ended_by(number, **settings):
    """Return how `main` ends if a signal arrives during start-up."""
    return main_with(f"m._run = lambda: os.kill(os.getpid(), {int(number)})", **settings)


@pytest.mark.parametrize("name", ["SIGHUP", "SIGINT", "SIGTERM"])
def test_a_signal_in_start_up_gives_an_exit_status_unless_it_is_ignored_as_by_nohup(name):
    number = signal.Signals[name]
    done = ended_by(number, preexec_fn=partial(signal.signal, number, signal.SIG_DFL))
    assert (done.returncode, done.stderr) == (128 + number, f"gpubench: ended by {name}\n")
    if name == "SIGHUP":
        assert ended_by(number, preexec_fn=partial(signal.signal, number, signal.SIG_IGN)).returncode == 0


@pytest.mark.parametrize("name", ["SIGHUP", "SIGINT", "SIGTERM"])
def test_a_signal_ends_a_run_in_order_even_within_a_boundary_that_catches_errors(name):
    number = signal.Signals[name]
    before = signal.signal(number, signal.SIG_DFL)
    try:
        kept = session.terminable(lambda: "2 results are in a.jsonl")
        with pytest.raises(Interrupted, match=r"2 results are in a\.jsonl") as caught, kept:
            plugins.call_library("a collector", lambda: os.kill(os.getpid(), number))
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert caught.value.exit_status == 128 + number


# --- files


def test_a_pipe_for_a_run_file_is_refused_and_a_stream_that_the_caller_opened_is_read(tmp_path):
    os.mkfifo(tmp_path / "run.jsonl")
    for read in (store.read_run, store.file_hash):
        with pytest.raises(FileError, match="not a regular file but a pipe"):
            read(tmp_path / "run.jsonl")
    content = store.encode_run(make.run(make.result(make.timing(1e-3))))
    reading, writing = os.pipe()
    os.write(writing, content)
    os.close(writing)
    run = store.read_run(f"/dev/fd/{reading}")
    os.close(reading)
    assert len(run.results) == 1


@pytest.mark.parametrize("replaced", [False, True])
def test_a_run_file_that_was_removed_during_the_run_is_written_under_another_name(tmp_path, replaced):
    path = tmp_path / "run.jsonl"
    writer = store.RunWriter.create(path, make.manifest())
    path.unlink()
    if replaced:
        path.write_text("mine", encoding="utf-8")
    writer.result(make.result(make.timing(1e-3)))
    with pytest.raises(FileError, match="was removed or replaced while it was being written; what was measured is in"):
        writer.end()
    (rescued,) = tmp_path.glob("rescued-*-run.jsonl")
    assert store.read_run(rescued).complete
    assert path.exists() == replaced
    (tmp_path / "folder").mkdir()
    writer = store.RunWriter.create(tmp_path / "folder" / "run.jsonl", make.manifest())
    shutil.rmtree(tmp_path / "folder")
    with pytest.raises(FileError, match="what was measured is lost"):
        writer.end()


def test_an_output_follows_no_link_and_leaves_nothing_beside_it(tmp_path):
    victim, out = tmp_path / "victim", tmp_path / "out.html"
    victim.write_text("mine", encoding="utf-8")
    (tmp_path / ".out.html.part").symlink_to(victim)
    out.symlink_to(victim)
    files.write_whole(out, b"page")
    assert (victim.read_text(encoding="utf-8"), out.read_bytes(), out.is_symlink()) == ("mine", b"page", False)
    (tmp_path / "out").mkdir()
    with pytest.raises(IsADirectoryError):
        files.write_whole(tmp_path / "out", b"page")
    assert {path.name for path in tmp_path.iterdir()} == {"victim", "out.html", ".out.html.part", "out"}


def test_shared_memory_has_no_name_that_could_be_left_behind():
    memory = opened().shared_memory("file")
    before = set(Path("/dev/shm").iterdir())
    buffer = memory.allocate(4096)
    assert [path for path in set(Path("/dev/shm").iterdir()) - before if "gpubench" in path.name] == []
    buffer.close()


# --- installations


@pytest.mark.parametrize("module", ["typer", "pydantic"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path, module):
    message = f"No module named '{module}'"
    (tmp_path / f"{module}.py").write_text(
        f"raise ModuleNotFoundError({message!r}, name='{module}')\n", encoding="utf-8"
    )
    done = gpubench("list", env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 2
    assert done.stderr.startswith(
        f"gpubench: the Python package {module} is not installed; install it: {sys.executable}"
    )
    assert "-m pip install" in done.stderr
    assert done.stderr.count("\n") == 1


def test_in_a_clone_the_install_hints_name_its_own_pip_and_elsewhere_pip(monkeypatch):
    wanted = "pip install 'gpubench-suite[tvm]'"
    monkeypatch.setattr(sys, "prefix", str(ROOT / ".venv"))
    assert installation.with_extra("tvm") == f".venv/bin/{wanted} in the clone of gpubench"
    monkeypatch.setattr(installation, "_ROOT", Path("/nowhere"))
    assert installation.with_extra("tvm") == wanted
    assert installation.for_gpu().startswith("pip install 'gpubench-suite[cuda13]'")


def test_a_missing_module_of_gpubench_is_a_bug():
    assert installation.reason(ModuleNotFoundError("No module named 'gpubench.x'", name="gpubench.x")) is None
    broken = installation.reason(ImportError("libfoo.so: cannot open\nmore", name="numpy"))
    assert "numpy cannot be imported (libfoo.so: cannot open); install it" in str(broken)


def test_the_required_packages_are_those_of_pyproject():
    required = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    assert sorted(installation.PACKAGES.values()) == sorted(line.partition(">=")[0] for line in required)
