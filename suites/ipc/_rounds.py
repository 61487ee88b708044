"""Rounds of a signal or a barrier between ranks, which time themselves: one sample per round."""

from __future__ import annotations

from collections.abc import Mapping

from gpubench.api.suite import POINT, Observation, Stage, Task, Work

_TAIL = 10_000  # samples that a 99.9th percentile needs


class Rounds:
    """Rounds that a rank makes together with the other ranks; `notes` say by which means."""

    notes: Mapping[str, str] = {}

    def seconds(self) -> list[float]:
        """Return the seconds of each round except the first, in which one rank waits for the other rank to start."""
        raise NotImplementedError

    def check(self) -> Observation | None:
        """Raise WrongAnswer if a round was lost."""
        raise NotImplementedError

    def close(self) -> None:
        """Unmap the memory of other ranks."""

    def release(self) -> None:
        """Free the memory of this rank."""

    def task(self, items: int, notes: Mapping[str, str] | None = None, labels: tuple[str, ...] = ()) -> Task:
        """Return the task of rounds that count as `items` each."""
        stage = Stage(self.seconds, Work(items=items), "item", clock="self", effort=POINT.with_tail(_TAIL))
        all_notes = {**self.notes, **(notes or {})}
        return Task.of(stage, check=self.check, close=self.close, release=self.release, notes=all_notes, labels=labels)
