"""Make the standard streams of the process safe: a failed write ends the command with an exit status that says so.

Printed text cannot start a command of a CI system, although names of cases and devices come from files and drivers.
Rich and Typer end with status 1 if a pipe is closed, and Python does if standard error is full. Here status 1 means a
regression, so the streams themselves turn errors of the operating system into errors of gpubench.

Describe how a child process ended, for error messages."""

import codecs
import errno
import io
import itertools
import os
import signal
import sys
from typing import Any, TextIO

from gpubench.base.clean import without_commands
from gpubench.base.errors import ReaderLeft, UsageError

# ASCII replacements for the typographic characters of tables, for locales without them
_ASCII = str.maketrans(
    {
        "–": "-",
        "—": "-",
        "−": "-",
        "…": "...",
        "→": "->",
        "≥": ">=",
        "≤": "<=",
        "≈": "~",
        "±": "+/-",
        "×": "x",
        "·": "|",
        "°": "deg ",
        "µ": "u",
        "μ": "u",
        "α": "alpha",
        "β": "beta",
        "½": "1/2",
        "²": "^2",
        "\N{NARROW NO-BREAK SPACE}": " ",
        "\N{NO-BREAK SPACE}": " ",
    }
)
# The names of the error handlers for characters that a stream cannot encode.
_TABLE, _JSON = "gpubench.table", "gpubench.json"


def make_safe(is_json: bool) -> None:
    """Replace `sys.stdout` and `sys.stderr` by streams whose lines cannot start a command of a CI system.

    A closed standard stream is opened on /dev/null; streams that a test has installed stay."""
    _open_closed()
    codecs.register_error(_TABLE, _replace_with_ascii)
    codecs.register_error(_JSON, _replace_with_escape)
    sys.stdin = sys.stdin or io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8")
    if _is_own(sys.stdout, sys.__stdout__):
        sys.stdout = _guarded_stream(sys.stdout, _Output(1, "w", closefd=False), _JSON if is_json else _TABLE)
    if _is_own(sys.stderr, sys.__stderr__):
        sys.stderr = _guarded_stream(sys.stderr, _ErrorOutput(2, "w", closefd=False), _TABLE)


def _open_closed() -> None:
    """Open each closed descriptor from 0 to 2 on /dev/null, so that no file that is opened later gets its number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(
                os.open(os.devnull, os.O_RDWR), True
            )  # the system assigns the lowest free number, which is this one


def _is_own(stream: TextIO | None, original: TextIO | None) -> bool:
    return stream is original and (stream is None or isinstance(stream, io.TextIOWrapper))


def _guarded_stream(stream: TextIO | None, raw: io.FileIO, errors: str) -> io.TextIOWrapper:
    """Return a text stream on `raw` whose lines cannot start a command of a CI system."""
    if stream is not None:
        stream.flush()
    encoding = stream.encoding if stream is not None else "utf-8"
    is_line_buffered = raw.isatty() or isinstance(raw, _ErrorOutput)
    return _CommandFreeStream(
        io.BufferedWriter(raw), encoding=encoding, errors=errors, newline="\n", line_buffering=is_line_buffered
    )


def write_commands(lines: str, stream: TextIO) -> None:
    """Write `lines` to `stream` unchanged, because they are intended as commands of a CI system."""
    if isinstance(stream, _CommandFreeStream):
        stream.write_unchanged(lines)
    else:
        stream.write(lines)


class _CommandFreeStream(io.TextIOWrapper):
    """A text stream whose lines start no command of a CI system."""

    def write(self, text: str, /) -> int:
        return super().write(without_commands(text, is_json=self.errors == _JSON))

    def write_unchanged(self, text: str) -> None:
        super().write(text)


class _Output(io.FileIO):
    """Standard output: a failed write ends the command, and buffered text is dropped."""

    def write(self, data: Any, /) -> int:
        """Write `data`, any object with a buffer, and return the number of bytes written."""
        try:
            return super().write(data) or 0
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            if error.errno == errno.EPIPE:
                raise ReaderLeft from error
            problem = f"cannot write to standard output: {error.strerror}; make room or send it elsewhere"
            raise UsageError(problem) from error


class _ErrorOutput(io.FileIO):
    """Standard error: a failed write is ignored, because the error could not be shown, and the command continues."""

    def write(self, data: Any, /) -> int:
        """Write `data`, any object with a buffer, and return the number of its bytes."""
        try:
            return super().write(data) or 0
        except OSError:
            return memoryview(data).nbytes


def _replace_with_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return _escape(error.object[error.start : error.end].translate(_ASCII)), error.end


def _replace_with_escape(error: UnicodeError) -> tuple[str, int]:
    r"""Return the JSON escape (`\uXXXX`, two above 16 bits) of each character that the encoding does not have."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return _escape(error.object[error.start : error.end]), error.end


def _escape(text: str) -> str:
    r"""Return `text` with each character outside ASCII as a JSON escape, `\uXXXX`, or two of them above 16 bits."""
    units = text.encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    return "".join(chr(code) if code < 0x80 else f"\\u{code:04x}" for code in codes)


def last_line(output: bytes) -> str:
    """Return the last line of a process's output that has a letter or a digit, or an empty text.

    After a crash it is the place in the code, from the trace that faulthandler printed."""
    lines = [line for line in output.decode(errors="replace").splitlines() if any(map(str.isalnum, line))]
    crashed = itertools.dropwhile(lambda line: not line.startswith("Current thread"), lines)
    place = next((line for line in crashed if line.lstrip().startswith("File ")), "")
    return (place or (lines[-1] if lines else "")).strip()


def describe_status(status: int) -> str:
    """Return `exit status 3`, or `killed by SIGKILL` for the status -9, as of subprocess.Popen."""
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
