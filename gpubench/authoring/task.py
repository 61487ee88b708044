"""Define the result of building a case: stages to time, a check, and observed values other than times.

Every value is checked where it is created, in the worker: a mistake raises SuiteError, which names the field and costs
only that case."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

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
MOST_VALUES = 65_536  # the most values of one profile
_MOST_NAMES = 1000  # the most stages, notes or observed values of a task


@dataclass(frozen=True, slots=True)
class Observed:
    """A value that is not a time: a ratio, an error, a number of bytes.

    `better` says which direction is better, `more` or `less`."""

    value: float
    unit: str = ""
    better: Better = "less"

    def __post_init__(self) -> None:
        """Convert `value` to a float. Raises SuiteError, which names the wrong field."""
        object.__setattr__(self, "value", checks.number("Observed.value", self.value))
        checks.text("Observed.unit", self.unit)
        checks.choice("Observed.better", self.better, checks.BETTER)


@dataclass(frozen=True, slots=True)
class Profile:
    """Values other than times that belong together in order, such as a row of a matrix; a check returns them.

    `unit` and `better` (the direction that is better, `more` or `less`) hold for all values."""

    values: tuple[float, ...]
    unit: str = ""
    better: Better = "less"

    def __post_init__(self) -> None:
        """Convert `values`, 1 to 65,536 numbers, to floats. Raises SuiteError, which names the wrong field."""
        try:
            values = tuple(self.values)
        except TypeError:
            raise checks.invalid_value("Profile.values", self.values, "a sequence of numbers") from None
        if not 0 < len(values) <= MOST_VALUES:
            raise SuiteError(f"Profile.values has {len(values)} values, not 1 to {MOST_VALUES}")
        object.__setattr__(self, "values", tuple(checks.number("Profile.values", value) for value in values))
        checks.text("Profile.unit", self.unit)
        checks.choice("Profile.better", self.better, checks.BETTER)


Observation = Mapping[str, "float | Observed | Profile"]


def nothing() -> None:
    """Do nothing: the default of a task's optional hooks."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One timed call of a task.

    `work` has the counts of one call. `quantity` selects the figure: `value` the time itself, `item` seconds per item,
    `items` items per second, and `moved`, `payload` or `flops` the rate of that count. `limit` is the peak with which
    the figure is compared, or empty. `modes` are the modes in which the engine times the call. clock: with `device` the
    engine times the call by device events; with `host` by the host's clock around a batch of calls and a
    synchronisation; with `self` the call times itself and returns seconds, or a sequence of them, one per sample.
    `waits` marks a call that waits for the device itself (a pageable copy, an allocation): it is never gated.
    `rotation` is the same call on buffers that together are larger than the last-level cache (`Bench.copies`), and
    `buffers` has the array that each of them reads: the engine inverts the bits of one, and its answer must change.
    `effort` is how long it is sampled: `POINT` for a point of a dense curve, `Effort.sustained(30)` for a rate that
    must be sustained, `TIER.with_tail(10_000)` for a tail, `Effort.exactly(3)` for calls that start from nothing.
    `lead` is queued before each batch, outside its time: it synchronises ranks on their devices. `also` counts the same
    samples in other ways, each as its own series: a rate in addition to the sum of both directions. `rest_s` is the
    idle time of the device before each sample, which shows its speed in a burst, before its power cap acts. `item`
    names an item if the quantity is `items`: the figure is then in `token/s`. `checked` marks a call that times itself,
    overwrites its output and compares all of it in each call: it is not called again for a check. `outputs` are the
    arrays that the call writes, on the host or the device: the engine overwrites them before each checked call, floats
    with NaN and whole numbers with all bits set. `inputs` puts another input in place, at best a new one, with another
    answer and the same cost: the engine calls it before each checked call, and the check expects the present one's
    answer, so that no call can return an earlier answer. `doubled` is the call with twice its passes, for a kernel that
    repeats passes over its data: it must take twice as long, or passes are left out. It may leave other outputs."""

    call: Callable[[], object]
    work: Work = field(default_factory=Work)
    quantity: Quantity = "value"
    limit: str = ""
    modes: tuple[Mode, ...] = ("hot",)
    clock: Clock = "device"
    waits: bool = False
    max_calls: int = 0  # the most calls of a batch; with 0 the engine decides
    effort: Effort = TIER
    lead: Callable[[], object] = nothing
    also: Mapping[str, Work] = field(default_factory=dict)
    probe: Callable[[], Observation] | None = None  # called after each sample, outside its time
    rotation: tuple[Callable[[], object], ...] = ()  # the same call on other buffers, in turn, for the mode `rotated`
    buffers: Sequence[Any] = ()  # the array that each call of the rotation reads
    rest_s: float = 0.0
    item: str = "item"
    checked: bool = False
    outputs: Sequence[Any] = ()
    inputs: Callable[[], object] | None = None  # puts another input in place
    doubled: Callable[[], object] | None = None  # the call with twice its passes

    def __post_init__(self) -> None:
        """Check every field, and convert numbers and sequences to plain floats, ints, bools and tuples."""
        put = object.__setattr__
        for name in ("call", "lead"):
            checks.function(f"Stage.{name}", getattr(self, name))
        for name in ("probe", "inputs", "doubled"):
            if getattr(self, name) is not None:
                checks.function(f"Stage.{name}", getattr(self, name))
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
        put(self, "outputs", checks.arrays("Stage.outputs", self.outputs))
        put(self, "buffers", checks.arrays("Stage.buffers", self.buffers))
        if self.buffers and len(self.buffers) != len(self.rotation):
            raise SuiteError(f"Stage.buffers has {len(self.buffers)} arrays for {len(self.rotation)} calls")
        put(self, "waits", bool(self.waits))
        put(self, "checked", bool(self.checked))
        if self.checked and self.clock != "self":
            raise SuiteError(f"Stage.checked is for calls that time themselves, and the clock is {self.clock}")
        put(self, "max_calls", checks.count("Stage.max_calls", self.max_calls, _MOST_CALLS))
        put(self, "rest_s", checks.number("Stage.rest_s", self.rest_s, 0.0, _MOST_REST_S))
        checks.name("Stage.item", self.item)
        if not isinstance(self.effort, Effort):
            raise checks.invalid_value(
                "Stage.effort", self.effort, "an Effort: TIER, POINT or Effort.sustained(seconds)"
            )


def _modes(modes: object) -> tuple[Mode, ...]:
    """Return `modes`, a tuple or list of names, as a tuple with each mode once, in order."""
    if isinstance(modes, str) or not isinstance(modes, tuple | list):
        raise checks.invalid_value("Stage.modes", modes, f"a tuple of {', '.join(_MODES)}")
    for mode in modes:
        checks.choice("Stage.modes", mode, _MODES)
    return tuple(dict.fromkeys(modes))


def no_values() -> Observation:
    """Return no observed values: the check of an idle rank, which has nothing to check."""
    return {}


@dataclass(frozen=True, slots=True)
class Task:
    """The result of building a case: stages by name (the first is the headline), a check, and a clean-up.

    `poison` overwrites, before the call that is checked, what is not in the `outputs` of a stage. `check` raises
    WrongAnswer, or returns observed values or None. `close` releases what this rank opened; `release`, which runs after
    every rank has closed, releases the objects that other ranks had open. `labels` describe the state in which its
    figures hold: `time-sliced`."""

    stages: Mapping[str, Stage]
    check: Callable[[], Observation | None] = no_values
    poison: Callable[[], None] = nothing
    close: Callable[[], None] = nothing
    notes: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    release: Callable[[], None] = nothing

    def __post_init__(self) -> None:
        """Check every field, and convert the values of `notes` to texts."""
        for name in ("check", "poison", "close", "release"):
            checks.function(f"Task.{name}", getattr(self, name))
        for name, stage in _entries("Task.stages", self.stages).items():
            if name != "":
                checks.name("Task.stages", name)
            if not isinstance(stage, Stage):
                raise checks.invalid_value(f"Task.stages[{name!r}]", stage, "a Stage")
        notes = _entries("Task.notes", self.notes).items()
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
        """Return a task with `stage` as its only stage.

        The other arguments are fields of Task; None means no notes. Raises SuiteError if a field is wrong."""
        return cls({"": stage}, check, poison, close, notes or {}, labels, release)

    @classmethod
    def idle(cls, close: Callable[[], None] = nothing) -> Task:
        """Return the task of a rank that only holds resources while the others work."""
        return cls({}, close=close)


def _entries(field: str, value: object) -> Mapping[str, object]:
    """Return `value` unchanged if it is a mapping of at most 1000 entries."""
    entries = checks.mapping(field, value)
    if len(entries) > _MOST_NAMES:
        raise SuiteError(f"{field} has {len(entries)} entries, more than {_MOST_NAMES}")
    return entries


def expect(condition: bool, message: str) -> None:
    """Raise WrongAnswer with the message if the condition does not hold."""
    if not condition:
        raise WrongAnswer(message)


def observed(source: str, returned: object) -> dict[str, Observed | Profile]:
    """Return the observed values by name in what a check or a probe `returned`, with plain numbers as `Observed`.

    `source` names the function in errors (`the check`)."""
    if returned is None:
        return {}
    values: dict[str, Observed | Profile] = {}
    for name, value in _entries(f"what {source} returns", returned).items():
        checks.name(f"what {source} returns", name)
        values[name] = value if isinstance(value, Observed | Profile) else Observed(typing.cast(float, value))
    return values


def observed_series(name: str, values: tuple[float, ...], example: Observed | Profile, **where: typing.Any) -> Series:
    """Return observed values as a series; `example` gives their unit and direction, `where` its stage and rank."""
    return Series(name, example.unit, values, better=example.better, role="observed", **where)
