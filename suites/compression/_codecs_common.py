"""What host and GPU codecs share: counting rules and the comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from gpubench.api.suite import POINT, Observation, Observed, Stage, Work, expect

LENGTH_BYTES = 8  # what a reader must be told of each chunk: its compressed length, 64 bits


def stage(
    call: Callable[[], object], payload: int, waits: bool = False, clock: Literal["device", "host"] = "device"
) -> Stage:
    """A direction of the round trip, in *uncompressed* bytes per second.

    A batched call launches several kernels: few calls a batch stay under the launch queue's depth. Codecs repeat
    themselves closely, and cases are many: each ends as soon as its interval is narrow.
    """
    return Stage(call, Work(payload=payload), "payload", waits=waits, clock=clock, max_calls=4, effort=POINT)


def lengths(total: int, chunk_bytes: int) -> list[int]:
    """The bytes of each chunk; the last one is what remains."""
    whole, rest = divmod(total, chunk_bytes)
    return [chunk_bytes] * whole + [rest] * (rest > 0)


def observed(total: int, chunk_bytes: int, compressed: int, scratch: Mapping[str, int] | None = None) -> Observation:
    """Ratio = uncompressed / compressed, headers of every chunk and 8 bytes of length each included.

    `scratch` are bytes of temporary memory by direction.
    """
    whole = compressed + LENGTH_BYTES * len(lengths(total, chunk_bytes))
    found = {"ratio": Observed(total / whole, "", "more"), "compressed": Observed(whole, "B", "less")}
    return {**found, **{f"{name}.scratch": Observed(size, "B", "less") for name, size in (scratch or {}).items()}}


def expect_same(restored: Any, source: Any) -> None:
    """Raise WrongAnswer, naming the first differing byte, unless two uint8 arrays are equal."""
    expect(restored.size == source.size, f"restored {restored.size} bytes of {source.size}")
    differing = restored != source
    if bool(differing.any()):
        first, count = int(differing.argmax()), int(differing.sum())
        expect(False, f"{count} of {source.size} bytes differ after the round trip, the first at {first}")
