"""Define the ladder of a case: its share of the peak as a product of rungs, each with its evidence."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from gpubench.base import units

Name = Literal[
    "clock",
    "counted clock",
    "data",
    "unit",
    "kind of access",
    "way",
    "size",
    "blocks",
    "edges",
    "traffic",
    "headers",
    "stalls",
    "launch",
    "weights",
    "keys and values",
    "attention",
    "products",
    "other kernels",
    "gaps",
    "codec",
    "memory level",
    "translation",
]
Remedy = Literal["user", "author", "nobody", ""]
REMEDIES: dict[Remedy, str] = {
    "user": "the user can",
    "author": "the kernel's author can",
    "nobody": "nobody can",
    "": "nothing to win",
}
_SMALL = 0.0005  # a rung that changes the figure by less is not shown: it rounds to 0.0 %


@dataclass(frozen=True, slots=True)
class Rung:
    """A factor of the figure, with the case or counter that measured it.

    `deviation` is the relative half width of the factor's interval. `remedy` says who could take the rung away, and
    `together` names effects that the evidence does not separate from it."""

    RECORD: ClassVar[str] = "name factor deviation evidence remedy together"
    name: Name
    factor: float
    deviation: float
    evidence: str
    remedy: Remedy
    together: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The name with the effects that are not separated: `size, with launch and tail`."""
        return f"{self.name}, with {' and '.join(self.together)}" if self.together else self.name

    @property
    def is_small(self) -> bool:
        """Whether the rung changes the figure by less than 0.05 %."""
        return abs(self.factor - 1) < _SMALL


@dataclass(frozen=True, slots=True)
class Ladder:
    """The rungs from the peak `top` down to the figure of a case; their product, times `unexplained`, is `whole`.

    `top` is in `unit`, and `source` says where it is from. `missing` says which rungs have no evidence, and why.
    `standing` compares the figure with other cards of its model; empty if none is known. `width` is the relative half
    width of the figure."""

    RECORD: ClassVar[str] = "case devices unit top source value whole rungs unexplained deviation missing standing"
    case: str
    devices: tuple[str, ...]
    unit: str
    top: float
    source: str
    value: float
    whole: float
    rungs: tuple[Rung, ...]
    missing: tuple[str, ...] = ()
    standing: str = ""
    width: float = 0.0

    @property
    def unexplained(self) -> float:
        """The factor for which no rung has evidence; above 1 the rungs together claim more than there is."""
        return self.whole / math.prod(rung.factor for rung in self.rungs)

    @property
    def deviation(self) -> float:
        """The relative half width of `unexplained`: of the figure and the rungs, added as independent ones."""
        return math.hypot(self.width, *(rung.deviation for rung in self.rungs))

    def rung(self, name: str) -> Rung | None:
        """Return the rung of that name; None if it has no evidence."""
        return next((rung for rung in self.rungs if rung.name == name), None)

    @property
    def shown(self) -> tuple[Rung, ...]:
        """The rungs that change the figure by 0.05 % or more, in order."""
        return tuple(rung for rung in self.rungs if not rung.is_small)

    @property
    def brief(self) -> str:
        """The rungs in one line: `clock −12.3 %, unit −10.8 %, unexplained −4.5 %`."""
        parts = [f"{rung.name} {percent_of_change(rung.factor)}" for rung in self.shown]
        return ", ".join((*parts, f"unexplained {percent_of_change(self.unexplained)}"))

    @property
    def levels(self) -> tuple[tuple[str, float], ...]:
        """The steps of a waterfall: the name and the share of the peak that is left after each rung."""
        left, steps = 1.0, [("peak", 1.0)]
        for rung in self.shown:
            left *= rung.factor
            steps.append((rung.name, left))
        return (*steps, ("unexplained", self.whole))


@dataclass(frozen=True, slots=True)
class NoLadder:
    """The reason, a sentence, why a case has no ladder."""

    case: str
    reason: str


def percent_of_change(factor: float) -> str:
    """Return a factor as its change of the figure: `−10.8 %`, `+8.2 %`, `0.0 %`."""
    sign = "" if abs(factor - 1) < _SMALL else "−" if factor < 1 else "+"
    return f"{sign}{units.percent(abs(factor - 1))}"
