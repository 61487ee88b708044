"""Copy in one direction: the device reads its peer's memory, or writes it."""

from functools import partial

from gpubench.api import suite as gb

from .._between import POISON, expect_pattern, fill_pattern
from .._copies import ARRAYS, READING, WRITING, call_of, reads, require
from .._link import LIMIT, ONE_WAY
from ._peers import BY, device_axis, link_notes, peer_axis, sizes, two_devices

topic = gb.Topic(
    views=[
        gb.View("matrix", "Peer read bandwidth", ("read",), x="peer", y="device", by=("by",)),
        gb.View("matrix", "Peer write bandwidth", ("write",), x="peer", y="device", by=("by",)),
        gb.View("transfer", "Peer copy bandwidth by size", ("read", "write"), "size_bytes", by=("by", "peer")),
        gb.View("choice", "Sender to a peer that adapts to the size", ("write",), "size_bytes", by=("by",)),
    ],
)


@topic.case(
    devices=two_devices,
    when=gb.on_gpu,
    device=device_axis,
    peer=peer_axis,
    by=BY,
    size_bytes=sizes,
    headline={"by": "engine"},
)
def read(bench: gb.Bench, device: str, peer: str, by: str, size_bytes: int) -> gb.Task:
    """Bandwidth of copies of the device from its peer's memory into its own: payload. `by` is the means of the copy."""
    del device, peer
    return _one_way(bench, READING[by], size_bytes)


@topic.case(devices=two_devices, when=gb.on_gpu, device=device_axis, peer=peer_axis, by=BY, size_bytes=sizes)
def write(bench: gb.Bench, device: str, peer: str, by: str, size_bytes: int) -> gb.Task:
    """Bandwidth of copies of the device from its own memory into its peer's: payload. `by` is the means of the copy."""
    del device, peer
    return _one_way(bench, WRITING[by], size_bytes)


def _one_way(bench: gb.Bench, way: str, size_bytes: int) -> gb.Task:
    """Return the task of a copy of `size_bytes` between this device and its peer."""
    require(bench, way)
    bench.need(ARRAYS * size_bytes)
    xp = bench.xp
    near = xp.empty(size_bytes, xp.uint8)
    far = bench.device.peer_memory(bench.devices[1], size_bytes)
    source = far if reads(way) else near
    sent = fill_pattern(bench, source, bench.seed)
    bench.device.synchronize()
    poisoned = xp.full(size_bytes, POISON, xp.uint8)

    def poison() -> None:
        bench.device.copy(near if reads(way) else far, poisoned)

    def check() -> gb.Observation:
        """Raise WrongAnswer if a byte of the copy differs.

        Bytes in the peer's memory are copied back by a copy engine first."""
        copied = near
        if not reads(way):
            copied = xp.empty_like(near)
            bench.device.copy(copied, far)
        expect_pattern(bench, copied, sent.seed, "copied between two devices")
        return {}

    call, work, inputs = call_of(bench, way, near, far), gb.Work(payload=size_bytes), partial(sent.redraw, source)
    stage = gb.Stage(call, work, "payload", LIMIT, effort=gb.POINT, inputs=inputs)
    return gb.Task.of(stage, check=check, poison=poison, notes=link_notes(bench, ONE_WAY, way))
