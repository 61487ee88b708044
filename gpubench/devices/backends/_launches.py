"""Count the kernels of a call by capturing it into a CUDA graph; unlike profiling, this needs no privilege."""

import contextlib
from collections.abc import Callable
from typing import Any

from gpubench.base.errors import Skip
from gpubench.devices.native.driver import Driver


def launches_of(cupy: Any, stream: Any, call: Callable[[], object]) -> int | None:
    """Return the number of kernels that one call of `call` queues on `stream`; copies and memsets do not count.

    `cupy` is the module, and `stream` a CuPy stream, which must be the current one."""
    try:
        driver = Driver()
    except Skip:
        return None
    stream.begin_capture()
    try:
        call()
        graph = stream.end_capture()
    except RuntimeError:  # from CUDA or CuPy: the call cannot be captured, and the capture is invalid
        with contextlib.suppress(RuntimeError):  # it reports again that the capture is invalid
            cupy.cuda.runtime.streamEndCapture(stream.ptr)
        return None
    bindings = driver.bindings
    handle = bindings.CUgraph(graph.graph)
    _, count = driver("cuGraphGetNodes", handle, 0)
    nodes, _ = driver("cuGraphGetNodes", handle, count) if count else ((), 0)
    kernel = bindings.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL
    return sum(bool(driver("cuGraphNodeGetType", node) == kernel) for node in nodes)
