"""Checks of what a suite's author hands over: values of any type in, plain ones out, or an error naming the field."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from gpubench.base.errors import SuiteError
from gpubench.model import LIMITS, Better, Work, limits

BETTER: tuple[Better, ...] = ("more", "less")
_WORKS = ("moved", "payload", "flops", "items")
_MOST_LETTERS = 8192  # of a note; a traceback fits
_NAME = re.compile(r"[^\x00-\x1f\x7f\u2028\u2029]{1,200}")


def wrong(field: str, value: object, expected: str) -> SuiteError:
    """Return the error for a field that is not what it has to be."""
    return SuiteError(f"{field} is {type(value).__name__} {value!r:.80}, not {expected}")


def choice(field: str, value: object, choices: Collection[str]) -> None:
    """Raise SuiteError where the value is none of these texts."""
    if not isinstance(value, str) or value not in choices:
        raise wrong(field, value, f"one of {', '.join(sorted(choices))}")


def number(field: str, value: object, least: float = -math.inf, most: float = math.inf) -> float:
    """Return a real number, NumPy's too, as a float. Where bounds are given NaN is outside them; else it may pass.

    An observed NaN is for the engine to judge: the case is then invalid.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise wrong(field, value, "a number")
    try:
        found = float(value)
    except OverflowError:
        raise wrong(field, value, "a number that a float64 holds") from None
    is_bounded = math.isfinite(least) or math.isfinite(most)
    if is_bounded and not least <= found <= most:
        raise wrong(field, value, f"from {least:g} to {most:g}")
    return found


def count(field: str, value: object, most: int) -> int:
    """Return a whole number from 0 to `most` as an int."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not 0 <= int(value) <= most:
        raise wrong(field, value, f"a whole number from 0 to {most}")
    return int(value)


def name(field: str, value: object) -> str:
    """Return a name: one line of 1 to 200 characters."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise wrong(field, value, "one line of text of 1 to 200 characters")
    return value


def names(field: str, values: object) -> tuple[str, ...]:
    """Return a sequence of names as a tuple; a single text is none."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise wrong(field, values, "a tuple of texts")
    return tuple(name(field, value) for value in values)


def axis_value(value: object) -> str | int | float:
    """Return a point of an axis: a text, an int or a finite float; NumPy's numbers become Python's."""
    if isinstance(value, str):
        return name("an axis's value", value)
    found = number("an axis's value", value)
    if not abs(found) <= (limits.MOST_WHOLE if isinstance(value, numbers.Integral) else limits.MOST):
        raise wrong("an axis's value", value, "a finite number")
    return int(value) if isinstance(value, numbers.Integral) else found


def text(field: str, value: object) -> str:
    """Return a text, of a number its digits; at most 8192 characters."""
    if isinstance(value, numbers.Real):
        return str(value)
    if not isinstance(value, str) or len(value) > _MOST_LETTERS:
        raise wrong(field, value, f"a text of at most {_MOST_LETTERS} characters")
    return value


def function(field: str, value: object) -> None:
    """Raise SuiteError where the value cannot be called."""
    if not callable(value):
        raise wrong(field, value, "a function")


def functions(field: str, values: object) -> tuple[Callable[[], object], ...]:
    """Return a sequence of functions as a tuple."""
    if isinstance(values, str) or not isinstance(values, Sequence) or not all(map(callable, values)):
        raise wrong(field, values, "a sequence of functions")
    return tuple(values)


def mapping(field: str, value: object) -> Mapping[Any, Any]:
    """Return a mapping as it is."""
    if not isinstance(value, Mapping):
        raise wrong(field, value, "a mapping")
    return value


def limit(field: str, value: object) -> None:
    """Raise SuiteError where no peak is called so; the empty text is none."""
    if value != "":
        choice(field, value, LIMITS)


def work(field: str, value: object, quantity: str) -> Work:
    """Return a work whose counts are finite floats of 0 or more; what `quantity` is judged by is counted in it."""
    if not isinstance(value, Work):
        raise wrong(field, value, "a Work")
    counts = {each: number(f"{field}.{each}", getattr(value, each), 0.0, limits.MOST_WORK) for each in _WORKS}
    judged = "items" if quantity == "item" else quantity
    if judged != "value" and counts[judged] < limits.LEAST_WORK:
        counted = [each for each, found in counts.items() if found]
        words = f"counts {' and '.join(counted)}" if counted else "counts nothing"
        raise SuiteError(f"quantity is {quantity!r}, but {field}.{judged} is 0: the work {words}")
    return Work(**counts)
