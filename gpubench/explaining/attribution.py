"""Split the change of a case between two runs into the rungs that its own windows show."""

import math

from gpubench.analysis.summary import Summary
from gpubench.explaining.ladder import Ladder
from gpubench.explaining.rungs import Explainer

_OWN = ("clock", "data", "headers", "blocks", "traffic", "stalls")  # rungs without evidence from other cases


class Attribution:
    """The ladders of two runs, which are built for the cases that changed."""

    def __init__(self, before: Summary, after: Summary) -> None:
        """Prepare both runs."""
        self._sides = [
            (Explainer(side), {(s.case.id, s.devices): s for s in side.spreads()}) for side in (before, after)
        ]

    def parts(self, key: tuple[str, tuple[str, ...]]) -> tuple[tuple[str, float], ...]:
        """Return the rungs of a case that changed, as logarithms of the rate; empty if a side has no ladder.

        `key` is the id of the case and its devices."""
        rungs = []
        for explainer, spreads in self._sides:
            ladder = explainer.ladder(spreads[key]) if key in spreads else None
            if not isinstance(ladder, Ladder):
                return ()
            rungs.append({rung.name: rung.factor for rung in ladder.rungs if rung.name in _OWN})
        old, new = rungs
        return tuple((name, math.log(new[name] / old[name])) for name in _OWN if name in old and name in new)
