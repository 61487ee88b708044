"""Between processes, as applications use them: pipelines, topologies, batches and an adaptive sender."""

from __future__ import annotations

from gpubench.api.suite import Suite

from . import _abort, _failure, _pipeline, _snapshots, _topology

suite = Suite(
    "patterns of applications between processes and GPUs",
    topics=[_pipeline.topic, _topology.topic, _failure.topic, _abort.topic, _snapshots.topic],
)
