"""Measure matrix products: the vendor's BLAS by precision, shape and data, and few tokens against many weights.

A product is 2·M·N·K operations, dense; inputs are N(0,1) unless a case says otherwise. Beside each rate stands the
error of the result. Where the weights decide how long a product takes (GEMV, few tokens, decoding) the figure is bytes
moved, with buffers in turn, so that the weights come from memory."""

from gpubench.api import suite as gb

from . import _decoder, _experts, _few, _grouped, _rates, _scaled, _shapes

suite = gb.Suite(
    "matrix multiplication by precision, shape and data; GEMV",
    topics=[_rates.topic, _shapes.topic, _few.topic, _decoder.topic, _grouped.topic, _experts.topic, _scaled.topic],
)
