"""What a case returns: stages to time, a check, and what is observed beside the time.

Every value is checked where it is made, in the worker: a mistake raises SuiteError, which names the field and costs
that case alone.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from gpubench.authoring import checks
from gpubench.authoring.effort import TIER, Effort
from gpubench.base.errors import SuiteError, WrongAnswer
from gpubench.model import Better, Quantity, Series, Work
from gpubench.plugins.backend import Mode

Clock = Literal["device", "host", "self"]
_MODES: tuple[Mode, ...] = typing.get_args(Mode)
_CLOCKS: tuple[Clock, ...] = typing.get_args(Clock)
_QUANTITIES: tuple[Quantity, ...] = typing.get_args(Quantity)
_MOST_CALLS = 1_000_000
_MOST_REST_S = 60.0
MOST_VALUES = 65_536  # of one profile
_MOST_NAMES = 1000  # of stages, notes and observed values


@dataclass(frozen=True, slots=True)
class Observed:
    """A value that is not a time: a ratio, an error, a count of bytes."""

    value: float
    unit: str = ""
    better: Better = "less"

    def __post_init__(self) -> None:
        """Coerce the value to a float; raise SuiteError that names the field which is wrong."""
        object.__setattr__(self, "value", checks.number("Observed.value", self.value))
        checks.text("Observed.unit", self.unit)
        checks.choice("Observed.better", self.better, checks.BETTER)


@dataclass(frozen=True, slots=True)
class Profile:
    """Values that are no times and belong together in their order, such as a row of a matrix; a check returns them."""

    values: tuple[float, ...]
    unit: str = ""
    better: Better = "less"

    def __post_init__(self) -> None:
        """Coerce the values to floats; raise SuiteError that names the field which is wrong."""
        try:
            values = tuple(self.values)
        except TypeError:
            raise checks.wrong("Profile.values", self.values, "a sequence of numbers") from None
        if not 0 < len(values) <= MOST_VALUES:
            raise SuiteError(f"Profile.values has {len(values)} values, not 1 to {MOST_VALUES}")
        object.__setattr__(self, "values", tuple(checks.number("Profile.values", value) for value in values))
        checks.text("Profile.unit", self.unit)
        checks.choice("Profile.better", self.better, checks.BETTER)


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
    `effort` is how long it is sampled: `POINT` for a point of a dense curve, `Effort.sustained(30)` for a rate that has
    to hold, `TIER.with_tail(10_000)` for a tail, `Effort.exactly(3)` for calls that start from nothing.
    `lead` is queued ahead of each batch, outside its time: it brings ranks in step on their devices.
    `also` counts the same samples in other ways, each a series of its own: a rate beside the sum of both directions.
    `rest_s` is how long the device idles before each sample: what it does in a burst, before its power cap acts.
    `item` says what an item is where the quantity is `items`: its figure is `token/s`.
    `checked` marks a call that times itself, overwrites its output and compares all of it, each time it is called: it
    is not called once more for a check.
    """

    call: Callable[[], object]
    work: Work = field(default_factory=Work)
    quantity: Quantity = "value"
    limit: str = ""
    modes: tuple[Mode, ...] = ("hot",)
    clock: Clock = "device"
    waits: bool = False
    max_calls: int = 0  # of a batch; 0 leaves it to the engine
    effort: Effort = TIER
    lead: Callable[[], object] = nothing
    also: Mapping[str, Work] = field(default_factory=dict)
    probe: Callable[[], Observation] | None = None  # read after each sample, outside its time
    rotation: tuple[Callable[[], object], ...] = ()  # the same call on other buffers, in turn: mode `rotated`
    rest_s: float = 0.0
    item: str = "item"
    checked: bool = False

    def __post_init__(self) -> None:
        """Coerce numbers and sequences; raise SuiteError that names the field which is wrong."""
        put = object.__setattr__
        for name in ("call", "lead"):
            checks.function(f"Stage.{name}", getattr(self, name))
        if self.probe is not None:
            checks.function("Stage.probe", self.probe)
        checks.choice("Stage.quantity", self.quantity, _QUANTITIES)
        checks.limit("Stage.limit", self.limit)
        checks.choice("Stage.clock", self.clock, _CLOCKS)
        put(self, "modes", _modes(self.modes))
        put(self, "rotation", checks.functions("Stage.rotation", self.rotation))
        if not self.modes and not self.rotation and self.clock == "device":
            raise SuiteError("Stage.modes is empty, and there is no rotation: nothing would be timed")
        put(self, "work", checks.work("Stage.work", self.work, self.quantity))
        also = checks.mapping("Stage.also", self.also).items()
        works = {checks.name("Stage.also", name): checks.work("Stage.also", work, self.quantity) for name, work in also}
        put(self, "also", works)
        put(self, "waits", bool(self.waits))
        put(self, "checked", bool(self.checked))
        if self.checked and self.clock != "self":
            raise SuiteError(f"Stage.checked is for calls that time themselves, and the clock is {self.clock}")
        put(self, "max_calls", checks.count("Stage.max_calls", self.max_calls, _MOST_CALLS))
        put(self, "rest_s", checks.number("Stage.rest_s", self.rest_s, 0.0, _MOST_REST_S))
        checks.name("Stage.item", self.item)
        if not isinstance(self.effort, Effort):
            raise checks.wrong("Stage.effort", self.effort, "an Effort: TIER, POINT or Effort.sustained(seconds)")


def _modes(modes: object) -> tuple[Mode, ...]:
    if isinstance(modes, str) or not isinstance(modes, tuple | list):
        raise checks.wrong("Stage.modes", modes, f"a tuple of {', '.join(_MODES)}")
    for mode in modes:
        checks.choice("Stage.modes", mode, _MODES)
    return tuple(dict.fromkeys(modes))


def no_values() -> Observation:
    """The check of a task that has none: only an idle rank's."""
    return {}


@dataclass(frozen=True, slots=True)
class Task:
    """What a case returns: stages by name (the first is the headline), a check, a clean-up.

    `poison` spoils the outputs before a check's call; `check` raises WrongAnswer or returns
    observed values, or nothing. `close` lets go of what was opened; `release`, when every rank has closed, of what the
    others had open. `labels` say of what state its figures are: `time-sliced`.
    """

    stages: Mapping[str, Stage]
    check: Callable[[], Observation | None] = no_values
    poison: Callable[[], None] = nothing
    close: Callable[[], None] = nothing
    notes: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    release: Callable[[], None] = nothing

    def __post_init__(self) -> None:
        """Coerce notes to texts; raise SuiteError that names the field which is wrong."""
        for name in ("check", "poison", "close", "release"):
            checks.function(f"Task.{name}", getattr(self, name))
        for name, stage in _few("Task.stages", self.stages).items():
            if name != "":
                checks.name("Task.stages", name)
            if not isinstance(stage, Stage):
                raise checks.wrong(f"Task.stages[{name!r}]", stage, "a Stage")
        notes = _few("Task.notes", self.notes).items()
        texts = {checks.name("Task.notes", name): checks.text(f"Task.notes[{name!r}]", value) for name, value in notes}
        object.__setattr__(self, "notes", texts)
        object.__setattr__(self, "labels", checks.names("Task.labels", self.labels))

    @classmethod
    def of(
        cls,
        stage: Stage,
        *,
        check: Callable[[], Observation | None],
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


def _few(field: str, value: object) -> Mapping[str, object]:
    found = checks.mapping(field, value)
    if len(found) > _MOST_NAMES:
        raise SuiteError(f"{field} has {len(found)} entries, more than {_MOST_NAMES}")
    return found


def expect(condition: bool, message: str) -> None:
    """Raise WrongAnswer with the message where the condition does not hold."""
    if not condition:
        raise WrongAnswer(message)


def observed(source: str, found: object) -> dict[str, Observed | Profile]:
    """Return what a check or a probe (`source`) observed, plain numbers as `Observed`; raises SuiteError.

    None is what a check that only asserts returns: nothing was observed.
    """
    if found is None:
        return {}
    values: dict[str, Observed | Profile] = {}
    for name, value in _few(f"what {source} returns", found).items():
        checks.name(f"what {source} returns", name)
        values[name] = value if isinstance(value, Observed | Profile) else Observed(typing.cast(float, value))
    return values


def observed_series(name: str, values: tuple[float, ...], example: Observed | Profile, **where: typing.Any) -> Series:
    """Return observed values as a series; `where` are its stage and rank."""
    return Series(name, example.unit, values, better=example.better, role="observed", **where)
