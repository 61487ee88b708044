"""Define a run: its settings, the views of its suites, and all its results."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from gpubench.model.cases import Params
from gpubench.model.counters import Counter, Remark, Samples
from gpubench.model.facts import DataFile, Facts
from gpubench.model.limits import Count, Few, Many, Moment, Name, Rate, Text, Whole, Word
from gpubench.model.results import Result
from gpubench.model.schema import Strict

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
    `series` is the cost, `y` the series of a step, and a stage `resume` means that failures are the reason."""

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
