"""Levels and transfer models as records of plain values in SI units, for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpubench.api.report import (
    Crossover,
    FastestChoices,
    Path,
    Staircase,
    Step,
    Summary,
    Transfers,
    fastest,
    frame,
    path_params,
    staircases,
    stats,
    transfers,
)


def staircase_record(found: Staircase) -> dict[str, Any]:
    """Return the levels of a line: heights, the end of each in bytes, and the sizes that the device reports."""
    return {
        "suite": found.suite,
        "view": found.title,
        "line": found.line.label,
        "levels": [_step(step) for step in found.steps],
    }


def _step(step: Step) -> dict[str, Any]:
    return {
        "unit": step.unit,
        **_interval(step.height),
        "cycles": frame.finite(step.cycles),
        "points": step.points,
        "smallest": step.smallest,
        "largest": step.largest,
        "end": _interval(step.end) if step.end else None,
        "known": [{"name": known.name, "bytes": known.bytes, "source": known.source} for known in step.known],
    }


def transfer_record(found: Transfers) -> dict[str, Any]:
    """Return the paths of a view with their models and crossovers."""
    return {
        "suite": found.suite,
        "view": found.title,
        "axis": found.axis,
        "paths": [_path(path, found.by) for path in found.paths],
        "crossovers": [_crossover(each) for each in found.crossovers],
        "fastest": [_fastest(each) for each in fastest(found)],
    }


def _path(path: Path, by: tuple[str, ...]) -> dict[str, Any]:
    return {
        "line": path.line.label,
        "params": path_params(path, by),
        "rate_unit": path.unit,
        "residual": frame.finite(path.model.residual),
        "half": _interval(path.model.half) if path.model.half else None,
        "pieces": [
            {
                "from": path.sizes[piece.first],
                "to": path.sizes[piece.last],
                "alpha_s": frame.finite(piece.alpha_s),
                "beta": frame.finite(path.rate(piece)),
                "half": frame.finite(piece.half),
            }
            for piece in path.model.pieces
        ],
    }


def _crossover(each: Crossover) -> dict[str, Any]:
    return {"below": each.below, "above": each.above, **_interval(each.size), "fitted": frame.finite(each.fitted)}


def _fastest(each: FastestChoices) -> dict[str, Any]:
    return {
        "params": dict(each.params),
        "devices": list(each.devices),
        "axis": each.axis,
        "choices": [{"from": choice.above, "fastest": choice.value} for choice in each.choices],
    }


def _interval(interval: stats.Interval) -> dict[str, float | None]:
    return {
        "low": frame.finite(interval.low),
        "median": frame.finite(interval.centre),
        "high": frame.finite(interval.high),
    }


def derived_lines(summary: Summary) -> Iterator[dict[str, Any]]:
    """Yield the same as flat lines: `params` names the line, `series` the part of it, `quantity` is `derived`."""
    for staircase in staircases(summary):
        line = _line(staircase.suite, staircase.title, staircase.line.label)
        for number, step in enumerate(staircase.steps, 1):
            yield {**line, "series": f"level {number}", "unit": step.unit, **_interval(step.height)}
            if step.cycles is not None:
                yield {
                    **line,
                    "series": f"level {number} cycles",
                    "unit": "cycles",
                    "median": frame.finite(step.cycles),
                }
            if step.end:
                yield {**line, "series": f"level {number} end", "unit": "B", **_interval(step.end)}
    for found in transfers(summary):
        for path in found.paths:
            yield from _path_lines(_line(found.suite, found.title, path.line.label), path)
        for each in found.crossovers:
            name = f"crossover {each.below} to {each.above}"
            yield {**_line(found.suite, found.title, ""), "series": name, "unit": "B", **_interval(each.size)}


def _line(suite: str, title: str, label: str) -> dict[str, Any]:
    return {"case": f"{suite}: {title}", "suite": suite, "params": label, "quantity": "derived"}


def _path_lines(line: dict[str, Any], path: Path) -> Iterator[dict[str, Any]]:
    for number, piece in enumerate(path.model.pieces, 1):
        name = f"piece {number}" if len(path.model.pieces) > 1 else "model"
        yield {**line, "series": f"{name} alpha", "unit": "s", "median": frame.finite(piece.alpha_s)}
        yield {**line, "series": f"{name} beta", "unit": path.unit, "median": frame.finite(path.rate(piece))}
    if path.model.half:
        yield {**line, "series": "half rate", "unit": "B", **_interval(path.model.half)}
    yield {**line, "series": "residual", "unit": "", "median": frame.finite(path.model.residual)}
