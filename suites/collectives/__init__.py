"""Measure collectives between GPUs through NCCL or RCCL, one rank per GPU, and on the host through shared memory."""

from __future__ import annotations

from gpubench.api.suite import Suite

from . import _across, _cases

suite = Suite("collective operations between GPUs (NCCL, RCCL) or host processes", topics=[_cases.topic, _across.topic])
