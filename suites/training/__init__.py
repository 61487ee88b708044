"""Measure a training step of a language model by torch: the whole step, its parts, its products and its optimiser."""

from gpubench.api import suite as gb

from . import _bounds, _steps

suite = gb.Suite(
    "a training step of a language model by torch: its parts, and what bounds them",
    topics=[_steps.topic, _bounds.topic],
)
