"""Call the command in the process of a test: starting Python takes longer than most commands do.

The machine's inventory is taken once, by the same child process as always. A test whose environment changes the
inventory, or which is about signals, closed pipes or imports, starts a process of its own.
"""

import contextlib
import functools
import io
import os
import signal
import subprocess
import sys
from typing import NamedTuple
from unittest import mock

from rich.console import Console

from gpubench.__main__ import main
from gpubench.measuring import inventory, nodes

_FACTS = functools.cache(inventory.facts)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class CommandResult(NamedTuple):
    """The exit status and the output of a call, with the names of subprocess.CompletedProcess."""

    returncode: int
    stdout: str
    stderr: str


def gpubench(*arguments, cwd=".", **environment):
    """Call the command in a folder, with these variables in its environment, and return what a process would."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["gpubench", *map(str, arguments)]),
        mock.patch.dict(os.environ, environment),
        mock.patch.object(inventory, "facts", _FACTS),
        contextlib.chdir(cwd),
        _signals_restored(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        status = main()
    return CommandResult(status, out.getvalue(), err.getvalue())


def start(*arguments, cwd=".", **environment):
    """Start the command in a process of its own, with these variables added to this process's."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "gpubench", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=os.environ | environment,
    )


def in_process(*arguments, cwd=".", **environment):
    """Run the command in a process of its own and return its end."""
    process = start(*arguments, cwd=cwd, **environment)
    out, err = process.communicate()
    return CommandResult(process.returncode, out, err)


def end_processes(*processes, limit_s=100):
    """Return the exit statuses; processes that still run are killed."""
    try:
        outputs = [process.communicate(timeout=limit_s) for process in processes]
    finally:
        for process in processes:
            process.kill()
    sys.stdout.write("".join(errors for _, errors in outputs))
    assert not any("Traceback" in errors for _, errors in outputs), outputs
    return [process.returncode for process in processes]


def node_variables(rank, size, port):
    names = (nodes.RANK, nodes.NODES, nodes.ADDRESS, nodes.SECRET)
    return dict(zip(names, (str(rank), str(size), f"127.0.0.1:{port}", "a secret of the test"), strict=True))


def terminal_lines(parts, width=80):
    """Return the lines of these parts in a terminal of that width."""
    console = Console(file=io.StringIO(), width=width, height=40, highlight=False, emoji=False)
    console.print(*parts, sep="\n")
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@contextlib.contextmanager
def _signals_restored():
    """Restore the signal handlers that the command replaces."""
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
