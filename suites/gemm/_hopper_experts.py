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
def load(weights, tokens, w, x, ready, free, next_tile, asked, tiles, ticket, count, N: gl.constexpr, K: gl.constexpr):
    """Take a ticket for each tile, tell the warpgroups which tile it is, and load its weights and tokens."""
    stages: gl.constexpr = ready.shape[0]
    boxes: gl.constexpr = x.shape[0] // stages
    of_rows: gl.constexpr = 2 * weights.block_type.nbytes
    turn, tile = 0, 0
    while tile < count:
        # A launch takes a ticket for each tile and one more for each program, so the next launch begins at 0.
        tile = (gl.atomic_add(ticket, 1) % (count + gl.num_programs(0))).to(gl.int32)
        mbarrier.wait(asked.index(1), (turn & 1) ^ 1)
        next_tile.store(gl.full([1], 0, gl.int32, gl.BlockedLayout([1], [32], [1], [0])) + tile)
        mbarrier.arrive(asked.index(0))
        if tile < count:
            row = gl.load(tiles + 4 * tile) * N + gl.load(tiles + 4 * tile + 3) * (2 * w.shape[1])
            first, end = gl.load(tiles + 4 * tile + 1), gl.load(tiles + 4 * tile + 2)
            filled = gl.minimum((end - first + x.shape[1] - 1) // x.shape[1], boxes)
            for i in range(turn * (K // 64), (turn + 1) * (K // 64)):
                slot, inner = i % stages, (i - turn * (K // 64)) * 64
                barrier = ready.index(slot)
                mbarrier.wait(free.index(slot), (i // stages & 1) ^ 1)
                for some in gl.static_range(1, boxes + 1):  # the number of bytes has to be a constant
                    mbarrier.expect(barrier, of_rows + some * tokens.block_type.nbytes, pred=filled == some)
                for part in gl.static_range(2):
                    place = [row + part * w.shape[1], inner]
                    tma.async_copy_global_to_shared(weights, place, barrier, w.index(2 * slot + part))
                for j in range(filled):
                    place = [first + j * x.shape[1], inner]
                    tma.async_copy_global_to_shared(tokens, place, barrier, x.index(slot * boxes + j))
        turn += 1


@gluon.jit
def multiply(
    w, x, ready, free, next_tile, asked, out, tiles, count, part: gl.constexpr, N: gl.constexpr, K: gl.constexpr
):  # fmt: skip
    """Write the products of one half of each tile's rows of weights."""
    stages: gl.constexpr = ready.shape[0]
    rows: gl.constexpr = w.shape[1]
    stored: gl.constexpr = gl.BlockedLayout([8, 1], [rows // 8, 256 // rows], [1, 4], [0, 1])
    turn, tile = 0, 0
    while tile < count:
        mbarrier.wait(asked.index(0), turn & 1)
        tile = gl.max(next_tile.load(gl.BlockedLayout([1], [32], [4], [0])), 0)
        mbarrier.arrive(asked.index(1))
        if tile < count:
            first, end = gl.load(tiles + 4 * tile + 1), gl.load(tiles + 4 * tile + 2)
            row = (2 * gl.load(tiles + 4 * tile + 3) + part) * rows
            for size in gl.static_range(4):  # 16 to 128 tokens
                if (size == 0 or end - first > 8 << size) and (size == 3 or end - first <= 16 << size):
                    total = gl.zeros(
                        [rows, 16 << size], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 16 << size, 16])
                    )
                    for i in range(turn * (K // 64), (turn + 1) * (K // 64)):
                        slot = i % stages
                        mbarrier.wait(ready.index(slot), i // stages & 1)
                        some = x.index(x.shape[0] // stages * slot)._reinterpret(x.dtype, [16 << size, 64], x.layout)
                        adding = warpgroup_mma(w.index(2 * slot + part), some.permute((1, 0)), total, is_async=True)
                        total = warpgroup_mma_wait(0, deps=(adding,))
                        mbarrier.arrive(free.index(slot))
                    line = row + gl.arange(0, rows, gl.SliceLayout(1, stored))[:, None]
                    token = first + gl.arange(0, 16 << size, gl.SliceLayout(0, stored))[None, :]
                    result = gl.convert_layout(total.to(gl.bfloat16), stored)
                    gl.store(out + token * N + line, result, mask=token < end)
        turn += 1


@gluon.jit
def grouped(
    weights, tokens, out, tiles, ticket, count,
    N: gl.constexpr, K: gl.constexpr, ROWS: gl.constexpr, MOST: gl.constexpr, BOX: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Write Y = X·Wᵀ of `count` tiles: expert, first token, end of the expert's tokens, and block of 2·ROWS rows."""
    w = gl.allocate_shared_memory(gl.bfloat16, [2 * STAGES, ROWS, 64], weights.layout)
    x = gl.allocate_shared_memory(gl.bfloat16, [STAGES * (MOST // BOX), BOX, 64], tokens.layout)
    next_tile = gl.allocate_shared_memory(gl.int32, [1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    asked = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())  # the tile is there; it is known
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
        mbarrier.init(free.index(i), count=2)
    for i in gl.static_range(2):
        mbarrier.init(asked.index(i), count=1 + i)
    gl.warp_specialize(
        [
            (multiply, (w, x, ready, free, next_tile, asked, out, tiles, count, 0, N, K)),
            (multiply, (w, x, ready, free, next_tile, asked, out, tiles, count, 1, N, K)),
            (load, (weights, tokens, w, x, ready, free, next_tile, asked, tiles, ticket, count, N, K)),
        ],
        [4, 1],  # warps of the second and the third
        [240, 24],  # and the registers of their threads
    )
