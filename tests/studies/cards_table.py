"""Write gpubench/knowledge/cards-measured.json from the recordings: the key figures of each recorded card.

bash ci/study.sh cards_table
"""

from __future__ import annotations

import json
from pathlib import Path

from gpubench.analysis.summary import Summary
from gpubench.explaining.contributing import contributions
from gpubench.model import store

ROOT = Path(__file__).parents[2]
RECORDINGS = ROOT / "tests/recordings"
TABLE = ROOT / "gpubench/knowledge/cards-measured.json"
NAMES = (
    *("h200-quick", "whole/h200-five-suites", "whole/h200", "whole/h200x2", "h200x2-quick", "h200-inference"),
    *("headline/1", "headline/2", "headline/3", "headline/4", "sessions/1", "sessions/2", "explain"),
)


def text() -> str:
    """Return the file: one run of one card for each recording, in the order of NAMES."""
    rows = []
    for name in NAMES:
        path = RECORDINGS / f"{name}.jsonl.gz"
        rows += contributions(Summary(store.read_run(path)), store.file_hash(path))
    return "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n"


if __name__ == "__main__":
    TABLE.write_text(text(), encoding="utf-8")
