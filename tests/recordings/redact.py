"""Turns a real run file into a recording for the tests: who and where is taken out, what was measured stays.

python tests/recordings/redact.py RUN.jsonl tests/recordings/NAME.jsonl.gz

As `gpubench redact`, with a salt that everybody knows and nobody's devices are joined by.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gpubench.model import store
from gpubench.tools import health
from gpubench.tools.sharing import shared

SALT = b"a recording of gpubench"


def main(source: str, target: str) -> None:
    """Rewrite one file."""
    run = shared(store.read_run(source), SALT, health.names())
    Path(target).write_bytes(store.encode_run(run, packed=target.endswith(".gz")))


if __name__ == "__main__":
    main(*sys.argv[1:])
