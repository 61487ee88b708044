"""Decide what bounds a piece of work from the share of each resource that it uses.

Pure functions of shares. The rule is in docs/method.md. It applies to cases and to phases of a program."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from gpubench.base import units

Label = Literal["compute", "DRAM", "L2", "latency", "launch", "link", "power", "host"]

MUCH = 0.6  # share of a resource that makes it the bound: tuned kernels use 0.75 to 0.98, others below 0.5
IDLE = 0.5  # share of the window: a GPU that is busy for less of it waits for the host
CAPPED = 0.5  # share of the readings at the power cap from which the cap limits the work
SLOWED = 0.97  # share of the nominal clock: at or below it, the power cap has lowered the clock
LAUNCH = 0.5  # share of a call's time: if an empty kernel, timed alike, takes this much, the launch bounds the call


@dataclass(frozen=True, slots=True)
class Use:
    """The used fraction of a resource; `by` names its source: a counter, or a share of a peak."""

    fraction: float
    by: str

    @property
    def text(self) -> str:
        """The use as text: `gpm.dram 96.7 %`."""
        return f"{self.by} {units.percent(self.fraction)}"


class Activity(NamedTuple):
    """The used shares in a window as fractions. All are optional; an unknown one is empty or None.

    `compute`, `dram`, `l2` and `link` are shares of the peaks of these resources, one for each source."""

    compute: tuple[Use, ...] = ()
    dram: tuple[Use, ...] = ()
    l2: tuple[Use, ...] = ()
    link: tuple[Use, ...] = ()
    busy: Use | None = None
    capped: Use | None = None
    clock: Use | None = None
    launch: Use | None = None
    dependent: bool = False


@dataclass(frozen=True, slots=True)
class Bound:
    """What bounds the work, as a label, with the used shares that show it as evidence."""

    label: Label
    evidence: tuple[Use, ...] = ()

    @property
    def text(self) -> str:
        """The bound as text: `DRAM (gpm.dram 96.7 %, share of dram peak (measured clock) 95.6 %)`."""
        return f"{self.label} ({', '.join(use.text for use in self.evidence)})" if self.evidence else self.label


def bound_by(activity: Activity) -> Bound | None:
    """Return the bound of the work in a window by the first rule that applies; None for a host without one.

    docs/method.md has the rules. On a GPU the last one, `latency`, applies if nothing else does."""
    most_used = _most_used(activity)
    power_evidence = _power_cap_evidence(activity)
    if most_used and not (power_evidence and most_used.label == "compute"):
        return most_used
    if power_evidence:
        return Bound("power", (*power_evidence, *(most_used.evidence if most_used else ())))
    if activity.launch and activity.launch.fraction >= LAUNCH:
        return Bound("launch", (activity.launch,))
    if activity.dependent:
        return Bound("latency", tuple(use for use in (_highest(activity.dram), activity.busy) if use))
    if activity.busy is None:
        return None
    if activity.busy.fraction < IDLE:
        return Bound("host", (activity.busy,))
    low_shares = (_highest(activity.compute), _highest(activity.dram), _highest(activity.link))
    return Bound("latency", (activity.busy, *(use for use in low_shares if use)))


def _most_used(activity: Activity) -> Bound | None:
    """Return the resource with the highest used share as a bound; None if no share is at least 0.6 (MUCH)."""
    resources: tuple[tuple[Label, tuple[Use, ...]], ...] = (
        ("compute", activity.compute),
        ("DRAM", activity.dram),
        ("L2", activity.l2),
        ("link", activity.link),
    )
    well_used = [(label, uses) for label, uses in resources if uses and max(use.fraction for use in uses) >= MUCH]
    if not well_used:
        return None
    label, uses = max(well_used, key=lambda resource: max(use.fraction for use in resource[1]))
    return Bound(label, tuple(sorted((use for use in uses if use.fraction >= MUCH), key=lambda use: -use.fraction)))


def _power_cap_evidence(activity: Activity) -> tuple[Use, ...]:
    """Return `capped` and `clock` of the activity if the power cap lowered the clock, else an empty tuple."""
    if activity.capped is None or activity.clock is None:
        return ()
    is_lowered = activity.capped.fraction >= CAPPED and activity.clock.fraction <= SLOWED
    return (activity.capped, activity.clock) if is_lowered else ()


def _highest(uses: tuple[Use, ...]) -> Use | None:
    return max(uses, key=lambda use: use.fraction, default=None)
