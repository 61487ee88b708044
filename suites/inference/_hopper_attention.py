"""Causal attention of a prompt on Hopper, in Gluon, Triton's language of warpgroups and barriers.

As in FlashAttention-3 (arXiv 2407.08608), a warp loads keys and values by tensor copies, and two warpgroups compute
ROWS tokens each: while the matrix units multiply shares and values, a warpgroup turns the next scores into shares."""

# The annotations of kernels in Gluon are instructions to its compiler.
# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait


@gluon.jit
def tile_of(turn, tokens, heads, ROWS: gl.constexpr):
    """Return head and block of a program's tile; the largest tiles come first, and every other turn goes backwards."""
    place = gl.program_id(0)
    if turn % 2 == 1:
        place = gl.num_programs(0) - 1 - place
    tile = turn * gl.num_programs(0) + place
    return tile % heads, (tokens - 1) // (2 * ROWS) - tile // heads


@gluon.jit
def load(
    queries, keys, values, q, k, v, asked, ready, free, tokens, heads, group, turns,
    ROWS: gl.constexpr, COLS: gl.constexpr,
):  # fmt: skip
    """Load the queries of each tile, and its keys and values from the last ones to the first."""
    stages: gl.constexpr = k.shape[0]
    done = 0
    for turn in range(turns):
        head, block = tile_of(turn, tokens, heads, ROWS)
        if block >= 0:
            first = 2 * block * ROWS
            count = (first + 2 * ROWS + COLS - 1) // COLS
            mbarrier.wait(asked.index(1), (turn & 1) ^ 1)
            mbarrier.expect(asked.index(0), 2 * queries.block_type.nbytes)
            for part in gl.static_range(2):
                place = head * tokens + first + part * ROWS
                tma.async_copy_global_to_shared(queries, [place, 0], asked.index(0), q.index(part))
            for i in range(2 * done, 2 * (done + count)):
                slot, phase = i // 2 % stages, (i // 2 // stages & 1) ^ 1
                place = head // group * tokens + (count - 1 - (i // 2 - done)) * COLS
                barrier = ready.index(2 * slot + i % 2)
                mbarrier.wait(free.index(2 * slot + i % 2), phase)
                mbarrier.expect(barrier, keys.block_type.nbytes)
                if i % 2 == 0:
                    tma.async_copy_global_to_shared(keys, [place, 0], barrier, k.index(slot))
                else:
                    tma.async_copy_global_to_shared(values, [place, 0], barrier, v.index(slot))
            done += count


@gluon.jit
def attend(
    q, k, v, asked, ready, free, out, tokens, heads, turns, part: gl.constexpr, ROWS: gl.constexpr, COLS: gl.constexpr
):  # fmt: skip
    """Write the attention of the first or second half of each tile's tokens."""
    dim: gl.constexpr = q.shape[2]
    stages: gl.constexpr = k.shape[0]
    scored: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLS, 16])
    summed: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, dim, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, summed, 2)
    stored: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    query, nothing = q.index(part), gl.zeros([ROWS, COLS], gl.float32, scored)
    done = 0
    for turn in range(turns):
        head, block = tile_of(turn, tokens, heads, ROWS)
        if block >= 0:
            first = (2 * block + part) * ROWS
            count = (2 * block * ROWS + 2 * ROWS + COLS - 1) // COLS
            row = first + gl.arange(0, ROWS, gl.SliceLayout(1, scored))
            col = (count - 1) * COLS + gl.arange(0, COLS, gl.SliceLayout(0, scored))
            weighted = gl.zeros([ROWS, dim], gl.float32, summed)
            slot = done % stages
            mbarrier.wait(asked.index(0), turn & 1)
            mbarrier.wait(ready.index(2 * slot), done // stages & 1)
            scoring = warpgroup_mma(query, k.index(slot).permute((1, 0)), nothing, use_acc=False, is_async=True)
            score = warpgroup_mma_wait(0, deps=(scoring,))
            mbarrier.arrive(free.index(2 * slot))
            score = gl.where(row[:, None] >= col[None, :], score, -1.0e30)  # only the last keys include later tokens
            most = gl.max(score, 1)
            share = gl.exp2(score - most[:, None])
            total = gl.sum(share, 1)
            done += count
            for i in range(done - count + 1, done):
                slot, before = i % stages, (i - 1) % stages
                halves = gl.convert_layout(share.to(gl.float16), operand)
                if i == done - count + 1:
                    mbarrier.wait(ready.index(2 * slot), i // stages & 1)
                scoring = warpgroup_mma(query, k.index(slot).permute((1, 0)), nothing, use_acc=False, is_async=True)
                mbarrier.wait(ready.index(2 * before + 1), (i - 1) // stages & 1)
                adding = warpgroup_mma(halves, v.index(before), weighted, is_async=True)
                score = warpgroup_mma_wait(1, deps=(scoring,))
                mbarrier.arrive(free.index(2 * slot))
                earlier, most = most, gl.maximum(most, gl.max(score, 1))
                share, fade = gl.exp2(score - most[:, None]), gl.exp2(earlier - most)
                total = total * fade + gl.sum(share, 1)
                if i + 1 < done:  # this branch also keeps the compiler from computing the shares after the next wait
                    mbarrier.wait(ready.index(2 * ((i + 1) % stages)), (i + 1) // stages & 1)
                weighted = warpgroup_mma_wait(0, deps=(adding,))
                mbarrier.arrive(free.index(2 * before + 1))
                weighted = weighted * gl.convert_layout(fade, gl.SliceLayout(1, summed))[:, None]
            mbarrier.arrive(asked.index(1))
            slot = (done - 1) % stages
            mbarrier.wait(ready.index(2 * slot + 1), (done - 1) // stages & 1)
            halves = gl.convert_layout(share.to(gl.float16), operand)
            adding = warpgroup_mma(halves, v.index(slot), weighted, is_async=True)
            weighted = warpgroup_mma_wait(0, deps=(adding,))
            mbarrier.arrive(free.index(2 * slot + 1))
            weighted = weighted / gl.convert_layout(total, gl.SliceLayout(1, summed))[:, None]
            line = first + gl.arange(0, ROWS, gl.SliceLayout(1, stored))[:, None]
            place = out + (line * heads + head) * dim + gl.arange(0, dim, gl.SliceLayout(0, stored))[None, :]
            gl.store(place, gl.convert_layout(weighted.to(gl.float16), stored), mask=line < tokens)


@gluon.jit
def flash(
    queries, keys, values, out, tokens, heads, group,
    DIM: gl.constexpr, ROWS: gl.constexpr, COLS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Write the causal attention of a prompt of `tokens` tokens to `out`; any number of programs share the tiles."""
    layout: gl.constexpr = mbarrier.MBarrierLayout()
    q = gl.allocate_shared_memory(gl.float16, [2, ROWS, DIM], queries.layout)
    k = gl.allocate_shared_memory(gl.float16, [STAGES, COLS, DIM], keys.layout)
    v = gl.allocate_shared_memory(gl.float16, [STAGES, COLS, DIM], values.layout)
    asked = gl.allocate_shared_memory(gl.int64, [2, 1], layout)  # the queries are there; they are free
    ready = gl.allocate_shared_memory(gl.int64, [2 * STAGES, 1], layout)  # of keys, then of values, in turn
    free = gl.allocate_shared_memory(gl.int64, [2 * STAGES, 1], layout)
    mbarrier.init(asked.index(0), count=1)
    mbarrier.init(asked.index(1), count=2)
    for i in gl.static_range(2 * STAGES):
        mbarrier.init(ready.index(i), count=1)
        mbarrier.init(free.index(i), count=2)
    tiles = (tokens + 2 * ROWS - 1) // (2 * ROWS) * heads
    turns = (tiles + gl.num_programs(0) - 1) // gl.num_programs(0)
    gl.warp_specialize(
        [
            (attend, (q, k, v, asked, ready, free, out, tokens, heads, turns, 0, ROWS, COLS)),
            (attend, (q, k, v, asked, ready, free, out, tokens, heads, turns, 1, ROWS, COLS)),
            (load, (queries, keys, values, q, k, v, asked, ready, free, tokens, heads, group, turns, ROWS, COLS)),
        ],
        [4, 1],  # warps of the second and the third
        [240, 24],  # and the registers of their threads
    )
