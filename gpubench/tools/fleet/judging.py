"""Judge a fleet: compare its GPUs, links and hosts with each other, with an earlier fleet, and with floors."""

from dataclasses import replace
from pathlib import Path

from gpubench.base.errors import FileError
from gpubench.judging.fleet import Basis, FleetFinding, FleetJudgement
from gpubench.judging.fleet_rule import judge_fleet
from gpubench.judging.policy import Policy
from gpubench.tools.fleet import comparing
from gpubench.tools.fleet.digests import ReadFleet, read
from gpubench.tools.gating import baselines


def judge(current: ReadFleet, policy: Policy, baseline: ReadFleet | None = None, floor: bool = False) -> FleetJudgement:
    """Return the judgement of a fleet: its components are compared with each other and, on request, with other figures.

    With `baseline`, each component is also compared with the component of the same UUID in that earlier fleet."""
    findings: list[FleetFinding] = []
    bases: list[Basis] = []
    notes: list[str] = []
    if baseline:
        comparison = comparing.compare_with_baseline(current, baseline, policy)
        findings += comparison.findings
        bases += ["baseline"] if comparison.compared else []
        notes += (
            []
            if comparison.compared
            else ["no component of this fleet was measured with the same cases in the baseline"]
        )
    if floor:
        comparison = comparing.compare_with_floors(current, policy)
        findings += comparison.findings
        bases += ["floor"] if comparison.compared else []
        notes += (
            [] if comparison.compared else ["no floor is known for these models: write [[floor]] tables (docs/gate.md)"]
        )
    judgement = judge_fleet(current.fleet, current.digests, current.again, findings, bases, notes)
    return replace(judgement, notes=(*judgement.notes, *current.notes))


def read_baseline(folder_or_name: str) -> ReadFleet:
    """Return the fleet in a folder, or in the saved baseline of that name; a folder is tried first.

    Raises FileError if there is neither, or if the folder holds no fleet."""
    for folder in (Path(folder_or_name), Path(baselines.FOLDER) / folder_or_name):
        if folder.is_dir():
            return read(folder)
    saved = ", ".join(baselines.names()) or "none"
    raise FileError(f"no baseline {folder_or_name!r}: neither the folder of a fleet nor a saved name (saved: {saved})")
