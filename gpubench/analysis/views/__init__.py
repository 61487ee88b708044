"""Figures derived from the views of a run: lines, cache levels, transfer models, break-even links, and their tables."""
