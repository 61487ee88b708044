"""Time chains of one instruction on every SM or CU, by the device's events and by the clock of each SM or CU.

A figure per clock needs no clock of the driver: each SM counts its own cycles from its first instruction to its
last."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._matrix.product import on_nvidia

TARGET_CYCLES = 2**20  # cycles of a launch: half a millisecond, beside which its start and end are negligible
ONE_WARP = (1, 2, 4, 8)  # numbers of independent chains that one warp of each scheduler has
REST_S = 0.01  # rest before each sample of matrix instructions
SCHEDULERS = 4  # schedulers of an SM, or SIMD units of a CU
_SLACK = 0.1  # twice as many steps must take twice the time, within this share
_LAUNCHES = 3  # a check uses the fastest of these launches, because other programs may share the device


def rounds_for(body: int, cycles_a_step: float) -> int:
    """Return how many rounds of `body` steps take about 2^20 cycles, at least 1.

    A step takes `cycles_a_step` cycles."""
    return max(1, round(TARGET_CYCLES / (body * cycles_a_step)))


@dataclass(slots=True)
class Chains:
    """A kernel of chains: `launch(rounds)` runs it with one block on each SM or CU, which counts its cycles.

    A call launches `rounds` rounds."""

    bench: gb.Bench
    launch: Callable[[int], None]
    cycles: Any
    rounds: int
    steps: int
    issuers: int
    operation: gb.Work

    def call(self) -> None:
        """Launch the kernel once."""
        self.launch(self.rounds)

    def elapsed_cycles(self) -> Any:
        """Return the cycles of each block of the last launch: a NumPy array of uint64, shape (blocks,)."""
        return self.bench.device.to_host(self.cycles)[::2]

    def observed(self) -> gb.Observation:
        """Return observations of the last launch: `cycles` per instruction of a warp, and `per_clock`.

        `per_clock` is the number of operations of an SM or CU per clock."""
        cycles = float(np.median(self.elapsed_cycles())) / self.steps
        operations = self.operation.flops or self.operation.items
        return {
            "cycles": gb.Observed(cycles, "cycles"),
            "per_clock": gb.Observed(self.issuers * operations / cycles, "per clock and SM", "more"),
        }

    def check(self) -> None:
        """Raise WrongAnswer if blocks shared an SM or CU, or if twice as many steps did not take twice the cycles.

        The ratio of cycles may differ from 2 by 10 %."""
        twice = self._fewest_cycles(2 * self.rounds)
        ratio = twice / self._fewest_cycles(self.rounds)  # the last launch leaves the results of a call in place
        gb.expect(abs(ratio - 2) <= 2 * _SLACK, f"twice as many steps take {ratio:.3f} times as long, not twice")
        places = self.bench.device.to_host(self.cycles)[1::2]
        used = len(np.unique(places))
        gb.expect(used == len(places), f"{len(places)} blocks ran on {used} SMs or CUs instead of one on each")

    def _fewest_cycles(self, rounds: int) -> float:
        """Return the fewest cycles of any block in three launches of `rounds` rounds."""
        counts = []
        for _ in range(_LAUNCHES):
            self.launch(rounds)
            counts.append(float(self.elapsed_cycles().min()))
        gb.expect(min(counts) > 0, "the clock of an SM or CU did not advance")
        return min(counts)

    def task(
        self,
        limit: str,
        check: Callable[[], None],
        outputs: Any,
        notes: Mapping[str, str],
        inputs: Callable[[], object] | None,
        rest_s: float = 0.0,
    ) -> gb.Task:
        """Return the chains as a task whose figure is the operations per second of the whole device.

        `limit` names the peak with which the figure is compared, or is empty. `outputs` is the array of results, and
        `inputs` is as in a stage."""
        total = self.steps * self.issuers * len(self.cycles) // 2
        flops, items = self.operation.flops * total, self.operation.items * total
        stage = gb.Stage(
            self.call,
            gb.Work(flops=flops, items=items),
            "flops" if flops else "items",
            limit,
            effort=gb.POINT,
            probe=self.observed,
            item="operation",
            max_calls=1 if rest_s else 0,
            rest_s=rest_s,
            outputs=(outputs,),
            inputs=inputs,
        )

        def check_all() -> None:
            check()
            self.check()

        return gb.Task.of(stage, check=check_all, notes=notes)


def chains_and_warps(chains: int, most: int) -> tuple[int, int]:
    """Return the chains of each warp and the number of warps that together give a scheduler `chains` chains.

    With 1, 2, 4 or 8 chains one warp has all of them."""
    return (chains, 1) if chains in ONE_WARP else (most, chains // most)


def matrix_limit(dtype: str) -> str:
    """Return the name of the peak of matrix products in the format `dtype`, such as `tensor.float16`; "" for FP6."""
    return "" if dtype.startswith("float6") else f"tensor.{dtype.partition('_')[0]}"


def on_nvidia_gpu(target: gb.Target) -> bool:
    return gb.on_gpu(target) and on_nvidia(target)


def cycle_words(bench: gb.Bench) -> Any:
    """Return a zeroed uint64 array on the device with two words for each SM or CU, for the field `cycles` of Chains."""
    return bench.xp.zeros(2 * max(1, bench.target.device.units), bench.xp.uint64)
