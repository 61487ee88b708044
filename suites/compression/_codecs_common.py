"""Share functions between host and GPU codecs: their stages, the lengths of chunks, and the ratio."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from gpubench.api.suite import POINT, Observation, Observed, Stage, Work, expect

LENGTH_BYTES = 8  # a 64-bit compressed length, which a reader needs for each chunk


def stage(
    call: Callable[[], object], payload: int, waits: bool = False, clock: Literal["device", "host"] = "device"
) -> Stage:
    """Return the stage of one direction of a round trip, whose rate is in *uncompressed* bytes per second.

    `payload` is the number of uncompressed bytes of a call. `waits` says that the call waits for the device itself."""
    return Stage(call, Work(payload=payload), "payload", waits=waits, clock=clock, max_calls=4, effort=POINT)


def lengths(total: int, chunk_bytes: int) -> list[int]:
    """Return the number of bytes of each chunk of `total` bytes: `chunk_bytes`, and for the last one the rest."""
    full_chunks, last_bytes = divmod(total, chunk_bytes)
    return [chunk_bytes] * full_chunks + [last_bytes] * (last_bytes > 0)


def observed(total: int, chunk_bytes: int, compressed: int, scratch: Mapping[str, int] | None = None) -> Observation:
    """Return the observations of a round trip: the ratio, the compressed bytes, and the scratch memory by direction.

    `scratch` maps a direction (`compress`) to bytes; None if there is none to report."""
    stored_bytes = compressed + LENGTH_BYTES * len(lengths(total, chunk_bytes))
    observation = {
        "ratio": Observed(total / stored_bytes, "", "more"),
        "compressed": Observed(stored_bytes, "B", "less"),
    }
    return {**observation, **{f"{name}.scratch": Observed(size, "B", "less") for name, size in (scratch or {}).items()}}


def expect_same(restored: Any, source: Any) -> None:
    """Raise WrongAnswer, which names the first differing byte, unless two NumPy arrays of dtype uint8 are equal."""
    expect(restored.size == source.size, f"restored {restored.size} bytes of {source.size}")
    differing = restored != source
    if bool(differing.any()):
        first, count = int(differing.argmax()), int(differing.sum())
        expect(False, f"{count} of {source.size} bytes differ after the round trip, the first at {first}")
