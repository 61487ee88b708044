"""The shape of a gate, which judges a candidate, and of a publication of its verdicts."""

from __future__ import annotations

from typing import Protocol

from gpubench.judging.answer import Answer
from gpubench.judging.evidence import Evidence
from gpubench.judging.fleet import FleetJudgement
from gpubench.judging.judge import Judgement
from gpubench.judging.policy import Policy


class Gate(Protocol):
    """What judges a candidate: a pure function of evidence and of what the user asks."""

    @property
    def summary(self) -> str:
        """One sentence: what it holds the candidate against."""

    def judge(self, baseline: Evidence, candidate: Evidence, policy: Policy) -> Judgement:
        """The verdicts; a suspect among them may be measured again before anything fails."""


class Publication(Protocol):
    """A form that a judgement is published in, for people or for the machinery of a CI."""

    @property
    def summary(self) -> str:
        """One sentence: who reads it."""

    def render(self, judgement: Judgement, answer: Answer, limit: int = 0) -> str:
        """Return the whole document, in at most `limit` bytes of UTF-8 where a limit is given: the worst stays.

        Every text of the judgement and of its answer is clean, as `gpubench.base.clean` says, and escaped for no form.
        """


class FleetPublication(Publication, Protocol):
    """A form that the judgement of a fleet is published in too."""

    def fleet(self, judgement: FleetJudgement) -> str:
        """Return the whole document; every text of the judgement is clean, and escaped for no form."""
