"""State the time of an empty kernel by each way of timing, which is the floor under the time of any call."""

from typing import Literal

from gpubench.knowledge.hardware import Peak
from gpubench.model import SeriesMode

Launch = Literal["gated", "graph"]

# Measured on an H200 by `latency/launch`: 1.40 µs behind the gate and 0.51 µs in a graph (recording h200-quick), 1.36
# and 0.51 µs (whole/h200). Behind the gate a batch is queued before it runs, so that its time includes no time of the
# host. The time of a replayed graph does not include the driver's part of each launch either.
EMPTY_KERNEL: dict[Launch, Peak] = {
    "gated": Peak(1.36e-6, "an empty kernel behind the gate on an H200"),
    "graph": Peak(0.51e-6, "an empty kernel in a replayed graph on an H200"),
}
EMPTY_KERNEL_CASE = "latency/launch"  # a run with this case has its own figures


def launch_of(mode: SeriesMode) -> Launch | None:
    """Return how the calls of a mode are launched; None for modes that do not time launches.

    The result is `gated` (a batch queued behind the gate kernel) or `graph` (a replayed graph)."""
    if mode == "graph":
        return "graph"
    return "gated" if mode in ("hot", "cold", "each", "rotated") else None
