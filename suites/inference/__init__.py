"""Measure how fast a device executes a language model at a load, with no weights and no server.

Attention over a KV cache; one step and one prefill of a whole model; and LoadGen's four scenarios by our own open-loop
generator, none of which is an MLPerf result. On the host the model is a toy that shows the method."""

from gpubench.api import suite as gb

from . import _attention, _loadgen, _prefill_attention, _scenarios, _steps

suite = gb.Suite(
    "language models: attention over a KV cache, steps, LoadGen scenarios",
    views=[
        gb.View(
            "serving",
            "Time to the first token over rate: LoadGen scenario Server, simulated, not an MLPerf result",
            ("step", "prefill", "single_stream", "multi_stream", "offline", "server"),
            by=("model", "weights"),
        )
    ],
    topics=[_attention.topic, _steps.topic, _scenarios.topic, _loadgen.topic, _prefill_attention.topic],
)
