"""Define the interface of a gate, which judges a candidate, and of a publication of its verdicts."""

from typing import Protocol

from gpubench.judging.answer import GateAnswer
from gpubench.judging.evidence import Evidence
from gpubench.judging.fleet import FleetJudgement
from gpubench.judging.judge import Judgement
from gpubench.judging.policy import Policy


class Gate(Protocol):
    """A gate: it judges a candidate as a pure function of evidence and of the user's policy."""

    @property
    def summary(self) -> str:
        """One sentence with the basis of its comparison."""

    def judge(self, baseline: Evidence, candidate: Evidence, policy: Policy) -> Judgement:
        """Return the judgement of the candidate against the baseline by the user's policy.

        Suspects of the judgement, cases that look slower, may be measured again before anything fails."""


class Publication(Protocol):
    """A form in which a judgement is published, for people or for a CI system."""

    @property
    def summary(self) -> str:
        """One sentence with its readers."""

    def render(self, judgement: Judgement, answer: GateAnswer, limit: int = 0) -> str:
        """Return the whole document, in at most `limit` bytes of UTF-8 if `limit` is not 0.

        If the document must be shortened, the worst findings are kept. `answer` has the verdict and the next steps of
        the judgement. All texts of `judgement` and `answer` are clean (`gpubench.base.clean`) but not escaped for any
        form."""


class FleetPublication(Publication, Protocol):
    """A form in which the judgement of a fleet can be published too."""

    def fleet(self, judgement: FleetJudgement) -> str:
        """Return the whole document; all texts of the judgement are clean but not escaped for any form."""
