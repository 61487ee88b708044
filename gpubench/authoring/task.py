"""What a case returns: stages to time, a check, and what is observed beside the time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gpubench.base.errors import WrongAnswer
from gpubench.model import Better, Quantity, Series, Work
from gpubench.plugins.backend import Mode


@dataclass(frozen=True, slots=True)
class Observed:
    """A value that is not a time: a ratio, an error, a count of bytes."""

    value: float
    unit: str = ""
    better: Better = "less"


@dataclass(frozen=True, slots=True)
class Profile:
    """Values that are no times and belong together in their order, such as a row of a matrix; a check returns them."""

    values: tuple[float, ...]
    unit: str = ""
    better: Better = "less"


Observation = Mapping[str, "float | Observed | Profile"]


def nothing() -> None:
    """The default of a task's optional hooks."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One timed call of a task.

    clock: `device` is timed by the engine with device events; `host` by the host's clock round
    a batch of calls and a synchronisation; `self` where the call times itself and returns seconds,
    or a sequence of them, a sample each.
    `waits` marks a call that waits for the device by itself (a pageable copy, an allocation): it is never gated.
    `rotation` is the call on buffers that together outgrow the last-level cache (`Bench.copies`).
    `least_s` is how long it is sampled at the least, None what the tier says: 0 for a point of a dense curve, which
    ends as soon as its interval is narrow, some seconds for a rate that must be sustained. `samples` are what its
    tail needs at the least: 10 000 show the 99.9th percentile.
    `lead` is queued ahead of each batch, outside its time: it brings ranks in step on their devices.
    `also` counts the same samples in other ways, each a series of its own: a rate beside the sum of both directions.
    `rest_s` is how long the device idles before each sample: what it does in a burst, before its power cap acts.
    `item` says what an item is where the quantity is `items`: its figure is `token/s`.
    """

    call: Callable[[], object]
    work: Work = field(default_factory=Work)
    quantity: Quantity = "value"
    limit: str = ""
    modes: tuple[Mode, ...] = ("hot",)
    clock: Literal["device", "host", "self"] = "device"
    waits: bool = False
    max_calls: int = 0  # of a batch; 0 leaves it to the engine
    least_s: float | None = None
    samples: int = 0
    lead: Callable[[], object] = nothing
    also: Mapping[str, Work] = field(default_factory=dict)
    probe: Callable[[], Observation] | None = None  # read after each sample, outside its time
    rotation: tuple[Callable[[], object], ...] = ()  # the same call on other buffers, in turn: series `rotated`
    rest_s: float = 0.0
    item: str = "item"


def no_values() -> Observation:
    """The check of a task that has none: only an idle rank's."""
    return {}


@dataclass(frozen=True, slots=True)
class Task:
    """What a case returns: stages by name (the first is the headline), a check, a clean-up.

    `poison` spoils the outputs before a check's call; `check` raises WrongAnswer or returns
    observed values. `close` lets go of what was opened; `release`, when every rank has closed, of what the
    others had open. `labels` say of what state its figures are: `time-sliced`.
    """

    stages: Mapping[str, Stage]
    check: Callable[[], Observation] = no_values
    poison: Callable[[], None] = nothing
    close: Callable[[], None] = nothing
    notes: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    release: Callable[[], None] = nothing

    @classmethod
    def of(
        cls,
        stage: Stage,
        *,
        check: Callable[[], Observation],
        poison: Callable[[], None] = nothing,
        close: Callable[[], None] = nothing,
        notes: Mapping[str, str] | None = None,
        labels: tuple[str, ...] = (),
        release: Callable[[], None] = nothing,
    ) -> Task:
        """A task of one stage."""
        return cls({"": stage}, check, poison, close, notes or {}, labels, release)

    @classmethod
    def idle(cls, close: Callable[[], None] = nothing) -> Task:
        """A rank that only holds something while the others work."""
        return cls({}, close=close)


def expect(condition: bool, message: str) -> None:
    """Raise WrongAnswer with the message where the condition does not hold."""
    if not condition:
        raise WrongAnswer(message)


def number_of(value: float | Observed | Profile) -> float:
    """The number of an observation; TypeError for a profile, which is not one number."""
    if isinstance(value, Profile):
        raise TypeError("a probe reads numbers; a profile is for a check to return")
    return value.value if isinstance(value, Observed) else float(value)


def numbers_of(value: float | Observed | Profile) -> tuple[float, ...]:
    """All numbers of an observation."""
    return value.values if isinstance(value, Profile) else (number_of(value),)


def observed_series(name: str, values: Sequence[float], example: float | Observed | Profile, rank: int = 0) -> Series:
    """Observed values as a series."""
    if isinstance(example, Observed | Profile):
        return Series(name, example.unit, tuple(values), better=example.better, rank=rank)
    return Series(name, "", tuple(values), rank=rank)
