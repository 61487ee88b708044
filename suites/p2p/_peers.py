"""Define the axes and notes of the cases between two GPUs of one process."""

from typing import Any

from gpubench.api import suite as gb

from .._between import Params, fitting
from .._link import link_of

BY = ("engine", "kernel", "bulk")  # copy engine, kernel copy, bulk copy (TMA)


def device_axis(target: gb.Target) -> tuple[str, ...]:
    """Return the only point of the axis `device`: the device that works."""
    return (target.device.id,)


def peer_axis(target: gb.Target) -> tuple[str, ...]:
    """Return every device whose memory this device can access; `none` lets the plan report that there is no peer."""
    return target.device.peers or ("none",)


def two_devices(_: Params) -> int:
    """Return the number of devices of every case."""
    return 2


def sizes(target: gb.Target) -> Any:
    """Return the sizes of a copy: 1 GiB, and in `full` from a word to 1 GiB."""
    return gb.points(fitting(target, (2**30,)), smoke=(2**24,), full=fitting(target, gb.powers_of_two(3, 30)))


def device_names(bench: gb.Bench) -> str:
    """Return the ids of both devices as a note."""
    return " and ".join(device.id for device in bench.devices)


def link_notes(bench: gb.Bench, direction: str, way: str) -> dict[str, str]:
    """Return the notes of a copy over the link between both devices."""
    link = link_of(direction, way, protocol="none (one process)")
    return {"devices": device_names(bench), "processes": "1", **link}
