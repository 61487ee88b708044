"""Start the command `gpubench`: turn signals into exceptions, report errors in one line, and return the exit status.

`--version` is answered before the command line is imported."""

import signal
import sys
import traceback
from types import FrameType

from gpubench import DISTRIBUTION, __version__
from gpubench.base import clean, errors, limits, streams

_INTERNAL = 70


def main() -> int:
    """Run the command in `sys.argv` and return its exit status (docs/commands.md, "Exit status").

    A known error is one line on standard error."""
    arrived: list[int] = []
    try:
        streams.make_safe(is_json="--json" in sys.argv)
        _raise_on_signals(arrived)
        try:
            return _run()
        finally:
            sys.stdout.flush()
    except errors.ReaderLeft as error:
        return error.exit_status
    except errors.GpubenchError as error:
        return _report(error)
    except (errors.Terminated, KeyboardInterrupt):
        return _report_signal(arrived)
    except Exception as error:  # noqa: BLE001 - a bug: its traceback is kept, its exit status is its own
        if arrived:  # inside a class body, Python 3.11 replaces the exception of a signal by a RuntimeError
            return _report_signal(arrived)
        if cause := _outside_cause(error):
            return _report(cause)
        sys.stderr.writelines(f"{clean.one_line(line)}\n" for line in traceback.format_exc().splitlines())
        sys.stderr.write(f"gpubench: this is a bug in {DISTRIBUTION} {__version__}; please report the lines above\n")
        return _INTERNAL


def _report(error: errors.GpubenchError) -> int:
    sys.stderr.write(clean.one_line(f"gpubench: {error}") + "\n")
    return error.exit_status


def _report_signal(arrived: list[int]) -> int:
    number = arrived[0] if arrived else signal.SIGINT
    return _report(errors.Interrupted(f"ended by {signal.Signals(number).name}", 128 + number))


def _run() -> int:
    """Run the subcommand in `sys.argv` and return its exit status; `--version` alone only prints the version."""
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"gpubench {__version__}\n")
        return 0
    if not {"-h", "--help"} & set(sys.argv):
        from gpubench.base import installation

        limits.check()
        installation.check()
    from gpubench.cli import call

    return call()


def _outside_cause(error: Exception) -> errors.GpubenchError | None:
    """Return the error to report if `error` is no bug of gpubench; None if it is one."""
    if limit := limits.reason(error):
        return errors.UsageError(limit)
    from gpubench.base import files

    if problem := files.path_problem(error):
        return errors.FileError(problem)
    if isinstance(error, ImportError):
        from gpubench.base import installation

        return installation.reason(error)
    return None


def _raise_on_signals(arrived: list[int]) -> None:
    """Make SIGINT raise KeyboardInterrupt, and SIGTERM and SIGHUP raise Terminated, so that `with` blocks clean up."""

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        arrived.append(number)
        raise KeyboardInterrupt if number == signal.SIGINT else errors.Terminated(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` starts a program with SIGHUP ignored; keep that
            signal.signal(number, end)


if __name__ == "__main__":
    sys.exit(main())
