"""Derive figures from the views of a run: curves, cache levels, transfer models, break-even links, and their tables."""
