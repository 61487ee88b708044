"""Define rounds of a signal or a barrier between ranks, which time themselves: one sample per round."""

from collections.abc import Callable, Mapping

from gpubench.api import suite as gb

_TAIL = 10_000  # samples that a 99.9th percentile needs


class Rounds:
    """Rounds of signals that a rank makes together with the other ranks; `notes` say by which means."""

    notes: Mapping[str, str] = {}
    redraw: Callable[[], None] | None = None  # as `inputs` of a Stage

    def seconds(self) -> list[float]:
        """Make a fixed number of rounds and return the seconds of each but the first; every rank must call it.

        In the first round one rank waits for another to start."""
        raise NotImplementedError

    def check(self) -> gb.Observation | None:
        """Raise WrongAnswer if a round was lost; return observations, if any."""
        raise NotImplementedError

    def close(self) -> None:
        """Unmap the memory of other ranks."""

    def release(self) -> None:
        """Free the memory of this rank."""

    def task(self, items: int, notes: Mapping[str, str] | None = None, labels: tuple[str, ...] = ()) -> gb.Task:
        """Return the task of these rounds, in seconds per item; a round counts as `items` items.

        `notes` are added to the notes of the rounds; the task has the `labels`."""
        how: gb.Effort = gb.POINT.with_tail(_TAIL)
        stage = gb.Stage(self.seconds, gb.Work(items=items), "item", clock="self", effort=how, inputs=self.redraw)
        all_notes = {**self.notes, **(notes or {})}
        return gb.Task.of(
            stage, check=self.check, close=self.close, release=self.release, notes=all_notes, labels=labels
        )
