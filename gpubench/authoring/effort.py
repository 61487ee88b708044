"""Say how long a stage is sampled: by its tier, as a point of a curve, for a time, for a tail, or a number of times."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from gpubench.authoring.checks import choice, count, number

_MOST_S = 3600.0
_MOST_SAMPLES = 1_000_000


@dataclass(frozen=True, slots=True)
class Effort:
    """The purpose of a stage's samples: `TIER`, `POINT`, `Effort.sustained(…)` or `Effort.exactly(…)`.

    `seconds` is the minimum time for sampling a sustained rate. `samples` is the minimum number for a tail: 10 000 show
    the 99.9th percentile. For `exactly` it is the number of all samples, which are taken without a warm-up."""

    kind: Literal["tier", "point", "sustained", "exactly"] = "tier"
    seconds: float = 0.0
    samples: int = 0

    def __post_init__(self) -> None:
        """Convert the numbers. Raises SuiteError, which names the field, for a wrong type or a number out of bounds."""
        choice("Effort.kind", self.kind, ("tier", "point", "sustained", "exactly"))
        object.__setattr__(self, "seconds", number("Effort.seconds", self.seconds, 0.0, _MOST_S))
        object.__setattr__(self, "samples", count("Effort.samples", self.samples, _MOST_SAMPLES))

    @classmethod
    def sustained(cls, seconds: float) -> Effort:
        """Return the effort for a rate that must be sustained for this time, in seconds."""
        return cls("sustained", seconds)

    @classmethod
    def exactly(cls, samples: int) -> Effort:
        """Return the effort of taking exactly `samples` samples in every tier, at least one, without a warm-up.

        It is for calls that take seconds and start from nothing, such as the start of a process."""
        return cls("exactly", samples=max(samples, 1))

    def with_tail(self, samples: int) -> Effort:
        """Return the same effort with at least this number of samples; 0 means no minimum."""
        return replace(self, samples=samples)


TIER = Effort()
"""As long as the tier says."""

POINT = Effort("point")
"""A point of a dense curve: it ends as soon as its interval is narrow, because its neighbours show what noise hides."""
