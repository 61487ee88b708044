"""Run a gate: read files as evidence, find baselines, and measure what the gate needs."""
