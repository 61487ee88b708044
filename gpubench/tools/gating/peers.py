"""Rename imported cases that measure the same quantity as a case of gpubench, so that both can be compared."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from gpubench.judging.evidence import Kind, Reading
from gpubench.model import Case

_NVBANDWIDTH_BYTES = 512 * 2**20  # the default of nvbandwidth's --bufferSize, which its output does not state
_MOST_OCTAVES = 2.0  # between sizes of arrays in device memory and of long transfers, whose rates hardly depend on it
_TYPES = {"double": "float64", "float": "float32"}
_TRANSFERS = {"host_to_device_memcpy_ce": "h2d", "device_to_host_memcpy_ce": "d2h"}
_KERNELS = {"Copy": "copy", "Mul": "scale", "Add": "add", "Triad": "triad", "Dot": "dot"}  # all by STREAM's rule
_COLLECTIVES = {name: name for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast")}
_Equal = tuple[
    str, str, dict[str, str | int | float], float, float
]  # suite, case, axes, bytes, most octaves between the sizes


def as_ours(readings: Sequence[Reading]) -> tuple[list[Reading], list[str]]:
    """Return the readings with imported cases renamed to equal cases of the others, and a line for each such case."""
    ours = {
        case: kind
        for reading in readings
        if reading.manifest.settings.tier  # an imported run has none
        for results in reading.gathered.results.values()
        for case, process in results
        if (kind := process.kind)
    }
    notes: dict[str, None] = {}
    return [
        reading if reading.manifest.settings.tier else _renamed(reading, ours, notes) for reading in readings
    ], list(notes)


def _renamed(reading: Reading, ours: dict[Case, Kind], notes: dict[str, None]) -> Reading:
    renamed: dict[Any, Any] = {}
    for (case_id, devices), results in reading.gathered.results.items():
        same = _nearest(results[0][0], ours)
        kinds = {process.kind for _, process in results if process.kind}
        if same and all((kind.unit, kind.better) == (ours[same].unit, ours[same].better) for kind in kinds):
            notes[f"compared as the same quantity: {case_id} and {same.id}"] = None
            results = [(same, process._replace(kind=process.kind and ours[same])) for _, process in results]
            case_id = same.id
        renamed.setdefault((case_id, devices), []).extend(results)
    return replace(reading, gathered=replace(reading.gathered, results=renamed))


def _nearest(case: Case, ours: dict[Case, Kind]) -> Case | None:
    """Return the case of gpubench with the quantity of an imported one, of the nearest size; None if there is none."""
    distances = [
        (octaves, same)
        for suite, name, axes, size_bytes, most in _equals(case)
        for same in ours
        if (same.suite, same.name) == (suite, name) and axes.items() <= dict(same.params).items()
        if (octaves := abs(math.log2(float(dict(same.params)["size_bytes"]) / size_bytes))) <= most
    ]
    return min(distances, key=lambda pair: pair[0])[1] if distances else None


def _equals(case: Case) -> Iterator[_Equal]:
    """Yield the suite, the case, the fixed axes, the size and the tolerance of the quantity of an imported case."""
    axes = dict(case.params)
    if case.suite == "nvbandwidth" and case.name in _TRANSFERS:
        yield "bandwidth", _TRANSFERS[case.name], {"memory": "pinned"}, _NVBANDWIDTH_BYTES, _MOST_OCTAVES
    elif case.suite == "babelstream" and case.name in _KERNELS and {"elements", "precision"} <= axes.keys():
        dtype = _TYPES.get(str(axes["precision"]), "")
        size_bytes = float(axes["elements"]) * (8 if dtype == "float64" else 4)
        yield "bandwidth", _KERNELS[case.name], {"dtype": dtype}, size_bytes, _MOST_OCTAVES
    elif case.suite == "nccl-tests" and case.name in _COLLECTIVES and axes.get("place") == "out" and "ranks" in axes:
        wanted: dict[str, str | int | float] = {"by": "nccl", "of": axes["ranks"]}
        yield "collectives", _COLLECTIVES[case.name], wanted, float(axes["size_bytes"]), 0.0
