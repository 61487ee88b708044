"""Measure virtualisation: memory that is mapped and grows, suspended programs, neighbours, and forwarded driver calls.

Virtual memory, suspended programs and green contexts need cuda-bindings, which the extras for CUDA bring."""

from gpubench.api import suite as gb

from . import _calls, _churn, _green, _grow, _limits, _neighbour, _programs, _slice, _steps, _suspend, _through

suite = gb.Suite(
    "virtual memory, suspended programs, neighbours and forwarded calls",
    topics=[
        _steps.topic,
        _grow.topic,
        _through.topic,
        _churn.topic,
        _calls.topic,
        _programs.topic,
        _limits.topic,
        _suspend.topic,
        _neighbour.topic,
        _slice.topic,
        _neighbour.preemption,
        _green.topic,
    ],
)
