"""Share functions between host and GPU codecs: their stages, the lengths of chunks, and the ratio."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from gpubench.api import suite as gb

LENGTH_BYTES = 8  # a 64-bit compressed length, which a reader needs for each chunk


def stage(
    call: Callable[[], object], payload: int, waits: bool = False, clock: Literal["device", "host"] = "device"
) -> gb.Stage:
    """Return the stage of one direction of a round trip, whose rate is in *uncompressed* bytes per second.

    `payload` is the number of uncompressed bytes of a call. `waits` says that the call waits for the device itself."""
    return gb.Stage(call, gb.Work(payload=payload), "payload", waits=waits, clock=clock, max_calls=4, effort=gb.POINT)


def lengths(total: int, chunk_bytes: int) -> list[int]:
    """Return the number of bytes of each chunk of `total` bytes: `chunk_bytes`, and for the last one the rest."""
    full_chunks, last_bytes = divmod(total, chunk_bytes)
    return [chunk_bytes] * full_chunks + [last_bytes] * (last_bytes > 0)


def observed(total: int, chunk_bytes: int, compressed: int, scratch: Mapping[str, int] | None = None) -> gb.Observation:
    """Return the observations of a round trip: the ratio, the compressed bytes, and the scratch memory by direction.

    `scratch` maps a direction (`compress`) to bytes; None if there is none to report."""
    stored_bytes = compressed + LENGTH_BYTES * len(lengths(total, chunk_bytes))
    observation = {
        "ratio": gb.Observed(total / stored_bytes, "", "more"),
        "compressed": gb.Observed(stored_bytes, "B", "less"),
    }
    return {
        **observation,
        **{f"{name}.scratch": gb.Observed(size, "B", "less") for name, size in (scratch or {}).items()},
    }


def expect_same(restored: Any, source: Any) -> None:
    """Raise WrongAnswer, which names the first differing byte, unless two NumPy arrays of dtype uint8 are equal."""
    gb.expect(restored.size == source.size, f"restored {restored.size} bytes of {source.size}")
    differing = restored != source
    if bool(differing.any()):
        first, count = int(differing.argmax()), int(differing.sum())
        gb.expect(False, f"{count} of {source.size} bytes differ after the round trip, the first at {first}")
