"""Use copies of a product's weights in turn, so that the weights come from memory and not from a cache."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpubench.api import suite as gb


def copies_of(bench: gb.Bench, weights: Any) -> list[Any]:
    """Return `weights` and enough copies of them that the last-level cache holds no copy until its next use.

    `weights` has `nbytes` and `copy()`, as an array or `Weights` has."""
    return [weights, *(weights.copy() for _ in range(bench.copies(weights.nbytes) - 1))]


def rotated(
    calls: Sequence[Callable[[], object]],
    moved: float,
    flops: float,
    effort: gb.Effort = gb.TIER,
    outputs: Sequence[Any] = (),
    inputs: Callable[[], object] | None = None,
) -> gb.Stage:
    """Return the calls, one for each copy of the weights, as a stage judged by the bytes that a call moves.

    `moved` and `flops` are the bytes and the operations of one call; the stage has these `outputs` and `inputs`."""
    work, turns = gb.Work(moved=moved, flops=flops), tuple(calls)
    return gb.Stage(calls[0], work, "moved", "dram", (), rotation=turns, effort=effort, outputs=outputs, inputs=inputs)


def rotation_notes(rows: int, cols: int, copies: Sequence[Any]) -> Mapping[str, str]:
    """Return the notes on the weights and their copies."""
    return {"weights": f"{rows} × {cols}, {len(copies)} copies in turn", "data": "N(0,1)"}
