"""Derive the figures of one run from its raw samples.

They are figures with intervals, shares of peak, counters over a window of time, energy, the bounds of cases, phases of
programs, and the views that suites declare.

Pure functions of a run: no device, no clock, no file. Reports, comparisons and tables read everything from here."""
