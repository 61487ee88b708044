"""Repeat the same work on the same inputs, and compare each result with the first one bit by bit."""

from gpubench.api import suite as gb

from . import _copies, _links, _memory, _product

suite = gb.Suite(
    "repeated work whose results must be equal bit by bit",
    topics=[_product.topic, _memory.topic, _copies.topic, _links.topic],
)
