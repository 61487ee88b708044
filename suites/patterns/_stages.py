"""Measure an inference pipeline: several processes have the layers of a model, and each passes its output to the next.

A batch of requests enters the first stage as soon as one leaves the last stage, so that one batch per stage is on
its way. A stage copies its output into a slot of the next one's memory and then says so by a number in host memory."""

import math
import time
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._between import Params, devices_of, labels, need_shared_gpu, notes, open_shared, paths, ranks_of
from .._checks import flipping
from ._products import Normals, expect_close, type_of, use_one_thread, width_of

_LAYERS = 4  # layers of the whole model
_SLOTS = 2  # batches in the memory of a stage: one is computed while the next one arrives
_BATCHES = 25  # batches per sample
_TAIL = 1000  # latencies: ten lie beyond the 99th percentile
_CHECKED = 4
_BUFFERS = 3
_DONE = "done"  # the slot of the number of batches that a rank has done

topic = gb.Topic(
    views=[
        gb.View("curve", "Inference pipeline latency by batch", ("stages",), "batch", by=("path", "of")),
        gb.View(
            "curve",
            "Inference pipeline throughput by batch",
            ("stages",),
            "batch",
            by=("path", "of"),
            series="requests",
        ),
    ],
)


def _batches(target: gb.Target) -> Any:
    if target.is_host:
        return gb.points((1, 16), smoke=(4,), full=(1, 4, 16, 64))
    return gb.points((64,), smoke=(16,), full=(1, 8, 64, 512))


def _is_pipeline(target: gb.Target, params: Params) -> bool:
    """Return whether to measure a point: not one stage on two devices, nor in `quick` several processes on one GPU."""
    if params["path"] == "same" and target.tier == "quick" and not target.is_host:
        return False
    return params["path"] == "same" or int(params["of"]) > 1


@topic.case(
    ranks=ranks_of,
    devices=devices_of,
    where=_is_pipeline,
    path=paths,
    of=lambda target: gb.points((2,), full=(1, 2, 4) if target.is_host else (1, 2)),
    batch=_batches,
)
def stages(bench: gb.Bench, path: str, of: int, batch: int) -> gb.Task:
    """Seconds of a batch through a model of 4 square layers in `of` processes, one sample per batch.

    `requests` is the throughput of all batches, from the entry of the first batch to the end of the last one."""
    del of
    need_shared_gpu(bench)
    rank = PipelineRank(bench, batch, width_of(bench))
    tail = gb.POINT.with_tail(_TAIL if bench.target.tier == "full" else 0)
    work, inputs = gb.Work(items=1), rank.redraw
    stage = gb.Stage(rank.seconds, work, "item", clock="self", probe=rank.observed, effort=tail, inputs=inputs)
    return gb.Task.of(
        stage,
        check=rank.check,
        poison=rank.poison,
        close=rank.close,
        release=rank.release,
        notes={**notes(bench, path), **rank.notes},
        labels=labels(bench, path),
    )


class PipelineRank:
    """One stage: its layers, the slots in which batches arrive, and the mapped slots of the next stage.

    A batch is an array of the shape (batch, width). Every rank must create the object; rank 0 is the first stage."""

    def __init__(self, bench: gb.Bench, batch: int, width: int) -> None:
        per_stage = _LAYERS // bench.world
        itemsize = np.dtype(type_of(bench)).itemsize
        self._batch_bytes = batch * width * itemsize
        bench.need(_BUFFERS * (_LAYERS * width * width * itemsize + _SLOTS * self._batch_bytes))
        self._bench, self._batch, self._width = bench, batch, width
        self._restore_threads = use_one_thread(bench)
        normals = Normals(bench)
        self._all_weights = [normals.matrix(width, width, layer, 1 / math.sqrt(width)) for layer in range(_LAYERS)]
        self._weights = self._all_weights[bench.rank * per_stage : (bench.rank + 1) * per_stage]
        self._requests = [normals.matrix(batch, width, _LAYERS + slot) for slot in range(_SLOTS)]
        self.redraw = flipping(*self._requests)
        self._between = [bench.xp.empty_like(self._requests[0]) for _ in range(2)]
        self._outputs = [bench.xp.empty_like(self._requests[0]) for _ in range(_SLOTS)]
        self._board = bench.board(_DONE, room_bytes=2 * _BATCHES * 8, has_beats=True)
        self._stamps: Any = self._board.room.view(np.int64).reshape(2, _BATCHES)
        self._inbox: gb.SharedBuffer = bench.device.share(_SLOTS * self._batch_bytes)
        handles = bench.exchange(self._inbox.handle)
        self._is_last = bench.rank == bench.world - 1
        self._next: gb.SharedBuffer | None = None
        if not self._is_last:
            self._next = open_shared(bench, handles[bench.rank + 1], _SLOTS * self._batch_bytes)
        self._done = 0
        self.notes = {"layers": str(_LAYERS), "width": str(width), "type": type_of(bench)}
        self._call()

    def _slot(self, buffer: gb.SharedBuffer, number: int) -> Any:
        """Return the slot of `buffer` for batch number `number`, an array of the device of shape (batch, width)."""
        start = number % _SLOTS * self._batch_bytes
        part = buffer.array[start : start + self._batch_bytes]
        return part.view(self._requests[0].dtype).reshape(self._batch, self._width)

    def _compute(self, source: Any, target: Any) -> None:
        """Apply this stage's layers to `source` and write the result to `target`, both of shape (batch, width)."""
        xp = self._bench.xp
        for index, weights in enumerate(self._weights):
            out = target if index == len(self._weights) - 1 else self._between[index % 2]
            xp.matmul(source, weights, out=out)
            xp.maximum(out, 0, out=out)
            source = out

    def _call(self) -> None:
        """Work on the 25 batches of a sample: wait for each, compute it, and pass it on; every rank must call it."""
        device, rank = self._bench.device, self._bench.rank
        self._board.meet()
        for index in range(_BATCHES):
            number = self._done
            if rank == 0:
                self._board.wait_for(_DONE, number - self._bench.world + 1, [self._bench.world - 1])
                self._stamps[0, index] = time.perf_counter_ns()
                source = self._requests[number % _SLOTS]
            else:
                self._board.wait_for(_DONE, number + 1, [rank - 1])
                source = self._slot(self._inbox, number)
            output = self._outputs[number % _SLOTS]
            self._compute(source, output)
            if self._next is not None:
                self._board.wait_for(_DONE, number - _SLOTS + 1, [rank + 1])
                device.copy(self._slot(self._next, number), output)
            device.synchronize()
            if self._is_last:
                self._stamps[1, index] = time.perf_counter_ns()
            self._done += 1
            self._board.post(_DONE, self._done)
        self._board.meet()

    def seconds(self) -> list[float]:
        """Return the seconds of each of the 25 batches from its entry to its end; every rank must call it."""
        self._call()
        return [float(nanoseconds) * 1e-9 for nanoseconds in self._stamps[1] - self._stamps[0]]

    def observed(self) -> gb.Observation:
        """Return the requests per second of the last sample, from the first batch's entry to the last batch's end."""
        whole_s = float(self._stamps[1, -1] - self._stamps[0, 0]) * 1e-9
        return {"requests": gb.Observed(_BATCHES * self._batch / whole_s, "request/s", "more")}

    def poison(self) -> None:
        """Overwrite the outputs and the slots with NaN; every rank must call it, and waits for the others."""
        for array in (*self._outputs, *self._between, self._inbox.array.view(self._requests[0].dtype)):
            array.fill(np.nan)
        self._bench.device.synchronize()
        self._board.meet()

    def check(self) -> None:
        """Raise WrongAnswer if rows of the last stage's outputs differ from the model in double precision."""
        if not self._is_last:
            return
        rows = self._bench.rng.integers(0, self._batch, _CHECKED)
        for request, output in zip(self._requests, self._outputs, strict=True):
            expected = request[rows].astype(np.float64)
            for weights in self._all_weights:
                expected = self._bench.xp.maximum(expected @ weights.astype(np.float64), 0)
            expect_close(output[rows], expected, "outputs of the pipeline")

    def close(self) -> None:
        """Unmap the slots of the next stage and the shared memory, and restore the number of threads."""
        self._restore_threads()
        del self._stamps
        if self._next is not None:
            self._next.close()
        self._board.close()

    def release(self) -> None:
        """Free the slots of this stage."""
        self._inbox.close()
