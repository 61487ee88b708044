"""Define a run: its settings, the views of its suites, and all its results.

Define a case: one point of one benchmark, and the id under which every baseline stores it.

Define the results of measuring: the work of a call, series of values, and the result of a case."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from gpubench.base.units import axis_label, axis_text
from gpubench.model.counters import Counter, Remark, Samples
from gpubench.model.facts import DataFile, Facts
from gpubench.model.limits import Amount, Count, Few, Many, Moment, Name, Number, Rate, Seconds, Text, Whole, Word
from gpubench.model.schema import Strict

Params = Many[tuple[Word, Name | Whole | Number]]


class _Named:
    """Room for the id of a case beside its fields: a gate needs the id of each case about a dozen times."""

    __slots__ = ("_id",)
    _id: str


@dataclass(frozen=True, slots=True)
class Case(_Named, Strict):
    """One point of one benchmark; its `id` is the key of every baseline and stable once released.

    `params` are the values on its axes in declared order, `version` is the version of its method, `ranks` the number of
    processes that measure it together, and `devices` the number of their devices."""

    suite: Word
    name: Word
    params: Params = ()
    version: Count = 1
    ranks: Count = 1
    devices: Count = 1

    @property
    def id(self) -> str:
        """The id, with the axes in declared order: `bandwidth/triad[size=1GiB,dtype=float32]`."""
        try:
            return self._id
        except AttributeError:
            axes = ",".join(f"{axis_label(axis)}={axis_text(axis, value)}" for axis, value in self.params)
            object.__setattr__(self, "_id", f"{self.suite}/{self.name}" + (f"[{axes}]" if axes else ""))
            return self._id

    def param(self, axis: str) -> str | int | float:
        """Return the value on one axis. Raises KeyError if the case has no such axis."""
        return dict(self.params)[axis]


Better = Literal["more", "less"]


Quantity = Literal["value", "moved", "payload", "flops", "item", "items"]


SeriesMode = Literal["", "hot", "each", "cold", "graph", "rotated", "host", "self"]
Role = Literal["primary", "early", "derived", "observed"]
Status = Literal["ok", "skipped", "failed", "invalid"]


# The peaks that a series may be compared with; `gpubench.knowledge.hardware` knows their values.
LIMITS = (
    *("dram", "l2", "shared", "link.h2d", "link.d2h", "link.peer"),
    *("float64", "float32", "float16", "int32"),
    *("tensor.float64", "tensor.tf32", "tensor.float16", "tensor.bfloat16", "tensor.float8", "tensor.float4"),
    "tensor.int8",
)


@dataclass(frozen=True, slots=True)
class Work(Strict):
    """The work of one call, which the suite's author counts by the rules of docs/method.md.

    `moved` is bytes read plus written, `payload` bytes delivered once, `flops` floating-point operations, and `items`
    dependent steps, messages or calls."""

    moved: Amount = 0.0
    payload: Amount = 0.0
    flops: Amount = 0.0
    items: Amount = 0.0


@dataclass(frozen=True, slots=True)
class Series(Strict):
    """The one type of measured values: timings by sample (`at` is empty), or values over time (`at` in s).

    `stage` is the part of the task, and `mode` the way it was timed. `role` is the kind of the series: `primary`
    samples of a stage, `early` ones from before it settled, `derived` ones computed from the same samples (counted in
    another way, or the host's time), or `observed` values that are no times. `name` is the author's name for a derived
    or observed series; a primary one is named by its mode.

    `quantity` decides which figure is judged: `value` the values themselves, `item` seconds per item, `items` items per
    second (`item` names one: token), and otherwise the rate of that part of `work`. `limit` names the peak that it is
    compared with (`dram`, `tensor.float16`, …). `stop` is the reason why sampling ended (docs/method.md), and `rank`
    the process that took it. `calls` is the number of calls in one sample. `clock_hz` is the median clock of the
    device's compute units after its samples, None if it was not read. `checks` is the number of its calls whose answers
    were checked, None in a file of an earlier version or of another tool."""

    name: Word
    unit: Word
    values: Many[Number]
    at: Many[Moment] = ()
    stage: Word = ""
    mode: SeriesMode = ""
    role: Role = "observed"
    work: Work = field(default_factory=Work)
    quantity: Quantity = "value"
    better: Better = "less"
    limit: Word = ""
    item: Word = "item"
    rank: Count = 0
    calls: Count = 1
    stop: Word = ""
    warmup_s: Seconds = 0.0
    clock_hz: Rate | None = None
    checks: Count | None = None

    @property
    def label(self) -> str:
        """The name of a series within its case, for people: `hot`, `compress.hot`, `compress.early`, `ratio`."""
        word = self.name or ("early" if self.role == "early" else self.mode)
        return f"{self.stage}.{word}" if self.stage else word

    @property
    def short(self) -> str:
        """The label, shortened to the stage for its plain timing: `compress`."""
        plain = self.role == "primary" and self.mode in ("hot", "self")
        return self.stage if plain and self.stage else self.label


@dataclass(frozen=True, slots=True)
class Result(Strict):
    """The outcome of one case on one device set in one replicate.

    `cause` is a slug for programs and `reason` a sentence for a status other than ok. `discarded` counts the discarded
    batches or samples by reason, and `elapsed_s` is the time that the case took in seconds."""

    case: Case
    devices: Many[Word]
    status: Status
    replicate: Count = 0
    cause: Word = ""
    reason: Text = ""
    series: Many[Series] = ()
    discarded: Many[tuple[Name, Count]] = ()
    labels: Many[Name] = ()  # the state of the device during the samples: `power-capped`, `loaded`
    notes: Many[tuple[Word, Text]] = ()
    window: tuple[Moment, Moment] = (0.0, 0.0)  # s since the manifest's `started_at`, joins the samples
    elapsed_s: Seconds = 0.0

    @property
    def key(self) -> tuple[str, tuple[str, ...], int]:
        """The key of a result, which is unique in a run: case id, device set, replicate."""
        return (self.case.id, self.devices, self.replicate)


Tier = Literal["smoke", "quick", "full", ""]  # empty for a run that another tool measured


@dataclass(frozen=True, slots=True)
class View(Strict):
    """A picture that a suite asks for, as data: reports draw its kind and never depend on a suite's name.

    `cases` are the names of the cases that it shows. `series` is the label of one of their series; without it the
    headline is shown.

    `curve` shows `series` over the numeric axis `x`, with one line for each value of `by`. `bars` has one bar per case.
    `matrix` shows axis `x` against axis `y`; if `series` ends in `*`, its rows are the series with that prefix (`y`
    names what their endings mean), and its columns are their values (`x` names what these are). `pareto` shows series
    `x` against series `y`. `staircase` is a curve whose levels are found by change points. `transfer` shows time over
    size, with α, β and n½ of each line and the sizes at which two lines cross.

    `breakeven` shows the links over which compression pays, from the stages `compress` and `decompress` and the value
    `ratio`; if a stage `raw` moves the same bytes uncompressed over a link, it also shows the verdict on that link.
    `serving` shows simulated latencies over the rate of queries, from the steps (axes `batch` and `context`) and
    prefills (`tokens`) of a language model, next to measured sessions (`prompt` and `output`). `amortisation` shows the
    number of calls after which a compiler has earned back its cost, compared with the providers that the note `eager`
    names. It needs operators by several providers (axis `by`, and the axis `x`, whose values are operators) and builds
    of them (axes `op`, `by` and `cache`).

    `choice` shows what a model that chooses among measured ways loses, by the axis `x`: the ways are the cases, the
    values of `by`, and with the series `*` the stages. `interval` shows after how many steps to save or to exchange:
    `series` is the cost, `y` the series of a step, and a stage `resume` means that failures are the reason. `scaling`
    computes collectives of more devices: the first case has single hops by the size `x`, and the second one, by the
    topology `by`, shows the error of the model."""

    kind: Literal[
        "curve",
        "bars",
        "matrix",
        "pareto",
        "staircase",
        "transfer",
        "breakeven",
        "serving",
        "amortisation",
        "choice",
        "interval",
        "scaling",
    ]
    title: Text
    cases: Many[Word]
    x: Word = ""
    y: Word = ""
    by: Many[Word] = ()
    series: Word = ""
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, slots=True)
class KeyFigure(Strict):
    """A figure that stands at the top of every summary of a run.

    It is a figure of the case named `case` whose parameters equal the texts of `params`. Where `params` has numbers,
    the case with the nearest values is taken, so that every tier and device has one. `series` is the label of a series
    of that case; an empty one means the headline."""

    title: Text
    case: Word
    params: Params = ()
    series: Word = ""


@dataclass(frozen=True, slots=True)
class SuiteInfo(Strict):
    """The facts about a suite that a report needs: its sentence, its views and its key figures."""

    name: Word
    summary: Text
    views: Few[View] = ()
    key_figures: Few[KeyFigure] = ()


@dataclass(frozen=True, slots=True)
class NamedLink(Strict):
    """A link that this machine does not have, with its rate in B/s: transfers over it are modelled, never measured."""

    name: Text
    rate: Rate


@dataclass(frozen=True, slots=True)
class Settings(Strict):
    """The settings of a run; a resumed run must have the same. `filters` are patterns of case ids."""

    suites: Many[Name]
    devices: Many[Word]
    tier: Tier = "quick"
    filters: Many[Text] = ()
    replicates: Count = 1
    seed: Whole = 0
    data: Many[DataFile] = ()
    headline: bool = False  # only the headline cases of each suite
    links: Many[NamedLink] = ()
    nodes: Count = 1  # machines that measured together, each with its own run file
    paranoid: bool = False  # the answer of each batch was checked


@dataclass(frozen=True, slots=True)
class Manifest(Strict):
    """The first record of a run file: which machine measured which cases, where, and with which versions."""

    schema: Word
    gpubench: Word
    facts: Facts
    settings: Settings
    suites: Many[SuiteInfo]
    counters: Many[Counter]
    argv: Many[Text]
    started: Name  # ISO 8601, UTC
    started_at: Moment  # CLOCK_MONOTONIC seconds, the zero of `Samples.at` and `Result.window`


@dataclass(frozen=True, slots=True)
class Run:
    """A whole run; `complete` is False for a file without an end record, which is a valid partial run."""

    manifest: Manifest
    results: tuple[Result, ...] = ()
    samples: tuple[Samples, ...] = ()
    complete: bool = True
    warnings: tuple[str, ...] = ()
    remarks: tuple[Remark, ...] = ()

    @property
    def messages(self) -> tuple[str, ...]:
        """The messages for the reader of a run: warnings of the file, then lost counters and events, each once."""
        return (*self.warnings, *dict.fromkeys(remark.text for remark in self.remarks if remark.state != "absent"))


class Verdict(StrEnum):
    """The verdict of a gate on a case, in the order of a list: the worst first, and last cases that are not comparable.

    `suspect` exists only between two measurements."""

    SLOWER = "slower"
    SUSPECT = "suspect"
    INVALID = "invalid"
    INCONCLUSIVE = "inconclusive"
    FASTER = "faster"
    SAME = "same"
    NOT_COMPARABLE = "not comparable"
