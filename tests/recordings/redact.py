"""Turns a real run file into a recording for the tests: who and where is taken out, what was measured stays.

python tests/recordings/redact.py RUN.jsonl tests/recordings/NAME.jsonl.gz

As `gpubench redact`, with a salt that everybody knows and nobody's devices are joined by. Fractions have nine digits:
clocks tick in nanoseconds, and what a division adds behind them is no measurement but a third of a large file.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from gpubench.model import Result, Samples, store
from gpubench.tools import health
from gpubench.tools.sharing import shared

SALT = b"a recording of gpubench"


def main(source: str, target: str) -> None:
    """Rewrite one file."""
    run = shared(store.read_run(source), SALT, health.names())
    run = replace(run, results=tuple(map(_result, run.results)), samples=tuple(map(_samples, run.samples)))
    Path(target).write_bytes(store.encode_run(run, packed=target.endswith(".gz")))


def _result(result: Result) -> Result:
    series = (replace(one, values=tuple(map(_nine_digits, one.values))) for one in result.series)
    return replace(result, series=tuple(series))


def _samples(samples: Samples) -> Samples:
    columns = (
        (name, tuple(None if value is None else _nine_digits(value) for value in values))
        for name, values in samples.columns
    )
    return replace(samples, columns=tuple(columns))


def _nine_digits(value: float) -> float:
    return value if float(value).is_integer() else float(f"{value:.9g}")


if __name__ == "__main__":
    main(*sys.argv[1:])
