"""Define the texts that all publications of a judgement use, before they are escaped for a form."""

import math
from collections.abc import Iterable, Sequence

from gpubench.api import gate as gb


def finding_message(finding: gb.Finding) -> str:
    """Return a finding in one line: `bandwidth/triad[…] on cuda:0: slower: 4213 GB/s → 4011 GB/s, −4.8 % (…)`.

    The medians are left out if one of them is missing."""
    texts = gb.finding_cells(finding)
    medians = f"{texts.before} → {texts.after}, " if all(map(_has_median, (finding.before, finding.after))) else ""
    return f"{gb.name(finding)}: {finding.verdict}: {medians}{gb.sentence(finding)}"


def _has_median(side: gb.SideFigures) -> bool:
    return math.isfinite(side.median)


def fit_lines(head: str, lines: Iterable[str], tail: Sequence[str], limit: int) -> str:
    """Return `head`, the first `lines` that fit, and `tail`, joined by newlines; a line says how many did not fit.

    `limit` is the most bytes of the text in UTF-8; 0 means no limit. `head` and `tail` are never shortened."""
    kept_lines, remaining = [head], list(lines)
    reserve = sum(len(line.encode()) + 1 for line in tail) + 80  # bytes for the line with the number of omitted lines
    room = limit - reserve - len(head.encode()) - 1 if limit else math.inf
    for index, line in enumerate(remaining):
        room -= len(line.encode()) + 1
        if room < 0:
            kept_lines.append(f"\n… and {len(remaining) - index} more lines, which did not fit here.")
            break
        kept_lines.append(line)
    return "\n".join([*kept_lines, *tail]) + "\n"
