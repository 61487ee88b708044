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

from gpubench.analysis.trend import entries
from gpubench.model.store import read_run
from gpubench.stats.stretches import stretches

Floats = npt.NDArray[np.float64]
Noise = Callable[[np.random.Generator, int], Floats]

SEED = 20261122
SERIES = 200
_FIRST_LOOK = 6  # runs
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


def serial(rng: np.random.Generator, count: int) -> Floats:
    """Draw normal noise with a correlation of 0.3 between neighbouring runs: AR(1)."""
    correlation, settling = 0.3, 30
    noise = rng.normal(size=count + settling) * math.sqrt(1 - correlation**2)
    for index in range(1, len(noise)):
        noise[index] += correlation * noise[index - 1]
    return noise[settling:]


def two_states(rng: np.random.Generator, count: int) -> Floats:
    """Draw processes of which three in ten are 2 % slower, as with an unfavourable allocation."""
    noise = 0.3 * rng.normal(size=count) + 2.0 * (rng.random(count) < 0.3)
    return noise / math.sqrt(0.3**2 + 4 * 0.3 * 0.7)


def recorded_processes() -> list[Floats]:
    """Return the standardised medians of the processes of each recorded case and card of an H200."""
    medians = defaultdict(list)
    for path in RECORDINGS:
        for entry in entries(read_run(path)):
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
    for table in (false_table, delay_table, confusion_table):
        for line in table(count):
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        sys.stdout.write("\n")


def false_table(count: int) -> Iterator[str]:
    """Yield lines of the table of false changes."""
    yield f"| noise | series of {WATCHED} runs of identical code with a change |"
    yield "|---|---|"
    for name, noise in noises().items():
        yield f"| {name} | {false_share(noise, count):.1%} |".replace("%", " %")


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
