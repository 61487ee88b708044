"""Compare compilers and libraries on the same operators: the gain of fusion, and the cost of compiling."""

from gpubench.api import suite as gb

from . import _build, _cases, _convolution, _cross, _dequant, _folding, _layer, _layout, _products, _shapes

suite = gb.Suite(
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
