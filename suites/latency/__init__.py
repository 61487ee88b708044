"""Measure latency: the time of one operation that waits for the one before.

A walk is a chain of dependent loads by one active lane round a ring: a random single cycle over cache lines, with one
node a line that holds the position of the next node. Seconds are by the device's events or by the clock that the case's
figure names. Cycles, where there are any, are by the device's clock in the same kernel."""

from gpubench.api import suite as gb

from . import _chase, _costs, _host, _loaded, _near, _slices, _spaces

suite = gb.Suite(
    "latency of memory, caches, atomics, launches and synchronisation",
    views=[gb.View("bars", "Load latency by memory space", ("load", "shared", "cluster", "register"), log_x=True)],
    topics=[
        _chase.topic,
        _spaces.topic,
        _near.topic,
        _costs.topic,
        _slices.topic,
        _loaded.topic,
        _host.topic,
    ],
)
