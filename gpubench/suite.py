"""What a suite's author writes with: Suite, axes, Bench, Task, Stage and views.

A case builds and returns a Task. It never loops, times, synchronises, prints or formats::

    suite = Suite("sustained memory bandwidth, STREAM kernels", views=[...])

    @suite.case(size_bytes=points(smoke=[2**24], quick=[2**30]), dtype=("float32", "float64"))
    def triad(bench, size_bytes, dtype):
        '''a = b + s·c: three arrays moved, STREAM's counting rule.'''
        ...
        return Task.of(Stage(call, Work(moved=3 * size_bytes), "moved"), check=...)
"""

from __future__ import annotations

import inspect
import itertools
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, Literal, Protocol

import numpy as np

from gpubench.errors import WrongAnswer
from gpubench.model import Better, Case, DataFile, Device, Facts, Quantity, Series, SuiteInfo, Tier, View, Work
from gpubench.protocols import Kernel, Mode, OpenDevice, Traits

Value = str | int | float
Values = Sequence[Value]


@dataclass(frozen=True, slots=True)
class Target:
    """What a plan is made for: the device, the machine, the tier and the user's data."""

    facts: Facts
    device: Device
    tier: Tier = "quick"
    data: tuple[DataFile, ...] = ()

    @property
    def is_host(self) -> bool:
        """Whether the device is the host processor."""
        return self.device.backend == "host"


@dataclass(frozen=True, slots=True)
class Points:
    """The points of an axis in each tier."""

    smoke: Values
    quick: Values
    full: Values


def points(quick: Values, smoke: Values | None = None, full: Values | None = None) -> Points:
    """An axis by tier; a tier that is left out has quick's points, smoke its first one."""
    return Points(smoke=quick[:1] if smoke is None else smoke, quick=quick, full=quick if full is None else full)


def powers_of_two(first: int, last: int, step: int = 1) -> tuple[int, ...]:
    """2**first … 2**last inclusive, each `step` doublings apart."""
    return tuple(2**exponent for exponent in range(first, last + 1, step))


Axis = Values | Points | Callable[[Target], "Values | Points"]


def _axis_values(axis: Axis, target: Target) -> Values:
    found = axis(target) if callable(axis) else axis
    return tuple(getattr(found, target.tier)) if isinstance(found, Points) else tuple(found)


class Exchange(Protocol):
    """How ranks talk: every rank calls it, each gets all values in rank order.

    Raises PeerDied, once, where a rank has ended since; from then on its value is None.
    """

    def __call__(self, value: Any) -> list[Any]: ...


def _alone(value: Any) -> list[Any]:
    return [value]


@dataclass(slots=True)
class Bench:
    """What a case is built with: the open device, its parameters' target, its ranks, its seed.

    `peers` is the device of every rank, `devices` every device of the case: one rank of a case of two
    devices has the second one's memory by `device.peer_memory(devices[1], nbytes)`.
    """

    open_device: OpenDevice
    case: Case
    target: Target
    package: str
    seed: int = 0
    rank: int = 0
    world: int = 1
    peers: tuple[Device, ...] = ()
    devices: tuple[Device, ...] = ()
    exchange: Exchange = _alone

    @property
    def device(self) -> OpenDevice:
        """The open device."""
        return self.open_device

    @property
    def xp(self) -> Any:
        """The array module: numpy or cupy."""
        return self.open_device.xp

    @property
    def traits(self) -> Traits:
        """What the device is and can do."""
        return self.open_device.traits

    @property
    def rng(self) -> np.random.Generator:
        """A fresh generator, seeded by the run's seed and the case's id: the same data every time."""
        return np.random.default_rng([self.seed, zlib.crc32(self.case.id.encode())])

    def barrier(self) -> None:
        """Wait until every rank is here; raises PeerDied."""
        self.exchange(None)

    def copies(self, nbytes: int) -> int:
        """How many sets of buffers of `nbytes` a rotation needs to outgrow the last-level cache fourfold."""
        return -(-4 * max(self.target.device.cache_bytes, 1) // nbytes) + 1

    def kernel(self, file: str, name: str, **defines: str | int) -> Kernel:
        """Compile `name` from a .cu file beside the suite, behind the `prelude.cuh` beside it if there is one.

        Both are looked for in the package above too: a suite that is a folder shares them with its neighbours.
        """
        prelude, kernels = self._beside("prelude.cuh"), self._beside(file)
        source = (prelude.read_text() if prelude.is_file() else "") + kernels.read_text()
        return self.open_device.kernel(source, name, defines)

    def _beside(self, file: str) -> Traversable:
        above = self.package.rpartition(".")[0]
        own, *others = (resources.files(package) / file for package in (self.package, above) if package)
        return next((place for place in (own, *others) if place.is_file()), own)


Observation = Mapping[str, "float | Observed | Profile"]


@dataclass(frozen=True, slots=True)
class Observed:
    """A value that is not a time: a ratio, an error, a count of bytes."""

    value: float
    unit: str = ""
    better: Better = "less"


def nothing() -> None:
    """The default of a task's optional hooks."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Values that are no times and belong together in their order, such as a row of a matrix; a check returns them."""

    values: tuple[float, ...]
    unit: str = ""
    better: Better = "less"


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


Builder = Callable[..., Task]


@dataclass(frozen=True, slots=True)
class Definition:
    """A case as declared: its builder and its axes."""

    name: str
    build: Builder
    axes: tuple[tuple[str, Axis], ...]
    version: int
    ranks: Callable[[Mapping[str, Value]], int]
    devices: Callable[[Mapping[str, Value]], int]
    when: Callable[[Target], bool]
    where: Callable[[Target, Mapping[str, Value]], bool]
    headline: Mapping[str, Value] | None


class Suite:
    """A named set of cases; its name is its module's (a file's or a folder's), its .cu files stand beside it."""

    def __init__(self, summary: str, views: Sequence[View] = ()) -> None:
        self.summary = summary
        self.views = tuple(views)
        self.definitions: dict[str, Definition] = {}
        self.module = ""

    @property
    def name(self) -> str:
        """The suite's name: the file it is written in."""
        return self.module.rpartition(".")[2]

    @property
    def package(self) -> str:
        """The package whose folder holds the suite's kernels: the suite itself, where it is a folder."""
        is_folder = hasattr(sys.modules.get(self.module), "__path__")
        return self.module if is_folder else self.module.rpartition(".")[0]

    def case(
        self,
        *,
        version: int = 1,
        ranks: int | Callable[[Mapping[str, Value]], int] = 1,
        devices: Callable[[Mapping[str, Value]], int] = lambda _: 1,
        when: Callable[[Target], bool] = lambda _: True,
        where: Callable[[Target, Mapping[str, Value]], bool] = lambda *_: True,
        headline: Mapping[str, Value] | None = None,
        **axes: Axis,
    ) -> Callable[[Builder], Builder]:
        """Declare a case.

        Each axis is a keyword: values, `points(...)`, or a function of the Target giving either.
        `ranks` processes build and run it together (a number, or one by the parameters); `devices` says,
        from the parameters, over how many devices they are spread (the device and its first peers; an axis
        `peer` names the second itself); `when` leaves the case out on other kinds of device, `where` single
        points of its axes;
        `version` rises when the method changes. `headline` marks the case that speaks for the suite
        in a headline run: of the points that share most of these values, the last that can run.
        """

        def declare(build: Builder) -> Builder:
            wanted = list(inspect.signature(build).parameters)[1:]
            if wanted != list(axes):
                raise TypeError(f"{build.__qualname__}{wanted} does not take its axes {list(axes)} in that order")
            self.module = build.__module__
            name = build.__name__.strip("_")
            count = ranks if callable(ranks) else lambda _: ranks
            self.definitions[name] = Definition(
                name, build, tuple(axes.items()), version, count, devices, when, where, headline
            )
            return build

        return declare

    def cases(self, target: Target) -> Iterator[Case]:
        """Every case of this tier on this device, in declared order; touches no device."""
        for definition in self.definitions.values():
            if not definition.when(target):
                continue
            names = [axis for axis, _ in definition.axes]
            for row in itertools.product(*(_axis_values(axis, target) for _, axis in definition.axes)):
                params = tuple(zip(names, row, strict=True))
                if not definition.where(target, dict(params)):
                    continue
                ranks, devices = definition.ranks(dict(params)), definition.devices(dict(params))
                yield Case(self.name, definition.name, params, definition.version, ranks, devices)

    def build(self, bench: Bench) -> Task:
        """Build the task of `bench.case`; raises Skip with the reason where it cannot run."""
        task: Task = self.definitions[bench.case.name].build(bench, **dict(bench.case.params))
        return task

    def info(self) -> SuiteInfo:
        """What reports need to know."""
        return SuiteInfo(self.name, self.summary, self.views)


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
