"""What every publication says of a judgement, before it is dressed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from gpubench.api.gate import Figures, Finding, finding_words, name, sentence


def message(finding: Finding) -> str:
    """Return a finding in one line: `bandwidth/triad[…] on cuda:0: slower: 4213 GB/s → 4011 GB/s, −4.8 % (…)`."""
    words = finding_words(finding)
    medians = f"{words.before} → {words.after}, " if all(map(_is_known, (finding.before, finding.after))) else ""
    return f"{name(finding)}: {finding.verdict}: {medians}{sentence(finding)}"


def _is_known(side: Figures) -> bool:
    return math.isfinite(side.median)


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
