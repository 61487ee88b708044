"""Measure one small copy through a mapping that stays open, and the wait for it."""

from __future__ import annotations

from gpubench.api.suite import POINT, Bench, Stage, Task, Topic, View, Work

from .._between import devices_of, paths
from .._copies import WAYS
from ._mapped import Partner, owner

topic = Topic(views=[View("bars", "Small copy latency between processes", ("single",), by=("path",))])


@topic.case(ranks=2, devices=devices_of, path=paths, way=WAYS, size_bytes=(2**3,))
def single(bench: Bench, path: str, way: str, size_bytes: int) -> Task:
    """Seconds of one small copy through a mapping that stays open and of the wait for it, by the host's clock.

    `way` is how the bytes are copied. `path` is `same` if both processes use one device, or `peer` for two GPUs."""
    if bench.rank == 0:
        return owner(bench, size_bytes)
    partner = Partner(bench, path, way, size_bytes)
    work = Work(payload=size_bytes, items=1)
    return partner.task(Stage(partner.keep(), work, "item", clock="host", max_calls=1, effort=POINT))
