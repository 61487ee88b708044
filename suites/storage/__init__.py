"""Measure how fast a file gets into memory by the paths that programs use, and never from a cache unasked."""

from gpubench.api import suite as gb

from . import _read

suite = gb.Suite("files read from disk into memory, by path, block and queue depth", topics=[_read.topic])
