"""The command's entry: `--version` is answered before anything is imported."""

from __future__ import annotations

import io
import sys
import traceback

from gpubench import DISTRIBUTION, __version__
from gpubench.errors import GpubenchError

_INTERNAL = 70


def main() -> int:
    """Run the command; the process's exit status (README, "Exit status")."""
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"gpubench {__version__}\n")
        return 0
    from gpubench.cli import app

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that lacks a character shows another, and the run goes on
            stream.reconfigure(errors="replace")
    try:
        app(prog_name="gpubench")
    except GpubenchError as error:
        sys.stderr.write(f"gpubench: {error}\n")
        return error.exit_status
    except Exception:  # noqa: BLE001 - a bug: its traceback is kept, its exit status is its own
        traceback.print_exc()
        sys.stderr.write(f"gpubench: this is a bug in {DISTRIBUTION} {__version__}; please report the lines above\n")
        return _INTERNAL
    return 0


if __name__ == "__main__":
    sys.exit(main())
