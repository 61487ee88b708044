"""Converts run files of the unreleased form before 2026-11-22: counters get what they measure, series their fields.

python tests/recordings/convert.py FILE…    each is rewritten in place

Nothing of this form was released; the script goes when the recordings are converted.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpubench import plugins
from gpubench.tools.profile import tree


def _declared() -> dict[str, dict[str, Any]]:
    found = {counter.name: counter for counter in tree.COUNTERS}
    for name in ("amd", "cupti", "gpm", "host", "nvml"):
        found |= {counter.name: counter for counter in plugins.load("collectors", name).counters}
    return {name: {key: asdict(counter)[key] for key in ("measures", "bits")} for name, counter in found.items()}


def _manifest(record: dict[str, Any], declared: dict[str, dict[str, Any]]) -> None:
    for counter in record["counters"]:
        counter.update(declared.get(counter["name"], {"measures": "other", "bits": []}))


_MODES = ("hot", "each", "cold", "graph", "rotated", "host", "self")
_FIELDS = ("name", "unit", "values", "at", "stage", "mode", "role", "work", "quantity", "better", "limit", "item")
_LAST = ("rank", "calls", "stop", "warmup_s")


def _result(record: dict[str, Any]) -> None:
    timed = [each["name"].rpartition(".") for each in record["series"] if each["stop"]]
    modes = {stage: mode for stage, _, mode in reversed(timed) if mode in _MODES}
    record["series"] = [_series(each, modes) for each in record["series"]]


def _series(old: dict[str, Any], modes: dict[str, str]) -> dict[str, Any]:
    """One series; `modes` are those of the stages that were timed."""
    stage, _, word = old["name"].rpartition(".")
    if old["stop"] and word in _MODES:
        found = {"name": "", "stage": stage, "mode": word, "role": "primary"}
    elif old["stop"]:
        found = {"name": word, "stage": stage, "mode": modes.get(stage, ""), "role": "derived"}
    elif stage in modes and word == "early":
        found = {"name": "", "stage": stage, "mode": "hot", "role": "early"}
    elif stage in modes and word == "host":
        found = {"name": "", "stage": stage, "mode": "host", "role": "derived"}
    elif stage in modes:
        found = {"name": word, "stage": stage, "mode": "", "role": "observed"}
    else:
        found = {"name": old["name"], "stage": "", "mode": "", "role": "observed"}
    fields = {**old, **found}
    return {name: fields[name] for name in (*_FIELDS, *_LAST) if name in fields}


def convert(path: Path) -> None:
    """Rewrite one file; the count and the hash of its end are made anew."""
    packed = path.suffix == ".gz"
    data = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    lines, declared = [], _declared()
    for line in data.splitlines():
        record = json.loads(line)
        if record["kind"] == "manifest":
            _manifest(record, declared)
            line = _line(record)
        if record["kind"] == "result" and any("role" not in each for each in record["series"]):
            _result(record)
            line = _line(record)
        if record["kind"] == "end":
            record["sha256"] = hashlib.sha256(b"".join(each + b"\n" for each in lines)).hexdigest()
            line = _line(record)
        lines.append(line)
    data = b"".join(each + b"\n" for each in lines)
    path.write_bytes(gzip.compress(data, mtime=0) if packed else data)


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        convert(Path(name))
