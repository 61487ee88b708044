"""Describe how a child process ended, for error messages."""

import itertools
import signal


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
