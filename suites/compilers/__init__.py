"""Compare compilers and libraries on the same operators: the gain of fusion, and the cost of compiling."""

from gpubench.api import suite as gb

from . import _build, _cases, _images, _layer, _model, _products, _tuning

suite = gb.Suite(
    "the same operators by several compilers, and what compiling costs",
    topics=[_cases.topic, _products.topic, _images.topic, _layer.topic, _model.topic, _build.topic, _tuning.topic],
)
