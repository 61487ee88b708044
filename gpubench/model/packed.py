"""Hold a run file's samples as numbers of eight bytes each, because a day of them is tens of millions."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Number = TypeVar("Number", float, float | None)


class Packed(Sequence[Number]):
    """A sequence of floats that needs a quarter of a tuple's memory; a missing value is None outside and NaN inside.

    It equals any sequence of the same numbers. `numpy()` returns a view of it, and `np.asarray` makes no copy."""

    __slots__ = ("_numbers",)

    def __init__(self, values: Iterable[float | None] = ()) -> None:
        self._numbers = array("d", [math.nan if value is None else value for value in values])

    def extend(self, more: Packed[Number]) -> None:
        """Append the numbers of another sequence. Raises BufferError if a view of `numpy()` still exists."""
        self._numbers.extend(more._numbers)

    def numpy(self) -> npt.NDArray[np.float64]:
        """Return the numbers as a read-only array of shape (n,) without a copy; a missing one is NaN.

        While the array exists, `extend` raises BufferError."""
        import numpy as np

        view = np.frombuffer(self._numbers, dtype=np.float64)
        view.flags.writeable = False
        return view

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        numbers = self.numpy()
        numbers = numbers if dtype is None else numbers.astype(dtype, copy=False)
        return numbers.copy() if copy else numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> Number: ...
    @overload
    def __getitem__(self, index: slice) -> Packed[Number]: ...
    def __getitem__(self, index: int | slice) -> Number | Packed[Number]:
        """Return one number (None for a missing one), or the numbers of a slice as a new packed sequence."""
        if isinstance(index, slice):
            part: Packed[Number] = Packed()
            part._numbers = self._numbers[index]
            return part
        return _none_if_nan(self._numbers[index])  # type: ignore[return-value]  # None where a Number can be None

    def __iter__(self) -> Iterator[Number]:
        return cast(Iterator[Number], map(_none_if_nan, self._numbers))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Sequence) and not isinstance(other, str | bytes):
            return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"Packed({list(self)})"


def _none_if_nan(value: float) -> float | None:
    return None if value != value else value
