"""Define the axes of a case, with their values in each tier, and the target for which a plan is made."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gpubench.authoring import checks
from gpubench.model import DataFile, Device, Facts, Tier

Value = str | int | float


Values = Sequence[Value]


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a plan.

    `facts` describes the machine, `device` the device to measure. `data` are the user's own data files, and `nodes` is
    the number of nodes of the run."""

    facts: Facts
    device: Device
    tier: Tier = "quick"
    data: tuple[DataFile, ...] = ()
    nodes: int = 1

    @property
    def is_host(self) -> bool:
        """Whether the device is the host processor."""
        return self.device.backend == "host"


def on_gpu(target: Target) -> bool:
    """Return whether the target is a GPU: `@suite.case(when=on_gpu)` leaves a case out on the host."""
    return not target.is_host


def on_host(target: Target) -> bool:
    """Return whether the target is the host processor."""
    return target.is_host


def beyond_quick(target: Target) -> bool:
    """Return whether the tier is not `quick`, which has the cases that most people come for."""
    return target.tier != "quick"


@dataclass(frozen=True, slots=True)
class Points:
    """The values of an axis in each tier: `smoke`, `quick` and `full`."""

    smoke: Values
    quick: Values
    full: Values


def points(quick: Values, smoke: Values | None = None, full: Values | None = None) -> Points:
    """Return an axis with points for each tier; full defaults to quick's points, and smoke to quick's first point."""
    return Points(smoke=quick[:1] if smoke is None else smoke, quick=quick, full=quick if full is None else full)


def powers_of_two(first: int, last: int, step: int = 1) -> tuple[int, ...]:
    """Return 2**first … 2**last inclusive, each `step` doublings apart."""
    return tuple(2**exponent for exponent in range(first, last + 1, step))


Axis = Values | Points | Callable[[Target], "Values | Points"]


def axis_values(axis: Axis, target: Target) -> Values:
    """Return the values of an axis in the tier of `target`, with NumPy's numbers converted to Python's.

    An axis that is a function is called with `target` first."""
    of_target = axis(target) if callable(axis) else axis
    values = getattr(of_target, target.tier) if isinstance(of_target, Points) else of_target
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise checks.invalid_value("an axis", values, "a sequence of texts and numbers")
    return tuple(checks.axis_value(value) for value in values)
