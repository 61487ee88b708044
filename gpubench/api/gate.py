"""The names with which a gate and a publication of its verdicts are written."""

from gpubench.analysis.records import record
from gpubench.base import units
from gpubench.base.clean import code, escape, one_line, without_commands
from gpubench.base.patterns import matches
from gpubench.judging import fleet_text
from gpubench.judging.answer import PASSING, GateAnswer, tally
from gpubench.judging.effect import Effect, against
from gpubench.judging.evidence import Evidence, Side
from gpubench.judging.finding_text import HEADS, FindingCells, finding_cells, name, reason_word, sentence
from gpubench.judging.fleet import FailedCases, FleetFinding, FleetJudgement, Place, Standing
from gpubench.judging.judge import Finding, Judgement, SideFigures, badness, judge
from gpubench.judging.objections import unjudged
from gpubench.judging.policy import Policy
from gpubench.knowledge.floors import Floor
from gpubench.model import Case, Verdict
from gpubench.model.verdict import VERDICT_SCHEMA, FindingRecord, VerdictRecord
from gpubench.plugins.gate import FleetPublication, Gate, Publication

__all__ = [
    "HEADS",
    "PASSING",
    "VERDICT_SCHEMA",
    "Case",
    "Effect",
    "Evidence",
    "FailedCases",
    "Finding",
    "FindingCells",
    "FindingRecord",
    "FleetFinding",
    "FleetJudgement",
    "FleetPublication",
    "Floor",
    "Gate",
    "GateAnswer",
    "Judgement",
    "Place",
    "Policy",
    "Publication",
    "Side",
    "SideFigures",
    "Standing",
    "Verdict",
    "VerdictRecord",
    "against",
    "badness",
    "code",
    "escape",
    "finding_cells",
    "fleet_text",
    "judge",
    "matches",
    "name",
    "one_line",
    "reason_word",
    "record",
    "sentence",
    "tally",
    "units",
    "unjudged",
    "without_commands",
]
