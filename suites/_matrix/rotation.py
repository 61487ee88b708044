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
    copies: Sequence[Any],
    moved: float,
    flops: float,
    effort: gb.Effort = gb.TIER,
    outputs: Sequence[Any] = (),
    inputs: Callable[[], object] | None = None,
) -> gb.Stage:
    """Return the calls, one for each of the `copies`, as a stage judged by the bytes that a call moves.

    `moved` and `flops` are the bytes and the operations of one call; the stage has these `outputs` and `inputs`."""
    rest: Any = {"effort": effort, "outputs": outputs, "inputs": inputs, "rotation": tuple(calls)}
    buffers = [getattr(copy, "words", copy) for copy in copies]
    return gb.Stage(calls[0], gb.Work(moved=moved, flops=flops), "moved", "dram", (), buffers=buffers, **rest)


def rotation_notes(rows: int, cols: int, copies: Sequence[Any]) -> Mapping[str, str]:
    """Return the notes on the weights and their copies."""
    return {"weights": f"{rows} × {cols}, {len(copies)} copies in turn", "data": "N(0,1)"}
