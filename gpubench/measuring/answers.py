"""The checks of a task's answers: calls on overwritten outputs, between ranks that wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

import numpy as np

from gpubench.authoring.task import Observed, Profile, Stage, Task, observed
from gpubench.measuring.time_limits import TimeLimits
from gpubench.plugins.backend import OpenDevice

T = TypeVar("T")


class Agree(Protocol):
    """Tells every active rank the deciding rank's value, and so is a barrier too."""

    def __call__(self, value: T) -> T: ...


def alone(value: T) -> T:
    """Agreement of one rank."""
    return value


class AnswerChecks:
    """Overwrites the outputs of one task and checks them; `seconds` is how long the last check took on this rank."""

    def __init__(
        self,
        task: Task,
        device: OpenDevice,
        agree: Agree,
        rng: np.random.Generator,
        allowed_s: float,
        limits: TimeLimits | None = None,
    ) -> None:
        self.task = task
        self.seconds = 0.0
        self.is_stale = True  # whether something was timed since the last check
        self._device = device
        self._agree = agree
        self._rng = rng
        self._allowed_s = allowed_s
        self._limits = limits or TimeLimits()

    def verify(self) -> dict[str, Observed | Profile]:
        """Overwrite the outputs, call every stage once, and check; then the same for further calls.

        They are the other calls of each rotation, one at random and more as time allows, and without a rotation the
        same calls once more if that takes little time.
        """
        start = self._device.now()
        found = self._verify_calls({})
        is_cheap = self._agree(self._device.now() - start <= self._allowed_s)
        stages = self.task.stages.values()
        if is_cheap and not any(stage.rotation for stage in stages):
            self._verify_calls({})
        for name, stage in self.task.stages.items():
            self._verify_rotation(name, stage)
        return found

    def _verify_rotation(self, name: str, stage: Stage) -> None:
        start = self._device.now()
        for place in self._rng.permutation(range(1, len(stage.rotation))):
            self._verify_calls({name: stage.rotation[place]})
            if self._agree(self._device.now() - start > self._allowed_s):
                return

    def _verify_calls(self, instead: Mapping[str, Callable[[], object]]) -> dict[str, Observed | Profile]:
        """Check one call of every stage on overwritten outputs, another call `instead` of those of that name."""
        self._limits.calling(self.task.stages.values())
        self.overwrite()
        for name, stage in self.task.stages.items():
            self._agree(None)
            instead.get(name, stage.call)()
        self._limits.waiting(self.task.stages.values())
        return self.check()

    def overwrite(self) -> None:
        """Poison the outputs; no rank goes on before all have done so."""
        self.task.poison()
        self._device.synchronize()
        self._agree(None)

    def check(self) -> dict[str, Observed | Profile]:
        """Check what the ranks left: none looks before all have stopped, none goes on before all have looked."""
        self._device.synchronize()
        self._agree(None)
        self._limits.checking(self.task.stages.values())
        start = self._device.now()
        found = observed("the check", self.task.check())
        self.seconds = self._device.now() - start
        self.is_stale = False
        self._agree(None)
        return found
