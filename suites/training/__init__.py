"""Measure a training step of a language model by torch: the whole step, its parts, its products and its optimiser."""

from gpubench.api import suite as gb

from . import _bounds, _steps

suite = gb.Suite(
    "training steps of a language model by torch: their parts and bounds",
    topics=[_steps.topic, _bounds.topic],
)
