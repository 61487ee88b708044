"""Simulate how often the history reports false changes, how soon it reports a step, and whether it recognises a drift.

    bash ci/study.sh history_simulation [SERIES]        default 200 for each line of the tables

Every series is looked at after each of its runs, as somebody does who calls `gpubench history` every day. All noise
has a standard deviation of 1 % unless a table says otherwise.
"""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gpubench.analysis import trend
from gpubench.analysis.fingerprint import Fingerprint
from gpubench.model.store import read_run
from gpubench.stats import Interval
from gpubench.stats.stretches import LEAST_RUNS, stretches

Floats = npt.NDArray[np.float64]
Noise = Callable[[np.random.Generator, int], Floats]

SEED = 20261122
SERIES = 200
_FIRST_LOOK = 6  # runs
_SETTLING = 60  # runs before a correlated series
WATCHED = 100  # length of a watched series
QUIET = 30  # runs before a step
FOLLOWED = 60  # number of runs that are examined after a step
WINDOW = 60  # length of a series in the confusion table
RECORDINGS = sorted((Path(__file__).parents[1] / "recordings" / "headline").glob("*.jsonl.gz"))


def normal(rng: np.random.Generator, count: int) -> Floats:
    """Draw independent normal noise."""
    return rng.normal(size=count)


def heavy_tails(rng: np.random.Generator, count: int) -> Floats:
    """Draw independent noise with Student's t distribution of 3 degrees of freedom."""
    return rng.standard_t(3, count) / math.sqrt(3)


def correlated(correlation: float) -> Noise:
    """Return normal noise with this correlation between neighbouring runs: AR(1)."""

    def drawn(rng: np.random.Generator, count: int) -> Floats:
        noise = rng.normal(size=count + _SETTLING) * math.sqrt(1 - correlation**2)
        for index in range(1, len(noise)):
            noise[index] += correlation * noise[index - 1]
        return noise[_SETTLING:]

    return drawn


serial = correlated(0.3)


def two_states(rng: np.random.Generator, count: int) -> Floats:
    """Draw processes of which three in ten are 2 % slower, as with an unfavourable allocation."""
    noise = 0.3 * rng.normal(size=count) + 2.0 * (rng.random(count) < 0.3)
    return noise / math.sqrt(0.3**2 + 4 * 0.3 * 0.7)


def sticky_states(stay: float) -> Noise:
    """Return levels 2 % apart with noise of 0.3 %: each run has the state of the run before with probability `stay`."""

    def drawn(rng: np.random.Generator, count: int) -> Floats:
        switches = rng.random(count) >= stay
        switches[0] = rng.random() < 0.5
        return 2.0 * (np.cumsum(switches) % 2) + 0.3 * rng.normal(size=count)

    return drawn


def season(noise: float, shortest: float = 10.0) -> Noise:
    """Return a sine wave of ± 1 % with a period of `shortest` to 60 runs, and normal noise of that many per cent."""

    def drawn(rng: np.random.Generator, count: int) -> Floats:
        angles = 2 * math.pi * (np.arange(count) / rng.uniform(shortest, 60.0) + rng.random())
        return np.sin(angles) + noise * rng.normal(size=count)

    return drawn


def wider_spread(rng: np.random.Generator, count: int) -> Floats:
    """Draw noise of 0.5 % that becomes three times as wide at a random run."""
    return rng.normal(size=count) * np.where(np.arange(count) < rng.integers(20, count - 19), 0.5, 1.5)


def drifting(rng: np.random.Generator, count: int) -> Floats:
    """Draw a drift of 4 % with noise of 0.5 %."""
    return np.linspace(0.0, 4.0, count) + 0.5 * rng.normal(size=count)


def worlds() -> dict[str, Noise]:
    """Return each kind of quiet series, in which no step is a change of the code, by its name in the table."""
    return {
        **noises(),
        "serial correlation 0.5": correlated(0.5),
        "serial correlation 0.8": correlated(0.8),
        "season of 10 to 60 runs, noise half its amplitude": season(0.5),
        "season of 10 to 60 runs, noise 0.3 of it": season(0.3),
        "season of 30 to 60 runs, noise half its amplitude": season(0.5, 30.0),
        "spread that grows threefold": wider_spread,
        "drift of 4 %, noise 0.5 %": drifting,
        "two states that stay, 0.8": sticky_states(0.8),
        "two states that stay, 0.9": sticky_states(0.9),
        "two states that stay, 0.95": sticky_states(0.95),
    }


def recorded_processes() -> list[Floats]:
    """Return the standardised medians of the processes of each recorded case and card of an H200."""
    medians = defaultdict(list)
    for path in RECORDINGS:
        for entry in trend.entries(read_run(path)):
            if entry.headline:
                medians[path, entry.line.case].append(entry.interval.centre)
    return [(np.asarray(group) - np.mean(group)) / np.std(group) for group in medians.values()]


def one_process_per_run() -> Noise:
    """Return noise that draws each run from the recorded processes of one case on one card."""
    groups = recorded_processes()

    def drawn(rng: np.random.Generator, count: int) -> Floats:
        return rng.choice(groups[rng.integers(len(groups))], count)

    return drawn


def noises() -> dict[str, Noise]:
    """Return each kind of noise by its name in the tables."""
    return {
        "normal": normal,
        "heavy tails (t, 3 degrees of freedom)": heavy_tails,
        "serial correlation 0.3": serial,
        "one recorded process per run": one_process_per_run(),
        "two states, 70 : 30": two_states,
    }


def reported(values: Sequence[float] | Floats) -> str:
    """Return what the history says of a series: nothing, step, steps, drift, or both."""
    parts = stretches(values)
    drifts = sum(part.is_drift for part in parts)
    if len(parts) == 1:
        return "drift" if drifts else "nothing"
    return "both" if drifts else "step" if len(parts) == 2 else "steps"


_LINE = trend.Line("case", 1, "quick", "hot", "B/s", "more", ("cuda:0",), Fingerprint(()))


def told(values: Floats) -> set[str]:
    """Return what the history tells of a series: `step` or the note of a step, `drift`, `two states`."""
    points = [
        trend.TrendPoint(trend.RunSource(str(index), "", index), 0, Interval(value, value, value), 0.0, 1)
        for index, value in enumerate(values.tolist())
    ]
    found = trend.Trend.of(_LINE, points)
    drifts, states = ["drift"] * len(found.drifts), ["two states"] * len(found.states)
    return {*(change.note or "step" for change in found.changes), *drifts, *states}


def is_reported(values: Floats) -> bool:
    """Return whether the history reports any change."""
    return reported(values) != "nothing"


def first_reported(values: Floats, lengths: Sequence[int]) -> int | None:
    """Return the first of the lengths at which a change is reported; None if none is."""
    return next((length for length in lengths if is_reported(values[:length])), None)


def false_share(noise: Noise, count: int, runs: int = WATCHED) -> float:
    """Return the share of watched series of identical code in which some look tells a change."""
    rng = np.random.default_rng(SEED)
    series = (1 + 0.01 * noise(rng, runs) for _ in range(count))
    return sum(first_reported(values, range(_FIRST_LOOK, runs + 1)) is not None for values in series) / count


def delays(noise: Noise, step: float, count: int) -> Floats:
    """Return after how many runs a step of `step` standard deviations is reported; inf if not within 60 runs."""
    rng = np.random.default_rng(SEED)
    lengths = range(QUIET + 1, QUIET + FOLLOWED + 1)
    runs = []
    for _ in range(count):
        values = 1 + 0.01 * noise(rng, QUIET + FOLLOWED)
        values[QUIET:] += 0.01 * step
        look = first_reported(values, lengths)
        runs.append(math.inf if look is None else look - QUIET)
    return np.asarray(runs)


def shaped(shape: str, rng: np.random.Generator) -> Floats:
    """Return the true values of 60 runs in per cent: nothing, a step of 2 at a random run, or a drift of 2."""
    values = np.zeros(WINDOW)
    if shape == "step":
        values[rng.integers(12, WINDOW - 11) :] = 2.0
    elif shape == "drift":
        values = np.linspace(0.0, 2.0, WINDOW)
    return values


def confusion(shape: str, noise: Noise, percent: float, count: int) -> Counter[str]:
    """Return how often each state is reported for series of that shape, with noise of that many per cent."""
    rng = np.random.default_rng(SEED)
    return Counter(reported(1 + 0.01 * (shaped(shape, rng) + percent * noise(rng, WINDOW))) for _ in range(count))


def main(count: int) -> None:
    """Print the tables that docs/history.md condenses."""
    for table in (world_table, found_table, delay_table, confusion_table):
        for line in table(count):
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        sys.stdout.write("\n")


_TOLD = ("step", "perhaps a second state", "a level seen before", "drift", "two states")


def world_table(count: int) -> Iterator[str]:
    """Yield lines of the table of quiet series: the share in which some look tells a step, and the last look tells any.

    A step counts with its note; any step of the last look counts, whatever its note."""
    yield f"| series of {WATCHED} runs | some look: {' | '.join(_TOLD)} | last look: any step | two states |"
    yield f"|---|{'---|' * (len(_TOLD) + 2)}"
    for name, noise in worlds().items():
        rng, some, last = np.random.default_rng(SEED), Counter[str](), Counter[str]()
        for _ in range(count):
            values = 1 + 0.01 * noise(rng, WATCHED)
            looks = [told(values[:length]) for length in range(LEAST_RUNS, WATCHED + 1)]
            some.update(set().union(*looks))
            last.update(looks[-1] & {"two states"} | ({"any"} if looks[-1] & set(_TOLD[:3]) else set()))
        shares = [some[kind] / count for kind in _TOLD] + [last["any"] / count, last["two states"] / count]
        yield f"| {name} | {' | '.join(f'{share * 100:.1f} %' for share in shares)} |"


def found_table(count: int) -> Iterator[str]:
    """Yield lines on a step of 3 % after 30 runs, and on a step of 3 % for 15 of 45 runs with the mend after it."""
    yield "| noise | step of 3 % told within 5 runs | the step and its mend both told |"
    yield "|---|---|---|"
    for percent in (0.5, 0.75, 1.0):
        rng, found, mended = np.random.default_rng(SEED), 0, 0
        for _ in range(count):
            values = 1 + 0.01 * percent * rng.normal(size=QUIET + 5)
            values[QUIET:] *= 1.03
            found += first_reported(values, range(QUIET + 1, QUIET + 6)) is not None
            values = 1 + 0.01 * percent * rng.normal(size=45)
            values[15:30] *= 0.97
            mended += [part.is_drift for part in stretches(values)] == [False] * 3
        yield f"| {percent} % | {found / count * 100:.0f} % | {mended / count * 100:.0f} % |"


def delay_table(count: int) -> Iterator[str]:
    """Yield lines of the table of delays: runs until 50 % and 90 % of the steps are reported."""
    yield "| noise | step | runs until half / nine tenths of the steps are reported |"
    yield "|---|---|---|"
    for name, noise in noises().items():
        for step in (2.0, 3.0, 5.0):
            yield f"| {name} | {step:.0f} σ | {reached(delays(noise, step, max(count // 2, 1)))} |"


def reached(runs: Floats) -> str:
    """Return `9 / 16`: after how many runs 50 % and 90 % of the steps were told."""
    quantiles = np.quantile(runs, (0.5, 0.9), method="higher")
    return " / ".join(f"{value:.0f}" if math.isfinite(value) else f"> {FOLLOWED}" for value in quantiles)


def confusion_table(count: int) -> Iterator[str]:
    """Yield lines of the confusion table."""
    outcomes = ("nothing", "step", "steps", "drift", "both")
    yield f"| noise | truth | {' | '.join(outcomes)} |"
    yield f"|---|---|{'---|' * len(outcomes)}"
    kinds = noises()
    for name, percent in (("normal", 0.5), ("normal", 1.0), *((kind, 0.5) for kind in [*kinds][1:])):
        for shape in ("nothing", "step", "drift"):
            now = confusion(shape, kinds[name], percent, count)
            shares = " | ".join(f"{now[word] / count * 100:.0f} %" for word in outcomes)
            yield f"| {name}, {percent} % | {shape} | {shares} |"


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else SERIES)
