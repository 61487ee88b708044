"""Import NVIDIA DCGM's diagnosis (`dcgmi diag -j`): the figures of its tests, and each test that failed or was skipped.

The names come from `nvvs/include/NvvsJsonStrings.h` of versions 3 and 4. Version 3 has a text of GPU ids, version 4 an
entity. Most tests only pass; the case `passed` counts them for each GPU. Lines of `info` that are no figure stay
unread."""

import re
from collections import Counter
from typing import Any

from gpubench.api import importer as gb

_HEADS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
_FIGURE = re.compile(r"(?:GPU \d+ )?(?:(.+?):\s+|calculated at approximately )([\d.]+) (GB/s|us|gigaflops)\b")
_UNITS = {"gigaflops": "GFLOPS"}


def _devices(result: dict[str, Any]) -> tuple[str, ...]:
    """Return the ids of a result's devices; a GPU that the result does not name is not stated."""
    if "entity_id" in result:
        group = gb.json_value(result, "entity_group", str).lower()
        return (f"{'cuda' if group == 'gpu' else group}:{gb.json_value(result, 'entity_id', int)}",)
    ids = result.get("gpu_ids", result.get("gpu_id", ""))
    return tuple(f"cuda:{gb.whole_number(text)}" for text in str(ids).split(",") if text) or (gb.UNSTATED.id,)


def _add_result(output: gb.Output, test: str, result: dict[str, Any], passed: Counter[str]) -> None:
    status, devices = gb.json_value(result, "status", str).lower(), _devices(result)
    warnings = gb.json_value(result, "warnings", list, [])
    notes = [note.get("warning") if isinstance(note, dict) else note for note in warnings]
    reason = "; ".join(map(str, notes)) or "no reason is given"
    if status.startswith("skip") or status in ("not run", "notrun"):
        output.add_unmeasured(test, (), devices, "skipped", reason, "skipped")
        return
    if not status.startswith(("pass", "warn")):
        output.add_unmeasured(test, (), devices, "diagnosis", reason)
        return
    passed.update(devices)
    for figure in filter(None, map(_FIGURE.match, map(str, gb.json_value(result, "info", list, [])))):
        name = f"{test} {figure[1] or 'products'}".lower().replace(" ", "-")
        output.add(name, (), [gb.quantity("value", _UNITS.get(figure[3], figure[3]), figure[2])], devices)


def _read(text: str) -> gb.Imported:
    body = gb.json_object(text)
    output = gb.Output("dcgm-diag", "imported: the diagnosis of NVIDIA's DCGM")
    diagnosis: dict[str, Any] = next(body[head] for head in _HEADS if head in body)
    metadata = gb.json_value(body, "metadata", dict, {}) | diagnosis
    keys = (("version", "dcgm"), ("Driver Version Detected", "nvidia.driver"))
    output.versions |= {name: metadata[key] for key, name in keys if isinstance(metadata.get(key), str)}
    passed: Counter[str] = Counter()
    for category in gb.json_value(diagnosis, "test_categories", list):
        for test in filter(None, gb.json_value(category, "tests", list)):
            name = gb.json_value(test, "name", str)
            with gb.place(name[:200]):
                for result in gb.json_value(test, "results", list):
                    _add_result(output, name.lower().replace(" ", "-"), result, passed)
    for device, count in passed.items():
        output.add("passed", (), [gb.Series("tests", "tests", (float(count),), better="more")], (device,))
    return output.imported()


_ACCEPTS = gb.has(r'"(DCGM Diagnostic|DCGM GPU Diagnostic)"\s*:\s*\{', r'"test_categories"\s*:')
importer: gb.Importer = gb.Reader("DCGM (NVIDIA): dcgmi diag -j; JSON", _ACCEPTS, _read)
