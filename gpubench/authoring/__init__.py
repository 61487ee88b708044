"""Provide the tools for writing a suite: `Suite` and its axes, the `Bench` that builds a case, and its `Task`.

An author's values are checked where they are created, in the worker, so that a mistake costs only one case."""
