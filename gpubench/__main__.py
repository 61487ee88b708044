"""The command's entry: `--version` is answered before anything is imported."""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback

from gpubench import DISTRIBUTION, __version__
from gpubench.base.errors import GpubenchError, UsageError

_INTERNAL = 70
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)  # of what has no name: standard output


def main() -> int:
    """Run the command; the process's exit status (README, "Exit status")."""
    try:
        try:
            _run()
        finally:
            sys.stdout.flush()
    except GpubenchError as error:
        sys.stderr.write(f"gpubench: {error}\n")
        return error.exit_status
    except Exception as error:  # noqa: BLE001 - a bug: its traceback is kept, its exit status is its own
        if isinstance(error, OSError) and error.filename is None and error.errno in _UNWRITABLE:
            return _unwritable(error)
        traceback.print_exc()
        sys.stderr.write(f"gpubench: this is a bug in {DISTRIBUTION} {__version__}; please report the lines above\n")
        return _INTERNAL
    return 0


def _run() -> None:
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"gpubench {__version__}\n")
        return
    from gpubench.cli import app

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that lacks a character shows another, and the run goes on
            stream.reconfigure(errors="replace")
    app(prog_name="gpubench")


def _unwritable(error: OSError) -> int:
    """Standard output takes no more: said in a line, but of a pipe whose reader has seen enough."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that the interpreter does not try again at its end
    if error.errno == errno.EPIPE:
        return 0
    sys.stderr.write(f"gpubench: cannot write to standard output: {error.strerror}; make room or send it elsewhere\n")
    return UsageError.exit_status


if __name__ == "__main__":
    sys.exit(main())
