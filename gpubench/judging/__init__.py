"""Whether a candidate is slower than its baseline, from evidence to verdict, and what measures again to know."""
