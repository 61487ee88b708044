"""Measure a transformer layer split over ranks in each way, and the split that a model of the run's own times chooses.

The case first measures the inputs of its model: products, attention and collectives of a few sizes. Then it predicts
the time of every split, and times every split."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from gpubench.api import suite as gb

from .._between import rank_counts, ranks_of
from ._blas import restore_threads, use_threads
from ._gradients import devices_of_ranks, has_ranks, libraries
from ._group import RankGroup, group_of
from ._layer import HEAD, Silent, TransformerLayer, in_double
from ._numbers import expect_close, type_of, width_of
from ._parallel import (
    TOPOLOGIES,
    UNSPLIT,
    LayerShape,
    RunModels,
    TimeCurve,
    best_ranks,
    best_topology,
    choose,
    message_model,
    possible_splits,
    regret,
    sync_interval,
)

_TRIES, _GPU_TRIES = 12, 5  # calls of each split; below the full tier a GPU, which runs nothing else, needs fewer
_FRACTIONS = (8, 2, 1)  # the measured parts are the whole divided by these numbers
_MOST_SYNC = 0.05  # share of the time that synchronisation may take
_BUFFERS = 16
_CHECKED = 8
_PERCENT = 100

Key = TypeVar("Key", str, float)

topic = gb.Topic(
    views=[
        gb.View("bars", "Throughput of the unsplit layer", ("layer",), by=("of", "batch", "length")),
        gb.View("bars", "Regret of the predicted split", ("layer",), by=("of", "batch", "length"), series="regret"),
    ],
)


def _lengths(target: gb.Target) -> Any:
    if target.is_host:
        return gb.points((64,), smoke=(32,), full=(16, 64, 128))
    return gb.points((1024,), smoke=(64,), full=(128, 1024, 4096))


@topic.case(
    ranks=ranks_of,
    devices=devices_of_ranks,
    when=has_ranks,
    by=libraries,
    of=rank_counts,
    batch=gb.points((4,), smoke=(2,), full=(1, 4, 16)),
    length=_lengths,
)
def layer(bench: gb.Bench, by: str, of: int, batch: int, length: int) -> gb.Task:
    """A transformer layer of 24·T·d² + 4·T·length·d operations, whole and split over the ranks in each possible way.

    `regret` is how much longer the predicted split takes than the fastest one. Each split reports its predicted time,
    its efficiency (unsplit time over ranks times split time) and the share of its communication that is hidden."""
    del by, of
    width = width_of(bench)
    shape = LayerShape(batch, length, width, width // HEAD)
    scores = batch * shape.heads * length**2
    bench.need(4 * (_BUFFERS * (shape.numbers + width**2) + 3 * scores))
    return SplitLayer(bench, shape).task()


class SplitLayer:
    """One rank's layer, the measured models, and the time of each split.

    Creating the object measures them, so all ranks must do it at the same time."""

    def __init__(self, bench: gb.Bench, shape: LayerShape) -> None:
        self._bench, self._shape = bench, shape
        self._threads = use_threads(1) if bench.target.is_host else 0
        is_short = bench.traits.is_gpu and bench.target.tier != "full"
        self._tries = _GPU_TRIES if is_short else _TRIES
        self._layer = TransformerLayer(bench, shape)
        self._group: RankGroup = group_of(bench, 2 * shape.numbers)
        self._splits = possible_splits(shape, bench.world)
        self._outputs: dict[str, Any] = {}
        for split in self._splits:  # loads the kernels and sets up channels
            self._run(split)
        bench.device.synchronize()
        self._rows = bench.rng.integers(0, shape.length, _CHECKED)  # tokens of the first sequence that are compared
        self._reference = in_double(self._layer.weights, self._layer.input[: shape.length], self._rows)
        self._models = self._measured_models()
        self._predicted = {split: self._models.predicted(split, shape, bench.world) for split in self._splits}
        self._chosen = bench.exchange(choose(self._models, shape, bench.world))[0]
        self._seconds = self._fastest({split: self._layer.call(split, self._group) for split in self._splits})
        silent = Silent(self._group)
        self._alone = self._fastest({split: self._layer.call(split, silent) for split in self._splits})

    def _run(self, split: str) -> None:
        self._outputs[split] = self._layer.call(split, self._group)()

    def _timed(self, call: Callable[[], object]) -> float:
        """Return the device's seconds of one call of `call`, which starts when all ranks are ready."""
        self._group.board.meet()
        return float(self._bench.device.time(call, 1, "hot", gated=False, lead=self._group.meet).device[0])

    def _fastest(self, calls: Mapping[Key, Callable[[], object]]) -> dict[Key, float]:
        """Return by key the shortest seconds of its call over several tries; each try counts its slowest rank."""
        own_seconds = [[self._timed(call) for call in calls.values()] for _ in range(self._tries)]
        slowest = np.max(self._bench.exchange(own_seconds), axis=0)
        return dict(zip(calls, slowest.min(axis=0).tolist(), strict=True))

    def _curve(self, calls: Mapping[float, Callable[[], object]]) -> TimeCurve:
        return TimeCurve.through(self._fastest(calls))

    def _measured_models(self) -> RunModels:
        """Return models from measured products and attention (by operations) and collectives (by numbers per rank)."""
        shape, group, xp, width = self._shape, self._group, self._bench.xp, self._shape.width
        tokens, up = self._layer.input, self._layer.weights["up"]
        heads = tokens.reshape(shape.batch, shape.length, width)
        products: dict[float, Callable[[], object]] = {}
        columns: dict[float, Callable[[], object]] = {}
        attention: dict[float, Callable[[], object]] = {}
        for fraction in _FRACTIONS:
            rows = max(1, shape.tokens // fraction)
            hidden = xp.empty((rows, up.shape[1]), up.dtype)
            products[2.0 * rows * width * up.shape[1]] = (
                lambda rows=rows, hidden=hidden: xp.matmul(  # type: ignore[misc]
                    tokens[:rows], up, out=hidden
                )
            )
            narrow = xp.ascontiguousarray(up[:, : up.shape[1] // fraction])
            output = xp.empty((shape.tokens, narrow.shape[1]), up.dtype)
            columns[2.0 * shape.tokens * width * narrow.shape[1]] = lambda narrow=narrow, output=output: xp.matmul(  # type: ignore[misc]
                tokens, narrow, out=output
            )
            cut = max(1, width // HEAD // fraction) * HEAD
            part = xp.ascontiguousarray(heads[:, :, :cut])
            attention[4.0 * shape.tokens * cut * shape.length] = lambda part=part: self._layer.attended(
                part, part, part
            )  # type: ignore[misc]
        counts = [max(1, shape.numbers // fraction) for fraction in _FRACTIONS]
        return RunModels(
            self._curve(products),
            self._curve(columns),
            self._curve(attention),
            self._curve({count: lambda count=count: group.all_reduce(0, count) for count in counts}),  # type: ignore[misc]
            self._curve({count: lambda count=count: group.all_gather(0, count) for count in counts}),  # type: ignore[misc]
            self._curve({count: lambda count=count: self._pass_on(count) for count in counts}),  # type: ignore[misc]
        )

    def _pass_on(self, count: int) -> None:
        """Send `count` numbers from rank 0 to 1, from rank 2 to 3, and so on; every rank must call it."""
        rank, pairs = self._bench.rank, self._bench.world // 2
        if rank % 2 == 0 and rank // 2 < pairs:
            self._group.send(rank + 1, 0, count)
        elif rank % 2:
            self._group.receive(rank - 1, 0, count)

    def task(self) -> gb.Task:
        """Return this rank's task: a stage for each split, which times one call of it."""
        limit = "" if self._bench.target.is_host else f"tensor.{type_of(self._bench)}"
        work = gb.Work(flops=self._shape.flops, items=1)
        effort = gb.Effort.exactly(self._tries)  # the splits were called many times when they were compared

        def stage(split: str) -> gb.Stage:
            def seconds() -> float:
                return self._timed(lambda: self._run(split))

            return gb.Stage(seconds, work, "flops", limit if split == UNSPLIT else "", clock="self", effort=effort)

        notes = {"chosen": self._chosen, "fastest": min(self._seconds, key=self._seconds.__getitem__)}
        notes |= {"advised topology": self._topology()}
        notes |= {"layer": f"{self._shape.width} wide, {self._shape.heads} heads", "type": type_of(self._bench)}
        stages = {split: stage(split) for split in self._splits}
        return gb.Task(stages, self._check, self._poison, self._close, {**notes, **self._group.notes})

    def _poison(self) -> None:
        """Overwrite the group's buffers and all outputs with NaN; every rank must call it, and waits for the others."""
        self._group.received.fill(np.nan)
        self._group.sent.fill(np.nan)
        for output in self._outputs.values():
            output.fill(np.nan)
        self._bench.device.synchronize()
        self._group.board.meet()

    def _check(self) -> gb.Observation:
        """Check every split, and return what was measured and predicted when this object was created."""
        self._expect_outputs()
        observed: dict[str, gb.Observed] = {"regret": gb.Observed(regret(self._chosen, self._seconds))}
        unsplit_s, ranks = self._seconds[UNSPLIT], self._bench.world
        for split in self._splits[1:]:
            together_s, predicted = self._seconds[split], self._predicted[split]
            hidden_s = self._alone[split] + predicted.communicate_s - together_s
            hidden = min(max(hidden_s / predicted.communicate_s, 0.0), 1.0) if predicted.communicate_s else 1.0
            observed[f"predicted {split}"] = gb.Observed(predicted.seconds, "s")
            observed[f"efficiency {split}"] = gb.Observed(_PERCENT * unsplit_s / (ranks * together_s), "%", "more")
            observed[f"hidden {split}"] = gb.Observed(_PERCENT * hidden, "%", "more")
        observed["predicted unsplit"] = gb.Observed(self._predicted[UNSPLIT].seconds, "s")
        return {**observed, **self._advice()}

    def _advice(self) -> dict[str, gb.Observed]:
        """Return the advice: `advised ranks` and `advised interval`, the steps between exchanges of all weights."""
        predicted_s = {1: self._predicted[UNSPLIT].seconds, self._bench.world: self._predicted[self._chosen].seconds}
        exposed_s = self._models.all_reduce.seconds(12 * self._shape.width**2)
        interval = sync_interval(predicted_s[1], exposed_s, _MOST_SYNC)
        return {
            "advised ranks": gb.Observed(best_ranks(predicted_s), "ranks", "more"),
            "advised interval": gb.Observed(interval, "steps"),
        }

    def _topology(self) -> str:
        """Return the topology, one of TOPOLOGIES, that is predicted fastest for an all-reduce of the layer's output."""
        itemsize = self._group.dtype.itemsize
        alpha_s, bytes_per_s = message_model(self._models.send, itemsize)
        return best_topology(TOPOLOGIES, self._shape.numbers * itemsize, self._bench.world, alpha_s, bytes_per_s)

    def _expect_outputs(self) -> None:
        """Compute each split again."""
        outputs = {}
        for split in self._splits:
            self._run(split)
            outputs[split] = self._bench.xp.array(self._outputs[split])
        expect_close(outputs[UNSPLIT][self._rows], self._reference, "outputs of the whole layer")
        whole = outputs[UNSPLIT].astype(np.float64)
        for split, output in outputs.items():
            expect_close(output, whole, f"outputs of the layer split by {split}")

    def _close(self) -> None:
        restore_threads(self._threads)
        self._outputs.clear()
        self._group.close()
