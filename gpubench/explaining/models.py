"""Build the ladders of cases that are no single kernel: steps and prefills of models, latency, compressed transfers."""

import itertools
import math
import re
from collections.abc import Sequence

from gpubench import stats
from gpubench.analysis import quantities
from gpubench.base import units
from gpubench.explaining.evidence import Evidence, Measured
from gpubench.explaining.ladder import Ladder, Rung
from gpubench.knowledge import alone, hardware
from gpubench.knowledge.language_models import LANGUAGE_MODELS, Model
from gpubench.model import Series

_BYTES = re.compile(r"(\d+) bytes of weights, (\d+) bytes of keys and values")
_CALLS = re.compile(r"(\d+) calls in a graph")
_BY_PARTS = 0.02  # half width of a time that is put together from parts of other sizes
_LINKS = {"h2d": "link.h2d", "d2h": "link.d2h", "peer": "link.peer"}


def special(evidence: Evidence, case: Measured, above: Sequence[Rung], peak: float) -> Sequence[Rung] | None:
    """Return the rungs below the unit's of a step or a prefill of a model; None for any other case.

    `above` are the rungs of clock and unit, and `peak` is in the unit of the case's rate."""
    model = LANGUAGE_MODELS.get(str(case.params.get("model")))
    if model is None or case.name not in (alone.STEP_CASE, alone.PREFILL_CASE):
        return None
    unit_rate = peak * math.prod(rung.factor for rung in above)
    return (_step if case.name == alone.STEP_CASE else _prefill)(evidence, case, model, unit_rate)


def _step(evidence: Evidence, case: Measured, model: Model, read_rate: float) -> list[Rung]:
    """Return the rungs of a decode step by the run's own products, attention and empty kernels."""
    stated = _BYTES.search(case.notes.get("memory", ""))
    if stated is None:
        return []
    weights_bytes, cached_bytes = int(stated[1]), int(stated[2])
    ideal_s = case.series.work.moved / read_rate
    lost: list[tuple[Rung, float]] = []
    batch = float(case.params.get("batch", 1))
    name = alone.GEMV_CASE if batch == 1 else alone.SKINNY_CASE
    alone_s = evidence.summary.empty_kernels.seconds(case.device.id, "rotated")
    empty_s = evidence.summary.empty_kernels.seconds(case.device.id, "graph")
    kernels = case.notes.get("kernels", "")
    is_early = "launched early" in kernels  # a kernel is launched while the one before it runs
    saved_s, how = alone_s - (0.0 if is_early else empty_s), "without their launch" if is_early else "in a graph"
    products = [
        point
        for point in evidence.named((name,), case.device.id)
        if point.rate > 0
        and point.params.get("weights") == case.params.get("weights")
        and float(point.params.get("tokens", 1)) >= batch
    ]
    if products:
        sizes = [weights_bytes * layer.size / model.size for layer in model.matrices]
        seconds = sum(size / _rate_at(products, size) - saved_s for size in sizes)
        text = f"{len(sizes)} matrices at the rates of {name} by size, {how}"
        lost.append((Rung("weights", 1, _BY_PARTS, text, "author"), seconds - weights_bytes / read_rate))
    heads = {"heads": model.heads, "kv_heads": model.kv_heads, "dim": model.dim}
    attention = [
        point
        for point in evidence.named((alone.DECODE_ATTENTION_CASE,), case.device.id)
        if point.rate > 0 and {axis: point.params.get(axis) for axis in heads} == heads
    ]
    if attention:
        layer_bytes = cached_bytes / model.depth
        seconds = cached_bytes / _rate_at(attention, layer_bytes) - model.depth * saved_s
        size = units.round_size(layer_bytes)
        text = f"{model.depth} layers at the rate of {alone.DECODE_ATTENTION_CASE} for {size}, {how}"
        lost.append((Rung("keys and values", 1, _BY_PARTS, text, "author"), seconds - cached_bytes / read_rate))
    if (calls := _CALLS.search(kernels)) and not is_early:
        others = int(calls[1]) - len(model.matrices) - model.depth
        text = f"{others} other kernels of a graph take {units.quantity(empty_s, 's')} each even if empty"
        lost.append((Rung("gaps", 1, _BY_PARTS, text, "author"), others * empty_s))
    return _in_turn(ideal_s, lost)


def _prefill(evidence: Evidence, case: Measured, model: Model, unit_rate: float) -> list[Rung]:
    """Return the rungs of a prefill by the run's own products and attention."""
    tokens = int(case.params["tokens"])
    attention_flops = 2.0 * model.depth * model.heads * model.dim * tokens * (tokens + 1)
    product_flops = case.series.work.flops - attention_flops
    lost: list[tuple[Rung, float]] = []
    product = evidence.product(case)
    if product and case.held:
        seconds = product_flops / (product.fraction * case.held.peak)
        rung = Rung("products", 1, product.deviation, f"{product.id} at the clock of the prefill", "author")
        lost.append((rung, seconds - product_flops / unit_rate))
    wanted = {"tokens": tokens, "heads": model.heads, "kv_heads": model.kv_heads, "dim": model.dim}
    points = [
        point
        for point in evidence.named((alone.PREFILL_ATTENTION_CASE,), case.device.id)
        if {axis: point.params.get(axis) for axis in wanted} == wanted
    ]
    taken = case.notes.get("attention")  # older runs do not say which way the prefill took
    points = [point for point in points if not taken or point.notes.get("library") == taken]
    if len(points) == 1:
        own, at = points[0].held, case.held
        slower = own.clock_hz / at.clock_hz if own and at else 1.0
        seconds = model.depth * points[0].call_s * slower
        rung = Rung(
            "attention",
            1,
            points[0].deviation,
            f"{model.depth} times {points[0].id}, at the clock of the prefill",
            "author",
        )
        lost.append((rung, seconds - attention_flops / unit_rate))
    if copy := evidence.best(alone.COPIES, case, "dram"):
        moved = model.between_bytes(tokens)
        text = f"norms, rotations and gates move {units.round_size(moved)} at the rate of {copy.id}"
        lost.append((Rung("other kernels", 1, _BY_PARTS, text, "author"), moved / copy.rate))
    return _in_turn(case.series.work.flops / unit_rate, lost)


def _in_turn(ideal_s: float, lost: Sequence[tuple[Rung, float]]) -> list[Rung]:
    """Return the rungs with the factors by which the lost seconds, added one after the other, lower the rate."""
    rungs, total_s = [], ideal_s
    for rung, seconds in lost if ideal_s > 0 else ():
        longer_s = total_s + max(seconds, 0.0)
        rungs.append(Rung(rung.name, total_s / longer_s, rung.deviation, rung.evidence, rung.remedy))
        total_s = longer_s
    return rungs


def _rate_at(points: Sequence[Measured], size: float) -> float:
    """Return the rate for `size` bytes: interpolated over its logarithm, beyond the points as at the nearest one."""
    best: dict[float, float] = {}
    for point in points:
        best[point.series.work.moved] = max(best.get(point.series.work.moved, 0.0), point.rate)
    sizes = sorted(best)
    if size <= sizes[0] or size >= sizes[-1]:
        return best[sizes[0] if size <= sizes[0] else sizes[-1]]
    upper = next(index for index, larger in enumerate(sizes) if larger >= size)
    low, high = sizes[upper - 1], sizes[upper]
    part = math.log(size / low) / math.log(high / low)
    return best[low] * math.exp(part * math.log(best[high] / best[low]))


def latency(evidence: Evidence, case: Measured) -> Ladder | None:
    """Return the ladder of a latency: from the run's first cache level through the levels that it waits for."""
    if case.name not in (alone.LATENCY_CASE, alone.LOAD_CASE):
        return None
    value = case.figure.interval.centre
    named = {point.params.get("space"): point for point in evidence.named((alone.LOAD_CASE,), case.device.id)}
    levels = [named[space] for space in ("l1", "l2", "dram") if space in named]
    reached = [level for level in levels if level.figure.interval.centre <= 1.02 * value or level.id == case.id]
    if not reached or reached[0] is not levels[0]:
        return None
    top = reached[0].figure.interval.centre
    rungs = []
    for faster, slower in itertools.pairwise(reached):
        factor = faster.figure.interval.centre / slower.figure.interval.centre
        rungs.append(Rung("memory level", factor, slower.deviation, f"{slower.id} after {faster.id}", "nobody"))
    if case.name == alone.LATENCY_CASE and (extra_s := _translation(evidence, case)):
        below = reached[-1].figure.interval.centre
        text = f"latency/reach[reach={units.size(float(case.params['size_bytes']))}] over its smallest reach"
        rungs.append(Rung("translation", below / (below + extra_s), 0.005, text, "user"))
    return Ladder(case.id, case.spread.devices, "s", top, reached[0].id, value, top / value, tuple(rungs))


def _translation(evidence: Evidence, case: Measured) -> float:
    """Return the seconds that translating addresses adds at a footprint, by `latency/reach`; 0 if not measured."""
    reach = {point.params["reach_bytes"]: point for point in evidence.named(("latency/reach",), case.device.id)}
    point = reach.get(case.params["size_bytes"])
    if point is None:
        return 0.0
    return point.figure.interval.centre - reach[min(reach, key=float)].figure.interval.centre


def compressed(case: Measured) -> Ladder | None:
    """Return the ladder of a compressed transfer: the link times the ratio, the link alone, and the codec."""
    series = {one.label: one for one in case.results[0].series}
    ratio, raw = series.get("ratio"), series.get("raw.self")
    limit = _LINKS.get(str(case.params.get("link")))
    link = hardware.peak(case.device, limit) if limit else None
    if case.name != alone.SEND_CASE or not (ratio and raw and link) or not max(ratio.values, default=0.0) > 0:
        return None
    times, value = ratio.values[0], case.figure.interval.centre
    alone_rate = quantities.judged_median(raw)
    stages = [one for one in map(series.get, ("compress.self", "decompress.self")) if one]
    codec = min(map(quantities.judged_median, stages), default=math.inf)
    rungs = [Rung("unit", alone_rate / link.value, _width(raw), "the stage raw: the same bytes uncompressed", "nobody")]
    if stages and codec < times * alone_rate:
        text = f"the slower stage of the codec alone, {units.quantity(codec, 'B/s')}"
        rungs.append(Rung("codec", codec / (times * alone_rate), max(map(_width, stages)), text, "user"))
    source = f"{link.source}, times the ratio {units.significant(times)}"
    top = times * link.value
    return Ladder(case.id, case.spread.devices, case.figure.unit, top, source, value, value / top, tuple(rungs))


def _width(series: Series) -> float:
    width = stats.median_interval(list(series.values)).half_width
    return width if math.isfinite(width) else 0.02
