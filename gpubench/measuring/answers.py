"""Check a task's answers: overwrite its outputs, call its stages, and compare, in step with the other ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

import numpy as np

from gpubench.authoring.task import Observed, Profile, Stage, Task, observed
from gpubench.measuring.time_limits import TimeLimits
from gpubench.plugins.backend import OpenDevice

T = TypeVar("T")


class Agree(Protocol):
    """Returns the deciding rank's value on every active rank. Because all ranks wait for it, it is a barrier too."""

    def __call__(self, value: T) -> T: ...


def agree_alone(value: T) -> T:
    """Return `value`: the agreement of a single rank with itself."""
    return value


class AnswerChecks:
    """Overwrites the outputs of one task and checks them; `seconds` is how long the last check took on this rank.

    `allowed_s` is the time in seconds that the further checks of `verify` may take.
    """

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
        """Overwrite the outputs, call every stage once, check, and return the observations of the check by name.

        Further calls are checked in the same way. With a rotation they are its other calls: one at random, and more as
        long as time allows. Without a rotation every stage is called and checked once more if the first check was
        short. Raises WrongAnswer from the task's check.
        """
        start = self._device.now()
        observations = self._verify_calls({})
        is_cheap = self._agree(self._device.now() - start <= self._allowed_s)
        stages = self.task.stages.values()
        if is_cheap and not any(stage.rotation for stage in stages):
            self._verify_calls({})
        for name, stage in self.task.stages.items():
            self._verify_rotation(name, stage)
        return observations

    def _verify_rotation(self, name: str, stage: Stage) -> None:
        """Check further calls in the rotation of the stage `name`, in random order.

        It ends when the allowed time is over; the first call was checked before. Raises WrongAnswer.
        """
        start = self._device.now()
        for place in self._rng.permutation(range(1, len(stage.rotation))):
            self._verify_calls({name: stage.rotation[place]})
            if self._agree(self._device.now() - start > self._allowed_s):
                return

    def _verify_calls(self, instead: Mapping[str, Callable[[], object]]) -> dict[str, Observed | Profile]:
        """Call every stage once on overwritten outputs, check, and return the observations of the check by name.

        `instead` has calls by the name of their stage, which replace the stage's own call. Raises WrongAnswer.
        """
        self._limits.calling(self.task.stages.values())
        self.overwrite()
        for name, stage in self.task.stages.items():
            self._agree(None)
            instead.get(name, stage.call)()
        self._limits.waiting(self.task.stages.values())
        return self.check()

    def overwrite(self) -> None:
        """Poison the outputs, so that a call that writes nothing is found; return when all ranks have done so."""
        self.task.poison()
        self._device.synchronize()
        self._agree(None)

    def check(self) -> dict[str, Observed | Profile]:
        """Check the outputs and return the observations of the task's check by name.

        No rank checks before all have stopped, and none continues before all have checked. Raises WrongAnswer from the
        task's check.
        """
        self._device.synchronize()
        self._agree(None)
        self._limits.checking(self.task.stages.values())
        start = self._device.now()
        observations = observed("the check", self.task.check())
        self.seconds = self._device.now() - start
        self.is_stale = False
        self._agree(None)
        return observations
