"""Turn the events of a counter into spans of time, and say which events slowed the device down."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from gpubench.api import report as gb

Moments = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Band:
    """The spans of one event: start and end in seconds of the run.

    `kind` is `capped` if the power cap slowed the device down, `slowed` for another reason, and empty if it did not
    slow."""

    name: str
    kind: Literal["", "capped", "slowed"]
    spans: tuple[Moments, ...]
    share: float  # the fraction of the samples in which the event was set


def bands(track: gb.Track, apart_s: float) -> list[Band]:
    """Return a band for each event that occurred.

    The values of `track` are bit masks. Spans less than `apart_s` seconds apart are joined."""
    values = track.values.astype(np.int64)
    all_bits = int(np.bitwise_or.reduce(values)) if len(values) else 0
    event_bands = []
    for bit in track.counter.events(all_bits):
        is_set = (values & bit.mask) > 0
        spans = tuple(_join(_spans(track.at, is_set, track.counter.period_s), apart_s))
        event_bands.append(
            Band(
                bit.name,
                "capped" if bit.kind == "power cap" else "slowed" if bit.slows else "",
                spans,
                float(is_set.mean()),
            )
        )
    return event_bands


def slowdowns_among(event_bands: Iterable[Band]) -> list[Band]:
    """Return the bands whose event slows the device down: by its power cap, by heat, or by a request."""
    return [band for band in event_bands if band.kind]


def _spans(at: npt.NDArray[np.float64], is_set: npt.NDArray[np.bool_], period_s: float) -> Iterator[Moments]:
    """Yield the start and the end in seconds of each run of samples in which an event is set."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_set, [False]]).astype(np.int8)))
    for first, past in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        yield float(at[first]) - period_s, float(at[past - 1])


def _join(spans: Iterable[Moments], apart_s: float) -> list[Moments]:
    """Return `spans`, which are sorted by time, and join spans less than `apart_s` seconds apart."""
    joined: list[Moments] = []
    for start, end in spans:
        if joined and start - joined[-1][1] < apart_s:
            joined[-1] = joined[-1][0], end
        else:
            joined.append((start, end))
    return joined
