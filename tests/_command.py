"""The command in the process of a test: a start of Python costs more than most of what is asked of it."""

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

_FACTS = functools.cache(inventory.facts)  # by the child process that always takes them; once for all tests
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Done(NamedTuple):
    """How a call ended: named as in subprocess.CompletedProcess, and in the order (status, printed, said)."""

    returncode: int
    stdout: str
    stderr: str


def gpubench(*words: object, cwd: Path | str = ".", **environment: str) -> Done:
    """Call the command in a folder, with these variables in its environment; it must be given what it runs on."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["gpubench", *map(str, words)]),
        mock.patch.dict(os.environ, environment),
        mock.patch.object(inventory, "facts", _FACTS),
        contextlib.chdir(cwd),
        _signals_restored(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        status = main()
    return Done(status, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _signals_restored() -> Iterator[None]:
    """Give the signals back that the command takes for itself."""
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
