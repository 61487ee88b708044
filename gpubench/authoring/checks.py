"""Check the values that a suite's author passes: return plain values, or raise an error that names the field."""

import math
import numbers
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from gpubench.base.errors import SuiteError
from gpubench.model import LIMITS, Better, Work, limits

BETTER: tuple[Better, ...] = ("more", "less")
_WORKS = ("moved", "payload", "flops", "items")
_MOST_LETTERS = 8192  # the longest note, into which a traceback fits
_KINDS = tuple("biufc")  # NumPy's kinds of numbers
_NAME = re.compile(r"[^\x00-\x1f\x7f\u2028\u2029]{1,200}")


def invalid_value(field: str, value: object, expected: str) -> SuiteError:
    """Return, without raising it, the SuiteError which says that `field` has `value` and not what is `expected`.

    `field` is the name in the message (`Stage.work`), as in every check, and `expected` a noun phrase (`a number`)."""
    return SuiteError(f"{field} is {type(value).__name__} {value!r:.80}, not {expected}")


def choice(field: str, value: object, choices: Collection[str]) -> None:
    """Raise SuiteError, which names `field`, if `value` is not one of the texts in `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise invalid_value(field, value, f"one of {', '.join(sorted(choices))}")


def number(field: str, value: object, least: float = -math.inf, most: float = math.inf) -> float:
    """Return `value`, a real number of Python or NumPy, as a float.

    NaN passes only if both bounds are infinite: the engine decides that a case with an observed NaN is invalid."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise invalid_value(field, value, "a number")
    try:
        real = float(value)
    except OverflowError:
        raise invalid_value(field, value, "a number that a float64 holds") from None
    is_bounded = math.isfinite(least) or math.isfinite(most)
    if is_bounded and not least <= real <= most:
        raise invalid_value(field, value, f"from {least:g} to {most:g}")
    return real


def count(field: str, value: object, most: int) -> int:
    """Return `value`, a whole number of Python or NumPy from 0 to `most`, as an int.

    Raises SuiteError, which names `field`, for any other value."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not 0 <= int(value) <= most:
        raise invalid_value(field, value, f"a whole number from 0 to {most}")
    return int(value)


def name(field: str, value: object) -> str:
    """Return a name: one line of 1 to 200 characters. Raises SuiteError for any other value."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise invalid_value(field, value, "one line of text of 1 to 200 characters")
    return value


def names(field: str, values: object) -> tuple[str, ...]:
    """Return a sequence of names, each one line of 1 to 200 characters, as a tuple.

    Raises SuiteError, which names `field`, for any other value, also for a single text."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise invalid_value(field, values, "a tuple of texts")
    return tuple(name(field, value) for value in values)


def axis_value(value: object) -> str | int | float:
    """Return a value of an axis as a text, an int or a finite float, with NumPy's numbers converted to Python's.

    Raises SuiteError for any other value, and for a text that is empty, longer than 200 characters or more than one
    line."""
    if isinstance(value, str):
        return name("an axis's value", value)
    real = number("an axis's value", value)
    if not abs(real) <= (limits.MOST_WHOLE if isinstance(value, numbers.Integral) else limits.MOST):
        raise invalid_value("an axis's value", value, "a finite number")
    return int(value) if isinstance(value, numbers.Integral) else real


def text(field: str, value: object) -> str:
    """Return `value` if it is a text of at most 8192 characters, or a number as text.

    Raises SuiteError, which names `field`, for any other value."""
    if isinstance(value, numbers.Real):
        return str(value)
    if not isinstance(value, str) or len(value) > _MOST_LETTERS:
        raise invalid_value(field, value, f"a text of at most {_MOST_LETTERS} characters")
    return value


def function(field: str, value: object) -> None:
    """Raise SuiteError if the value cannot be called."""
    if not callable(value):
        raise invalid_value(field, value, "a function")


def functions(field: str, values: object) -> tuple[Callable[[], object], ...]:
    """Return `values`, a sequence of functions, as a tuple.

    Raises SuiteError, which names `field`, for any other value."""
    if isinstance(values, str) or not isinstance(values, Sequence) or not all(map(callable, values)):
        raise invalid_value(field, values, "a sequence of functions")
    return tuple(values)


def arrays(field: str, values: object) -> tuple[Any, ...]:
    """Return `values`, a tuple or list of arrays that can be overwritten, as a tuple.

    Each array is one of NumPy or CuPy (it has `fill`, `nbytes` and a `dtype` of numbers) and can be written to. Raises
    SuiteError, which names `field`, for any other value, also for a single array."""
    if not isinstance(values, tuple | list):
        raise invalid_value(field, values, "a tuple of arrays")
    for value in values:
        kind = getattr(getattr(value, "dtype", None), "kind", None)
        if kind not in _KINDS or not callable(getattr(value, "fill", None)) or not hasattr(value, "nbytes"):
            raise invalid_value(field, value, "an array of numbers; overwrite anything else in Task.poison")
        if not getattr(getattr(value, "flags", None), "writeable", True):
            raise SuiteError(f"{field} has an array of {value.nbytes} bytes that is read-only")
    return tuple(values)


def mapping(field: str, value: object) -> Mapping[Any, Any]:
    """Return `value` unchanged if it is a mapping. Raises SuiteError, which names `field`, for any other value."""
    if not isinstance(value, Mapping):
        raise invalid_value(field, value, "a mapping")
    return value


def limit(field: str, value: object) -> None:
    """Raise SuiteError unless `value` is the name of a peak in LIMITS; the empty text means no peak."""
    if value != "":
        choice(field, value, LIMITS)


def work(field: str, value: object, quantity: str) -> Work:
    """Return the Work `value` with its counts as floats; bytes are whole numbers.

    The quantity `value` needs no count."""
    if not isinstance(value, Work):
        raise invalid_value(field, value, "a Work")
    counts = {part: number(f"{field}.{part}", getattr(value, part), 0.0, limits.MOST_WORK) for part in _WORKS}
    if broken := [part for part in ("moved", "payload") if not counts[part].is_integer()]:
        raise invalid_value(f"{field}.{broken[0]}", counts[broken[0]], "whole bytes: a unit or a factor is wrong")
    judged = "items" if quantity == "item" else quantity
    if judged != "value" and counts[judged] < limits.LEAST_WORK:
        counted = [part for part, amount in counts.items() if amount]
        counting = f"counts {' and '.join(counted)}" if counted else "counts nothing"
        raise SuiteError(f"quantity is {quantity!r}, but {field}.{judged} is 0: the work {counting}")
    return Work(**counts)
