"""Phases that a program marks: `with phase("load"):` where gpubench profiles it, and nothing at all elsewhere.

    from gpubench.marks import phase

    with phase("load"):
        ...

Any program may do the same without gpubench: GPUBENCH_MARKS names a file, to which each edge of a phase is appended
as one line, `B SECONDS KEY NAME` where it begins and `E SECONDS KEY` where it ends. SECONDS are of CLOCK_MONOTONIC;
what ends is what began last with that key, a word that tells apart what runs side by side.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

VARIABLE = "GPUBENCH_MARKS"


@dataclass(frozen=True, slots=True)
class Span:
    """One time that a phase came, in seconds of CLOCK_MONOTONIC; not `ended` where the program ended within it."""

    name: str
    begin: float
    end: float
    ended: bool = True


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Mark a phase of this program; phases may lie within each other, and come again. About 2 µs an edge."""
    path = os.environ.get(VARIABLE)
    if not path:
        yield
        return
    words = " ".join(name.split())
    key = f"{os.getpid()}.{threading.get_native_id()}"
    _append(path, f"B {time.monotonic():.9f} {key} {words}\n")
    try:
        yield
    finally:
        _append(path, f"E {time.monotonic():.9f} {key}\n")


def _append(path: str, line: str) -> None:
    """One write at the end of the file, whole whoever else writes; a file that is gone is nobody's concern here."""
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(file, line.encode(errors="replace"))
        finally:
            os.close(file)


def spans(lines: Iterable[str], end: float) -> list[Span]:
    """The spans of a file's lines by their beginning; what has no end lasts to `end`. Other lines are left out."""
    found: list[Span] = []
    open_: dict[str, list[tuple[str, float]]] = {}
    for line in lines:
        kind, at, key, name = _edge(line)
        if kind == "B":
            open_.setdefault(key, []).append((name, at))
        elif kind == "E" and open_.get(key):
            begun, begin = open_[key].pop()
            found.append(Span(begun, begin, max(at, begin)))
    left = (each for stack in open_.values() for each in stack)
    found += [Span(name, begin, max(end, begin), ended=False) for name, begin in left]
    return sorted(found, key=lambda span: span.begin)


def _edge(line: str) -> tuple[str, float, str, str]:
    kind, _, rest = line.rstrip("\n").partition(" ")
    at, _, rest = rest.partition(" ")
    key, _, name = rest.partition(" ")
    try:
        return kind, float(at), key, name or "unnamed"
    except ValueError:
        return "", 0.0, "", ""
