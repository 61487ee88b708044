"""What a suite is written with.

`Suite` and its axes, the `Bench` that a case is built with, and the `Task` and its stages that a case returns.

An author's values are checked where they are made, in the worker, so that a mistake costs one case.
"""
