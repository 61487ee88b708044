"""Measure transfer and computation that overlap in a pipeline: by depth, chunk size, copy engine and copy kernel.

A message has 32 chunks. Up to `depth` chunks are in flight: a chunk is copied into a free slot, and computed on when
it is there."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._between import Params, devices_of
from .._checks import expect_equal
from .._link import ONE_WAY
from ._chunks_gpu import StreamPipeline
from ._chunks_host import ThreadPipeline
from ._digest import expected_digests
from ._overlap import CalibrationPoint, OverlapTimes, best_depth, bound, next_rounds

CHUNKS = 32  # chunks of a message: the overlap can then reach 97 %
# Distinct chunks in the source of a GPU's message: more than any depth, so a stale chunk differs from the right one.
_DISTINCT = 9
_DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8)
_HOST_CHUNK = 2**18
_CHUNK_OF = {"h2d": 2**22, "peer": 2**24}  # chunk sizes on a GPU: a copy takes 40 µs or more, far longer than a launch
_COMPUTE = {"half": 0.5, "equal": 1.0, "double": 2.0}  # the time of the computation over the time of the transfer
_TRIALS, _REPEATS = 8, 3  # most steps of the calibration, and measurements in each step
_EXACT = 0.03  # the calibration ends if the computation is within this share of the wanted time
_PERCENT = 100
_SWEPT = (1, 2, 3, 4, 6, 8)  # pipeline depths that a sample of `best_depth` measures

topic = gb.Topic(
    views=[
        gb.View("curve", "Pipeline throughput by depth", ("pipeline",), "depth", by=("path", "by", "chunk_bytes")),
        gb.View(
            "curve",
            "Overlap efficiency: share of the shorter part that a pipeline hides",
            ("pipeline",),
            "depth",
            by=("path", "by", "chunk_bytes", "compute"),
            series="overlap",
        ),
        gb.View(
            "bars", "Compute slowdown beside a transfer", ("pipeline",), by=("path", "by"), series="compute_slowdown"
        ),
    ],
)


def _paths(target: gb.Target) -> tuple[str, ...]:
    """Return the axis `path`: `memory` on the host; on a GPU `h2d`, and `peer` if the GPU has a peer."""
    if target.is_host:
        return ("memory",)
    return ("h2d", "peer") if target.device.peers else ("h2d",)


def _engines(target: gb.Target) -> tuple[str, ...]:
    return ("memcpy",) if target.is_host else ("engine", "kernel")


def _chunk_sizes(target: gb.Target) -> Any:
    if target.is_host:
        return gb.points((_HOST_CHUNK,), smoke=(2**16,), full=gb.powers_of_two(16, 22, 2))
    quick = tuple(_CHUNK_OF[path] for path in _paths(target))
    return gb.points(quick, smoke=(2**16,), full=gb.powers_of_two(18, 24, 2))


def _is_pipeline(target: gb.Target, params: Params) -> bool:
    """Return whether to measure a point: in `smoke` every one, else if its chunk size suits the path."""
    if target.tier == "smoke":
        return True
    is_one_depth_over_last_path = "depth" in params and params["path"] == _paths(target)[-1]
    if target.tier == "quick" and params["by"] == "kernel" and not is_one_depth_over_last_path:
        return False
    suits = params["chunk_bytes"] == (_HOST_CHUNK if target.is_host else _CHUNK_OF[str(params["path"])])
    return suits or (target.tier == "full" and params["compute"] == "equal")


def _depths(target: gb.Target) -> Any:
    return gb.points((2,) if target.is_host else (4,), smoke=(2,), full=_DEPTHS)


def _amounts(target: gb.Target) -> Any:
    del target
    return gb.points(("equal",), full=tuple(_COMPUTE))


@topic.case(
    devices=devices_of,
    where=_is_pipeline,
    path=_paths,
    by=_engines,
    chunk_bytes=_chunk_sizes,
    compute=_amounts,
    depth=_depths,
)
def pipeline(bench: gb.Bench, path: str, by: str, chunk_bytes: int, compute: str, depth: int) -> gb.Task:
    """Copy a message of 32 chunks and compute on them in a pipeline: payload of the whole.

    The overlap efficiency and the mutual slowdowns of copies and computation are reported beside it."""
    message = PipelinedMessage(bench, path, by, chunk_bytes, compute, depth)

    def seconds() -> float:
        message.sample((depth,))
        return message.times.together_s

    return message.task(
        gb.Stage(seconds, message.work, "payload", clock="self", probe=message.observed, effort=gb.POINT)
    )


@topic.case(
    devices=devices_of, where=_is_pipeline, path=_paths, by=_engines, chunk_bytes=_chunk_sizes, compute=_amounts
)
def best_depth_(bench: gb.Bench, path: str, by: str, chunk_bytes: int, compute: str) -> gb.Task:
    """The same message as in `pipeline` at depths from 1 to 8: payload at the fastest depth, and that depth."""
    message = PipelinedMessage(bench, path, by, chunk_bytes, compute, max(_SWEPT))
    best = 0

    def seconds() -> float:
        nonlocal best
        best = message.sample(_SWEPT)
        return message.times.together_s

    def observed() -> gb.Observation:
        return {"depth": gb.Observed(best, "in flight"), **message.observed()}

    return message.task(gb.Stage(seconds, message.work, "payload", clock="self", probe=observed, effort=gb.POINT))


class PipelinedMessage:
    """A message of 32 chunks of `chunk_bytes`, its pipeline, and the calibrated rounds of computation.

    `path` and `by` are as in StreamPipeline; the host ignores them."""

    def __init__(self, bench: gb.Bench, path: str, by: str, chunk_bytes: int, compute: str, most_depth: int) -> None:
        nbytes = CHUNKS * chunk_bytes
        distinct = _DISTINCT if bench.traits.is_gpu else CHUNKS
        bench.need((2 * distinct + most_depth) * chunk_bytes)
        self.work = gb.Work(payload=nbytes, items=CHUNKS)
        drawn = bench.rng.integers(2**64, size=(distinct, chunk_bytes // 8), dtype=np.uint64)
        self._words = drawn.view(np.uint32)
        self._pipeline: ThreadPipeline | StreamPipeline = (
            StreamPipeline(bench, self._words, CHUNKS, most_depth, path, by)
            if bench.traits.is_gpu
            else ThreadPipeline(bench, self._words, most_depth)
        )
        self._calibrate(_COMPUTE[compute])
        self._expected = np.resize(expected_digests(self._words, self._pipeline.rounds), CHUNKS)
        self.times = OverlapTimes(*[math.nan] * 5)
        self._notes = {
            "devices": " ← ".join(device.id for device in bench.devices[: 2 if path == "peer" else 1]),
            "message": f"{CHUNKS} chunks of {gb.units.size(chunk_bytes)}, {ONE_WAY}",
            "rounds": str(self._pipeline.rounds),
            "most overlap": f"{bound(CHUNKS):.1%}: nothing is beside the first transfer and the last computation",
            **self._pipeline.notes,
        }

    def _calibrate(self, share: float) -> None:
        """Choose the rounds of computation such that it takes `share` times as long as the transfer, within 3 %."""
        line, tried = self._pipeline, []
        for _ in range(_TRIALS):
            compute_s, transfer_s = (min(times) for times in zip(*(line.alone() for _ in range(_REPEATS)), strict=True))
            tried.append(CalibrationPoint(line.rounds, compute_s))
            if abs(compute_s / (share * transfer_s) - 1) <= _EXACT:
                return
            line.rounds = next_rounds(tried, share * transfer_s)

    def sample(self, depths: Sequence[int]) -> int:
        """Time the transfer alone and the computation alone, and right after that the pipeline at each of `depths`.

        A depth is the number of chunks in flight."""
        line, alone_s = self._pipeline, self._pipeline.alone()
        times_by_depth = {depth: OverlapTimes(*alone_s, *line.together(depth)) for depth in depths}
        best = best_depth({depth: times.together_s for depth, times in times_by_depth.items()})
        self.times = times_by_depth[best]
        return best

    def observed(self) -> gb.Observation:
        """Return what the last sample measured at its best depth.

        `overlap` is the overlap efficiency in %; `compute_slowdown` and `transfer_slowdown` are busy time in the
        pipeline over time alone; `compute_over_transfer` is the ratio of both times alone."""
        times = self.times
        return {
            "overlap": gb.Observed(_PERCENT * times.efficiency, "%", "more"),
            "compute_slowdown": gb.Observed(times.compute_slowdown),
            "transfer_slowdown": gb.Observed(times.transfer_slowdown),
            "compute_over_transfer": gb.Observed(times.compute_s / times.transfer_s),
        }

    def check(self) -> None:
        """Raise WrongAnswer if a chunk was computed on before it arrived or after it was overwritten."""
        expect_equal(self._pipeline.chunk_digests(), self._expected, "digests of chunks")

    def task(self, stage: gb.Stage) -> gb.Task:
        """Return a task with the one stage `stage`, and with the check, the clean-up and the notes of this message."""
        line = self._pipeline
        stage = replace(stage, outputs=line.outputs)
        return gb.Task.of(stage, check=self.check, close=line.close, notes=self._notes)
