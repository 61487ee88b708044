"""Define a case: one point of one benchmark, and the id under which every baseline stores it."""

import functools
from dataclasses import dataclass

from gpubench.base.units import axis_label, axis_text
from gpubench.model.limits import Count, Many, Name, Number, Whole, Word
from gpubench.model.schema import Strict

Params = Many[tuple[Word, Name | Whole | Number]]


@dataclass(frozen=True, slots=True)
class Case(Strict):
    """One point of one benchmark; its `id` is the key of every baseline and stable once released.

    `params` are the values on its axes in declared order, `version` is the version of its method, `ranks` the number of
    processes that measure it together, and `devices` the number of their devices."""

    suite: Word
    name: Word
    params: Params = ()
    version: Count = 1
    ranks: Count = 1
    devices: Count = 1

    @property
    def id(self) -> str:
        """The id, with the axes in declared order: `bandwidth/triad[size=1GiB,dtype=float32]`."""
        return _case_id(self)

    def param(self, axis: str) -> str | int | float:
        """Return the value on one axis. Raises KeyError if the case has no such axis."""
        return dict(self.params)[axis]


@functools.lru_cache(maxsize=2**16)  # a gate needs the id of each case about a dozen times
def _case_id(case: Case) -> str:
    axes = ",".join(f"{axis_label(axis)}={axis_text(axis, value)}" for axis, value in case.params)
    return f"{case.suite}/{case.name}" + (f"[{axes}]" if axes else "")
