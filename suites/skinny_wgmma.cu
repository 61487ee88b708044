// Y = X·Wᵀ for up to TOKENS tokens (8, 16, 32 or 64) by Hopper's warpgroup instructions (wgmma; PTX ISA 8.0,
// "Asynchronous Warpgroup Level Matrix Instructions"). W has int8 or int4 weights (WEIGHTS 3 or 4) in the order of
// skinny.cu; X and Y are those of skinny.cu.
//
// X is the right operand, in shared memory, and the weights are the left one: bulk copies bring them to shared memory,
// each warp those of its 16 rows, and they become halves in registers. A block has WARPGROUPS × 64 rows, and DEPTH stages
// of AHEAD × 128 columns in flight. Its warps never wait for each other: each starts the copies of its weights, and the
// last warp that has read a stage of X starts the copy of the next one to its place. The grid stays resident: each block
// takes an equal part of the groups of 128 columns of all panels of rows, panel after panel. Where blocks share a panel,
// the last one adds up the sums that all left in `partial`. With GATED, W has 2·`rows` rows, and half the warps have the
// second half of them.
#if !GB_HIP && (defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC_RTC__))
#ifndef GATED
#define GATED 0
#endif
#define GROUP 128
#if WEIGHTS == 4
#define VECTORS 1  // vectors of 16 bytes that a lane reads of a row's 128 columns
#else
#define VECTORS 2
#endif
#define WARPS (4 * WARPGROUPS)
#define THREADS (32 * WARPS)
#define SUMS (TOKENS / 2)                            // of a thread
#define OUTPUTS (64 * WARPGROUPS / (1 + GATED))      // rows of Y of a panel
#define TILE_BYTES (TOKENS * 128)                    // 64 columns of all tokens
#define GROUP_BYTES (2 * TILE_BYTES)
#define TILE (64 * VECTORS)                          // vectors of 16 rows of a group of weights

typedef unsigned short u16;

struct Part {  // `left` groups from `block` of a panel on, and then of the panels behind it
    u32 panel, block, left;
    __device__ __forceinline__ u32 count(u32 blocks) const {  // groups of the next stage
        const u32 in_row = blocks - block, most = left < in_row ? left : in_row;
        return most < AHEAD ? most : AHEAD;
    }
    __device__ __forceinline__ void pass(u32 count, u32 blocks) {
        block += count, left -= count;
        if (block == blocks) block = 0, ++panel;
    }
};

static __device__ __forceinline__ u32 word_of(const uint4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// The columns of step s of a group's eight that this thread has of a row, exact in half precision (skinny.cu explains it).
static __device__ __forceinline__ void convert(u32& low, u32& high, const uint4 (&v)[VECTORS], int s, u32 mask) {
#if WEIGHTS == 4
    const u32 word = word_of(v[0], s / 2) >> (8 * (s & 1));
    low = (word & mask) | 0x64006400u, high = (word & mask << 4) | 0x64006400u;
    low = gb_half2_minus(low, 0x64086408u), high = gb_half2_fma(high, 0x2c002c00u, 0xd480d480u);  // high/16 - 72
#else
    const u32 word = word_of(v[s / 4], s % 4);
    low = gb_bytes(word, 0x64646464u, 0x4140), high = gb_bytes(word, 0x64646464u, 0x4342);
    low = gb_half2_minus(low, 0x64806480u), high = gb_half2_minus(high, 0x64806480u);
#endif
}

static __device__ __forceinline__ float float_of(u16 half) {
    float value, unused;
    gb_halves(half, value, unused);
    return value;
}

// Writes X as the shared memory of `skinny_wgmma` has it: groups of 128 columns of TOKENS tokens, in which the columns that
// a thread has of the weights are those that the instruction multiplies with. A warp has 8 tokens of a group.
extern "C" __global__ void __launch_bounds__(256) arrange_x(const uint4* x, u32* image, u32 blocks, u32 tokens) {
    gb_allow_next();
    gb_wait_for_previous();
    const u32 part = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32, t = lane % 4;
    const u32 token = part % (TOKENS / 8) * 8 + lane / 4, block = part / (TOKENS / 8);
    if (block >= blocks) return;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        const u32 place = WEIGHTS == 4 ? 4 * t + i : 8 * (i / 2) + 2 * t + i % 2;
        const uint4 v = token < tokens ? gb_fetch(x + ((u64)token * blocks + block) * 16 + place) : make_uint4(0, 0, 0, 0);
        u32* const row = image + (u64)block * (GROUP_BYTES / 4) + i / 2 * (TILE_BYTES / 4) + token * 32 + t;
#pragma unroll
        for (u32 m = 0; m < 4; ++m) row[((i % 2 * 4 + m) ^ token % 8) * 4] = word_of(v, m);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    skinny_wgmma(const uint4* __restrict__ w, const u16* __restrict__ scales, const u8* x, u16* y, u32 rows, u32 cols,
                 u32 tokens, float* partial, u32* arrived) {
    extern __shared__ u8 memory[];
    __shared__ u64 full[WARPS][DEPTH], x_full[DEPTH];
    __shared__ u32 readers[DEPTH];  // warps that have read a stage of X
    __shared__ __align__(16) u16 scales_of[WARPS][DEPTH][AHEAD * 16];
    u8* const stages = memory + (0u - gb_shared_address(memory)) % 1024;
    uint4* const ring = (uint4*)(stages + DEPTH * AHEAD * GROUP_BYTES);
    const u32 blocks = cols / GROUP, groups = (rows + OUTPUTS - 1) / OUTPUTS * blocks;
    const u32 first = (u32)((u64)groups * blockIdx.x / gridDim.x), end = (u32)((u64)groups * (blockIdx.x + 1) / gridDim.x);
    const u32 lane = threadIdx.x % 32, warp = gb_shuffle(threadIdx.x / 32, 0), mask = 0x000f000fu + cols % GROUP;
    const u32 half = GATED && warp % 4 / 2;  // two warps of a warpgroup have gates, and two the rows that these multiply
    const u32 own = GATED ? warp / 4 * 2 + warp % 2 : warp;  // number of the warp's 16 rows of Y in a panel
    // Start the copies of a stage, by one thread: of the warp's weights, and of X. The last rows stand in for rows behind
    // them.
    const auto load = [&](u32 slot, const Part& at, u32 count) {
        const u32 wanted = at.panel * (OUTPUTS / 16) + own, last = (rows - 1) / 16;
        const u64 tile = (u64)((wanted < last ? wanted : last) + half * (rows / 16)) * blocks + at.block;
        gb_bulk_load(ring + (warp * DEPTH + slot) * AHEAD * TILE, w + tile * TILE, count * (16 * TILE), full[warp] + slot);
        gb_bulk_load(scales_of[warp][slot], scales + tile * 16, count * 32, full[warp] + slot);
    };
    const auto load_x = [&](u32 slot, const Part& at, u32 count) {
        gb_bulk_load(stages + slot * AHEAD * GROUP_BYTES, x + (u64)at.block * GROUP_BYTES, count * GROUP_BYTES, x_full + slot);
    };
    if (lane < DEPTH) gb_barrier_init(full[warp] + lane, 2);
    if (threadIdx.x < DEPTH) gb_barrier_init(x_full + threadIdx.x), readers[threadIdx.x] = 0;
    __syncthreads();
    const Part start = {first / blocks, first % blocks, end - first};
    Part now = start, next = start;  // the next groups to multiply, and to copy
    for (u32 slot = 0; slot < DEPTH; ++slot) {
        const u32 count = next.count(blocks);
        if (lane == 0 && count != 0) load(slot, next, count);
        next.pass(count, blocks);
    }
    gb_allow_next();
    gb_wait_for_previous();
    next = start;
    for (u32 slot = 0; slot < DEPTH; ++slot) {
        const u32 count = next.count(blocks);
        if (threadIdx.x == 0 && count != 0) load_x(slot, next, count);
        next.pass(count, blocks);
    }
    for (u32 slot = 0, parity = 0; now.left != 0;) {
        const u32 panel = now.panel;
        float sums[SUMS] = {};
        do {
            const u32 count = now.count(blocks), coming = next.count(blocks);
            const uint4* const tiles = ring + (warp * DEPTH + slot) * AHEAD * TILE + lane;
            gb_barrier_await(full[warp] + slot, parity);
            gb_barrier_await(x_full + slot, parity);
#pragma unroll
            for (int k = 0; k < AHEAD; ++k) {
                if (k >= count) continue;
                uint4 v[2][VECTORS];
#pragma unroll
                for (int i = 0; i < 2 * VECTORS; ++i) v[i / VECTORS][i % VECTORS] = tiles[k * TILE + 32 * i];
                const u16* const two = scales_of[warp][slot] + 16 * k + lane / 4;
                const float scale[2] = {float_of(two[0]), float_of(two[8])};
                const u64 tile = gb_described(stages + (slot * AHEAD + k) * GROUP_BYTES);
                float fresh[SUMS];
#pragma unroll
                for (int from = 0; from < 8; from += 4) {
                    u32 a[4][4];
#pragma unroll
                    for (int s = 0; s < 4; ++s) {
                        convert(a[s][0], a[s][2], v[0], from + s, mask);
                        convert(a[s][1], a[s][3], v[1], from + s, mask);
                    }
                    gb_begin_products();
#pragma unroll
                    for (int s = 0; s < 4; ++s)
                        gb_products(fresh, a[s], tile + from / 4 * (TILE_BYTES / 16) + s * 2, from + s > 0);
                    gb_end_products();
                }
                gb_await_products<0>();
#pragma unroll
                for (int i = 0; i < SUMS; ++i) sums[i] += scale[i / 2 % 2] * fresh[i];
            }
            __syncwarp();  // all lanes have read the stage
            if (lane == 0 && coming != 0) {
                load(slot, next, coming);
                if (atomicAdd(readers + slot, 1u) == WARPS - 1) {
                    readers[slot] = 0;
                    load_x(slot, next, coming);
                }
            }
            now.pass(count, blocks), next.pass(coming, blocks);
            if (++slot == DEPTH) slot = 0, parity ^= 1;
        } while (now.left != 0 && now.block != 0);
        // These are all sums of the panel that the block computes.
        const u64 start = (u64)panel * blocks, stop = start + blocks;
        bool is_mine = first <= start && stop <= end;
        if (!is_mine) {
            const u32 from = (u32)(((start + 1) * gridDim.x - 1) / groups), to = (u32)((stop * gridDim.x - 1) / groups);
            float* const slot = partial + (2 * blockIdx.x + (first < start)) * (u64)(SUMS * THREADS) + threadIdx.x;
#pragma unroll
            for (int i = 0; i < SUMS; ++i) slot[i * THREADS] = sums[i];
            is_mine = gb_is_last(arrived + panel, to - from + 1);
            if (is_mine) {
#pragma unroll
                for (int i = 0; i < SUMS; ++i) sums[i] = 0;
                for (u32 block = from; block <= to; ++block) {  // always in the same order
                    const bool is_second = (u64)groups * block / gridDim.x < start;
                    const float* const there = partial + (2 * block + is_second) * (u64)(SUMS * THREADS) + threadIdx.x;
#pragma unroll
                    for (int i = 0; i < SUMS; ++i) sums[i] += gb_load_l2(there + i * THREADS);
                }
            }
        }
        if (is_mine) {
#if GATED
            float* const gated = (float*)(ring + WARPS * DEPTH * AHEAD * TILE) + 32 * own + lane;
            __syncthreads();  // all warps have read those of the panel before
#pragma unroll
            for (int i = 0; i < SUMS; ++i)
                if (half == 1) gated[i * (THREADS / 2)] = sums[i];
            __syncthreads();
#pragma unroll
            for (int i = 0; i < SUMS; ++i)
                if (half == 0) sums[i] = gb_gated(sums[i], gated[i * (THREADS / 2)]);
#endif
            const u32 row = panel * OUTPUTS + 16 * own + lane / 4, token = 2 * (lane % 4);
#pragma unroll
            for (int i = 0; i < SUMS; ++i) {
                const u32 r = row + 8 * (i / 2 % 2), n = token + 8 * (i / 4) + i % 2;
                if (half == 0 && r < rows && n < tokens) y[(u64)n * rows + r] = gb_to_half(sums[i]);
            }
        }
    }
}
#endif
