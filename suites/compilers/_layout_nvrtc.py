"""Build operators on images as our kernels of layout.cu, which read and write every element once."""

import math
from functools import partial

import numpy as np

from gpubench.api import suite as gb

from ._folding import FoldingProblem
from ._layout import ImageProblem
from ._providers import Built, Outputs
from ._static import of_launch

_TILE, _THREADS, _PLANE_THREADS = 64, 256, 128  # as in layout.cu
_WIDE = 8  # halves of a vector
_LOOPS = {0: 1, 1: 4, 2: 1}  # vectors of a thread of `lines`: a batch norm computes its factors for all of them
_NUMBERS = {"bias": 0, "batch-norm": 1, "scale-shift": 2}  # WHAT


def build(bench: gb.Bench, problem: ImageProblem) -> Built:
    """Return `problem`'s operator on images as one kernel of layout.cu, with a preallocated output.

    Raises Skip for other types than float16, and if the channels or the side are no multiple of 8."""
    if problem.dtype != "float16" or problem.channels % _WIDE or problem.side % _WIDE:
        raise gb.Skip(
            f"layout.cu takes halves and multiples of {_WIDE} channels and places, not {problem.output_shape}"
        )
    outputs = Outputs(bench, problem)
    make = {"transpose": _transpose_launch, "pool": _pool_launch}.get(problem.what, _by_channel_launch)
    notes = {"library": "layout.cu", "precision": "computed in float32", "kernels": "1"}
    launch = make(bench, problem, outputs)
    return Built(launch, outputs.rows, outputs.poison, notes, static=partial(of_launch, launch))


def _transpose_launch(bench: gb.Bench, problem: ImageProblem, outputs: Outputs) -> partial[None]:
    """Return the launch that transposes each image between NCHW and NHWC."""
    places = problem.side**2
    rows, cols = (problem.channels, places) if problem.layout == "nchw" else (places, problem.channels)
    grid = (-(-rows // _TILE) * -(-cols // _TILE), problem.rows)
    args = (problem.inputs["x"], outputs.arrays[0], np.uint32(rows), np.uint32(cols))
    return partial(_kernel(bench, "transpose"), grid, (_THREADS,), args)


def _pool_launch(bench: gb.Bench, problem: ImageProblem, outputs: Outputs) -> partial[None]:
    """Return the launch that writes the maximum of each 2 × 2 elements of the images."""
    out, side, groups = outputs.arrays[0], problem.side, problem.channels // _WIDE
    is_planar = problem.layout == "nchw"
    vectors = out.size // (_WIDE // 2 if is_planar else _WIDE)
    kernel = _kernel(bench, "pool_planes" if is_planar else "pool_lines")
    sizes = (np.uint32(vectors), np.uint32(side), *(() if is_planar else (np.uint32(groups),)))
    return partial(kernel, (-(-vectors // _THREADS),), (_THREADS,), (problem.inputs["x"], out, *sizes))


def _by_channel_launch(bench: gb.Bench, problem: ImageProblem, outputs: Outputs) -> partial[None]:
    """Return the launch of a bias or of a batch norm on the images of `problem`."""
    x, *vectors = problem.inputs.values()
    args = (x, *vectors, *vectors[:1] * (4 - len(vectors)), outputs.arrays[0])
    if problem.layout == "nchw":
        kernel = _kernel(bench, "planes", _NUMBERS[problem.what])
        sizes = np.uint32(problem.side**2 // _WIDE), np.uint32(problem.channels)
        return partial(kernel, (problem.rows * problem.channels,), (_PLANE_THREADS,), (*args, *sizes))
    return lines(bench, _NUMBERS[problem.what], args, x.size // _WIDE, problem.channels // _WIDE)


def lines(bench: gb.Bench, operation: int, args: tuple[object, ...], vectors: int, groups: int) -> partial[None]:
    """Return the launch of the kernel `lines` on `vectors` vectors of 8 halves.

    `groups` adjacent vectors hold all channels. `operation` is a value of _NUMBERS."""
    span = math.lcm(groups, _THREADS)
    blocks = -(-vectors // (_LOOPS[operation] * span)) * (span // _THREADS)
    sizes = np.uint64(vectors), np.uint32(groups), np.uint32(span)
    return partial(_kernel(bench, "lines", operation), (blocks,), (_THREADS,), (*args, *sizes))


def _kernel(bench: gb.Bench, name: str, operation: int = 0) -> gb.Kernel:
    """Return a kernel of layout.cu; `operation` is its number for what is done to each channel."""
    return bench.kernel("layout.cu", name, WHAT=operation, LOOP=_LOOPS[operation])


def folding(bench: gb.Bench, problem: FoldingProblem) -> Built:
    """Return a batch norm of a matrix as one kernel, whose threads compute the factors of their columns once.

    Raises Skip for other types than float16, and if the number of columns is no multiple of 8."""
    if problem.dtype != "float16" or problem.cols % _WIDE:
        raise gb.Skip(f"layout.cu takes halves and multiples of {_WIDE} columns, not {problem.cols} of {problem.dtype}")
    outputs = Outputs(bench, problem)
    x, *vectors = problem.inputs.values()
    operation = _NUMBERS["batch-norm" if problem.operator.name == "written" else "scale-shift"]
    args = (x, *vectors, *vectors[:1] * (4 - len(vectors)), outputs.arrays[0])
    launch = lines(bench, operation, args, problem.elements // _WIDE, problem.cols // _WIDE)
    notes = {"library": "layout.cu", "precision": "computed in float32", "kernels": "1"}
    return Built(launch, outputs.rows, outputs.poison, notes, static=partial(of_launch, launch))
