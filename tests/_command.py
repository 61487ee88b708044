"""Call the command in the process of a test: starting Python takes longer than most commands do.

The machine's inventory is taken once, by the same child process as always. A test whose environment changes the
inventory, or which is about signals, closed pipes or imports, starts a process of its own.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from gpubench.__main__ import main
from gpubench.measuring import inventory

_FACTS = functools.cache(inventory.facts)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class CommandResult(NamedTuple):
    """The exit status and the output of a call, with the names of subprocess.CompletedProcess."""

    returncode: int
    stdout: str
    stderr: str


def gpubench(*arguments: object, cwd: Path | str = ".", **environment: str) -> CommandResult:
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


@contextlib.contextmanager
def _signals_restored() -> Iterator[None]:
    """Restore the signal handlers that the command replaces."""
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
