"""Measure how fast a GPU executes a language model, with no weights to download and no server.

Attention over a KV cache and of a prompt; one step and one prefill of a whole model; and steps of a fixed batch to
which MLCommons LoadGen sends queries, which is no MLPerf result."""

from gpubench.api import suite as gb

from . import _attention, _latent, _loadgen, _prefill_attention, _steps

suite = gb.Suite(
    "language models: attention, steps and prefills, LoadGen's scenarios",
    views=[
        gb.View(
            "serving",
            "Time to the first token over rate: LoadGen scenario Server, simulated, not an MLPerf result",
            ("step", "chunked_step", "prefill", "loadgen"),
            by=("model", "weights"),
        )
    ],
    topics=[_attention.topic, _latent.topic, _steps.topic, _loadgen.topic, _prefill_attention.topic],
)
