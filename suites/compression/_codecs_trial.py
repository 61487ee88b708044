"""Choose a codec by trying all of them on a small sample: how long that takes, and the regret on all of the data."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from . import _codecs_host, _codecs_nvcomp
from ._axes import CHUNK_BYTES, MIB, corpora, mebibytes
from ._codecs_choice import GOALS, Figures, choose, regret
from ._codecs_device import CODECS as GPU_CODECS
from ._codecs_device import open_codec
from ._corpora import Corpus, source_of

topic = gb.Topic(
    views=[
        gb.View("bars", "Codec selection regret: throughput", ("choice",), series="regret.speed"),
        gb.View("bars", "Codec selection regret: ratio", ("choice",), series="regret.ratio"),
        gb.View("bars", "Codec selection regret: end to end", ("choice",), series="regret.end-to-end"),
    ]
)

SAMPLE_CHUNKS = 16  # chunks of a sample, evenly spaced over the data
_BATCH_BYTES = 64 * MIB  # a sample is repeated to this size, so that it fills a GPU
# bytes per second; True: 1 Gb/s for the host's codecs, False: 100 Gb/s for a GPU's
_LINKS = {True: 1.25e8, False: 1.25e10}
_HOST_CODECS = ("lz4", "zstd-1", "zstd-3", "isal-1", "zlib-1")

Trip = Any  # a RoundTrip of the host's or of a GPU's codecs


@dataclass(frozen=True, slots=True)
class Contest:
    """The round trips of all candidates over a sample (`sample`) and over all of the data (`whole`), keyed by codec.

    A function of either dict makes the round trip. `time` returns the seconds that one call of a function takes."""

    sample: Mapping[str, Callable[[], Trip]]
    whole: Mapping[str, Callable[[], Trip]]
    time: Callable[[Callable[[], object]], float]

    def try_all(self, trips: Mapping[str, Callable[[], Trip]]) -> dict[str, Figures]:
        """Return the figures of each candidate, keyed by codec; `trips` is `sample` or `whole`.

        The buffers of a candidate are freed before the next one starts. Raises WrongAnswer if a round trip is wrong."""
        return {name: self._figures(name, open_trip()) for name, open_trip in trips.items()}

    def _figures(self, name: str, trip: Trip) -> Figures:
        """Return the figures of the codec `name`: its ratio, and the seconds of both directions of a round trip."""
        compress_s, restore_s = self.time(trip.compress), self.time(trip.restore)
        observation = trip.check()
        ratio = observation["ratio"].value
        return Figures(name, int(ratio * observation["compressed"].value + 0.5), ratio, compress_s, restore_s)


def sampled(data: Any, chunk_bytes: int) -> Any:
    """Return 16 chunks evenly spaced over the data, side by side, or all of the data if they have no more chunks.

    `data` is a NumPy array of dtype uint8."""
    count = data.size // chunk_bytes
    if count <= SAMPLE_CHUNKS:
        return data
    starts = np.linspace(0, count - 1, SAMPLE_CHUNKS).astype(int) * chunk_bytes
    return np.concatenate([data[start : start + chunk_bytes] for start in starts])


def _corpora(target: gb.Target) -> Any:
    """Return the axis of corpora by tier (a `Points` of names): one in the quick tier, all in the full tier."""
    every = corpora(target)
    return gb.points(every.quick if target.data else every.quick[:1], every.smoke, every.full)


def _sizes(target: gb.Target) -> Any:
    return (4 * MIB,) if target.is_host else mebibytes(16, 64, 256)


@topic.case(when=gb.beyond_quick, corpus=_corpora, size_bytes=_sizes, chunk_bytes=(CHUNK_BYTES,))
def choice(bench: gb.Bench, corpus: str, size_bytes: int, chunk_bytes: int) -> gb.Task:
    """Choose a codec by trying all of them on a sample: seconds, for the goals speed, ratio and end-to-end time.

    `regret` is the relative extra cost of the chosen codec over the best codec, both measured on all of the data. The
    sample is 16 chunks evenly spaced over the data. On a GPU it is repeated until it fills the GPU."""
    source, total = source_of(bench, corpus, size_bytes)
    sample = Corpus(source.name, source.dtype, source.description, sampled(source.data[:total], chunk_bytes))
    batch = max(sample.data.size, min(_BATCH_BYTES, total // 2))
    contest = _contest(bench, sample, batch, source, total, chunk_bytes)
    link = _LINKS[bench.target.is_host]
    start = bench.device.now()
    all_figures = contest.try_all(contest.whole)
    exhaustive = bench.device.now() - start
    picks: dict[str, str] = {}

    def call() -> float:
        """Choose a codec for each goal from the sample, and return the seconds that this took.

        The choices are kept in `picks`."""
        start = bench.device.now()
        sample_figures = contest.try_all(contest.sample)
        picks.update({goal: choose(goal, sample_figures.values(), link) for goal in GOALS})
        return bench.device.now() - start

    def check() -> gb.Observation:
        gb.expect(set(picks) == set(GOALS), "no codec was chosen")
        regrets = {f"regret.{goal}": gb.Observed(regret(goal, picks[goal], all_figures, link)) for goal in GOALS}
        return {**regrets, "exhaustive": gb.Observed(exhaustive, "s")}

    call()
    names = {f"choice.{goal}": _choice_note(picks[goal], choose(goal, all_figures.values(), link)) for goal in GOALS}
    sample_description = f"{sample.data.size} of {source.data[:total].size} bytes, repeated to {batch}"
    notes = {"corpus": source.description, "sample": sample_description, "link": f"{link / 1e9} GB/s", **names}
    stage = gb.Stage(call, gb.Work(items=1), clock="self", effort=gb.POINT)
    return gb.Task({"choose": stage}, check=check, poison=picks.clear, notes=notes)


def _choice_note(chosen: str, best: str) -> str:
    """Return the note of a choice: the chosen codec, and the best codec on all of the data if that is another one."""
    return chosen if chosen == best else f"{chosen}; on the whole data {best} is the best"


def _contest(bench: gb.Bench, few: Corpus, batch: int, corpus: Corpus, total: int, chunk: int) -> Contest:
    """Return the contest of all codecs that are available here; raises Skip if none is."""
    bind = functools.partial
    opened: Callable[..., Trip] = _codecs_host.open_trip
    if bench.target.is_host:
        names, batch = _available_codecs(_HOST_CODECS, _codecs_host.open_codec), few.data.size
    else:
        opened = bind(_codecs_nvcomp.open_trip, bench)
        names = _available_codecs(GPU_CODECS, lambda name: open_codec(bench, name, corpus.dtype))
    return Contest(
        {name: bind(opened, few, batch, name, chunk) for name in names},
        {name: bind(opened, corpus, total, name, chunk) for name in names},
        bind(_host_seconds if bench.target.is_host else _event_seconds, bench),
    )


def _event_seconds(bench: gb.Bench, call: Callable[[], object]) -> float:
    """Return the seconds of one call by device events, after a first call that loads its code."""
    call()
    return bench.device.time(call, 1, "hot", gated=False).device[0]


def _host_seconds(bench: gb.Bench, call: Callable[[], object]) -> float:
    """Return the shorter of the times of two calls by the host's clock, because other programs may disturb a call."""
    times = []
    for _ in range(2):
        start = bench.device.now()
        call()
        times.append(bench.device.now() - start)
    return min(times)


def _available_codecs(names: Sequence[str], attempt: Callable[[str], object]) -> list[str]:
    """Return the `names` for which `attempt` does not raise Skip; raises the first Skip if none is left."""
    usable, reasons = [], []
    for name in names:
        try:
            attempt(name)
        except gb.Skip as reason:
            reasons.append(reason)
        else:
            usable.append(name)
    if not usable:
        raise reasons[0]
    return usable
