"""Between two processes: handles and what they cost, copies through them, signals and barriers."""

from __future__ import annotations

from gpubench.api.suite import Suite, View

from . import _both, _handles, _mapped, _messages, _refused, _signals, _single, _staged

_COPIES = ("pull", "push", "load", "store", "plain", "staged", "socket", "pipe", "direct")

suite = Suite(
    "memory shared between two processes (CUDA or HIP IPC handles; on the host shared memory and sockets)",
    views=[
        View("transfer", "Ways between two processes: which at which size", _COPIES, "size_bytes", by=("path",)),
        View("curve", "Copies over size", _COPIES, "size_bytes", by=("path",), log_x=True, log_y=True),
    ],
    topics=[
        _mapped.topic,
        _staged.topic,
        _both.topic,
        _single.topic,
        _messages.topic,
        _handles.topic,
        _refused.topic,
        _signals.topic,
    ],
)
