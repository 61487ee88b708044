"""Provide the tools for writing a suite: `Suite` and its axes, the `Bench` that builds a case, and its `Task`.

`outputs` has the tools for writing an importer: the lines and the JSON of another tool's output, and units by name.

An author's values are checked where they are created, in the worker, so that a mistake costs only one case."""
