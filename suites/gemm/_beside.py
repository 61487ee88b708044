"""Observe the rate of a product as a share of the rate of a plain product with the same number of operations."""

from collections.abc import Callable

from gpubench.api import suite as gb

_CALLS = 4  # calls of each product in a row, behind one more call that hides the launch time


def share_of_dense(
    bench: gb.Bench, call: Callable[[], object], dense: Callable[[], object]
) -> Callable[[], gb.Observation]:
    """Return a probe that times `call` and `dense` after each sample and observes the ratio of their rates.

    It stays valid although clocks change."""

    def seconds(timed: Callable[[], object]) -> float:
        return bench.device.time(timed, _CALLS, "hot", gated=False, lead=timed).device[0]

    return lambda: {"of dense": gb.Observed(seconds(dense) / seconds(call), better="more")}
