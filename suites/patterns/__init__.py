"""Measure how applications communicate between processes: pipelines, topologies, batches, failures."""

from gpubench.api import suite as gb

from . import (
    _abort,
    _batch,
    _failure,
    _gradients,
    _pipeline,
    _shared_weights,
    _snapshots,
    _splits,
    _stages,
    _topology,
)

suite = gb.Suite(
    "communication patterns of applications between processes and GPUs",
    topics=[
        _pipeline.topic,
        _topology.topic,
        _batch.topic,
        _gradients.topic,
        _stages.topic,
        _shared_weights.topic,
        _splits.topic,
        _snapshots.topic,  # from this topic on ranks die, and the next case needs new processes
        _failure.topic,
        _abort.topic,
    ],
)
