"""Collectives between GPUs through NCCL or RCCL, a rank a GPU; on the host between processes through shared memory."""

from __future__ import annotations

from gpubench.api.suite import Suite

from . import _cases

suite = Suite(
    "collectives between GPUs (NCCL, RCCL), a rank a GPU; on the host between processes", topics=[_cases.topic]
)
