"""Measure sustained bandwidth: device memory, caches, shared memory, parts of lines, copies, and the link to the host.

Kernels on device memory are counted by STREAM's rule: every array that a kernel names, once for each element read or
written. A figure is compared with the DRAM peak only where each array is at least four times the last-level cache."""

from gpubench.api import suite as gb

from . import _access, _beside, _blocks, _cache, _engines, _host_link, _link, _stream, _tiers

suite = gb.Suite(
    "bandwidth of memory, caches, copies and the host link",
    topics=[
        _stream.topic,
        _cache.topic,
        _tiers.topic,
        _access.topic,
        _engines.topic,
        _beside.topic,
        _link.topic,
        _blocks.topic,
        _host_link.topic,
    ],
)
