"""How long a stage is sampled: as its tier says, as a point of a curve, for seconds, for a tail, or so many times."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from gpubench.authoring.checks import choice, count, number

_MOST_S = 3600.0
_MOST_SAMPLES = 1_000_000


@dataclass(frozen=True, slots=True)
class Effort:
    """What a stage's samples are for; `TIER`, `POINT`, `Effort.sustained(…)` and `Effort.exactly(…)` are all kinds.

    `seconds` is how long a sustained rate is sampled at the least. `samples` are what a tail needs at the least:
    10 000 show the 99.9th percentile. Of `exactly` they are all samples, taken without a warm-up.
    """

    kind: Literal["tier", "point", "sustained", "exactly"] = "tier"
    seconds: float = 0.0
    samples: int = 0

    def __post_init__(self) -> None:
        """Raise SuiteError that names the field which is wrong."""
        choice("Effort.kind", self.kind, ("tier", "point", "sustained", "exactly"))
        object.__setattr__(self, "seconds", number("Effort.seconds", self.seconds, 0.0, _MOST_S))
        object.__setattr__(self, "samples", count("Effort.samples", self.samples, _MOST_SAMPLES))

    @classmethod
    def sustained(cls, seconds: float) -> Effort:
        """Return the effort of a rate that has to hold for that long, in seconds."""
        return cls("sustained", seconds)

    @classmethod
    def exactly(cls, samples: int) -> Effort:
        """Return the effort of so many samples in every tier, at least one, without a warm-up.

        It is for calls that take seconds and start from nothing, such as the start of a process.
        """
        return cls("exactly", samples=max(samples, 1))

    def with_tail(self, samples: int) -> Effort:
        """Return the same effort, going on until there are so many samples; 0 asks for none."""
        return replace(self, samples=samples)


TIER = Effort()
"""As long as the tier says."""

POINT = Effort("point")
"""A point of a dense curve: it ends as soon as its interval is narrow, because its neighbours show what noise hides."""
