"""What every publication says of a judgement, before it is dressed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from gpubench.api.gate import Finding, Judgement, Verdict, sentence, units

QUIET = (Verdict.SAME, Verdict.FASTER)  # what nobody has to do anything about


def tally(judgement: Judgement) -> str:
    """`1 slower, 2 inconclusive, 90 same`; what stands first is what matters."""
    counts = [f"{count} {verdict}" for verdict, count in judgement.counts().items()]
    missing = [f"{len(judgement.unmet)} required missing"] if judgement.unmet else []
    return ", ".join([*missing, *counts]) or "nothing to judge"


def name(finding: Finding) -> str:
    """The case, and where it was measured."""
    return f"{finding.case.id} on {'+'.join(finding.devices)}" if finding.devices else finding.case.id


def figure(value: float, unit: str) -> str:
    """A side's median for a person; nothing where there is none."""
    return units.quantity(value, unit) if math.isfinite(value) else ""


def message(finding: Finding) -> str:
    """`bandwidth/triad[…] on cuda:0: slower: 4213 GB/s → 4011 GB/s, −4.8 % (…)`."""
    sides = [figure(side.median, finding.unit) for side in (finding.before, finding.after)]
    medians = f"{' → '.join(sides)}, " if all(sides) else ""
    return f"{name(finding)}: {finding.verdict}: {medians}{sentence(finding)}"


def fitting(head: str, lines: Iterable[str], tail: Sequence[str], limit: int) -> str:
    """Head, as many of the lines as fit into `limit` bytes (0 is no limit), how many did not, and the tail."""
    found, rest = [head], list(lines)
    reserve = sum(len(line.encode()) + 1 for line in tail) + 80  # for the line that counts what is left out
    room = limit - reserve - len(head.encode()) - 1 if limit else math.inf
    for index, line in enumerate(rest):
        room -= len(line.encode()) + 1
        if room < 0:
            found.append(f"\n… and {len(rest) - index} more lines, which did not fit here.")
            break
        found.append(line)
    return "\n".join([*found, *tail]) + "\n"
