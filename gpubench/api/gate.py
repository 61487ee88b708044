"""What a gate and a publication of its verdicts are written with."""

from gpubench.base import units
from gpubench.base.clean import one_line, without_commands
from gpubench.base.markdown import code, escape
from gpubench.base.patterns import matches
from gpubench.judging.effect import Effect, against
from gpubench.judging.evidence import Evidence, Side
from gpubench.judging.judge import Figures, Finding, Judgement, badness, judge, sentence
from gpubench.judging.objections import unjudged
from gpubench.judging.policy import Policy
from gpubench.knowledge.floors import Floor
from gpubench.model import Case, Verdict
from gpubench.plugins.gate import Gate, Publication

__all__ = [
    "Case",
    "Effect",
    "Evidence",
    "Figures",
    "Finding",
    "Floor",
    "Gate",
    "Judgement",
    "Policy",
    "Publication",
    "Side",
    "Verdict",
    "against",
    "badness",
    "code",
    "escape",
    "judge",
    "matches",
    "one_line",
    "sentence",
    "units",
    "unjudged",
    "without_commands",
]
