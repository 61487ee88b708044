"""Count false alarms of the gate on real replicates of identical code, and the slow-downs that it would find.

    bash ci/study.sh gate_on_recordings [--draws N] [--threshold PERCENT] RUN…

Each run file (`--replicates`) is a session. Many times over, some processes are drawn from them as a baseline and
others as a candidate, and judged by the product's own gate, files alone: nothing is measured again.

    within      5 against 5 of one session: what a gate that measures both sides at once sees
    random      5 against 5 out of all processes
    sessions    5 of one session against 5 of another: what a night, or another card of the model, changes
    history     5 of one session against all others, each a session: what `--baseline last:N` does

A suite is alarmed where any case is called slower. Last comes the least slow-down of all processes of the candidate
that 80 and 95 of 100 draws within a session call slower: arithmetic on real noise. Slow-downs that were measured are
in tests/recordings (`longer`).
"""

from __future__ import annotations

import argparse
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpubench.judging.effect import SidePair, effects
from gpubench.judging.evidence import Evidence, Gathering, Reading
from gpubench.judging.judge import judge
from gpubench.model import Verdict
from gpubench.tools.gating.readings import read_all

PROCESSES = 5
SEED = 7


@dataclass(frozen=True, slots=True)
class RecordedProcess:
    """One fresh process: its session, and its index among the session's replicates."""

    session: int
    place: int


Draw = tuple[
    Sequence[RecordedProcess], Sequence[RecordedProcess], bool
]  # processes of the baseline, of the candidate, and whether sessions are distinguished


class RecordedSessions:
    """The recorded sessions, each with the results of its processes."""

    def __init__(self, readings: Sequence[Reading]) -> None:
        self.readings = readings
        counts = [max(map(len, reading.gathered.results.values())) for reading in readings]
        self.processes = [RecordedProcess(index, place) for index, count in enumerate(counts) for place in range(count)]

    def of(self, session: int) -> list[RecordedProcess]:
        """Return the processes of one session."""
        return [process for process in self.processes if process.session == session]

    def evidence(self, processes: Sequence[RecordedProcess], apart: bool) -> Evidence:
        """These processes as one session, or as those that they are of."""
        parts = {process.session: [] for process in processes}
        for process in processes:
            parts[process.session].append(process.place)
        readings = [self._part(session, places) for session, places in parts.items()]
        return Evidence([[reading] for reading in readings] if apart else [readings])

    def _part(self, session: int, places: Sequence[int]) -> Reading:
        """Return the reading of some processes of one session, by their places."""
        reading = self.readings[session]
        results = {
            key: [result[place] for place in places if place < len(result)]
            for key, result in reading.gathered.results.items()
        }
        return replace(reading, gathered=Gathering(results, reading.gathered.clocks))


def at_random(recording: RecordedSessions, rng: random.Random) -> Draw:
    """Draw 5 processes against 5 from all sessions."""
    drawn = rng.sample(recording.processes, 2 * PROCESSES)
    return drawn[:PROCESSES], drawn[PROCESSES:], False


def by_session(recording: RecordedSessions, rng: random.Random) -> Draw:
    """Draw 5 processes of one session against 5 of another."""
    old, new = rng.sample(range(len(recording.readings)), 2)
    return rng.sample(recording.of(old), PROCESSES), rng.sample(recording.of(new), PROCESSES), False


def by_history(recording: RecordedSessions, rng: random.Random) -> Draw:
    """Draw 5 processes of one session against all other sessions."""
    new = rng.randrange(len(recording.readings))
    others = [process for process in recording.processes if process.session != new]
    return others, rng.sample(recording.of(new), PROCESSES), True


def within(recording: RecordedSessions, rng: random.Random) -> Draw:
    """Draw 5 processes against 5 from one session."""
    drawn = rng.sample(recording.of(rng.randrange(len(recording.readings))), 2 * PROCESSES)
    return drawn[:PROCESSES], drawn[PROCESSES:], False


DESIGNS: dict[str, Callable[[RecordedSessions, random.Random], Draw]] = {
    "within": within,
    "random": at_random,
    "sessions": by_session,
    "history": by_history,
}


@dataclass(slots=True)
class GateTally:
    """The verdicts on the draws of one design."""

    draws: int = 0
    alarmed: int = 0
    verdicts: Counter[tuple[str, Verdict]] = field(default_factory=Counter)
    causes: Counter[tuple[str, str]] = field(default_factory=Counter)


def tally(recording: RecordedSessions, design: str, draws: int, threshold: float) -> GateTally:
    """Judge a number of draws of one design, and count the verdicts."""
    result, rng = GateTally(), random.Random(SEED)
    for _ in range(draws):
        before, after, apart = DESIGNS[design](recording, rng)
        findings = judge(
            recording.evidence(before, apart), recording.evidence(after, False), lambda _: threshold
        ).findings
        result.draws += 1
        result.alarmed += any(finding.verdict is Verdict.SLOWER for finding in findings)
        result.verdicts.update((finding.case.id, finding.verdict) for finding in findings)
        result.causes.update((finding.case.id, finding.cause) for finding in findings if finding.cause)
    return result


def smallest(recording: RecordedSessions, threshold: float, draws: int = 1000) -> Iterator[tuple[str, list[float]]]:
    """Return, for each case, the smallest slow-downs that 80 % and 95 % of the draws within a session call slower."""
    sides = [recording.evidence(recording.of(index), apart=False).sides for index in range(len(recording.readings))]
    for key in dict.fromkeys(key for side in sides for key in side):
        logs = [side[key].logs for side in sides if key in side and len(side[key].logs) >= 2 * PROCESSES]
        if logs:
            rng = random.Random(SEED)
            least = _least([rng.sample(rng.choice(logs), 2 * PROCESSES) for _ in range(draws)], threshold)
            yield key[0], [least[math.ceil(share * draws) - 1] for share in (0.80, 0.95)]


def _least(draws: Sequence[Sequence[float]], threshold: float) -> list[float]:
    """Return, sorted, for each draw the slow-down of its second five from which on it is called slower."""
    pairs = [SidePair(tuple(values[:PROCESSES]), tuple(values[PROCESSES:])) for values in draws]
    beyond = [
        max(math.log1p(threshold), case_effect.least_threshold) - min(case_effect.low, case_effect.shift)
        for case_effect in effects(pairs)
    ]
    return sorted(map(math.expm1, beyond))


def report(recording: RecordedSessions, draws: int, threshold: float) -> Iterator[str]:
    """Yield the findings as lines."""
    sessions = len(recording.readings)
    yield f"{len(recording.processes)} processes in {sessions} sessions, threshold {threshold:.1%}, {draws} draws each"
    for design in DESIGNS:
        if design not in ("within", "random") and sessions < 2:
            continue
        result = tally(recording, design, draws, threshold)
        yield f"{design}: {result.alarmed} of {result.draws} suites alarmed"
        for case in sorted({case for case, _ in result.verdicts}):
            counts = {str(verdict): count for (name, verdict), count in sorted(result.verdicts.items()) if name == case}
            causes = {cause: count for (name, cause), count in sorted(result.causes.items()) if name == case}
            yield f"    {case}: {counts}" + (f", because of {causes}" if causes else "")
    yield "smallest slow-down that 80 % and 95 % of 5-against-5 draws within a session call slower:"
    for case, least in smallest(recording, threshold):
        yield f"    {case}: " + ", ".join(f"{value:.1%}" for value in least)


def main() -> None:
    """Read the runs that the command names and print the report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument("--threshold", type=float, default=2.0, help="per cent")
    parser.add_argument("runs", type=Path, nargs="+")
    asked = parser.parse_args()
    for line in report(RecordedSessions(read_all(asked.runs)), asked.draws, asked.threshold / 100):
        print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
