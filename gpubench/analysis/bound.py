"""What bounds a workload, from the used share of each resource: a pure function of shares.

The rule is in docs/method.md. It applies to cases and to phases of a program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpubench.base import units

Label = Literal["compute", "DRAM", "L2", "latency", "launch", "link", "power", "host"]

MUCH = 0.6  # of a resource: kernels that are tuned for one use 0.75 to 0.98 of it, those of another kind below 0.5
IDLE = 0.5  # of the window: a GPU that has work for less of it waits for the host
CAPPED = 0.5  # of the readings
SLOWED = 0.97  # of the device's own clock: below, the cap took some of it
LAUNCH = 0.5  # of a call's time that an empty kernel takes, timed in the same way: such a call is bound by its launch


@dataclass(frozen=True, slots=True)
class Use:
    """The used fraction of a resource and its source: the name of a counter, or a share of a peak."""

    fraction: float
    by: str

    @property
    def text(self) -> str:
        """`gpm.dram 96.7 %`."""
        return f"{self.by} {units.percent(self.fraction)}"


@dataclass(frozen=True, slots=True)
class Activity:
    """The used shares in a window. All are optional; an unknown one is empty or None.

    `compute`, `dram`, `l2` and `link` are shares of what those can do; `busy` the share of the time in which a GPU had
    kernels, None on a host; `capped` the share of the readings under the power cap, `clock` the mean clock over the
    device's own; `launch` the time of an empty kernel over that of a call, both timed in the same way; `dependent`
    whether each step waits for the last one's answer.
    """

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
    """What bounds the work, in one word, with the counters and shares as evidence."""

    label: Label
    evidence: tuple[Use, ...] = ()

    @property
    def text(self) -> str:
        """`DRAM (gpm.dram 96.7 %, of dram peak (measured clock) 95.6 %)`."""
        return f"{self.label} ({', '.join(use.text for use in self.evidence)})" if self.evidence else self.label


def bound_by(activity: Activity) -> Bound | None:
    """Return what bounds the work in a window; None if the shares do not decide.

    The resource of which most was used, if that is MUCH; of arithmetic under a cap that took clock, the power. Else a
    call as short as a launch; a GPU without work for half of the time; a chain of dependent steps, or a GPU that has
    work and uses little of anything.
    """
    used = _most_used(activity)
    held = _held_by_power(activity)
    if used and not (held and used.label == "compute"):
        return used
    if held:
        return Bound("power", (*held, *(used.evidence if used else ())))
    if activity.launch and activity.launch.fraction >= LAUNCH:
        return Bound("launch", (activity.launch,))
    if activity.dependent:
        return Bound("latency", tuple(use for use in (_greatest(activity.dram), activity.busy) if use))
    if activity.busy is None:
        return None
    if activity.busy.fraction < IDLE:
        return Bound("host", (activity.busy,))
    little = (_greatest(activity.compute), _greatest(activity.dram), _greatest(activity.link))
    return Bound("latency", (activity.busy, *(use for use in little if use)))


def _most_used(activity: Activity) -> Bound | None:
    """Return the resource with the highest used share, if that is at least MUCH, from counters or shares of peaks."""
    resources: tuple[tuple[Label, tuple[Use, ...]], ...] = (
        ("compute", activity.compute),
        ("DRAM", activity.dram),
        ("L2", activity.l2),
        ("link", activity.link),
    )
    found = [(label, uses) for label, uses in resources if uses and max(use.fraction for use in uses) >= MUCH]
    if not found:
        return None
    label, uses = max(found, key=lambda each: max(use.fraction for use in each[1]))
    return Bound(label, tuple(sorted((use for use in uses if use.fraction >= MUCH), key=lambda use: -use.fraction)))


def _held_by_power(activity: Activity) -> tuple[Use, ...]:
    if activity.capped is None or activity.clock is None:
        return ()
    held = activity.capped.fraction >= CAPPED and activity.clock.fraction <= SLOWED
    return (activity.capped, activity.clock) if held else ()


def _greatest(uses: tuple[Use, ...]) -> Use | None:
    return max(uses, key=lambda use: use.fraction, default=None)
