"""Copy in both directions at once, one direction by each device."""

from functools import partial

from gpubench.api import suite as gb

from .._between import POISON, expect_pattern, fill_pattern
from .._checks import in_turn
from .._copies import ARRAYS, READING, call_of, require
from .._link import BOTH_WAYS, LIMIT
from ._peers import BY, device_axis, link_notes, peer_axis, sizes, two_devices

topic = gb.Topic(
    views=[gb.View("matrix", "Bidirectional peer bandwidth", ("both",), x="peer", y="device", by=("by",), series="sum")]
)


@topic.case(devices=two_devices, when=gb.on_gpu, device=device_axis, peer=peer_axis, by=BY, size_bytes=sizes)
def both(bench: gb.Bench, device: str, peer: str, by: str, size_bytes: int) -> gb.Task:
    """Bandwidth of copies of two devices at once, each out of the other one's memory: payload of one direction.

    `by` is the means of the copies, of `size_bytes` each. The series `sum` counts the payload of both directions."""
    del device, peer
    way = READING[by]
    require(bench, way)
    bench.need(ARRAYS * size_bytes)
    xp, peer_device = bench.xp, bench.devices[1]
    near, near_copy = (xp.empty(size_bytes, xp.uint8) for _ in range(2))
    far, far_copy = (bench.device.peer_memory(peer_device, size_bytes) for _ in range(2))
    outwards, inwards = fill_pattern(bench, near, bench.seed), fill_pattern(bench, far, bench.seed + 1)
    bench.device.synchronize()
    poisoned = xp.full(size_bytes, POISON, xp.uint8)
    inward, outward = call_of(bench, way, near_copy, far), call_of(bench, way, far_copy, near)

    def poison() -> None:
        bench.device.copy(near_copy, poisoned)
        bench.device.copy(far_copy, poisoned)

    def check() -> gb.Observation:
        """Raise WrongAnswer if a byte did not arrive in one of the directions."""
        expect_pattern(bench, near_copy, inwards.seed, "read from the peer")
        arrived = xp.empty_like(near)
        bench.device.copy(arrived, far_copy)
        expect_pattern(bench, arrived, outwards.seed, "read by the peer")
        return {}

    stage = gb.Stage(
        lambda: bench.device.together(inward, outward, peer=peer_device),
        gb.Work(payload=size_bytes),
        "payload",
        LIMIT,
        also={"sum": gb.Work(payload=2 * size_bytes)},
        max_calls=16,
        effort=gb.POINT,
        inputs=in_turn(partial(outwards.redraw, near), partial(inwards.redraw, far)),
    )
    return gb.Task.of(stage, check=check, poison=poison, notes=link_notes(bench, BOTH_WAYS, way))
