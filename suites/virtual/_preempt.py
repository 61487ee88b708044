"""Measure how long a small urgent kernel waits behind the long kernels of another program on the same device."""

from collections.abc import Callable, Mapping
from functools import partial

from gpubench.api import suite as gb

from ._loads import launch, nothing, spin
from ._neighbour import NeighbourPair, operations, share, way_labels

_LONG_S = 2e-3  # duration of two blocks of the long kernel, which fill an SM

topic = gb.Topic(
    views=[gb.View("bars", "Start time of an urgent kernel behind long kernels", ("preempt",), by=("how", "blocks"))],
)


@topic.case(
    ranks=lambda params: 2 if params["how"] == "processes" else 1,
    when=gb.on_gpu,
    how=gb.points((), smoke=("priority",), full=("streams", "priority", "green", "processes")),
    blocks=gb.points((1, 16), smoke=(1,)),
)
def preempt(bench: gb.Bench, how: str, blocks: int) -> gb.Task:
    """Seconds from the launch of an empty kernel to its end, behind kernels of `blocks` blocks per SM.

    An SM holds two such blocks at a time, which then last 2 ms; one alone lasts 1 ms. `delay` is the time beside them
    minus the time alone. A GPU does not interrupt a block for a kernel of the same process. So the delay by priority is
    the time until a block ends, and without priority the time until all blocks ahead have started. Only the turns of
    two processes interrupt a block."""

    def finish(pair: NeighbourPair, close: Callable[[], None], notes: Mapping[str, str]) -> gb.Task:
        """Return the task of the urgent kernel beside the long kernels.

        `pair` measures, and `close` ends the other program."""

        def delayed() -> gb.Observation:
            alone = pair.alone_s()
            return {"alone": gb.Observed(alone, "s"), "delay": gb.Observed(pair.beside_s - alone, "s")}

        stage = operations(pair.seconds, delayed)
        return gb.Task.of(stage, check=nothing, close=close, notes=notes, labels=way_labels(bench, how))

    long_kernels = partial(spin, blocks=blocks * bench.target.device.units, seconds=_LONG_S)
    return share(bench, how, launch, long_kernels, True, finish)
