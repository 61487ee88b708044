"""Turn cache levels and transfer models into records of plain values in SI units, for programs."""

from collections.abc import Iterator
from typing import Any

from gpubench.api import report as gb


def staircase_record(staircase: gb.Staircase) -> dict[str, Any]:
    """Return the record of one curve of a staircase view: the names of its suite, view and line, and its levels.

    `levels` holds a dict for each level (see `_step`), from the smallest working set to the largest."""
    return {
        "suite": staircase.suite,
        "view": staircase.title,
        "line": staircase.line.label,
        "levels": [_step(step) for step in staircase.steps],
    }


def _step(step: gb.Step) -> dict[str, Any]:
    """Return the record of a level: its height with the 95 % interval, and its working sets in bytes."""
    return {
        "unit": step.unit,
        **_interval(step.height),
        "cycles": gb.frame.finite(step.cycles),
        "points": step.points,
        "smallest": step.smallest,
        "largest": step.largest,
        "end": _interval(step.end) if step.end else None,
        "known": [{"name": size.name, "bytes": size.bytes, "source": size.source} for size in step.known_sizes],
    }


def transfer_record(view_transfers: gb.Transfers) -> dict[str, Any]:
    """Return the record of a transfer view: its curves (`paths`) with their models, and the crossovers.

    `fastest` lists which curve is the fastest from which size on. docs/reports.md describes the fields."""
    return {
        "suite": view_transfers.suite,
        "view": view_transfers.title,
        "axis": view_transfers.axis,
        "paths": [_path(path, view_transfers.by) for path in view_transfers.paths],
        "crossovers": [_crossover(crossover) for crossover in view_transfers.crossovers],
        "fastest": [_fastest(choices) for choices in gb.fastest(view_transfers)],
    }


def _path(path: gb.TransferFit, by: tuple[str, ...]) -> dict[str, Any]:
    """Return the record of one curve of a transfer view; `by` names the axes whose values become `params`."""
    return {
        "line": path.line.label,
        "params": gb.path_params(path, by),
        "rate_unit": path.unit,
        "residual": gb.frame.finite(path.model.residual),
        "half": _interval(path.model.half) if path.model.half else None,
        "pieces": [
            {
                "from": path.sizes[piece.first],
                "to": path.sizes[piece.last],
                "alpha_s": gb.frame.finite(piece.alpha_s),
                "beta": gb.frame.finite(path.rate(piece)),
                "half": gb.frame.finite(piece.half),
            }
            for piece in path.model.pieces
        ],
    }


def _crossover(crossover: gb.Crossover) -> dict[str, Any]:
    """Return the record of a crossover: the size from which the curve `above` is faster than the curve `below`."""
    return {
        "below": crossover.below,
        "above": crossover.above,
        **_interval(crossover.size),
        "fitted": gb.frame.finite(crossover.fitted),
    }


def _fastest(fastest_choices: gb.FastestChoices) -> dict[str, Any]:
    """Return the record of one group of curves that differ only in `axis`."""
    return {
        "params": dict(fastest_choices.params),
        "devices": list(fastest_choices.devices),
        "axis": fastest_choices.axis,
        "choices": [{"from": choice.above, "fastest": choice.value} for choice in fastest_choices.choices],
    }


def _interval(interval: gb.stats.Interval) -> dict[str, float | None]:
    """Return an interval as `low`, `median` (its centre) and `high`; a number that is not finite is None."""
    return {
        "low": gb.frame.finite(interval.low),
        "median": gb.frame.finite(interval.centre),
        "high": gb.frame.finite(interval.high),
    }


def derived_lines(summary: gb.Summary) -> Iterator[dict[str, Any]]:
    """Yield the cache levels and the transfer models of a run as flat lines, whose keys are names of `frame.COLUMNS`.

    Values are in SI units."""
    for staircase in gb.staircases(summary):
        line = _line(staircase.suite, staircase.title, staircase.line.label)
        for number, step in enumerate(staircase.steps, 1):
            yield {**line, "series": f"level {number}", "unit": step.unit, **_interval(step.height)}
            if step.cycles is not None:
                yield {
                    **line,
                    "series": f"level {number} cycles",
                    "unit": "cycles",
                    "median": gb.frame.finite(step.cycles),
                }
            if step.end:
                yield {**line, "series": f"level {number} end", "unit": "B", **_interval(step.end)}
    for view_transfers in gb.transfers(summary):
        for path in view_transfers.paths:
            yield from _path_lines(_line(view_transfers.suite, view_transfers.title, path.line.label), path)
        for crossover in view_transfers.crossovers:
            name = f"crossover {crossover.below} to {crossover.above}"
            yield {
                **_line(view_transfers.suite, view_transfers.title, ""),
                "series": name,
                "unit": "B",
                **_interval(crossover.size),
            }


def _line(suite: str, title: str, label: str) -> dict[str, Any]:
    """Return the columns that all flat lines of a curve share; `label` is the curve's label."""
    return {"case": f"{suite}: {title}", "suite": suite, "params": label, "quantity": "derived"}


def _path_lines(line: dict[str, Any], path: gb.TransferFit) -> Iterator[dict[str, Any]]:
    """Yield α (s), β, n½ and the residual of a transfer model as flat lines, each with the columns in `line`."""
    for number, piece in enumerate(path.model.pieces, 1):
        name = f"piece {number}" if len(path.model.pieces) > 1 else "model"
        yield {**line, "series": f"{name} alpha", "unit": "s", "median": gb.frame.finite(piece.alpha_s)}
        yield {**line, "series": f"{name} beta", "unit": path.unit, "median": gb.frame.finite(path.rate(piece))}
    if path.model.half:
        yield {**line, "series": "half rate", "unit": "B", **_interval(path.model.half)}
    yield {**line, "series": "residual", "unit": "", "median": gb.frame.finite(path.model.residual)}
