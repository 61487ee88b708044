"""Measure one small copy through a mapping that stays open, and the wait for it."""

from gpubench.api import suite as gb

from .._between import devices_of, paths
from .._copies import WAYS
from ._mapped import Partner, owner

topic = gb.Topic(views=[gb.View("bars", "Small copy latency between processes", ("single",), by=("path",))])


@topic.case(ranks=2, devices=devices_of, path=paths, way=WAYS, size_bytes=(2**3,))
def single(bench: gb.Bench, path: str, way: str, size_bytes: int) -> gb.Task:
    """Seconds of one small copy through a mapping that stays open and of the wait for it, by the host's clock.

    `way` is how the bytes are copied. `path` is `same` if both processes use one device, or `peer` for two GPUs."""
    if bench.rank == 0:
        return owner(bench, size_bytes)
    partner = Partner(bench, path, way, size_bytes)
    work = gb.Work(payload=size_bytes, items=1)
    return partner.task(gb.Stage(partner.keep(), work, "item", clock="host", max_calls=1, effort=gb.POINT))
