"""Whom a preflight accuses on simulated nodes of eight GPUs; docs/health.md names the result.

Sound nodes, and nodes in which one GPU is 3 % slow in a family of cases. The deviations between GPUs and processes are
those of tests/test_preflight.py.

    bash ci/study.sh preflight_simulation [SOUND NODES, by default 1000] [SLOW NODES OF EACH FAMILY, by default 200]
"""

from __future__ import annotations

import sys

import test_preflight

from gpubench.tools import preflight

SLOW = ("cuda:5", 0.03)


def main(sound: int = 1000, slow: int = 200) -> None:
    """Print how many sound nodes had an accused GPU, and in how many the slow GPU was named."""
    verdicts = [preflight.judge(test_preflight.node(seed=10_000 + seed)) for seed in range(sound)]
    accused = sum(verdict.status == 1 for verdict in verdicts)
    print(f"sound: {accused} of {sound} accused, {sum(verdict.status == 4 for verdict in verdicts)} not judged")  # noqa: T201
    for family in ("memory", "latency", "link"):
        known = {(SLOW[0], family): SLOW[1]}
        found = [preflight.judge(test_preflight.node(seed=20_000 + seed, slow=known)) for seed in range(slow)]
        named = sum(verdict.verdict == f"slow: {SLOW[0]}" for verdict in found)
        others = sum(verdict.status == 1 and SLOW[0] not in verdict.verdict for verdict in found)
        print(f"{family}: {named} of {slow} named, {others} other GPUs accused")  # noqa: T201


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
