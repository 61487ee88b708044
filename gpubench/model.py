"""The values that cross the seam: frozen, in SI units, the same in memory and in the run file.

Sizes are bytes, times seconds, rates never stored: a rate is `Work / time`, derived in
`gpubench.summary`. Every class is checked strictly when it is read from a file (`gpubench.store`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from gpubench.units import axis_label, axis_text

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "gpubench.run/1"

Params = tuple[tuple[str, str | int | float], ...]
Better = Literal["more", "less"]
Quantity = Literal["value", "moved", "payload", "flops", "item", "items"]
Status = Literal["ok", "skipped", "failed", "invalid"]
Tier = Literal["smoke", "quick", "full", ""]  # the empty one is that of what another tool measured

STRICT: dict[str, Any] = {"extra": "forbid", "strict": True, "allow_inf_nan": False}


@dataclass(frozen=True, slots=True)
class Device:
    """One device as the inventory saw it.

    `id` is what the user types (`cuda:0`), `uuid` and `pci` join it to counters (NVML's index is
    not CUDA's ordinal), `details` are settings a gate compares (power limit, ECC, MIG, …).
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    id: str
    backend: str
    name: str
    arch: str
    uuid: str = ""
    pci: str = ""
    memory_bytes: int = 0
    cache_bytes: int = 0  # the last-level cache
    units: int = 0  # multiprocessors, compute units or processor cores
    dtypes: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()  # ids of devices whose memory this one can reach
    details: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Absent:
    """A backend or counter source that is not usable here, and how to get it."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    what: str
    reason: str
    how: str


@dataclass(frozen=True, slots=True)
class Facts:
    """The frozen inventory of a machine, taken once in a child process."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    devices: tuple[Device, ...]
    host: tuple[tuple[str, str], ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    absent: tuple[Absent, ...] = ()

    def device(self, device_id: str) -> Device:
        """The device of that id; KeyError where there is none."""
        for device in self.devices:
            if device.id == device_id:
                return device
        raise KeyError(device_id)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of the user's own (`--data`): its label in case ids, its path, size and a hash of its first 16 MiB."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    label: str
    path: str
    bytes: int
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """One point of one benchmark; its `id` is the key of every baseline, stable once released."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    suite: str
    name: str
    params: Params = ()
    version: int = 1
    ranks: int = 1
    devices: int = 1

    @property
    def id(self) -> str:
        """`bandwidth/triad[size=1GiB,dtype=float32]`, axes in declared order."""
        return _case_id(self)

    def param(self, axis: str) -> str | int | float:
        """The value on one axis; KeyError where the case has no such axis."""
        return dict(self.params)[axis]


@functools.lru_cache(maxsize=2**16)  # a gate asks it of each case a dozen times over
def _case_id(case: Case) -> str:
    axes = ",".join(f"{axis_label(axis)}={axis_text(axis, value)}" for axis, value in case.params)
    return f"{case.suite}/{case.name}" + (f"[{axes}]" if axes else "")


@dataclass(frozen=True, slots=True)
class Work:
    """What one call does, counted by the suite's author by the rules of docs/method.md.

    moved: bytes read plus written; payload: bytes delivered once; flops: floating-point
    operations; items: dependent steps, messages or calls.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    moved: float = 0.0
    payload: float = 0.0
    flops: float = 0.0
    items: float = 0.0


@dataclass(frozen=True, slots=True)
class Series:
    """The one measured thing: timings by sample (`at` empty), or values over time (`at` in s).

    `quantity` says what is judged: `value` the values themselves, `item` seconds per item, `items` items a
    second (`item` names one: token), else the rate of that part of `work`. `limit` names the peak it is held
    against (`dram`, `tensor.float16`, …), `stop` why sampling ended, `rank` which process took it.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    name: str
    unit: str
    values: tuple[float, ...]
    at: tuple[float, ...] = ()
    work: Work = field(default_factory=Work)
    quantity: Quantity = "value"
    better: Better = "less"
    limit: str = ""
    item: str = "item"
    rank: int = 0
    calls: int = 1
    stop: str = ""
    warmup_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one case on one device set in one replicate."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    case: Case
    devices: tuple[str, ...]
    status: Status
    replicate: int = 0
    cause: str = ""
    reason: str = ""
    series: tuple[Series, ...] = ()
    discarded: tuple[tuple[str, int], ...] = ()
    labels: tuple[str, ...] = ()  # the state it was measured in: `power-capped`, `loaded`
    notes: tuple[tuple[str, str], ...] = ()
    window: tuple[float, float] = (0.0, 0.0)  # s since the manifest's `started_at`, joins the samples
    elapsed_s: float = 0.0

    @property
    def key(self) -> tuple[str, tuple[str, ...], int]:
        """What makes a result unique in a run: case id, device set, replicate."""
        return (self.case.id, self.devices, self.replicate)


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


@dataclass(frozen=True, slots=True)
class View:
    """A picture a suite asks for, as data: reports draw kinds and never know a suite's name.

    curve: `series` over the numeric axis `x`, a line for each value of `by`; bars: one bar a
    case; matrix: axis `x` against axis `y`, or, where `series` ends in `*`, the series whose names
    begin so as rows (`y` says what their endings are) and their values as columns (`x` what these
    are); pareto: series `x` against series `y`; staircase: a curve whose levels are found by change
    points; transfer: time over size, with α, β and n½ of each line and where two lines cross; breakeven: from stages
    `compress` and `decompress` and the value `ratio` the links over which compressing pays, and where a stage `raw`
    moves the same bytes uncompressed over a link, the verdict on that link.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    kind: Literal["curve", "bars", "matrix", "pareto", "staircase", "transfer", "breakeven"]
    title: str
    cases: tuple[str, ...]
    x: str = ""
    y: str = ""
    by: tuple[str, ...] = ()
    series: str = ""
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, slots=True)
class SuiteInfo:
    """What a report needs to know of a suite: its sentence and its views."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    name: str
    summary: str
    views: tuple[View, ...] = ()


@dataclass(frozen=True, slots=True)
class NamedLink:
    """A link that is not here, by its rate in B/s: what crosses it is modelled, never measured."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    name: str
    rate: float


@dataclass(frozen=True, slots=True)
class Settings:
    """What was asked for; a resumed run must have the same."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    suites: tuple[str, ...]
    devices: tuple[str, ...]
    tier: Tier = "quick"
    filters: tuple[str, ...] = ()
    replicates: int = 1
    seed: int = 0
    data: tuple[DataFile, ...] = ()
    headline: bool = False  # only the headline case of each suite
    links: tuple[NamedLink, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """The first record of a run file: who measured what, where, with which versions."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    schema: str
    gpubench: str
    facts: Facts
    settings: Settings
    suites: tuple[SuiteInfo, ...]
    counters: tuple[Counter, ...]
    argv: tuple[str, ...]
    started: str  # ISO 8601, UTC
    started_at: float  # CLOCK_MONOTONIC seconds, the zero of `Samples.at` and `Result.window`


@dataclass(frozen=True, slots=True)
class Run:
    """A run as a whole; `complete` is False for a file without an end (a valid partial run)."""

    manifest: Manifest
    results: tuple[Result, ...] = ()
    samples: tuple[Samples, ...] = ()
    complete: bool = True
    warnings: tuple[str, ...] = ()
    remarks: tuple[Remark, ...] = ()

    @property
    def told(self) -> tuple[str, ...]:
        """What a reader has to be told: the warnings of the file, then what was lost or met while sampling."""
        return (*self.warnings, *dict.fromkeys(remark.text for remark in self.remarks if remark.state != "absent"))

    def to_frame(self, samples: bool = False) -> pd.DataFrame:
        """A data frame with a line a series (columns: docs/reports.md), or with `samples` a line a sample."""
        from gpubench import frame  # above this module in the layers: only when it is called

        return frame.to_frame(self, samples)

    def _repr_html_(self) -> str:
        """What a notebook shows of a run."""
        from gpubench import frame

        return frame.to_html(self)


class Verdict(StrEnum):
    """What a gate says of a case, the worst first. `suspect` stands only between two measurements."""

    SLOWER = "slower"
    SUSPECT = "suspect"
    INVALID = "invalid"
    NOT_COMPARABLE = "not comparable"
    INCONCLUSIVE = "inconclusive"
    FASTER = "faster"
    SAME = "same"
