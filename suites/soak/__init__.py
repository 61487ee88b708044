"""Repeat the same work on the same inputs, and compare each result with the first one bit by bit."""

from gpubench.api.suite import Suite

from . import _copies, _memory, _product

suite = Suite(
    "repeated work whose results must be equal bit by bit",
    topics=[_product.topic, _memory.topic, _copies.topic],
)
