"""Measure what two processes exchange: handles and their cost, copies, signals and barriers."""

from gpubench.api import suite as gb

from . import _both, _handles, _mapped, _messages, _mpi_buffers, _refused, _signals, _single, _staged

_COPIES = ("pull", "push", "load", "store", "plain", "staged", "socket", "pipe", "direct", "mpi")

suite = gb.Suite(
    "copies and signals between two processes; opening shared memory",
    views=[
        gb.View("transfer", "Copy bandwidth between processes by size", _COPIES, "size_bytes", by=("path",)),
        gb.View("choice", "Sender between processes that adapts to the size", _COPIES, "size_bytes"),
    ],
    topics=[
        _mapped.topic,
        _staged.topic,
        _both.topic,
        _single.topic,
        _messages.topic,
        _mpi_buffers.topic,
        _handles.topic,
        _refused.topic,
        _signals.topic,
    ],
)
