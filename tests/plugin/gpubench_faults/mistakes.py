"""Mistakes of a suite's author: each costs its case with the field named, and the run continues."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpubench.api.suite import Bench, Observed, Profile, Stage, Suite, Task, Work

suite = Suite("mistakes of an author")


def nothing() -> None:
    """Do nothing."""


def stage(**fields: Any) -> Stage:
    """Return a valid stage with these fields replaced."""
    return Stage(**{"call": nothing, "work": Work(items=1), "quantity": "item", **fields})


MISTAKES = {
    "quantity": lambda: Task.of(stage(quantity="bytes"), check=dict),
    "modes": lambda: Task.of(stage(modes=("warm",)), check=dict),
    "one_mode": lambda: Task.of(stage(modes="hot"), check=dict),
    "no_modes": lambda: Task.of(stage(modes=()), check=dict),
    "limit": lambda: Task.of(stage(limit="drum"), check=dict),
    "clock": lambda: Task.of(stage(clock="gpu"), check=dict),
    "uncounted": lambda: Task.of(stage(work=Work(payload=8.0), quantity="moved"), check=dict),
    "negative": lambda: Task.of(stage(work=Work(items=-1)), check=dict),
    "text_work": lambda: Task.of(stage(work=Work(items="many")), check=dict),
    "broken_bytes": lambda: Task.of(stage(work=Work(moved=1024 * 1.024)), check=dict),
    "buffers": lambda: Task.of(stage(rotation=(dict, dict), buffers=(np.zeros(1),)), check=dict),
    "note": lambda: Task.of(stage(), check=dict, notes={"codec": object()}),
    "long_note": lambda: Task.of(stage(), check=dict, notes={"log": "x" * 10**6}),
    "labels": lambda: Task.of(stage(), check=dict, labels="time-sliced"),
    "call": lambda: Task.of(stage(call=3), check=dict),
    "stages": lambda: Task([stage()]),
    "no_stage": lambda: Task({}),
    "no_task": lambda: None,
    "observation": lambda: Task.of(stage(), check=lambda: {"error": "small"}),
    "no_mapping": lambda: Task.of(stage(), check=lambda: 3.0),
    "unit": lambda: Task.of(stage(), check=lambda: {"size": Observed(1.0, ["B"])}),
    "better": lambda: Task.of(stage(), check=lambda: {"size": Observed(1.0, "B", "higher")}),
    "profile": lambda: Task.of(stage(), check=lambda: {"row": Profile(tuple(range(100_000)))}),
    "probe": lambda: Task.of(stage(probe=lambda: {"row": Profile((1.0,))}), check=dict),
    "own_time": lambda: Task.of(stage(call=lambda: "fast", clock="self"), check=dict),
    "own_times": lambda: Task.of(stage(call=lambda: [1e-3] * 600_000, clock="self"), check=dict),
    "effort": lambda: Task.of(stage(effort=30), check=dict),
}


@suite.case(what=tuple(MISTAKES))
def mistake(bench: Bench, what: str) -> Task:
    """One of the mistakes."""
    return MISTAKES[what]()


@suite.case()
def graph_alone(bench: Bench) -> Task:
    """A timing mode that the host does not support."""
    return Task.of(stage(modes=("graph",)), check=dict)


@suite.case()
def coerced(bench: Bench) -> Task:
    """Numbers of NumPy and a number as a note: both are accepted."""
    plain = stage(work=Work(items=np.int64(2), moved=np.float32(8)), max_calls=np.int32(4), rest_s=np.float64(0))
    return Task.of(plain, check=lambda: {"error": np.float32(0.5), "count": np.int64(3)}, notes={"blocks": 132})
