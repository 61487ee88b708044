"""Measure a backward pass of matrix products whose gradients are all-reduced, bucket by bucket, beside the products.

The layers of a backward pass run from the last to the first. Each has two products: the gradient of its weights, dW
= Xᵀ·dY, and the gradient that the layer before needs, dX = dY·Wᵀ."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._between import MEMORY, gpus_of, rank_counts, ranks_of
from ._group import group_of
from ._pipeline import OverlapTimes, bound
from ._products import Normals, Products, expect_close, type_of, use_one_thread, width_of

LAYERS = 8
_SEEDS = 100  # distance between the seeds of two ranks' own matrices
_CHECKED = 4  # rows of each gradient that are compared
_PERCENT = 100
_BUFFERS = 8

topic = gb.Topic(
    views=[
        gb.View(
            "curve",
            "Backward pass throughput by number of gradient buckets",
            ("gradients",),
            "buckets",
            by=("of", "tokens"),
        ),
        gb.View(
            "curve",
            "Overlap efficiency: share of the shorter part that gradient buckets hide",
            ("gradients",),
            "buckets",
            by=("of", "tokens"),
            series="overlap",
        ),
        gb.View("choice", "Number of gradient buckets", ("gradients",), "tokens", by=("buckets",)),
        gb.View("interval", "Steps between all-reduces", ("gradients",), "tokens", "compute", series="reduce"),
    ],
)


def has_ranks(target: gb.Target) -> bool:
    """Return whether several ranks find processors: on the host always, else if the GPU can reach another GPU."""
    return target.is_host or bool(target.device.peers)


def libraries(target: gb.Target) -> tuple[str, ...]:
    """Return the only point of the axis `by`: `memory` on the host, `rccl` for AMD GPUs and `nccl` for other GPUs."""
    if target.is_host:
        return (MEMORY,)
    return ("rccl" if target.device.id.startswith("rocm") else "nccl",)


def _tokens(target: gb.Target) -> Any:
    if target.is_host:
        return gb.points((256,), smoke=(64,), full=(64, 256))
    return gb.points((2048,), smoke=(256,), full=(512, 2048, 8192))


@topic.case(
    version=2,
    ranks=ranks_of,
    devices=gpus_of,
    when=has_ranks,
    by=libraries,
    of=rank_counts,
    tokens=_tokens,
    buckets=gb.points((4,), smoke=(2,), full=(1, 2, 4, 8)),
)
def gradients(bench: gb.Bench, by: str, of: int, tokens: int, buckets: int) -> gb.Task:
    """A backward pass of 8 layers and the all-reduce of its gradients: operations per second of one rank.

    Each layer has 4·T·d² operations (T tokens, width d). `compute` and `reduce` are the products and the all-reduces
    alone. `scaling` is the time of the products alone over the time of the step: at 100 %, more ranks cost no time."""
    del by, of
    step = BackwardPass(bench, tokens, width_of(bench), buckets)
    limit = "" if bench.target.is_host else f"tensor.{type_of(bench)}"
    stage = gb.Stage(step.seconds, step.work, "flops", limit, clock="self", probe=step.observed, effort=gb.POINT)
    return gb.Task.of(stage, check=step.check, poison=step.poison, close=step.close, notes=step.notes)


def bucket_bounds(layers: int, buckets: int) -> list[tuple[int, int]]:
    """Return the first layer and the end of each bucket, the last layers first: (8, 2) gives [(4, 8), (0, 4)]."""
    bounds = [layers * index // buckets for index in range(buckets + 1)]
    return [(low, high) for low, high in itertools.pairwise(bounds) if high > low][::-1]


class BackwardPass:
    """One rank's inputs, weights and gradients of `tokens` tokens, and the group that adds the gradients up."""

    def __init__(self, bench: gb.Bench, tokens: int, width: int, buckets: int) -> None:
        bench.need(_BUFFERS * LAYERS * width * max(width, tokens) * 4)
        self._bench, self._width, self._tokens = bench, width, tokens
        self._restore_threads = use_one_thread(bench)
        self._buckets = bucket_bounds(LAYERS, buckets)
        self._group = group_of(bench, LAYERS * width * width)
        self._multiply = Products(bench)
        normals, own_seed = Normals(bench), _SEEDS * (1 + bench.rank)
        self._inputs = [normals.matrix(tokens, width, own_seed + layer) for layer in range(LAYERS)]
        self._weights = [normals.matrix(width, width, layer, 1 / math.sqrt(width)) for layer in range(LAYERS)]
        self._flowing = [bench.xp.empty_like(self._inputs[0]) for _ in range(LAYERS)]  # dY of each layer
        self._flowing.append(normals.matrix(tokens, width, own_seed + LAYERS))  # the gradient of the loss
        self.work = gb.Work(flops=4.0 * LAYERS * tokens * width * width, items=1)
        self.notes = {"layers": str(LAYERS), "width": str(width), "type": type_of(bench), **self._group.notes}
        self.notes["most overlap"] = (
            f"{bound(len(self._buckets)):.1%} of the all-reduces: no product is beside that of the last bucket"
        )
        self._step()  # loads the kernels and sets up channels
        bench.device.synchronize()
        self.seconds()

    def _gradient(self, layer: int) -> Any:
        """Return the part of the group's `sent` for the weight gradient of layer `layer`, shape (width, width)."""
        size = self._width * self._width
        return self._group.sent[layer * size : (layer + 1) * size].reshape(self._width, self._width)

    def _layer(self, layer: int) -> None:
        """Compute the gradients of the weights and of the input of layer number `layer`."""
        self._multiply(self._inputs[layer], self._flowing[layer + 1], self._gradient(layer), "tn")
        self._multiply(self._flowing[layer + 1], self._weights[layer], self._flowing[layer], "nt")

    def _reduce(self, low: int, high: int) -> None:
        """Add up the weight gradients of the layers low … high − 1 over all ranks; every rank must call it."""
        size = self._width * self._width
        self._group.all_reduce(low * size, (high - low) * size)

    def _compute_all(self) -> None:
        """Compute the gradients of all layers, without any all-reduce."""
        for low, high in self._buckets:
            for layer in reversed(range(low, high)):
                self._layer(layer)

    def _reduce_all(self) -> None:
        """Reduce all buckets, without any product."""
        for low, high in self._buckets:
            self._reduce(low, high)

    def _step(self) -> None:
        """Compute the gradients of all 8 layers, and all-reduce each bucket beside the products that follow it."""
        for low, high in self._buckets:
            for layer in reversed(range(low, high)):
                self._layer(layer)
            self._group.begin(lambda low=low, high=high: self._reduce(low, high))  # type: ignore[misc]
        self._group.join()

    def seconds(self) -> float:
        """Time the products alone, the all-reduces alone and the whole step; return the seconds of the step."""
        compute_s, reduce_s = self._timed(self._compute_all), self._timed(self._reduce_all)
        step_s = self._timed(self._step)
        self._times = OverlapTimes(compute_s, reduce_s, step_s, compute_s, reduce_s)
        return step_s

    def _timed(self, call: Callable[[], None]) -> float:
        """Return the device's seconds of one call of `call`, which starts when all ranks are ready."""
        self._group.board.meet()
        return float(self._bench.device.time(call, 1, "hot", gated=False, lead=self._group.meet).device[0])

    def observed(self) -> gb.Observation:
        """Return the last sample's `compute`, `reduce` (seconds), `overlap` and `scaling` (%)."""
        times = self._times
        assert times is not None
        return {
            "compute": gb.Observed(times.compute_s, "s"),
            "reduce": gb.Observed(times.transfer_s, "s"),
            "overlap": gb.Observed(_PERCENT * times.efficiency, "%", "more"),
            "scaling": gb.Observed(_PERCENT * times.compute_s / times.together_s, "%", "more"),
        }

    def poison(self) -> None:
        """Overwrite this rank's gradients and the received sums with NaN; every rank must call it."""
        self._group.received.fill(np.nan)
        self._group.sent.fill(np.nan)
        self._bench.device.synchronize()
        self._group.board.meet()

    def check(self) -> None:
        """Compare four rows of each gradient with float64; every rank must call it, as the sum is over all ranks."""
        rng, xp, size = self._bench.rng, self._bench.xp, self._width * self._width
        rows = rng.integers(0, self._width, _CHECKED)
        own_rows, chain = [], []
        for layer in range(LAYERS):
            flowing = self._flowing[layer + 1].astype(np.float64)
            own_rows.append(self._bench.device.to_host(self._inputs[layer].T[rows].astype(np.float64) @ flowing))
            lines = rng.integers(0, self._tokens, _CHECKED)
            expected = flowing[lines] @ self._weights[layer].astype(np.float64).T
            chain.append((self._flowing[layer][lines], expected))
        total = xp.asarray(np.sum(self._bench.exchange(np.array(own_rows)), axis=0))
        received = self._group.received
        for layer in range(LAYERS):
            summed = received[layer * size : (layer + 1) * size].reshape(self._width, self._width)[rows]
            expect_close(summed, total[layer], f"gradients of layer {layer}, summed over all ranks,")
            expect_close(*chain[layer], f"numbers that layer {layer} passes on")

    def close(self) -> None:
        """Close the group and restore the number of threads."""
        self._restore_threads()
        self._group.close()
