"""Define the results of measuring: the work of a call, series of values, and the result of a case."""

from dataclasses import dataclass, field
from typing import Literal

from gpubench.model.cases import Case
from gpubench.model.limits import Amount, Count, Many, Moment, Name, Number, Rate, Seconds, Text, Word
from gpubench.model.schema import Strict

Better = Literal["more", "less"]


Quantity = Literal["value", "moved", "payload", "flops", "item", "items"]


SeriesMode = Literal["", "hot", "each", "cold", "graph", "rotated", "host", "self"]
Role = Literal["primary", "early", "derived", "observed"]
Status = Literal["ok", "skipped", "failed", "invalid"]


# The peaks that a series may be compared with; `gpubench.knowledge.hardware` knows their values.
LIMITS = (
    *("dram", "l2", "shared", "link.h2d", "link.d2h", "link.peer"),
    *("float64", "float32", "float16", "int32"),
    *("tensor.float64", "tensor.tf32", "tensor.float16", "tensor.bfloat16", "tensor.float8", "tensor.int8"),
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
