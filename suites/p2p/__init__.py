"""Measure between two GPUs of one process: the peer matrix, and the latency of small messages beside bulk copies.

A row of the matrix is what one device does with each peer's memory: `read`, `write` and `both` copy by the copy engine,
by a kernel and by bulk copies (TMA); `latency` is one access after another. `control` times 8-byte messages while bulk
copies use the same link. Every byte that arrives is compared with what was written."""

from gpubench.api import suite as gb

from . import _both_ways, _control, _latency, _one_way

suite = gb.Suite(
    "copies, latency and small messages between GPUs of one process",
    topics=[_one_way.topic, _latency.topic, _both_ways.topic, _control.topic],
)
