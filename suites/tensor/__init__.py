"""Measure the gain from each optimisation of a matrix product, and the rates of the matrix unit's instructions.

The ladders are kernels of our own, from the plainest to the fastest: each is checked as the vendor's product is, and is
timed in turn with it. The cases of single instructions say what the units behind them could do."""

from gpubench.api import suite as gb

from . import _hgemm, _hgemv, _instructions, _mma, _tcgen05, _wgmma

suite = gb.Suite(
    "matrix products step by step, and the matrix unit's instructions",
    topics=[_hgemm.topic, _hgemv.topic, _instructions.topic, _mma.topic, _wgmma.topic, _tcgen05.topic],
)
