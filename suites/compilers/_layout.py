"""Measure operators on images in the layouts NCHW and NHWC: transposes, pooling, batch norm and a bias."""

from typing import Any

import numpy as np

from gpubench.api import suite as gb

from . import _providers as providers
from ._cases import in_full, runtime_of, task_of
from ._operators import EPSILON, Operator, Problem

WHATS = ("transpose", "pool", "batch-norm", "bias")
LAYOUTS = ("nchw", "nhwc")
_STATISTICS = ("mean", "variance", "weight", "bias")  # of a batch norm, a number for each channel
_GPU_SHAPE, _HOST_SHAPE = (128, 256, 56), (8, 64, 56)  # images, channels, side: of ResNet-50's first stage

topic = gb.Topic(
    views=[gb.View("bars", "Operators on images: throughput by provider", ("layout",), by=("layout", "by"))]
)


def normalised(xp: Any, x: Any, mean: Any, variance: Any, weight: Any, bias: Any) -> Any:
    """Return a batch norm in inference as it is written: each call repeats every operation on the vectors."""
    return (x - mean) / xp.sqrt(variance + EPSILON) * weight + bias


def _transpose(layout: str) -> Any:
    """Return the expression of an Operator that writes images, which lie in `layout`, in the other layout."""
    axes = (0, 2, 3, 1) if layout == "nchw" else (0, 3, 1, 2)
    return lambda xp, x: xp.ascontiguousarray(x.transpose(axes))


def _pool(layout: str) -> Any:
    """Return the expression of an Operator for the maximum of each 2 × 2 elements of images that lie in `layout`."""

    def pool(xp: Any, x: Any) -> Any:
        """Return the maximum of each 2 × 2 elements of the images x; `xp` is NumPy or CuPy."""
        images, *sizes = x.shape
        first, second, third = sizes
        if layout == "nchw":
            return xp.amax(x.reshape(images, first, second // 2, 2, third // 2, 2), axis=(3, 5))
        return xp.amax(x.reshape(images, first // 2, 2, second // 2, 2, third), axis=(2, 4))

    return pool


def _by_channel(layout: str, expression: Any) -> Any:
    """Return `expression` for vectors that have an element for each channel of images in `layout`."""
    shape = (-1, 1, 1) if layout == "nchw" else (-1,)
    return lambda xp, x, *vectors: expression(xp, x, *(vector.reshape(shape) for vector in vectors))


def _operators() -> dict[str, Operator]:
    """Return all operators on images, keyed by their names: a value of WHATS, a hyphen and the layout."""
    operators = {}
    for layout in LAYOUTS:
        definitions = (
            ("transpose", ("x",), _transpose(layout)),
            ("pool", ("x",), _pool(layout)),
            ("batch-norm", ("x", *_STATISTICS), _by_channel(layout, normalised)),
            ("bias", ("x", "bias"), _by_channel(layout, lambda _xp, x, bias: x + bias)),
        )
        operators.update({f"{name}-{layout}": Operator(f"{name}-{layout}", *parts) for name, *parts in definitions})
    return operators


class ImageProblem(Problem):
    """An operator on images of `channels` × `side` × `side` elements, whose input lies in `layout`.

    `what` is a value of WHATS, and `shape` the number of images, of channels, and the side."""

    operators = _operators()
    most_checked = 2  # images

    def __init__(self, bench: gb.Bench, what: str, layout: str, shape: tuple[int, int, int], dtype: str) -> None:
        images, self.channels, self.side = shape
        self.what, self.layout = what, layout
        super().__init__(bench, f"{what}-{layout}", images, self.channels * self.side**2, dtype)

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Return the shape of the input `name`: x are the images, others are vectors with a number for each channel."""
        return _shape(self.layout, self.rows, self.channels, self.side) if name == "x" else (self.channels,)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the output: a transpose has the other layout, and pooling halves the sides."""
        is_transposed, is_pooled = self.what == "transpose", self.what == "pool"
        layout = LAYOUTS[1 - LAYOUTS.index(self.layout)] if is_transposed else self.layout
        return _shape(layout, self.rows, self.channels, self.side // 2 if is_pooled else self.side)

    def _scaled(self, name: str, drawn: Any) -> Any:
        return drawn * drawn + np.float32(0.5) if name == "variance" else drawn


def _shape(layout: str, images: int, channels: int, side: int) -> tuple[int, ...]:
    return (images, channels, side, side) if layout == "nchw" else (images, side, side, channels)


def _by(target: gb.Target) -> Any:
    return providers.HOST_QUICK if target.is_host else ("cupy", "nvrtc")


@topic.case(what=WHATS, layout=LAYOUTS, by=_by, runtime=runtime_of, when=in_full)
def layout(bench: gb.Bench, what: str, layout: str, by: str) -> gb.Task:
    """Bandwidth of an operator on images that lie in `layout`: 128 of 256 channels, 56 × 56 (host: 8 of 64 channels).

    `transpose` writes them in the other layout, `pool` writes the maximum of each 2 × 2 elements, `batch-norm`
    normalises with given statistics, `bias` adds a number to each channel. Everything is read once and written once.
    `by` names the compiler or library."""
    shape = _GPU_SHAPE if bench.traits.is_gpu else _HOST_SHAPE
    return task_of(bench, ImageProblem(bench, what, layout, shape, "float16" if bench.traits.is_gpu else "float32"), by)
