"""Grouped products on Hopper, in Gluon, Triton's language of warpgroups and barriers.

The weights are the left operand of the matrix units, so that few tokens of an expert cost few operations. A warp loads
by tensor copies, and two warpgroups multiply ROWS rows of weights each with the same tokens, MOST or fewer."""

# The annotations of kernels in Gluon are instructions to its compiler.
# ruff: noqa: ANN001, ANN202, N803, SLF001
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait


@gluon.jit
def load(weights, tokens, w, x, ready, free, row, first, end, K: gl.constexpr):
    """Load the weights of a tile, from `row` on, and its tokens."""
    stages: gl.constexpr = ready.shape[0]
    boxes: gl.constexpr = x.shape[0] // stages
    box: gl.constexpr = x.shape[1]
    of_rows: gl.constexpr = 2 * weights.block_type.nbytes
    filled = gl.minimum((end - first + box - 1) // box, boxes)
    for i in range(K // 64):
        slot, barrier = i % stages, ready.index(i % stages)
        mbarrier.wait(free.index(slot), (i // stages & 1) ^ 1)
        for some in gl.static_range(1, boxes + 1):  # the number of bytes has to be a constant
            mbarrier.expect(barrier, of_rows + some * tokens.block_type.nbytes, pred=filled == some)
        for part in gl.static_range(2):
            tma.async_copy_global_to_shared(
                weights, [row + part * w.shape[1], i * 64], barrier, w.index(2 * slot + part)
            )
        for j in range(filled):
            tma.async_copy_global_to_shared(tokens, [first + j * box, i * 64], barrier, x.index(slot * boxes + j))


@gluon.jit
def multiply(w, x, ready, free, out, col, first, end, part: gl.constexpr, N: gl.constexpr, K: gl.constexpr):
    """Write the products of one half of a tile's rows of weights, which are columns of the results from `col` on."""
    stages: gl.constexpr = ready.shape[0]
    rows: gl.constexpr = w.shape[1]
    stored: gl.constexpr = gl.BlockedLayout([8, 1], [rows // 8, 256 // rows], [1, 4], [0, 1])
    line = col + part * rows + gl.arange(0, rows, gl.SliceLayout(1, stored))[:, None]
    for size in gl.static_range(4):  # 16 to 128 tokens
        if (size == 0 or end - first > 8 << size) and (size == 3 or end - first <= 16 << size):
            total = gl.zeros(
                [rows, 16 << size], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 16 << size, 16])
            )
            for i in range(K // 64):
                slot = i % stages
                mbarrier.wait(ready.index(slot), i // stages & 1)
                some = x.index(x.shape[0] // stages * slot)._reinterpret(x.dtype, [16 << size, 64], x.layout)
                adding = warpgroup_mma(w.index(2 * slot + part), some.permute((1, 0)), total, is_async=True)
                total = warpgroup_mma_wait(0, deps=(adding,))
                mbarrier.arrive(free.index(slot))
            token = first + gl.arange(0, 16 << size, gl.SliceLayout(0, stored))[None, :]
            gl.store(out + token * N + line, gl.convert_layout(total.to(gl.bfloat16), stored), mask=token < end)


@gluon.jit
def grouped(
    weights, tokens, out, tiles,
    N: gl.constexpr, K: gl.constexpr, ROWS: gl.constexpr, MOST: gl.constexpr, BOX: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Write a tile of Y = X·Wᵀ; `tiles` has expert, first token, end of its tokens, and block of 2·ROWS rows of each.

    A program fills an SM: where two smaller ones had room in an SM of an H200, some of their results were wrong."""
    w = gl.allocate_shared_memory(gl.bfloat16, [2 * STAGES, ROWS, 64], weights.layout)
    x = gl.allocate_shared_memory(gl.bfloat16, [STAGES * (MOST // BOX), BOX, 64], tokens.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
        mbarrier.init(free.index(i), count=2)
    tiles += 4 * gl.program_id(0)
    first, end, col = gl.load(tiles + 1), gl.load(tiles + 2), gl.load(tiles + 3) * (2 * ROWS)
    row = gl.load(tiles) * N + col
    gl.warp_specialize(
        [
            (multiply, (w, x, ready, free, out, col, first, end, 0, N, K)),
            (multiply, (w, x, ready, free, out, col, first, end, 1, N, K)),
            (load, (weights, tokens, w, x, ready, free, row, first, end, K)),
        ],
        [4, 1],  # warps of the second and the third
        [240, 24],  # and the registers of their threads
    )
