"""What one run says, derived from its raw samples.

Figures with intervals, shares of peak, counters over a window of time, energy, what bounds a case, phases of a program,
and the views that suites declare.

Pure functions of a run: no device, no clock, no file. Reports, comparisons and tables read everything from here.
"""
