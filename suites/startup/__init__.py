"""Measure the seconds of a fresh process until its first useful result, and of each part of that time."""

from gpubench.api import suite as gb

from . import _ledger

suite = gb.Suite("time from the start of a process to its first result", topics=[_ledger.topic])
