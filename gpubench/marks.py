"""Mark phases of a program for `gpubench profile` with `with phase("load"):`, which otherwise does nothing.

    from gpubench.marks import phase

    with phase("load"):
        ...

Any program can mark phases without gpubench: GPUBENCH_MARKS names a file, and the program appends one line to it when a
phase begins, `B SECONDS KEY NAME`, and one when it ends, `E SECONDS KEY`. SECONDS are read from CLOCK_MONOTONIC. KEY is
a word that differs between threads and processes. An end belongs to the newest open phase with the same key."""

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

VARIABLE = "GPUBENCH_MARKS"


@dataclass(frozen=True, slots=True)
class Span:
    """One occurrence of a phase, in seconds of CLOCK_MONOTONIC; `ended` is false if the program ended within it."""

    name: str
    begin: float
    end: float
    ended: bool = True


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Mark the `with` block as a phase of this program; phases can be nested and repeated.

    White space in `name` becomes a single space."""
    path = os.environ.get(VARIABLE)
    if not path:
        yield
        return
    one_line_name = " ".join(name.split())
    key = f"{os.getpid()}.{threading.get_native_id()}"
    _append(path, f"B {time.monotonic():.9f} {key} {one_line_name}\n")
    try:
        yield
    finally:
        _append(path, f"E {time.monotonic():.9f} {key}\n")


def _append(path: str, line: str) -> None:
    """Append a line to the file at `path` by a single write, which other writers cannot split."""
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(file, line.encode(errors="replace"))
        finally:
            os.close(file)


def spans(lines: Iterable[str], end: float) -> list[Span]:
    """Return the phases in the lines of a marks file, in the order of their begin.

    A phase without an end lasts until `end` (seconds of CLOCK_MONOTONIC). Lines of another form are ignored."""
    all_spans: list[Span] = []
    open_: dict[str, list[tuple[str, float]]] = {}
    for line in lines:
        kind, at, key, name = _parsed_line(line)
        if kind == "B":
            open_.setdefault(key, []).append((name, at))
        elif kind == "E" and open_.get(key):
            name_at_begin, begin = open_[key].pop()
            all_spans.append(Span(name_at_begin, begin, max(at, begin)))
    unfinished = (phase_begin for stack in open_.values() for phase_begin in stack)
    all_spans += [Span(name, begin, max(end, begin), ended=False) for name, begin in unfinished]
    return sorted(all_spans, key=lambda span: span.begin)


def _parsed_line(line: str) -> tuple[str, float, str, str]:
    """Return the kind (`B` or `E`), the seconds, the key and the name of a line; a missing name is `unnamed`."""
    kind, _, rest = line.rstrip("\n").partition(" ")
    at, _, rest = rest.partition(" ")
    key, _, name = rest.partition(" ")
    try:
        return kind, float(at), key, name or "unnamed"
    except ValueError:
        return "", 0.0, "", ""
