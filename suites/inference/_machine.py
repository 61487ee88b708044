"""Run a whole model on a GPU for the scheduler, with a slot for each sequence and a graph for each batch size."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._checks import in_turn
from .._graphs import replayed
from .._models import Model
from ._chain import CacheMemory, DecodeChain, PrefillChain, prefill_bytes
from ._exact import ExactChain, SampledToken
from ._scheduler import Tokens
from ._weights import ModelWeights


class GpuMachine:
    """A model whose queries have `prompt` tokens and ask for `output` tokens; `kind` is the type of its weights.

    It is a Machine of the scheduler. Rows that only fill a batch share one further slot."""

    sizes: Sequence[int] = (1, 4, 16)
    tolerance = 0.05  # tolerance for a logit of about 4: all layers round to halves

    def __init__(self, bench: gb.Bench, model: Model, kind: str, prompt: int, output: int) -> None:
        self._spare, capacity = max(self.sizes), prompt + output
        cached = float((self._spare + 1) * capacity * model.cache_bytes())
        weights = ModelWeights(bench, model, kind, cached + prefill_bytes(model, prompt))
        self._bench, self._weights, self.vocabulary = bench, weights, model.head.rows
        self._timer = DeviceTimer(bench)
        self.description = f"{model.size / 1e9:.2f}e9 weights in {kind}, shapes of {model.source}"
        self._memory = CacheMemory.drawn(weights, self._spare + 1, capacity)
        self._lengths = np.ones(self._spare + 1, np.uint32)
        self._steps = {size: DecodeChain(bench, weights, self._memory, size) for size in self.sizes}
        self._replays = {size: replayed(bench, in_turn(*chain.calls)) for size, chain in self._steps.items()}
        self._prefill = PrefillChain(bench, weights, prompt)
        self._slot, self._token = bench.xp.zeros(1, "uint32"), bench.xp.empty(1, "uint32")
        most_likely = self._prefill.chain.most_likely(self._prefill.logits, self._token)
        self._first_token = in_turn(*self._prefill.calls, *self._store_launches(), most_likely)

    def _store_launches(self) -> list[Callable[[], None]]:
        """Return the launches that copy the keys and values of a prompt to its slot, one for each layer."""
        chain, layout = self._prefill.chain, self._memory.layout
        sizes = tuple(map(np.uint32, (layout.kv_heads, layout.capacity, layout.dim)))
        pairs = zip(chain.caches, self._memory.layers, strict=True)
        return [chain.launch("store_prompt", chain.rows, *new, *stored, self._slot, *sizes) for new, stored in pairs]

    def prefill(self, slot: int, prompt: Tokens) -> int:
        """Replace the sequence in a slot by `prompt`, and return the most likely token that follows it."""
        device = self._bench.device
        device.copy(self._prefill.chain.device_input, prompt.astype(np.uint32))
        device.copy(self._slot, np.array([slot], np.uint32))
        self._timer.run(self._first_token)
        self._lengths[slot] = len(prompt)
        token = int(device.to_host(self._token)[0])
        self._timer.read()
        return token

    def step(self, slots: Tokens, tokens: Tokens) -> Tokens:
        """Append one of `tokens` to the sequence in each of `slots`, and return the tokens that follow.

        All are NumPy arrays, int64, of the same length, at most the largest batch size."""
        size = min(size for size in self.sizes if size >= len(slots))
        chain, fill, device = self._steps[size], [(0, size - len(slots))], self._bench.device
        rows = np.pad(slots, fill, constant_values=self._spare).astype(np.uint32)
        self._lengths[slots] += 1
        device.copy(chain.slots, rows)
        device.copy(chain.lengths, self._lengths[rows])
        device.copy(chain.chain.device_input, np.pad(tokens, fill).astype(np.uint32))
        self._timer.run(self._replays[size])
        following = np.asarray(device.to_host(chain.tokens)[: len(slots)].astype(np.int64))
        self._timer.read()
        return following

    @property
    def device_s(self) -> float:
        """The seconds that the device has computed so far, from the start of a prefill or a graph to its end."""
        return self._timer.seconds

    def shortfall(self, slot: int, sequence: Tokens, token: int) -> float:
        """Return how far the logit of `token` lies below the largest logit after `sequence`, in double precision.

        The slot still holds the keys and values of the sequence; raises WrongAnswer if they differ by more than
        rounding."""
        exact = ExactChain(self._weights, self._memory.layers, self._memory.layout)
        logits = exact.logits([SampledToken(slot, len(sequence) - 1, int(sequence[-1]))])[0]
        return float(logits.max() - logits[token])


class DeviceTimer:
    """The sum of the times of calls on the device, in `seconds`: each between two events.

    On a device without events the host measures the calls."""

    def __init__(self, bench: gb.Bench) -> None:
        self.seconds = 0.0
        self._cuda: Any = getattr(bench.xp, "cuda", None)
        self._first: Any = self._cuda.Event() if self._cuda else None
        self._last: Any = self._cuda.Event() if self._cuda else None

    def run(self, call: Callable[[], object]) -> None:
        """Queue `call` between the events; without events, call it and add the time that the host measured."""
        if self._cuda is None:
            start = time.perf_counter()
            call()
            self.seconds += time.perf_counter() - start
            return
        self._first.record()
        call()
        self._last.record()

    def read(self) -> None:
        """Add the time of the last call, which has ended."""
        if self._cuda is not None:
            self.seconds += 1e-3 * float(self._cuda.get_elapsed_time(self._first, self._last))
