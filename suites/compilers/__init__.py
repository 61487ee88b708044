"""Compare compilers and libraries on the same operators: the gain of fusion, and the cost of compiling."""

from gpubench.api.suite import Suite

from . import _build, _cases, _convolution, _cross, _dequant, _folding, _layer, _layout, _products, _shapes

suite = Suite(
    "the same operators by several compilers, and what compiling costs",
    topics=[
        _cases.topic,
        _products.topic,
        _layout.topic,
        _convolution.topic,
        _dequant.topic,
        _folding.topic,
        _layer.topic,
        _shapes.topic,
        _build.topic,
        _cross.topic,
    ],
)
