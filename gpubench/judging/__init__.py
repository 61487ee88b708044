"""Whether a candidate is slower than its baseline, from evidence to verdict: pure functions of runs."""
