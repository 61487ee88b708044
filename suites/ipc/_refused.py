"""Handles that must not open: the refusal is named, and the device is as well as before."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpubench.api.suite import Bench, Handle, Observation, Task, expect

from ._handles import EACH_BYTES, filled, self_timed


def refused(bench: Bench, what: str) -> Task:
    """Seconds until opening a handle fails that must fail; the error's name is in the notes."""
    memory = bench.device.shared_memory("raw")
    if bench.rank == 0:
        buffer = filled(bench, memory, EACH_BYTES, bench.seed)
        made = memory.export(buffer)
        if what == "freed":
            buffer.close()
        bench.exchange(made)
        if what != "own":
            return Task.idle(buffer.close)
        attempt: Callable[[], object] = lambda: memory.open(made, EACH_BYTES)  # noqa: E731 - one of three attempts
        return _refusal(bench, attempt, buffer.close)
    given: Handle = bench.exchange(None)[0]
    if what == "own":
        return Task.idle()
    if what == "closed":
        opened = memory.open(given, EACH_BYTES)
        opened.close()
        return _refusal(bench, opened.close, lambda: None)
    return _refusal(bench, lambda: memory.open(given, EACH_BYTES), lambda: None)


def _refusal(bench: Bench, attempt: Callable[[], object], release: Callable[[], None]) -> Task:
    errors: list[str] = []

    def refused_after() -> float:
        start = time.perf_counter()
        try:
            attempt()
        except RuntimeError as error:  # the runtime's own is one
            errors[:] = [str(error).partition(":")[0]]
        else:
            errors.clear()
        return time.perf_counter() - start

    def check() -> Observation:
        expect(len(errors) == 1, "what must be refused was not")
        expect(errors[0].startswith(("cuda", "hip")), f"the refusal has no name of the runtime's: {errors[0]}")
        bench.device.synchronize()  # and the device is as well as before
        return {}

    refused_after()
    return Task.of(
        self_timed(refused_after), check=check, notes={"error": errors[0] if errors else "none"}, release=release
    )
