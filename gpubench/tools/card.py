"""Say what would run on a card that is not here: `gpubench doctor --card NAME`."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from gpubench import plugins
from gpubench.analysis import cards
from gpubench.base import units
from gpubench.measuring import plan as planning
from gpubench.model import Settings


def described(name: str) -> Iterator[str]:
    """Yield lines about a card by its short name (`rtx-4090`): the cases of each suite, peaks, and whether it ran.

    Raises UsageError with the names of all cards."""
    backends: list[Any] = [plugins.load("backends", backend) for backend in plugins.names("backends")]
    facts = next(backend for backend in backends if hasattr(backend, "on_paper")).on_paper(name)
    device = facts.devices[0]
    memory = units.round_size(device.memory_bytes)
    yield f"{device.name}: {device.arch}, {device.units} compute units, {memory}, {device.kind}; from its data sheet"
    plan = planning.make(facts, Settings(planning.suite_names([]), (device.id,), "quick"))
    planned = Counter(job.case.suite for job in plan.jobs)
    for suite, count in planned.items():
        alone = sum(bool(planning.missing_devices(job)) for job in plan.jobs if job.case.suite == suite)
        needing = f", {'all' if alone == count else alone} of them need a peer, which it lacks" if alone else ""
        yield f"{suite}: {count} case{'s'[: count != 1]} planned in the quick tier{needing}"
    yield "a planned case that the card does not support is skipped with its reason"
    yield from cards.described(device)
