"""Check results in the ways that several suites share."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gpubench.api import suite as gb


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """A call to time, the check of its result, and its outputs, which are overwritten before a check.

    `rotation`, `buffers`, `inputs` and `doubled` are as in a Stage; `poison` overwrites what is not in `outputs`."""

    call: Callable[[], object]
    check: Callable[[], None]
    outputs: tuple[Any, ...] = ()
    rotation: tuple[Callable[[], object], ...] = ()
    buffers: tuple[Any, ...] = ()
    poison: Callable[[], None] = lambda: None
    inputs: Callable[[], object] | None = None
    doubled: Callable[[], object] | None = None

    def stage(self, work: gb.Work, quantity: Literal["moved", "payload"] = "moved", limit: str = "") -> gb.Stage:
        """Return the call as a stage of this work, which is judged by `quantity`."""
        rest: Any = {name: getattr(self, name) for name in ("outputs", "rotation", "buffers", "inputs", "doubled")}
        return gb.Stage(self.call, work, quantity, limit, effort=gb.POINT, **rest)

    def overwrite(self, bench: gb.Bench) -> None:
        """Overwrite the outputs, for a call that the engine does not check."""
        bench.poison(*self.outputs)
        self.poison()


def expect_equal(results: Any, expected: Any, items: str) -> None:
    """Raise WrongAnswer if two NumPy arrays of the same shape differ in any element.

    The message counts the wrong elements and calls them `items`."""
    wrong = np.count_nonzero(results != expected)
    gb.expect(wrong == 0, f"{wrong} of {results.size} {items} are wrong")


def expect_no_mistakes(
    bench: gb.Bench, count_mistakes: Callable[[], object], mistakes: Any, total: int, items: str
) -> None:
    """Raise WrongAnswer if a kernel that counts mistakes on the device finds any.

    The message says how many of `total` items are wrong, and calls them `items`."""
    mistakes.fill(0)
    count_mistakes()
    wrong = int(bench.device.to_host(mistakes).sum())
    gb.expect(wrong == 0, f"{wrong} of {total} {items} are wrong")


def flipping(*arrays: Any) -> Callable[[], None]:
    """Return a function that flips the sign of each element of `arrays` in place: the `inputs` of a stage.

    Unsigned numbers count as the bits of floats. Of signed whole numbers all bits are flipped."""

    def flip() -> None:
        for array in arrays:
            sign, bits = 1 << 8 * array.itemsize - 1, array.view(f"u{array.itemsize}")
            bits ^= bits.dtype.type(2 * sign - 1 if array.dtype.kind == "i" else sign)

    flip()
    flip()  # on a GPU the first calls compile, which would be a pause between samples
    return flip


def shifting(dtype: str, *arrays: Any) -> Callable[[], None]:
    """Return a function that adds 1 to each number of `arrays` in place, and takes it away with the next call.

    The numbers are of the format `dtype`. Chains of matrix products end with sums that are larger by as much as the
    sums with which they begin."""
    steps = itertools.cycle((1, -1))

    def shift() -> None:
        step = next(steps)
        for array in arrays:
            numbers = array.view(dtype)
            numbers += numbers.dtype.type(step)

    return shift


def affine_power(factor: int, term: int, steps: int, modulus: int) -> tuple[int, int]:
    """Return the factor and the term of x → factor · x + term applied `steps` times, modulo `modulus`."""
    product, total = 1, 0
    while steps:
        if steps & 1:
            product, total = factor * product % modulus, (factor * total + term) % modulus
        factor, term = factor * factor % modulus, (factor * term + term) % modulus
        steps >>= 1
    return product, total


def in_turn(*calls: Callable[[], object]) -> Callable[[], None]:
    """Return a function that calls all of `calls` in order, such as the checks of a case with several parts."""

    def call_all() -> None:
        for call in calls:
            call()

    return call_all
