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
def tile_of(turn, blocks, heads):
    """Return head and block of a program's tile; the largest tiles come first, and every other turn goes backwards."""
    place = gl.program_id(0)
    if turn % 2 == 1:
        place = gl.num_programs(0) - 1 - place
    tile = turn * gl.num_programs(0) + place
    return tile % heads, blocks - 1 - tile // heads


@gluon.jit
def load(
    queries, keys, values, room, barriers, tokens, heads, group, blocks, turns,
    ROWS: gl.constexpr, COLS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Load the queries of each tile, and its keys and values from the last ones to the first."""
    q, k, v = room
    asked, free, k_ready, v_ready, k_free, v_free = barriers
    done = 0
    for turn in range(turns):
        head, block = tile_of(turn, blocks, heads)
        if block >= 0:
            first = 2 * block * ROWS
            count = (first + 2 * ROWS + COLS - 1) // COLS
            mbarrier.wait(free, (turn & 1) ^ 1)
            mbarrier.expect(asked, 2 * queries.block_type.nbytes)
            for part in gl.static_range(2):
                at = head * tokens + first + part * ROWS
                tma.async_copy_global_to_shared(queries, [at, 0], asked, q.index(part))
            for i in range(count):
                slot, phase = done % STAGES, (done // STAGES & 1) ^ 1
                at = head // group * tokens + (count - 1 - i) * COLS
                mbarrier.wait(k_free.index(slot), phase)
                mbarrier.expect(k_ready.index(slot), keys.block_type.nbytes)
                tma.async_copy_global_to_shared(keys, [at, 0], k_ready.index(slot), k.index(slot))
                mbarrier.wait(v_free.index(slot), phase)
                mbarrier.expect(v_ready.index(slot), values.block_type.nbytes)
                tma.async_copy_global_to_shared(values, [at, 0], v_ready.index(slot), v.index(slot))
                done += 1


@gluon.jit
def attend(
    room, barriers, out, tokens, heads, blocks, turns,
    part: gl.constexpr, DIM: gl.constexpr, ROWS: gl.constexpr, COLS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Write the attention of the first or second half of each tile's tokens."""
    q, k, v = room
    asked, free, k_ready, v_ready, k_free, v_free = barriers
    scored: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLS, 16])
    summed: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, summed, 2)
    stored: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    query, nothing = q.index(part), gl.zeros([ROWS, COLS], gl.float32, scored)
    done = 0
    for turn in range(turns):
        head, block = tile_of(turn, blocks, heads)
        if block >= 0:
            first = (2 * block + part) * ROWS
            count = (2 * block * ROWS + 2 * ROWS + COLS - 1) // COLS
            row = first + gl.arange(0, ROWS, gl.SliceLayout(1, scored))
            col = (count - 1) * COLS + gl.arange(0, COLS, gl.SliceLayout(0, scored))
            weighted = gl.zeros([ROWS, DIM], gl.float32, summed)
            mbarrier.wait(asked, turn & 1)
            slot = done % STAGES
            mbarrier.wait(k_ready.index(slot), done // STAGES & 1)
            scoring = warpgroup_mma(query, k.index(slot).permute((1, 0)), nothing, use_acc=False, is_async=True)
            score = warpgroup_mma_wait(0, deps=(scoring,))
            mbarrier.arrive(k_free.index(slot))
            score = gl.where(row[:, None] >= col[None, :], score, -1.0e30)  # only the last keys include later tokens
            most = gl.max(score, 1)
            share = gl.exp2(score - most[:, None])
            total = gl.sum(share, 1)
            halves = gl.convert_layout(share.to(gl.float16), operand)
            if count > 1:
                mbarrier.wait(k_ready.index((done + 1) % STAGES), (done + 1) // STAGES & 1)
            for i in range(done + 1, done + count):
                slot, before = i % STAGES, (i - 1) % STAGES
                scoring = warpgroup_mma(query, k.index(slot).permute((1, 0)), nothing, use_acc=False, is_async=True)
                mbarrier.wait(v_ready.index(before), (i - 1) // STAGES & 1)
                adding = warpgroup_mma(halves, v.index(before), weighted, is_async=True)
                score = warpgroup_mma_wait(1, deps=(scoring,))
                mbarrier.arrive(k_free.index(slot))
                before_most, most = most, gl.maximum(most, gl.max(score, 1))
                share, fade = gl.exp2(score - most[:, None]), gl.exp2(before_most - most)
                total = total * fade + gl.sum(share, 1)
                if i + 1 < done + count:
                    mbarrier.wait(k_ready.index((i + 1) % STAGES), (i + 1) // STAGES & 1)
                weighted = warpgroup_mma_wait(0, deps=(adding,))
                mbarrier.arrive(v_free.index(before))
                weighted = weighted * gl.convert_layout(fade, gl.SliceLayout(1, summed))[:, None]
                halves = gl.convert_layout(share.to(gl.float16), operand)
            mbarrier.arrive(free)
            done += count
            slot = (done - 1) % STAGES
            mbarrier.wait(v_ready.index(slot), (done - 1) // STAGES & 1)
            adding = warpgroup_mma(halves, v.index(slot), weighted, is_async=True)
            weighted = warpgroup_mma_wait(0, deps=(adding,))
            mbarrier.arrive(v_free.index(slot))
            weighted = weighted / gl.convert_layout(total, gl.SliceLayout(1, summed))[:, None]
            line = first + gl.arange(0, ROWS, gl.SliceLayout(1, stored))
            lane = gl.arange(0, DIM, gl.SliceLayout(0, stored))
            place = out + (line[:, None] * heads + head) * DIM + lane[None, :]
            gl.store(place, gl.convert_layout(weighted.to(gl.float16), stored), mask=(line < tokens)[:, None])


@gluon.jit
def flash(
    queries, keys, values, out, tokens, heads, group,
    DIM: gl.constexpr, ROWS: gl.constexpr, COLS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Write the causal attention of a prompt of `tokens` tokens to `out`; any number of programs share the tiles."""
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    room = (
        gl.allocate_shared_memory(gl.float16, [2, ROWS, DIM], queries.layout),
        gl.allocate_shared_memory(gl.float16, [STAGES, COLS, DIM], keys.layout),
        gl.allocate_shared_memory(gl.float16, [STAGES, COLS, DIM], values.layout),
    )
    asked, free = gl.allocate_shared_memory(gl.int64, [1], barrier), gl.allocate_shared_memory(gl.int64, [1], barrier)
    k_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    v_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    k_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    v_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    mbarrier.init(asked, count=1)
    mbarrier.init(free, count=2)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_ready.index(i), count=1)
        mbarrier.init(v_ready.index(i), count=1)
        mbarrier.init(k_free.index(i), count=2)
        mbarrier.init(v_free.index(i), count=2)
    barriers = asked, free, k_ready, v_ready, k_free, v_free
    blocks = (tokens + 2 * ROWS - 1) // (2 * ROWS)
    turns = (blocks * heads + gl.num_programs(0) - 1) // gl.num_programs(0)
    gl.warp_specialize(
        [
            (attend, (room, barriers, out, tokens, heads, blocks, turns, 0, DIM, ROWS, COLS, STAGES)),
            (attend, (room, barriers, out, tokens, heads, blocks, turns, 1, DIM, ROWS, COLS, STAGES)),
            (load, (queries, keys, values, room, barriers, tokens, heads, group, blocks, turns, ROWS, COLS, STAGES)),
        ],
        [4, 1],  # warps of the second and the third
        [240, 24],  # and the registers of their threads
    )
