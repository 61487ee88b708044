"""A GPU on paper for planted_faults_gpu.py: arrays of NumPy, and streams that do their work when it is queued."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import numpy as np
from _grid_device import PaperBench, PaperGpu
from _planted import NumpyMachine, closed_form

from gpubench.plugins.backend import Traits

__all__ = ["PaperBench", "PaperMachine", "paper_device"]
TRAITS = Traits("nvidia", "sm_90", "cuda", ("hot", "each", "cold", "graph"), "perf_counter", warp=32, is_gpu=True)


class PaperStream:
    """A stream whose work is done when it is queued."""

    ptr = 0
    done = True

    def nothing(self, *_: Any) -> PaperStream:
        return self

    use = synchronize = record = wait_event = begin_capture = launch = end_capture = nothing


def paper_device() -> PaperGpu:
    return PaperGpu(TRAITS)


class PaperMachine(NumpyMachine):
    """The machine of planted_faults_gpu.py on paper."""

    blocks = 16

    def __init__(self, device: Any, rng: np.random.Generator) -> None:
        super().__init__(device, rng, 2**14)
        self.own = PaperStream()
        self.xp = SimpleNamespace(cuda=SimpleNamespace(Stream=SimpleNamespace(null=self.own)))
        self.new_stream = PaperStream

    def map(self, *args: Any, threads: int = 1, **options: Any) -> None:
        if threads > 1024:
            raise ValueError("too many threads")
        super().map(*args, **options)

    def copy(self, out: Any, source: Any, stream: Any = None) -> None:
        del stream
        super().copy(out, source)

    def map_unless(self, out: Any, source: Any, kind: int, cycles: int = 0) -> None:
        del kind, cycles
        rest = out == 0xFFFFFFFF
        out[rest] = (source * closed_form(self.passes))[rest]

    def on(self, stream: Any) -> Any:
        return contextlib.nullcontext(stream)

    def close(self) -> None:
        del self.device.time
