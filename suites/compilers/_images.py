"""Measure operators on images in the layouts NCHW and NHWC, and a batch norm whose constants can be folded by hand.

The convolutions are from ResNet-50 (He et al., 2015)."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gpubench.api import suite as gb

from . import _providers as providers
from ._cases import dtype_of, in_full, runtime_of, task_of
from ._operators import EPSILON, Operator, Problem

WHATS = ("transpose", "pool", "batch-norm", "bias")
LAYOUTS = ("nchw", "nhwc")
FORMS = ("written", "folded")
_STATISTICS = ("mean", "variance", "weight", "bias")  # of a batch norm, a number for each channel
_GPU_IMAGES, _HOST_IMAGES = (128, 256, 56), (8, 64, 56)  # images, channels, side: of ResNet-50's first stage
_GPU_MATRIX, _HOST_MATRIX = (32768, 4096), (2048, 4096)  # rows, columns
_GPU_FOLDING = ("cupy", "cupy-fused", "nvrtc", "torch", "inductor", "jax")
_TILE, _THREADS, _PLANE_THREADS = 64, 256, 128  # as in layout.cu
_WIDE = 8  # halves of a vector
_BIAS, _BATCH_NORM, _SCALE_SHIFT = 0, 1, 2  # WHAT of layout.cu
_LOOPS = {_BIAS: 1, _BATCH_NORM: 4, _SCALE_SHIFT: 1}  # vectors of a thread: a batch norm computes factors for all
_LINE = 16  # float32 elements: a line of most caches
_ONE, _EPSILON = np.float32(1), np.float32(EPSILON)
prange: Any = range  # numba's own once it was loaded

topic = gb.Topic(
    views=[
        gb.View("bars", "Convolution and ReLU: throughput by provider", ("conv",), by=("shape", "layout", "by")),
        gb.View("bars", "Operators on images: throughput by provider", ("layout",), by=("layout", "by")),
        gb.View("bars", "Constant folding: throughput by form and provider", ("folding",), by=("form", "by")),
    ]
)


def _transpose(layout: str) -> Any:
    axes = (0, 2, 3, 1) if layout == "nchw" else (0, 3, 1, 2)
    return lambda xp, x: xp.ascontiguousarray(x.transpose(axes))


def _transpose_numba(x: Any, out: Any) -> None:
    """Write each image of x, (images, rows, cols), transposed to `out`, (images, cols, rows), in tiles."""
    rows, cols = x.shape[1], x.shape[2]
    down = (rows + _LINE - 1) // _LINE
    for strip in prange(x.shape[0] * down):
        image, top = strip // down, strip % down * _LINE
        for left in range(0, cols, _LINE):
            for col in range(left, min(left + _LINE, cols)):
                for row in range(top, min(top + _LINE, rows)):
                    out[image, col, row] = x[image, row, col]


def _pool(layout: str, xp: Any, x: Any) -> Any:
    """Return the maximum of each 2 × 2 elements of the images x; `xp` is NumPy or CuPy."""
    images, first, second, third = x.shape
    if layout == "nchw":
        return xp.amax(x.reshape(images, first, second // 2, 2, third // 2, 2), axis=(3, 5))
    return xp.amax(x.reshape(images, first // 2, 2, second // 2, 2, third), axis=(2, 4))


def _pool_numba(x: Any, out: Any) -> None:
    """Write the maximum of each 2 × 2 elements of x, (images, rows, columns, channels), to `out`."""
    for image in prange(x.shape[0]):
        for i in range(out.shape[1]):
            for j in range(out.shape[2]):
                for k in range(out.shape[3]):
                    upper = max(x[image, 2 * i, 2 * j, k], x[image, 2 * i, 2 * j + 1, k])
                    lower = max(x[image, 2 * i + 1, 2 * j, k], x[image, 2 * i + 1, 2 * j + 1, k])
                    out[image, i, j, k] = max(upper, lower)


def _pool_planes_numba(x: Any, out: Any) -> None:
    """Write the maximum of each 2 × 2 elements of x, (planes, rows, columns), to `out`."""
    for plane in prange(x.shape[0]):
        for i in range(out.shape[1]):
            for j in range(out.shape[2]):
                upper = max(x[plane, 2 * i, 2 * j], x[plane, 2 * i, 2 * j + 1])
                lower = max(x[plane, 2 * i + 1, 2 * j], x[plane, 2 * i + 1, 2 * j + 1])
                out[plane, i, j] = max(upper, lower)


def _normalised(xp: Any, x: Any, mean: Any, variance: Any, weight: Any, bias: Any) -> Any:
    """Return a batch norm in inference as it is written: each call repeats every operation on the vectors."""
    return (x - mean) / xp.sqrt(variance + EPSILON) * weight + bias


def _by_channel(layout: str, expression: Any) -> Any:
    """Return `expression` for vectors that have an element for each channel of images in `layout`."""
    shape = (-1, 1, 1) if layout == "nchw" else (-1,)
    return lambda xp, x, *vectors: expression(xp, x, *(vector.reshape(shape) for vector in vectors))


def _planes_numba(x: Any, scale: Any, shift: Any, out: Any) -> None:
    """Write x · scale + shift to `out`; x is (planes, places), and plane p belongs to channel p modulo their number."""
    channels = scale.shape[0]
    for plane in prange(x.shape[0]):
        by, more = scale[plane % channels], shift[plane % channels]
        for i in range(x.shape[1]):
            out[plane, i] = x[plane, i] * by + more


def _lines_numba(x: Any, scale: Any, shift: Any, out: Any) -> None:
    """Write x · scale + shift to `out`; x is (places, channels), and `scale` and `shift` have one for each channel."""
    for line in prange(x.shape[0]):
        for i in range(x.shape[1]):
            out[line, i] = x[line, i] * scale[i] + shift[i]


def _by_channel_numba(loop: Callable[..., None], x: Any, vectors: tuple[Any, ...], out: Any) -> Callable[[], None]:
    """Return a call of x · scale + shift, of a bias alone, or of a batch norm, whose factors each call computes."""

    def call() -> None:
        if len(vectors) == 4:
            mean, variance, weight, bias = vectors
            scale = weight / np.sqrt(variance + _EPSILON)
            shift = bias - mean * scale
        else:
            scale, shift = (np.ones_like(vectors[0]), *vectors)[-2:]
        loop(x, scale, shift, out)

    return call


def _operators() -> dict[str, Operator]:
    """Return all operators on images, keyed by their names: a value of WHATS, a hyphen and the layout."""
    operators = {}
    for layout, flat, pool in (("nchw", _planes_numba, _pool_planes_numba), ("nhwc", _lines_numba, _pool_numba)):
        bias = _by_channel(layout, lambda _xp, x, bias: x + bias)
        definitions = (
            ("transpose", ("x",), _transpose(layout), _transpose_numba, None),
            ("pool", ("x",), partial(_pool, layout), pool, None),
            ("batch-norm", ("x", *_STATISTICS), _by_channel(layout, _normalised), flat, _BATCH_NORM),
            ("bias", ("x", "bias"), bias, flat, _BIAS),
        )
        for what, inputs, expression, by_numba, number in definitions:
            kernels = {"numba": by_numba, "nvrtc": number}
            operators[f"{what}-{layout}"] = Operator(f"{what}-{layout}", inputs, expression, kernels)
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
        return laid(self.layout, self.rows, self.channels, self.side) if name == "x" else (self.channels,)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the output: a transpose has the other layout, and pooling halves the sides."""
        layout = LAYOUTS[1 - LAYOUTS.index(self.layout)] if self.what == "transpose" else self.layout
        return laid(layout, self.rows, self.channels, self.side // 2 if self.what == "pool" else self.side)

    def numba_call(self, compiled: Callable[[Any], Any], outputs: tuple[Any, ...]) -> Callable[[], None]:
        """Return a call of the operator's loop over all threads of the host."""
        loop, (x, *vectors), (out,) = compiled(self.operator.kernels["numba"]), self.inputs.values(), outputs
        is_planar, places = self.layout == "nchw", self.side**2
        if self.what == "transpose":
            sides = (self.channels, places) if is_planar else (places, self.channels)
            return partial(loop, x.reshape(self.rows, *sides), out.reshape(self.rows, *sides[::-1]))
        if self.what == "pool":
            x, out = (array.reshape(-1, *array.shape[2:]) if is_planar else array for array in (x, out))
            return partial(loop, x, out)
        flat = (self.rows * self.channels, places) if is_planar else (self.rows * places, self.channels)
        return _by_channel_numba(loop, x.reshape(flat), tuple(vectors), out.reshape(flat))

    def launch(self, bench: gb.Bench, out: Any) -> partial[None]:
        """Return the launch of one kernel of layout.cu that writes `out`.

        Raises Skip for other types than float16, and if the channels or the side are no multiple of 8."""
        _expect_vectors(self, self.channels, self.side)
        x, *vectors = self.inputs.values()
        is_planar, places = self.layout == "nchw", self.side**2
        if self.what == "transpose":
            rows, cols = (self.channels, places) if is_planar else (places, self.channels)
            grid = (-(-rows // _TILE) * -(-cols // _TILE), self.rows)
            return partial(_kernel(bench, "transpose"), grid, (_THREADS,), (x, out, np.uint32(rows), np.uint32(cols)))
        if self.what == "pool":
            count = out.size // (_WIDE // 2 if is_planar else _WIDE)
            sizes = count, self.side, *(() if is_planar else (self.channels // _WIDE,))
            kernel = _kernel(bench, "pool_planes" if is_planar else "pool_lines")
            return partial(kernel, (-(-count // _THREADS),), (_THREADS,), (x, out, *map(np.uint32, sizes)))
        args, number = (x, *vectors, *vectors[:1] * (4 - len(vectors)), out), self.operator.kernels["nvrtc"]
        if is_planar:
            args, planes = (*args, np.uint32(places // _WIDE), np.uint32(self.channels)), self.rows * self.channels
            return partial(_kernel(bench, "planes", number), (planes,), (_PLANE_THREADS,), args)
        return _lines(bench, number, args, x.size // _WIDE, self.channels // _WIDE)


def laid(layout: str, images: int, channels: int, side: int) -> tuple[int, ...]:
    """Return the shape of square images that lie in `layout`."""
    return (images, channels, side, side) if layout == "nchw" else (images, side, side, channels)


def _expect_vectors(problem: Problem, *lengths: int) -> None:
    """Raise Skip if layout.cu, which takes vectors of 8 halves, cannot take these lengths of a problem."""
    if problem.dtype != "float16" or any(length % _WIDE for length in lengths):
        raise gb.Skip(f"layout.cu takes halves and multiples of {_WIDE}, not {problem.dtype} of {problem.output_shape}")


def _lines(bench: gb.Bench, number: int, args: tuple[object, ...], vectors: int, groups: int) -> partial[None]:
    """Return the launch of the kernel `lines` on vectors of 8 halves; `groups` adjacent ones hold all channels."""
    span = math.lcm(groups, _THREADS)
    blocks = -(-vectors // (_LOOPS[number] * span)) * (span // _THREADS)
    sizes = np.uint64(vectors), np.uint32(groups), np.uint32(span)
    return partial(_kernel(bench, "lines", number), (blocks,), (_THREADS,), (*args, *sizes))


def _kernel(bench: gb.Bench, name: str, number: int = _BIAS) -> gb.Kernel:
    """Return a kernel of layout.cu; `number` says what is done to each channel."""
    return bench.kernel("layout.cu", name, WHAT=number, LOOP=_LOOPS[number])


def _folded(_xp: Any, x: Any, scale: Any, shift: Any) -> Any:
    return x * scale + shift


_WRITTEN_FUSED = (
    "T x, T mean, T variance, T weight, T bias",
    f"z = ((float)x - (float)mean) / sqrtf((float)variance + {EPSILON}f) * (float)weight + (float)bias",
)
_FOLDED_FUSED = "T x, T scale, T shift", "z = (float)x * (float)scale + (float)shift"


class FoldingProblem(Problem):
    """A batch norm of a matrix whose columns are channels.

    The operator `written` has the statistics as inputs, and `folded` a factor and a shift, computed beforehand."""

    operators = {  # noqa: RUF012
        name: Operator(name, ("x", *vectors), expression, {"cupy-fused": fused, "numba": _lines_numba, "nvrtc": number})
        for name, vectors, expression, fused, number in (
            ("written", _STATISTICS, _normalised, _WRITTEN_FUSED, _BATCH_NORM),
            ("folded", ("scale", "shift"), _folded, _FOLDED_FUSED, _SCALE_SHIFT),
        )
    }

    def numba_call(self, compiled: Callable[[Any], Any], outputs: tuple[Any, ...]) -> Callable[[], None]:
        """Return a call of a loop over the rows."""
        x, *vectors = self.inputs.values()
        return _by_channel_numba(compiled(_lines_numba), x, tuple(vectors), *outputs)

    def launch(self, bench: gb.Bench, out: Any) -> partial[None]:
        """Return the launch of one kernel that writes `out`, whose threads compute the factors of their columns once.

        Raises Skip for other types than float16, and if the number of columns is no multiple of 8."""
        _expect_vectors(self, self.cols)
        x, *vectors = self.inputs.values()
        args = (x, *vectors, *vectors[:1] * (4 - len(vectors)), out)
        return _lines(bench, self.operator.kernels["nvrtc"], args, x.size // _WIDE, self.cols // _WIDE)


@topic.case(
    what=WHATS,
    layout=LAYOUTS,
    by=lambda target: providers.HOST_QUICK if target.is_host else ("cupy", "nvrtc"),
    runtime=runtime_of,
    when=in_full,
)
def layout(bench: gb.Bench, what: str, layout: str, by: str) -> gb.Task:
    """Bandwidth of an operator on images that lie in `layout`: 128 of 256 channels, 56 × 56 (host: 8 of 64 channels).

    `transpose` writes them in the other layout, `pool` writes the maximum of each 2 × 2 elements, `batch-norm`
    normalises with given statistics, `bias` adds a number to each channel. Everything is read once and written once.
    `by` names the compiler or library."""
    shape = _GPU_IMAGES if bench.traits.is_gpu else _HOST_IMAGES
    return task_of(bench, ImageProblem(bench, what, layout, shape, dtype_of(not bench.traits.is_gpu)), by)


@topic.case(
    form=FORMS,
    by=lambda target: providers.HOST_QUICK if target.is_host else _GPU_FOLDING,
    runtime=runtime_of,
    when=in_full,
)
def folding(bench: gb.Bench, form: str, by: str) -> gb.Task:
    """Bandwidth in bytes per second of a batch norm in inference: one matrix is read and one is written.

    `written` computes (x − mean) / √(variance + ε) · weight + bias, as a model states it, from vectors with a number
    for each column. `folded` computes x · scale + shift. A compiler that folds the constants needs the same time for
    both. `by` names the compiler or library."""
    rows, cols = _GPU_MATRIX if bench.traits.is_gpu else _HOST_MATRIX
    return task_of(bench, FoldingProblem(bench, form, rows, cols, dtype_of(not bench.traits.is_gpu)), by)


class ConvolutionShape(NamedTuple):
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


SHAPES = {
    "1x1": ConvolutionShape(256, 64, 56, 1),
    "3x3": ConvolutionShape(64, 64, 56, 3),
    "strided": ConvolutionShape(128, 128, 56, 3, 2),
}
_CONVOLVED_IMAGES = {"gpu": 128, "host": 4}


def _expression(layout: str, shape: ConvolutionShape) -> Callable[..., Any]:
    """Return the convolution and ReLU in `layout`, as the expression of an Operator with the inputs x and `filters`."""
    pad, last = (shape.padding,) * 2, 1 + shape.stride * (shape.out_side - 1)
    places = [(row, col) for row in range(shape.filter) for col in range(shape.filter)]

    def nchw(xp: Any, x: Any, filters: Any) -> Any:
        padded = xp.pad(x, ((0, 0), (0, 0), pad, pad))
        total: Any = 0
        for row, col in places:
            part = padded[:, :, row : row + last : shape.stride, col : col + last : shape.stride]
            total = total + xp.matmul(filters[:, :, row, col], part.reshape(*part.shape[:2], -1))
        return xp.maximum(total, 0).reshape(x.shape[0], shape.outputs, shape.out_side, shape.out_side)

    def nhwc(xp: Any, x: Any, filters: Any) -> Any:
        padded = xp.pad(x, ((0, 0), pad, pad, (0, 0)))
        total: Any = 0
        for row, col in places:
            part = padded[:, row : row + last : shape.stride, col : col + last : shape.stride]
            total = total + xp.matmul(part, filters[:, row, col].T)
        return xp.maximum(total, 0)

    return nchw if layout == "nchw" else nhwc


class ConvolutionProblem(Problem):
    """ReLU of a convolution of `images` images, drawn so that the sums are N(0, 1).

    `name` is a key of SHAPES. Operations with zeros of the padding count."""

    operators = {  # noqa: RUF012
        f"conv-{name}-{layout}": Operator(f"conv-{name}-{layout}", ("x", "filters"), _expression(layout, shape))
        for name, shape in SHAPES.items()
        for layout in LAYOUTS
    }
    whole = ("filters",)
    most_checked = 2  # images
    quantity = "flops"

    def __init__(self, bench: gb.Bench, name: str, layout: str, images: int, dtype: str) -> None:
        self.shape, self.layout = SHAPES[name], layout
        self._taps = self.shape.inputs * self.shape.filter**2  # products that are summed up for an element
        cols = self.shape.outputs * self.shape.out_side**2
        self.flops = 2.0 * images * cols * self._taps
        super().__init__(bench, f"conv-{name}-{layout}", images, cols, dtype)

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Return the shape of the images (`name` is x) or of the filters, in the problem's layout."""
        count, side = (self.rows, self.shape.side) if name == "x" else (self.shape.outputs, self.shape.filter)
        return laid(self.layout, count, self.shape.inputs, side)

    @property
    def output_shape(self) -> tuple[int, ...]:
        return laid(self.layout, self.rows, self.shape.outputs, self.shape.out_side)

    def _scaled(self, name: str, drawn: Any) -> Any:
        return drawn * np.float32(self._taps**-0.5) if name == "filters" else drawn


@topic.case(
    layout=LAYOUTS,
    shape=tuple(SHAPES),
    dtype=lambda target: (dtype_of(target.is_host),),
    by=lambda target: ("numpy" if target.is_host else "cupy", "torch", "inductor", "jax"),
    runtime=runtime_of,
    when=in_full,
)
def conv(bench: gb.Bench, layout: str, shape: str, dtype: str, by: str) -> gb.Task:
    """Throughput of a convolution and ReLU on 128 images (host: 4); operations with zeros of the padding count.

    `1x1` takes 256 channels to 64 and `3x3` 64 to 64, both on images of 56 × 56; `strided` takes 128 to 128 by filters
    of 3 × 3 with stride 2. `by` names the library: on a GPU torch and JAX call cuDNN; CuPy and NumPy multiply once for
    each position of the filter."""
    images = _CONVOLVED_IMAGES["gpu" if bench.traits.is_gpu else "host"]
    return task_of(bench, ConvolutionProblem(bench, shape, layout, images, dtype), by)
