"""Measure Blackwell's tcgen05.mma one by one: products that one thread of an SM issues, with sums in tensor memory.

The kernel was compiled for sm_100a, sm_103a and sm_110a. No GPU has run it."""

from dataclasses import dataclass

import numpy as np

from gpubench.api import suite as gb

from .._checks import expect_equal
from ._chains import REST_S, Chains, cycle_words, matrix_limit, rounds_for
from ._kernels import NEVER_RUN, loadable, resource_notes

_ROWS, _ROW_BYTES, _BODY, _THREADS = 128, 128, 16, 128  # as in instructions_tcgen05.cu
_ALIGNED = 1024

topic = gb.Topic(
    views=[gb.View("curve", "tcgen05: throughput by columns", ("tcgen05",), x="columns", by=("dtype",), log_x=True)]
)


@dataclass(frozen=True, slots=True)
class TensorFormat:
    """A format of A and B: the `kind` of the instruction, the `number` of the format in it, and elements along K.

    `one` is the word whose elements are all 1, and `minus` the one of -1."""

    kind: str
    number: int
    inner: int
    one: int
    minus: int


FORMATS = {
    "float16": TensorFormat("f16", 0, 16, 0x3C003C00, 0xBC00BC00),
    "bfloat16": TensorFormat("f16", 1, 16, 0x3F803F80, 0xBF80BF80),
    "tf32": TensorFormat("tf32", 2, 8, 0x3F800000, 0xBF800000),
    "float8_e4m3": TensorFormat("f8f6f4", 0, 32, 0x38383838, 0xB8B8B8B8),
}


@topic.case(
    dtype=gb.points(("float16",), full=tuple(FORMATS)),
    columns=gb.points((256,), full=(64, 128, 256)),
    when=lambda target: gb.on_gpu(target) and "tcgen05" in target.device.architecture.features,
)
def tcgen05(bench: gb.Bench, dtype: str, columns: int) -> gb.Task:
    """Throughput of D = A·B + C of 128 rows by one SM's tensor core, A and B in shared memory: 2·M·N·K operations.

    `columns` is N, and `dtype` the format of A and B; the sums are float32 in tensor memory. Raises Skip if the
    compiler or the driver does not have the instruction."""
    form = FORMATS[dtype]
    flops = 2.0 * _ROWS * columns * form.inner
    rounds = rounds_for(_BODY, columns / 2)  # two products of a column and an inner step per clock, by their width
    defines: dict[str, str | int] = {"COLUMNS": columns, "KIND": form.kind, "FORMAT": form.number}
    kernel = loadable(bench, lambda: bench.kernel("instructions_tcgen05.cu", "tcgen05_chains", **defines))
    cycles, xp = cycle_words(bench), bench.xp
    shared_bytes = (_ROWS + columns) * _ROW_BYTES + _ALIGNED
    sums = xp.empty((len(cycles) // 2, _ROWS, columns), "float32")
    operands = xp.asarray(np.array([form.one, form.one], np.uint32))

    def launch(rounds: int) -> None:
        args = (operands, np.uint32(rounds), sums, cycles)
        kernel((len(cycles) // 2,), (_THREADS,), args, shared_bytes)

    def negate() -> None:
        operands[:1] ^= np.uint32(form.one ^ form.minus)

    def check() -> None:
        sign = 1 if int(bench.device.to_host(operands)[0]) == form.one else -1
        host_sums = bench.device.to_host(sums)  # whole numbers below 2²⁴, which float32 adds exactly
        expected = np.float32(sign * rounds * _BODY * form.inner)
        expect_equal(host_sums, np.broadcast_to(expected, host_sums.shape), "sums")

    chains = Chains(bench, launch, cycles, rounds, rounds * _BODY, 1, gb.Work(flops=flops))
    notes = {"chains": f"{rounds * _BODY} steps of a thread", **NEVER_RUN}
    notes |= resource_notes(bench, kernel, _THREADS, shared_bytes)
    return chains.task(matrix_limit(dtype), check, sums, notes, negate, REST_S)
