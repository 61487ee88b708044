"""Counters: what they measure, their samples over time, and what is to be known of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from gpubench.model.schema import STRICT

CounterKind = Literal["gauge", "cumulative", "window", "event"]


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter's meaning: unit, kind, period of reading, and the command showing the same number."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    name: str
    unit: str
    kind: CounterKind
    period_s: float
    source: str


@dataclass(frozen=True, slots=True)
class Samples:
    """A chunk of one device's counters: columns of values over a shared `at` (s since `started_at`).

    A value that could not be read is None, never a sentinel number. `busy_s` is what reading these rows took,
    `late_s` the most that one of them was read after it was due.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    collector: str
    device: str
    at: Sequence[float]
    columns: tuple[tuple[str, Sequence[float | None]], ...]
    busy_s: float = 0.0
    late_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Remark:
    """What is to be known of the counters of a run, in words: counters that are not there, or were lost on the way.

    `absent` is what this machine does not have and need not have; of what was `lost`, and of an `event` that a
    driver reports, a reader has to be told. `source` is a collector or the sampler, `device` empty where it is about
    none.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    at: float  # s since `started_at`
    state: Literal["absent", "lost", "event"]
    source: str
    device: str
    words: str

    @property
    def text(self) -> str:
        """`counters of nvml on cuda:0: the device is lost`."""
        where = f" on {self.device}" if self.device else ""
        return f"counters of {self.source}{where}: {self.words}"
