"""Evidence for tests: runs in which each process has one sample."""

import math

import _make as make

from gpubench.judging.evidence import Evidence, Reading

TRIAD = make.case("triad", size_bytes=2**30)


def reading(values, of=TRIAD, moved=0.0, status="ok", manifest=None, **fields):
    """Return the evidence of a run file with a process for each value, in seconds, or as a rate with `moved`."""
    results = [
        make.result(make.timing(value, moved=moved), of=of, replicate=index, status=status, **fields)
        for index, value in enumerate(values)
    ]
    return Reading.of(make.run(*results, **(manifest or {})))


def evidence(*values, **fields):
    """Return the evidence of one session with one file."""
    return Evidence([[reading(values, **fields)]])


def noisy(centre=1.0, spread=0.01, count=5):
    """Return values whose logarithms have the mean log(centre) and exactly this sample standard deviation."""
    steps = [index - (count - 1) / 2 for index in range(count)]
    unit = math.sqrt(sum(step * step for step in steps) / (count - 1))
    return [centre * math.exp(spread * step / unit) for step in steps]


def percent(value):
    """Return a threshold for every case."""
    return lambda case_id: value / 100
