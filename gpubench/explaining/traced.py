"""Turn the kernels of a traced program into results: where the device's time went, and the time of each operator."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gpubench.base.intervals import device_seconds
from gpubench.knowledge.operators import Operator, counted
from gpubench.model import Case, Result, Series, Work

SUITE = "profile"
_MOST_RESULTS = 500  # the operators that take the most time have a result each
_MOST_NAME = 100  # characters of a name or of shapes in a case id


@dataclass(frozen=True, slots=True)
class TracedOperators:
    """The kernels and copies of a device: for each its operator, the id of the call, begin and end in s, and bytes.

    `operator` are indices in `operators`; a call is -1 for a kernel that no operator launched, and bytes are of copies.
    All arrays have the shape (kernels,)."""

    device: str
    operators: tuple[Operator, ...]
    operator: npt.NDArray[np.int64]
    call: npt.NDArray[np.int64]
    start: npt.NDArray[np.float64]
    end: npt.NDArray[np.float64]
    bytes: npt.NDArray[np.float64]

    def results(self) -> Iterator[Result]:
        """Yield the result of the device's time, then one for each operator, the longest first."""
        order = np.argsort(self.start, kind="stable")
        start, end, size = self.start[order] - self.start.min(), self.end[order] - self.start.min(), self.bytes[order]
        operator, call = self.operator[order], self.call[order]
        seconds = device_seconds(start, end, size > 0)
        counts = {"kernels": int((size <= 0).sum()), "copies": int((size > 0).sum()), "dropped": 0}
        series = tuple(Series(name, "s", (value,)) for name, value in seconds.items())
        notes = tuple((name, str(count)) for name, count in counts.items())
        window = (0.0, float(end.max()))
        yield Result(Case(SUITE, "trace"), (self.device,), "ok", series=series, notes=notes, window=window)
        totals = np.bincount(operator, weights=end - start, minlength=len(self.operators))
        ranked = np.argsort(-totals, kind="stable")
        for number in ranked[:_MOST_RESULTS].tolist():
            of = operator == number
            if of.any():
                calls = len(np.unique(call[of])) if (call[of] >= 0).all() else int(of.sum())
                yield self._result(self.operators[number], float(totals[number]), calls, float(size[of].sum()))
        rest = float(totals[ranked[_MOST_RESULTS:]].sum())
        if rest > 0:
            yield self._result(Operator("other operators"), rest, 1, 0.0)

    def _result(self, operator: Operator, seconds: float, calls: int, size: float) -> Result:
        counts = counted(operator) if not size else None
        work, notes = Work(moved=size), [("kind", "copy")] if size else []
        if isinstance(counts, str):
            notes.append(("reason", counts))
        elif counts:
            work = replace(counts.work, moved=counts.work.moved * calls, flops=counts.work.flops * calls)
            notes += [("limit", counts.limit)] if counts.limit else []
        shapes = " ".join("×".join(map(str, shape)) for shape in operator.shapes if isinstance(shape, tuple) and shape)
        types = " ".join(
            dict.fromkeys(kind.removeprefix("c10::") for kind in operator.types if kind and kind != "Scalar")
        )
        params = (
            ("name", operator.name[:_MOST_NAME] or "unnamed"),
            ("shapes", f"{shapes} {types}".strip()[:_MOST_NAME]),
        )
        total = Series("total", "s", (seconds,), work=work)
        series = (total, Series("calls", "calls", (float(calls),)))
        return Result(Case(SUITE, "operator", params), (self.device,), "ok", series=series, notes=tuple(notes))
