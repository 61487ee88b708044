"""Checks of results that the suites share, and a call together with its check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpubench.api.suite import Bench, expect


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """A call to time, the check of its result, and the overwriting of the result before a check.

    `rotation` is the same call on other buffers, as in a Stage.
    """

    call: Callable[[], object]
    check: Callable[[], None]
    poison: Callable[[], None]
    rotation: tuple[Callable[[], object], ...] = ()


def expect_equal(results: Any, expected: Any, items: str) -> None:
    """Raise WrongAnswer if two arrays on the host differ; the message counts wrong elements, named `items`."""
    wrong = np.count_nonzero(results != expected)
    expect(wrong == 0, f"{wrong} of {results.size} {items} are wrong")


def expect_no_mistakes(
    bench: Bench, count_mistakes: Callable[[], object], mistakes: Any, total: int, items: str
) -> None:
    """Raise WrongAnswer if the kernel that `count_mistakes` launches finds wrong items.

    It counts them in the array `mistakes`, which is zeroed before. The message names them `items`, of which there are
    `total`.
    """
    mistakes.fill(0)
    count_mistakes()
    wrong = int(bench.device.to_host(mistakes).sum())
    expect(wrong == 0, f"{wrong} of {total} {items} are wrong")


def in_turn(*calls: Callable[[], object]) -> Callable[[], None]:
    """Return a function that calls all of these in order: the checks, or the clean-up, of a case with several parts."""

    def call_all() -> None:
        for call in calls:
            call()

    return call_all
