"""Write gpubench/knowledge/reproducibility.toml from the recordings of identical code in fresh processes.

bash ci/study.sh reproducibility_table
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from itertools import permutations
from pathlib import Path

from gpubench.analysis.figure import Spread
from gpubench.analysis.fingerprint import LEAST_PROCESSES
from gpubench.analysis.summary import Summary
from gpubench.knowledge.data_sheets import RecordedDeviation
from gpubench.model import Run, store

ROOT = Path(__file__).parents[2]
RECORDINGS = ROOT / "tests/recordings"
TABLE = ROOT / "gpubench/knowledge/reproducibility.toml"
NAMES = ("headline/1", "headline/2", "headline/3", "headline/4", "h200x2-headline", "longer/base")
HEAD = """\
# The deviation between processes of a case on a model of GPU: the standard deviation (n - 1) of the medians of new
# processes in % of their mean, pooled over the named recordings. `bash ci/study.sh reproducibility_table`
# writes this file from tests/recordings, and tests/test_reproducibility.py compares the two: do not edit it.
"""


def sessions() -> dict[str, Run]:
    """Return the recordings by name; a copy of one that is here already is left out, since it is no second session."""
    runs = {name: store.read_run(RECORDINGS / f"{name}.jsonl.gz") for name in NAMES}
    first = {run.manifest.started: name for name, run in reversed(runs.items())}
    return {name: run for name, run in runs.items() if first[run.manifest.started] == name}


def table() -> list[RecordedDeviation]:
    """Return what the recordings say, a row for each case on each model, in the order of their names."""
    grouped: dict[tuple[str, str], list[tuple[str, Run, Spread]]] = defaultdict(list)
    for name, run in sessions().items():
        for spread in Summary(run).spreads():
            (model,) = {run.manifest.facts.device(device).name for device in spread.devices}
            if len(spread.medians) >= LEAST_PROCESSES and math.isfinite(spread.between):
                grouped[model, spread.case.id].append((name, run, spread))
    return [_row(model, case, spreads) for (model, case), spreads in sorted(grouped.items())]


def _row(model: str, case: str, recorded: list[tuple[str, Run, Spread]]) -> RecordedDeviation:
    """Return the deviation between processes of one case, pooled over its recordings by their degrees of freedom."""
    freedom = [len(spread.medians) - 1 for _, _, spread in recorded]
    squares = sum(count * spread.between**2 for count, (_, _, spread) in zip(freedom, recorded, strict=True))
    return RecordedDeviation(
        model,
        case,
        round(100 * math.sqrt(squares / sum(freedom)), 3),
        sum(len(spread.medians) for _, _, spread in recorded),
        tuple(name for name, _, _ in recorded),
        min(run.manifest.started for _, run, _ in recorded)[:10],
    )


def text(rows: list[RecordedDeviation]) -> str:
    """Return the table as TOML."""
    return HEAD + "".join(f"\n[[reproducibility]]\n{_as_toml(row)}" for row in rows)


def _as_toml(row: RecordedDeviation) -> str:
    """Return a row as a table of TOML."""
    fields = {
        "model": row.model,
        "case": row.case,
        "percent": row.percent,
        "processes": row.processes,
        "recordings": list(row.recordings),
        "date": row.date,
    }
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items())


def coverage() -> tuple[int, int]:
    """Return how many 95 % intervals of one process hold another process's median, and of how many pairs."""
    held = pairs = 0
    for run in sessions().values():
        for spread in Summary(run).spreads():
            for first, second in permutations(spread.figures, 2):
                held += first.interval.low <= second.interval.centre <= first.interval.high
                pairs += 1
    return held, pairs


if __name__ == "__main__":
    held, pairs = coverage()
    print(f"{held} of {pairs} intervals hold another process's median: {held / pairs:.0%}")  # noqa: T201
    TABLE.write_text(text(table()), encoding="utf-8")
