"""How often the number of processes that an undecided case is told to need decides it; docs/gate.md names the result.

A case of known change and noise is measured with some processes on each side. Where it is undecided, both sides are
measured anew with the number that `processes_needed` names, and judged again. `named` is the median of these numbers,
`within 100` the share of the undecided cases that were given a number at all.

    bash ci/study.sh advice_simulation
"""

from __future__ import annotations

import math
import statistics
from itertools import product

import numpy as np

from gpubench.judging import effect
from gpubench.judging.decidable import POWER, processes_needed
from gpubench.judging.finding_text import UNDECIDED
from gpubench.judging.judge import Finding, SideFigures, decide
from gpubench.model import Case, Verdict

THRESHOLD = 0.02
DRAWS = 400


def judged(rng: np.random.Generator, change: float, noise: float, count: int) -> Finding:
    """Return the finding on one case with `count` processes on each side, judged as a gate does."""
    before, after = (tuple(rng.normal(centre, noise, count)) for centre in (0.0, math.log1p(change)))
    (change_effect,) = effect.effects([effect.SidePair(before, after)])
    figures = SideFigures(1.0, count)
    plain = Finding(Case("a", "b"), (), Verdict.INCONCLUSIVE, before=figures, after=figures)
    (finding,) = decide([plain], [change_effect], lambda _: THRESHOLD)
    return finding


def line(change: float, noise: float, count: int) -> str:
    """Return a row of the table: how often the advised number of processes then decides."""
    rng = np.random.default_rng([int(change * 1e4), int(noise * 1e4), count])
    undecided = [
        candidate_finding
        for _ in range(DRAWS)
        if (candidate_finding := judged(rng, change, noise, count)).verdict in UNDECIDED
    ]
    counts = [needed for finding in undecided if (needed := processes_needed(finding))]
    if not counts:
        return f"| {change:.1%} | {noise:.1%} | {count} | {len(undecided) / DRAWS:.0%} | 0 % | – | – |"
    decided = [judged(rng, change, noise, needed).verdict not in UNDECIDED for needed in counts]
    cells = (
        f"{change:.1%}",
        f"{noise:.1%}",
        str(count),
        f"{len(undecided) / DRAWS:.0%}",
        f"{len(counts) / len(undecided):.0%}",
        f"{statistics.median(counts):g}",
        f"{statistics.fmean(decided):.0%}",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table for several changes, noises and numbers of processes."""
    print(f"threshold {THRESHOLD:.0%}, power {POWER:.0%}, {DRAWS} draws a line")  # noqa: T201
    print("| change | noise between processes | processes | undecided | within 100 | named | then decided |")  # noqa: T201
    print("|---|---|---|---|---|---|---|")  # noqa: T201
    for change, noise, count in product((0.0, 0.01, 0.03, 0.05), (0.01, 0.03), (5, 20)):
        print(line(change, noise, count))  # noqa: T201


if __name__ == "__main__":
    main()
