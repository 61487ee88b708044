"""Time round trips of a word between a thread of the host and a partner that answers: another core, or a GPU kernel."""

import time
from typing import Any

from gpubench.api import suite as gb

from ._ring import host_kernel


class RoundTrips:
    """Questions with the numbers 1 to `rounds`: the host writes each to `flags[0]` and waits for it in `flags[apart]`.

    `flags`, kept as `words`, is a NumPy array of uint64 in memory that both sides reach."""

    def __init__(self, flags: Any, apart: int, rounds: int, spins: int) -> None:
        self.words = flags
        self._apart, self._rounds, self._spins = apart, rounds, spins
        self._ask = host_kernel("ask")
        self.ask(1, 0)  # asks no question yet; this call only compiles the kernel

    def ask(self, first: int, last: int) -> int:
        """Ask the questions `first` to `last` and return the last one that was answered."""
        return int(self._ask(self.words, 0, self._apart, first, last, self._spins))

    def seconds(self) -> float:
        """Ask all questions; return the host's seconds for all but the first, which waits for the partner to start."""
        self.ask(1, 1)
        start = time.perf_counter_ns()
        self.ask(2, self._rounds)
        return (time.perf_counter_ns() - start) * 1e-9

    def check(self) -> None:
        """Raise WrongAnswer unless the last question was asked and answered."""
        sent, answered = int(self.words[0]), int(self.words[self._apart])
        complete = sent == answered == self._rounds
        gb.expect(complete, f"{sent} of {self._rounds} requests were sent, {answered} were answered")
