"""Whether a candidate is slower than its baseline.

From the evidence of several runs through effects, thresholds and objections to verdicts.

Pure functions of runs. What it takes to have runs to judge (files, histories, measuring again) is `gpubench.tools`.
"""
