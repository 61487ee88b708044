"""Define the frozen values that measuring hands to judging, and the run file that stores them.

Sizes are in bytes, times in seconds. Rates are never stored: a rate is `Work / time` and is derived in
`gpubench.analysis`. Every record is validated strictly when it is read from a file (`gpubench.model.store`)."""

from gpubench.model.counters import SAMPLER, Counter, CounterKind, EventBit, EventClass, Measure, Remark, Samples
from gpubench.model.facts import Architecture, DataFile, Device, Facts, UnavailablePart
from gpubench.model.run import (
    LIMITS,
    Better,
    Case,
    KeyFigure,
    Manifest,
    NamedLink,
    Params,
    Quantity,
    Result,
    Role,
    Run,
    Series,
    SeriesMode,
    Settings,
    Status,
    SuiteInfo,
    Tier,
    Verdict,
    View,
    Work,
)
from gpubench.model.schema import SCHEMA, Strict
