"""Define what the views of a suite give to reports: derived values, with their tables and their flat lines."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

from gpubench.analysis.summary import Summary
from gpubench.model import View

NO_VALUE = "–"  # the text of a cell without a value


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts: each row has one cell for each head.

    `text_heads` are the heads of the columns that hold no figures, and `note` explains the columns. `topic` says what
    the table is about: `view`, `phases`, `links` or `soak`."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_heads: tuple[str, ...]
    note: str = ""
    topic: str = "view"


class Derived:
    """Values that are derived from a view of the kind `KIND`; `records.record` makes a record of them."""

    __slots__ = ()
    KIND: ClassVar[str]

    @classmethod
    def of(cls, summary: Summary, suite: str, view: View) -> list[Self]:
        """Return the values of a view of a suite."""
        raise NotImplementedError

    @property
    def tables(self) -> list[Table]:
        """The values as tables of texts."""
        raise NotImplementedError

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the values as flat lines in SI units, whose keys are names of `frame.COLUMNS`."""
        yield from ()


AnyDerived = TypeVar("AnyDerived", bound=Derived)


def derived(summary: Summary, kind: type[AnyDerived]) -> list[AnyDerived]:
    """Return the derived values of one kind, such as `Staircase`, over all views of a run."""
    views = ((suite.name, view) for suite in summary.run.manifest.suites for view in suite.views)
    return [value for suite, view in views if view.kind == kind.KIND for value in kind.of(summary, suite, view)]
