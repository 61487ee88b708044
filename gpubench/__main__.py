"""The command's entry: `--version` is answered before anything is imported."""

from __future__ import annotations

import signal
import sys
import traceback
from types import FrameType

from gpubench import DISTRIBUTION, __version__
from gpubench.base import limits, streams
from gpubench.base.errors import GpubenchError, ReaderLeft, Terminated, UsageError

_INTERNAL = 70
_INTERRUPTED = 130


def main() -> int:
    """Run the command; the process's exit status (README, "Exit status")."""
    try:
        streams.make_safe(is_json="--json" in sys.argv)
        _end_by_exit_status()
        try:
            _run()
        finally:
            sys.stdout.flush()
    except ReaderLeft as error:
        return error.exit_status
    except GpubenchError as error:
        return _told(error)
    except Terminated as end:
        return _told(GpubenchError(f"ended by {signal.Signals(end.number).name}"), 128 + end.number)
    except KeyboardInterrupt:
        return _told(GpubenchError("interrupted"), _INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - a bug: its traceback is kept, its exit status is its own
        if cause := _outside_cause(error):
            return _told(cause)
        traceback.print_exc()
        sys.stderr.write(f"gpubench: this is a bug in {DISTRIBUTION} {__version__}; please report the lines above\n")
        return _INTERNAL
    return 0


def _told(error: GpubenchError, status: int = 0) -> int:
    sys.stderr.write(f"gpubench: {error}\n")
    return status or error.exit_status


def _run() -> None:
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"gpubench {__version__}\n")
        return
    from gpubench.base import installation

    if not {"-h", "--help"} & set(sys.argv):
        limits.check()
        installation.check()
    from gpubench.cli import app

    app(prog_name="gpubench")


def _outside_cause(error: Exception) -> GpubenchError | None:
    """Return the error for an exception that is no bug: a limit of the system, or a package that is not installed."""
    if limit := limits.reason(error):
        return UsageError(limit)
    if isinstance(error, ImportError):
        from gpubench.base import installation

        return installation.reason(error)
    return None


def _end_by_exit_status() -> None:
    """Let SIGTERM and SIGHUP end the process by an exit status, so that what was begun is ended in order."""

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        raise Terminated(number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` starts us with SIGHUP ignored, and so it stays
            signal.signal(number, end)


if __name__ == "__main__":
    sys.exit(main())
