"""Measure a convolution followed by ReLU, as in ResNet-50 (He et al., 2015), in the layouts NCHW and NHWC."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from ._cases import in_full, runtime_of, task_of
from ._layout import LAYOUTS
from ._operators import Operator, Problem

topic = gb.Topic(
    views=[gb.View("bars", "Convolution and ReLU: throughput by provider", ("conv",), by=("shape", "layout", "by"))]
)


@dataclass(frozen=True, slots=True)
class ConvolutionShape:
    """A convolution of square images with square filters; padding keeps the sides, and the stride divides them.

    `inputs` and `outputs` are numbers of channels, and `side` and `filter` the sides of an image and of a filter."""

    inputs: int
    outputs: int
    side: int
    filter: int
    stride: int = 1

    @property
    def padding(self) -> int:
        """The zeros on each side of an image."""
        return self.filter // 2

    @property
    def out_side(self) -> int:
        """The side of an output image, in elements."""
        return self.side // self.stride

    @property
    def taps(self) -> int:
        """The number of products that are summed up for one element of the output."""
        return self.inputs * self.filter**2


SHAPES = {
    "1x1": ConvolutionShape(256, 64, 56, 1),
    "3x3": ConvolutionShape(64, 64, 56, 3),
    "strided": ConvolutionShape(128, 128, 56, 3, 2),
}
_GPU_IMAGES, _HOST_IMAGES = 128, 4


def _expression(layout: str, shape: ConvolutionShape) -> Callable[..., Any]:
    """Return the convolution and ReLU in `layout`, as the expression of an Operator with the inputs x and `filters`."""
    pad, last = (shape.padding,) * 2, 1 + shape.stride * (shape.out_side - 1)

    def nchw(xp: Any, x: Any, filters: Any) -> Any:
        """Return ReLU of the convolution of images x (images, inputs, rows, columns); `xp` is NumPy or CuPy.

        `filters` are (outputs, inputs, rows, columns), and the result lies as x."""
        padded = xp.pad(x, ((0, 0), (0, 0), pad, pad))
        total: Any = 0
        for row in range(shape.filter):
            for col in range(shape.filter):
                part = padded[:, :, row : row + last : shape.stride, col : col + last : shape.stride]
                total = total + xp.matmul(filters[:, :, row, col], part.reshape(*part.shape[:2], -1))
        return xp.maximum(total, 0).reshape(x.shape[0], shape.outputs, shape.out_side, shape.out_side)

    def nhwc(xp: Any, x: Any, filters: Any) -> Any:
        """Return ReLU of the convolution of images x (images, rows, columns, inputs); `xp` is NumPy or CuPy.

        `filters` are (outputs, rows, columns, inputs), and the result lies as x."""
        padded = xp.pad(x, ((0, 0), pad, pad, (0, 0)))
        total: Any = 0
        for row in range(shape.filter):
            for col in range(shape.filter):
                part = padded[:, row : row + last : shape.stride, col : col + last : shape.stride]
                total = total + xp.matmul(part, filters[:, row, col].T)
        return xp.maximum(total, 0)

    return nchw if layout == "nchw" else nhwc


class ConvolutionProblem(Problem):
    """ReLU of a convolution of `images` images, drawn so that the sums are N(0, 1).

    `name` is a key of SHAPES."""

    operators = {  # noqa: RUF012
        f"conv-{name}-{layout}": Operator(f"conv-{name}-{layout}", ("x", "filters"), _expression(layout, shape))
        for name, shape in SHAPES.items()
        for layout in LAYOUTS
    }
    most_checked = 2  # images
    quantity = "flops"

    def __init__(self, bench: gb.Bench, name: str, layout: str, images: int, dtype: str) -> None:
        self.shape, self.layout = SHAPES[name], layout
        super().__init__(bench, f"conv-{name}-{layout}", images, self.shape.outputs * self.shape.out_side**2, dtype)

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Return the shape of the images (`name` is x) or of the filters, in the problem's layout."""
        shape = self.shape
        if name == "x":
            return self._laid(self.rows, shape.inputs, shape.side)
        return self._laid(shape.outputs, shape.inputs, shape.filter)

    @property
    def output_shape(self) -> tuple[int, ...]:
        return self._laid(self.rows, self.shape.outputs, self.shape.out_side)

    def _laid(self, count: int, channels: int, side: int) -> tuple[int, ...]:
        return (count, channels, side, side) if self.layout == "nchw" else (count, side, side, channels)

    def _scaled(self, name: str, drawn: Any) -> Any:
        return drawn * np.float32(self.shape.taps**-0.5) if name == "filters" else drawn

    @property
    def work(self) -> gb.Work:
        """The operations of the convolution, including the padding's zeros, and the bytes of its arrays."""
        outputs = self.rows * self.shape.outputs * self.shape.out_side**2
        return gb.Work(moved=self.moved, flops=2.0 * outputs * self.shape.taps)

    @property
    def limit(self) -> str:
        """The peak of products of this precision."""
        return "float32" if self.dtype == "float32" else f"tensor.{self.dtype}"

    def expected(self) -> tuple[Any, ...]:
        """Return the checked images of the output, computed by NumPy in double precision, as a tuple of one array."""
        filters = self._to_host(self.inputs["filters"]).astype(np.float64)
        return self.operator.outputs_of(np, self.rows_of(self.inputs["x"]), filters)


def by_torch(torch: Any, problem: ConvolutionProblem) -> Callable[..., Any]:
    """Return the convolution and ReLU as a function of torch's tensors for the images and the filters.

    `torch` is the module. The tensors are in the problem's layout; NHWC is torch's memory format channels_last."""
    functional, shape = torch.nn.functional, problem.shape
    convolve = partial(functional.conv2d, stride=shape.stride, padding=shape.padding)
    if problem.layout == "nchw":
        return lambda x, filters: functional.relu(convolve(x, filters))
    return lambda x, filters: functional.relu(convolve(x.permute(0, 3, 1, 2), filters.permute(0, 3, 1, 2))).permute(
        0, 2, 3, 1
    )


def by_jax(jax: Any, problem: ConvolutionProblem) -> Callable[..., Any]:
    """Return the convolution and ReLU as a function of JAX's arrays for the images and the filters, in their layout.

    `jax` is the module."""
    layouts = ("NCHW", "OIHW", "NCHW") if problem.layout == "nchw" else ("NHWC", "OHWI", "NHWC")
    shape = problem.shape
    strides, padding = (shape.stride,) * 2, ((shape.padding,) * 2,) * 2

    def convolved(x: Any, filters: Any) -> Any:
        return jax.nn.relu(jax.lax.conv_general_dilated(x, filters, strides, padding, dimension_numbers=layouts))

    return convolved


def _by(target: gb.Target) -> Any:
    return ("numpy", "torch", "inductor", "jax") if target.is_host else ("cupy", "torch", "inductor", "jax")


def _dtypes(target: gb.Target) -> Any:
    return ("float32",) if target.is_host else ("float16",)


@topic.case(layout=LAYOUTS, shape=tuple(SHAPES), dtype=_dtypes, by=_by, runtime=runtime_of, when=in_full)
def conv(bench: gb.Bench, layout: str, shape: str, dtype: str, by: str) -> gb.Task:
    """Throughput of a convolution and ReLU on 128 images (host: 4); operations with zeros of the padding count.

    `1x1` takes 256 channels to 64 and `3x3` 64 to 64, both on images of 56 × 56; `strided` takes 128 to 128 by filters
    of 3 × 3 with stride 2. `by` names the library: on a GPU torch and JAX call cuDNN; CuPy and NumPy multiply once for
    each position of the filter."""
    images = _GPU_IMAGES if bench.traits.is_gpu else _HOST_IMAGES
    return task_of(bench, ConvolutionProblem(bench, shape, layout, images, dtype), by)
