"""Decide whether a candidate is slower than its baseline: from the evidence of several runs to verdicts.

The steps are effects, thresholds and objections, all pure functions of runs. `gpubench.tools` handles files, histories
and repeated measurements."""
