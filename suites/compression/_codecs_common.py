"""Functions that host and GPU codecs share: stages, the lengths of chunks, and the ratio."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from gpubench.api.suite import POINT, Observation, Observed, Stage, Work, expect

LENGTH_BYTES = 8  # a 64-bit compressed length, which a reader needs for each chunk


def stage(
    call: Callable[[], object], payload: int, waits: bool = False, clock: Literal["device", "host"] = "device"
) -> Stage:
    """Return the stage of one direction of the round trip, whose rate is in *uncompressed* bytes per second.

    A batched call launches several kernels, so a batch has few calls, which fit into the launch queue. The times of
    codecs vary little and there are many cases, so each case ends as soon as its confidence interval is narrow.
    """
    return Stage(call, Work(payload=payload), "payload", waits=waits, clock=clock, max_calls=4, effort=POINT)


def lengths(total: int, chunk_bytes: int) -> list[int]:
    """Return the bytes of each chunk; the last chunk may be shorter."""
    full_chunks, last_bytes = divmod(total, chunk_bytes)
    return [chunk_bytes] * full_chunks + [last_bytes] * (last_bytes > 0)


def observed(total: int, chunk_bytes: int, compressed: int, scratch: Mapping[str, int] | None = None) -> Observation:
    """Return the ratio, uncompressed over compressed bytes, the compressed bytes, and the scratch memory in bytes.

    The compressed bytes include the header of every chunk and 8 bytes for its length. `scratch` is by direction.
    """
    stored_bytes = compressed + LENGTH_BYTES * len(lengths(total, chunk_bytes))
    observation = {
        "ratio": Observed(total / stored_bytes, "", "more"),
        "compressed": Observed(stored_bytes, "B", "less"),
    }
    return {**observation, **{f"{name}.scratch": Observed(size, "B", "less") for name, size in (scratch or {}).items()}}


def expect_same(restored: Any, source: Any) -> None:
    """Raise WrongAnswer, naming the first differing byte, unless two uint8 arrays are equal."""
    expect(restored.size == source.size, f"restored {restored.size} bytes of {source.size}")
    differing = restored != source
    if bool(differing.any()):
        first, count = int(differing.argmax()), int(differing.sum())
        expect(False, f"{count} of {source.size} bytes differ after the round trip, the first at {first}")
