"""Events as spans of time, from the samples of a counter of bits, with those that slowed a device down."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from gpubench.api.report import EventBit, EventClass, Track

Moments = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Band:
    """One kind of event: `spans` in seconds of the run; `kind` says how it slowed the device down, if it did."""

    name: str
    kind: Literal["", "capped", "slowed"]
    spans: tuple[Moments, ...]
    share: float  # of the samples


def bands(track: Track, apart_s: float) -> list[Band]:
    """Return a band for each bit of an event counter that was ever set; spans nearer than `apart_s` are joined."""
    values = track.values.astype(np.int64)
    every = int(np.bitwise_or.reduce(values)) if len(values) else 0
    found = []
    for bit in track.counter.events(every):
        there = (values & bit.mask) > 0
        spans = tuple(_joined(_spans(track.at, there, track.counter.period_s), apart_s))
        found.append(Band(bit.name, _kind(bit), spans, float(there.mean())))
    return found


def _kind(bit: EventBit) -> Literal["", "capped", "slowed"]:
    if bit.kind is EventClass.POWER_CAP:
        return "capped"
    return "slowed" if bit.slows else ""


def held_back(found: Iterable[Band]) -> list[Band]:
    """Return the bands in which a device was slowed down: by its power limit, by heat, or by order."""
    return [band for band in found if band.kind]


def _spans(at: npt.NDArray[np.float64], there: npt.NDArray[np.bool_], period_s: float) -> Iterator[Moments]:
    """Yield the start and end of each event; a sample stands for the period before it."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], there, [False]]).astype(np.int8)))
    for first, past in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        yield float(at[first]) - period_s, float(at[past - 1])


def _joined(spans: Iterable[Moments], apart_s: float) -> list[Moments]:
    found: list[Moments] = []
    for start, end in spans:
        if found and start - found[-1][1] < apart_s:
            found[-1] = found[-1][0], end
        else:
            found.append((start, end))
    return found
