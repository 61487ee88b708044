"""A fleet judged: its components against each other, an earlier fleet, and the floors of their models."""

from __future__ import annotations

from pathlib import Path

from gpubench.base.errors import FileError
from gpubench.judging.fleet import Basis, FleetFinding, FleetJudgement
from gpubench.judging.fleet_rule import judge_fleet
from gpubench.judging.policy import Policy
from gpubench.tools.fleet import against
from gpubench.tools.fleet.digests import ReadFleet, read
from gpubench.tools.gating import baselines


def judge(found: ReadFleet, policy: Policy, baseline: ReadFleet | None = None, floor: bool = False) -> FleetJudgement:
    """Return the judgement of a fleet that was read.

    `baseline` is an earlier fleet: each component is compared with itself there, found by its UUID. With `floor` each
    is compared with what its model is known to reach.
    """
    findings: list[FleetFinding] = []
    bases: list[Basis] = []
    notes: list[str] = []
    if baseline:
        theirs = against.baseline(found, baseline, policy)
        findings += theirs.findings
        bases += ["baseline"] if theirs.compared else []
        notes += (
            [] if theirs.compared else ["no component of this fleet was measured in the baseline in the same cases"]
        )
    if floor:
        theirs = against.floors(found, policy)
        findings += theirs.findings
        bases += ["floor"] if theirs.compared else []
        notes += [] if theirs.compared else ["no floor is known of these models: write [[floor]] tables (docs/gate.md)"]
    return judge_fleet(found.fleet, found.digests, found.again, findings, bases, notes)


def read_baseline(word: str) -> ReadFleet:
    """Return the fleet in a folder, or the saved baseline of that name; raises FileError where there is none."""
    for folder in (Path(word), Path(baselines.FOLDER) / word):
        if folder.is_dir():
            return read(folder)
    saved = ", ".join(baselines.names()) or "none"
    raise FileError(f"no baseline {word!r}: neither the folder of a fleet nor a saved name (saved: {saved})")
