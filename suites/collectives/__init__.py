"""Measure collectives between GPUs through NCCL or RCCL, one rank per GPU, and on the host through shared memory."""

from gpubench.api import suite as gb

from . import _across, _cases

suite = gb.Suite(
    "collective operations between GPUs (NCCL, RCCL) or host processes", topics=[_cases.topic, _across.topic]
)
