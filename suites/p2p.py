"""Between the GPUs of one process: each device's row of the peer matrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpubench.api.suite import (
    POINT,
    Bench,
    Observation,
    Stage,
    Suite,
    Target,
    Task,
    View,
    Work,
    expect,
    on_gpu,
    points,
    powers_of_two,
)

from ._between import SPOILED, Params, expect_pattern, fill_pattern, fitting
from ._copies import ARRAYS, call_of
from ._link import BOTH_WAYS, LIMIT, ONE_WAY, link_of

_BY = ("engine", "kernel")
_PULL = {"engine": "pull", "kernel": "load"}
_PUSH = {"engine": "push", "kernel": "store"}
_LINE_BYTES = 128
_RING_BYTES = 2**23  # of remote loads: more than the first cache, less than the peer's last
_STEPS = 4096
_WORD_BYTES = 8

suite = Suite(
    "the peer matrix: copies and latency between two GPUs of one process",
    views=[
        View("matrix", "Reading a peer's memory", ("read",), x="peer", y="device", by=("by",)),
        View("matrix", "Writing a peer's memory", ("write",), x="peer", y="device", by=("by",)),
        View("matrix", "Both ways at once, the sum", ("both",), x="peer", y="device", by=("by",), series="sum"),
        View("matrix", "Latency of a peer's memory", ("latency",), x="peer", y="device", by=("of",)),
        View("transfer", "Copies between peers", ("read", "write"), "size_bytes", by=("by", "peer")),
    ],
)


def _device(target: Target) -> tuple[str, ...]:
    return (target.device.id,)


def _peers(target: Target) -> tuple[str, ...]:
    """Every device whose memory this one reaches; where there is none the cases say so."""
    return target.device.peers or ("none",)


def _two(_: Params) -> int:
    return 2


def _sizes(target: Target) -> Any:
    return points(fitting(target, (2**30,)), smoke=(2**24,), full=fitting(target, powers_of_two(3, 30)))


def _notes(bench: Bench, direction: str, way: str) -> dict[str, str]:
    devices = " and ".join(device.id for device in bench.devices)
    return {"devices": devices, "processes": "1", **link_of(direction, way, protocol="none, and one process")}


def _copies(bench: Bench, way: str, size_bytes: int) -> Task:
    """One way: this device works, on its own stream; what it wrote is read back by a copy."""
    bench.need(ARRAYS * size_bytes)
    xp = bench.xp
    near = xp.empty(size_bytes, xp.uint8)
    far = bench.device.peer_memory(bench.devices[1], size_bytes)
    reads = way in ("pull", "load")
    fill_pattern(bench, far if reads else near, bench.seed)
    bench.device.synchronize()
    spoiled = xp.full(size_bytes, SPOILED, xp.uint8)

    def poison() -> None:
        bench.device.copy(near if reads else far, spoiled)

    def check() -> Observation:
        found = near if reads else xp.empty_like(near)
        if not reads:
            bench.device.copy(found, far)
        expect_pattern(bench, found, bench.seed, "copied between two devices")
        return {}

    stage = Stage(call_of(bench, way, near, far), Work(payload=size_bytes), "payload", LIMIT, effort=POINT)
    return Task.of(stage, check=check, poison=poison, notes=_notes(bench, ONE_WAY, way))


@suite.case(
    devices=_two, when=on_gpu, device=_device, peer=_peers, by=_BY, size_bytes=_sizes, headline={"by": "engine"}
)
def read(bench: Bench, device: str, peer: str, by: str, size_bytes: int) -> Task:
    """The device copies out of its peer's memory: payload."""
    del device, peer
    return _copies(bench, _PULL[by], size_bytes)


@suite.case(devices=_two, when=on_gpu, device=_device, peer=_peers, by=_BY, size_bytes=_sizes)
def write(bench: Bench, device: str, peer: str, by: str, size_bytes: int) -> Task:
    """The device copies into its peer's memory: payload."""
    del device, peer
    return _copies(bench, _PUSH[by], size_bytes)


@suite.case(devices=_two, when=on_gpu, device=_device, peer=_peers, of=("load", "atomic", "copy"))
def latency(bench: Bench, device: str, peer: str, of: str) -> Task:
    """One access after another to a peer's memory: a load of a random line, an atomic addition, a copy of 8 B."""
    del device, peer
    found = {"devices": " and ".join(each.id for each in bench.devices)}
    if of == "copy":
        return _small_copies(bench, found)
    return _loads(bench, found) if of == "load" else _atomics(bench, found)


def _small_copies(bench: Bench, found: dict[str, str]) -> Task:
    xp = bench.xp
    near, far = xp.zeros(_WORD_BYTES, xp.uint8), bench.device.peer_memory(bench.devices[1], _WORD_BYTES)
    fill_pattern(bench, far, bench.seed + 1)

    def check() -> Observation:
        expect_pattern(bench, near, bench.seed + 1, "copied from the peer")
        return {}

    stage = Stage(lambda: bench.device.copy(near, far), Work(items=1, payload=_WORD_BYTES), "item", effort=POINT)
    return Task.of(stage, check=check, poison=lambda: near.fill(SPOILED), notes=found)


def _loads(bench: Bench, found: dict[str, str]) -> Task:
    """A random single cycle over lines of the peer's memory, walked on from where the last call ended."""
    nodes, words = _RING_BYTES // _LINE_BYTES, _LINE_BYTES // _WORD_BYTES
    far = bench.device.peer_memory(bench.devices[1], _RING_BYTES)
    base = int(far.data.ptr)
    order = bench.rng.permutation(nodes)
    ring = np.zeros(nodes * words, np.uint64)
    ring[order * words] = base + np.roll(order, -1).astype(np.uint64) * _LINE_BYTES
    image = bench.xp.asarray(ring).view(bench.xp.uint8)
    bench.device.copy(far, image)
    state = bench.xp.asarray(np.array([base + int(order[0]) * _LINE_BYTES], np.uint64))
    kernel = bench.kernel("p2p.cu", "remote_loads")
    walked = [0]

    def call() -> None:
        kernel((1,), (1,), (np.uint64(_STEPS), state))
        walked[0] += _STEPS

    def check() -> Observation:
        place = (int(bench.device.to_host(state)[0]) - base) // _LINE_BYTES
        wanted = int(order[walked[0] % nodes])
        expect(place == wanted, f"after {walked[0]} loads the walk stands at line {place}, not {wanted}")
        bench.device.copy(image, far)  # which also keeps the peer's memory for as long as the kernel reads it
        expect(bool((bench.device.to_host(image).view(np.uint64) == ring).all()), "the ring is not what it was")
        return {}

    found = {**found, "ring": f"{_RING_BYTES >> 20} MiB of the peer's memory, in its cache"}
    return Task.of(Stage(call, Work(items=_STEPS), "item", effort=POINT), check=check, notes=found)


def _atomics(bench: Bench, found: dict[str, str]) -> Task:
    xp = bench.xp
    far = bench.device.peer_memory(bench.devices[1], _LINE_BYTES)
    bench.device.copy(far, xp.zeros(_LINE_BYTES, xp.uint8))
    state = xp.zeros(1, xp.uint64)
    kernel = bench.kernel("p2p.cu", "remote_adds")
    added = [0]

    def call() -> None:
        kernel((1,), (1,), (far, np.uint64(_STEPS), np.uint32(0), state))
        added[0] += _STEPS

    def check() -> Observation:
        near = xp.empty(_LINE_BYTES, xp.uint8)
        bench.device.copy(near, far)
        stands = int(bench.device.to_host(near[:4].view(xp.uint32))[0])
        expect(stands == added[0] % 2**32, f"the counter stands at {stands} after {added[0]} additions")
        return {}

    return Task.of(Stage(call, Work(items=_STEPS), "item", effort=POINT), check=check, notes=found)


@suite.case(devices=_two, when=on_gpu, device=_device, peer=_peers, by=_BY, size_bytes=_sizes)
def both(bench: Bench, device: str, peer: str, by: str, size_bytes: int) -> Task:
    """Each device copies out of the other's memory at once: payload of one direction, and the sum of both."""
    del device, peer
    bench.need(ARRAYS * size_bytes)
    xp, other = bench.xp, bench.devices[1]
    near, near_copy = (xp.empty(size_bytes, xp.uint8) for _ in range(2))
    far, far_copy = (bench.device.peer_memory(other, size_bytes) for _ in range(2))
    fill_pattern(bench, near, bench.seed)
    fill_pattern(bench, far, bench.seed + 1)
    bench.device.synchronize()
    spoiled = xp.full(size_bytes, SPOILED, xp.uint8)
    here, there = call_of(bench, _PULL[by], near_copy, far), call_of(bench, _PULL[by], far_copy, near)

    def poison() -> None:
        bench.device.copy(near_copy, spoiled)
        bench.device.copy(far_copy, spoiled)

    def check() -> Observation:
        expect_pattern(bench, near_copy, bench.seed + 1, "read from the peer")
        arrived = xp.empty_like(near)
        bench.device.copy(arrived, far_copy)
        expect_pattern(bench, arrived, bench.seed, "read by the peer")
        return {}

    stage = Stage(
        lambda: bench.device.together(here, there, peer=other),
        Work(payload=size_bytes),
        "payload",
        LIMIT,
        also={"sum": Work(payload=2 * size_bytes)},
        max_calls=16,
        effort=POINT,
    )
    return Task.of(stage, check=check, poison=poison, notes=_notes(bench, BOTH_WAYS, _PULL[by]))
