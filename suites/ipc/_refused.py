"""Measure handles that must not open: the driver must report an error, and the device must still work."""

import time
from collections.abc import Callable

from gpubench.api import suite as gb

from ._handles import EACH_BYTES, filled, self_timed

topic = gb.Topic()


@topic.case(ranks=2, when=gb.on_gpu, what=("own", "freed", "closed"))
def refused(bench: gb.Bench, what: str) -> gb.Task:
    """Seconds until the driver refuses an invalid call (`what`).

    `own` opens a handle in the process that exported it, `freed` opens a handle of freed memory, and `closed` closes a
    handle twice. The device must still work afterwards."""
    memory = bench.device.shared_memory("raw")
    if bench.rank == 0:
        buffer = filled(bench, memory, EACH_BYTES, bench.seed)
        exported = memory.export(buffer)
        if what == "freed":
            buffer.close()
        bench.exchange(exported)
        if what == "own":
            return _refusal(bench, lambda: memory.open(exported, EACH_BYTES), buffer.close)
        return gb.Task.idle(buffer.close)
    handle: gb.Handle = bench.exchange(None)[0]
    if what == "own":
        return gb.Task.idle()
    if what == "closed":
        opened = memory.open(handle, EACH_BYTES)
        opened.close()
        return _refusal(bench, opened.close)
    return _refusal(bench, lambda: memory.open(handle, EACH_BYTES))


def _refusal(bench: gb.Bench, attempt: Callable[[], object], release: Callable[[], None] = lambda: None) -> gb.Task:
    """Return the task that times `attempt`, a call that must raise an error of the runtime (CUDA or HIP)."""
    errors: list[str] = []

    def refused_after() -> float:
        """Return the seconds that the attempt took, and keep the name of the error that it raised."""
        start = time.perf_counter()
        try:
            attempt()
        except RuntimeError as error:  # the runtime's errors are subclasses of RuntimeError
            errors[:] = [str(error).partition(":")[0]]
        else:
            errors.clear()
        return time.perf_counter() - start

    def check() -> None:
        gb.expect(len(errors) == 1, "an operation that must be refused was accepted")
        gb.expect(errors[0].startswith(("cuda", "hip")), f"the refusal is not an error of the runtime: {errors[0]}")
        bench.device.synchronize()  # raises an error if the refused operation has broken the device

    refused_after()
    return gb.Task.of(
        self_timed(refused_after), check=check, notes={"error": errors[0] if errors else "none"}, release=release
    )
