// Y = X·Wᵀ for up to TOKENS tokens (8, 16, 32 or 64) by Hopper's warpgroup instructions (wgmma; PTX ISA 8.0,
// "Asynchronous Warpgroup Level Matrix Instructions"). W has int8 or int4 weights (WEIGHTS 3 or 4) in the order of
// skinny.cu; X and Y are those of skinny.cu.
//
// The weights go from memory to registers, become halves there, and are the left operand: 64 rows for each warpgroup.
// X is the right operand, in shared memory. A block has WARPGROUPS × 64 rows and AHEAD × 128 columns of their weights in
// flight. The grid stays resident: each block takes an equal part of the groups of 128 columns of all panels of rows,
// panel after panel. Where two blocks share a panel, the last one adds up the sums that all left in `partial`. With
// GATED, W has 2·`rows` rows, and half the warps have the second half of them.
#if !GB_HIP && (defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC_RTC__))
#ifndef GATED
#define GATED 0
#endif
#ifndef FOLDED
#define FOLDED 0
#endif
#ifndef TOGETHER
#define TOGETHER 4
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
#define OCTETS (TOKENS / 2)                          // parts of X of 8 tokens and 32 columns that a warp stages at once
#define PARTS ((OCTETS + WARPS - 1) / WARPS)         // of a warp
#define STEP (64 * VECTORS)                          // vectors from 16 rows of a group to those of the next group

typedef unsigned short u16;

struct Taken {  // a thread's part of a group of weights as it lies in memory, and the scales of its two rows
    uint4 w[2][VECTORS];
    u16 scales[2];
};

struct Stage {  // `count` groups of a panel from `block` on; none after the last stage
    u32 panel, block, count;
};

struct Part {
    u32 blocks, end;  // groups of a row; the number at which the block's part of all groups ends
    __device__ __forceinline__ Stage from(u32 group) const {
        const u32 panel = group / blocks, block = group % blocks;
        const u32 left = end - group, in_row = blocks - block, most = left < in_row ? left : in_row;
        return {panel, block, group >= end ? 0 : most < AHEAD ? most : AHEAD};
    }
};

static __device__ __forceinline__ u32 word_of(const uint4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// The columns of step s of a group's eight that this thread has of a row, exact in half precision (skinny.cu explains it).
static __device__ __forceinline__ void convert(u32& low, u32& high, const uint4 (&v)[VECTORS], int s, u32 mask) {
#if WEIGHTS == 4
    const u32 word = word_of(v[0], s / 2) >> (8 * (s & 1));
    low = gb_half2_minus((word & mask) | 0x64006400u, 0x64086408u);
    high = gb_half2_fma((word & mask << 4) | 0x64006400u, 0x2c002c00u, 0xd480d480u);  // high/16 - 72
#else
    const u32 word = word_of(v[s / 4], s % 4);
    low = gb_half2_minus(gb_bytes(word, 0x64646464u, 0x4140), 0x64806480u);
    high = gb_half2_minus(gb_bytes(word, 0x64646464u, 0x4342), 0x64806480u);
#endif
}

static __device__ __forceinline__ void take(Taken& taken, const uint4* w, const u16* scales) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int j = 0; j < VECTORS; ++j) taken.w[half][j] = gb_stream(w + 32 * (VECTORS * half + j));
        taken.scales[half] = scales[8 * half];
    }
}

static __device__ __forceinline__ float float_of(u16 half) {
    float value, unused;
    gb_halves(half, value, unused);
    return value;
}

// Parts of a group of X on their way to shared memory. The vector of 8 columns that a lane loads is two steps of this lane's
// columns of weights, and the four matrices that it stores are the halves of two steps.
struct Staged {
    uint4 v[PARTS];
};

static __device__ __forceinline__ void fetch(Staged& staged, const uint4* x, u32 blocks, u32 block, u32 tokens) {
    const u32 lane = threadIdx.x % 32, t = lane % 4;
#pragma unroll
    for (int k = 0; k < PARTS; ++k) {
        const u32 part = threadIdx.x / 32 + k * WARPS, i = part % 4, token = part / 4 * 8 + lane / 4;
        const u32 place = WEIGHTS == 4 ? 4 * t + i : 8 * (i / 2) + 2 * t + i % 2;
        staged.v[k] = token < tokens ? gb_fetch(x + ((u64)token * blocks + block) * 16 + place) : make_uint4(0, 0, 0, 0);
    }
}

static __device__ __forceinline__ void store(u8* group, const Staged& staged) {
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < PARTS; ++k) {
        const u32 part = threadIdx.x / 32 + k * WARPS, i = part % 4, chunk = i % 2 * 4 + lane / 8;
        u8* const row = group + i / 2 * TILE_BYTES + (part / 4 * 8 + lane % 8) * 128 + (chunk ^ lane % 8) * 16;
        if (OCTETS % WARPS == 0 || part < OCTETS) gb_store_matrices(row, staged.v[k]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    skinny_wgmma(const uint4* __restrict__ w, const u16* __restrict__ scales, const uint4* x, u16* y, u32 rows, u32 cols,
                 u32 tokens, float* partial, u32* arrived) {
    extern __shared__ u8 memory[];
    u8* const stages = memory + (0u - gb_shared_address(memory)) % 1024;
    const u32 blocks = cols / GROUP, groups = (rows + OUTPUTS - 1) / OUTPUTS * blocks;
    const u32 first = (u32)((u64)groups * blockIdx.x / gridDim.x), end = (u32)((u64)groups * (blockIdx.x + 1) / gridDim.x);
    const u32 lane = threadIdx.x % 32, warp = gb_shuffle(threadIdx.x / 32, 0), mask = 0x000f000fu + cols % GROUP;
    const u32 half = GATED && warp % 4 / 2;  // two warps of a warpgroup have gates, and two the rows that these multiply
    const u32 own = GATED ? warp / 4 * 2 + warp % 2 : warp;  // number of the warp's 16 rows of Y in a panel
    const Part part = {blocks, end};
    const auto place = [&](const Stage& stage) {  // of a warp's 16 rows of a stage's first group; the last rows stand in
        const u32 wanted = stage.panel * (OUTPUTS / 16) + own, last = (rows - 1) / 16;
        return (u64)((wanted < last ? wanted : last) + half * (rows / 16)) * blocks + stage.block;
    };
    w += lane, scales += lane / 4;

    Stage now = part.from(first);
    Taken taken[AHEAD];
    u64 at = place(now);
#pragma unroll
    for (int k = 0; k < AHEAD; ++k)
        if (k < now.count) take(taken[k], w + (at + k) * STEP, scales + (at + k) * 16);
    gb_allow_next();
    gb_wait_for_previous();
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
        Staged staged;
        if (k < now.count) fetch(staged, x, blocks, now.block + k, tokens), store(stages + k * GROUP_BYTES, staged);
    }
    gb_async_fence();
    __syncthreads();

    float sums[SUMS] = {};
    for (u32 here = 0, group = first; now.count; here ^= AHEAD * GROUP_BYTES) {
        group += now.count;
        const Stage next = part.from(group);
        at = place(next);
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) {
            Staged staged;
            if (k < next.count) fetch(staged, x, blocks, next.block + k, tokens);
            if (k < now.count) {
                const u64 tile = gb_described(stages + here + k * GROUP_BYTES);
#if FOLDED
                float (&fresh)[SUMS] = sums;
                const u32 scale[2] = {taken[k].scales[0] * 0x10001u, taken[k].scales[1] * 0x10001u};
#else
                float fresh[SUMS];
                const float scale[2] = {float_of(taken[k].scales[0]), float_of(taken[k].scales[1])};
#endif
#pragma unroll
                for (int first = 0; first < 8; first += TOGETHER) {
                    u32 a[TOGETHER][4];
#pragma unroll
                    for (int s = 0; s < TOGETHER; ++s) {
                        convert(a[s][0], a[s][2], taken[k].w[0], first + s, mask);
                        convert(a[s][1], a[s][3], taken[k].w[1], first + s, mask);
#if FOLDED
#pragma unroll
                        for (int i = 0; i < 4; ++i) a[s][i] = gb_half2_fma(a[s][i], scale[i % 2], 0x80008000u);
#endif
                    }
                    gb_begin_products();
#pragma unroll
                    for (int s = 0; s < TOGETHER; ++s) {
                        const int step = first + s;
                        gb_products(fresh, a[s], tile + step / 4 * (TILE_BYTES / 16) + step % 4 * 2, FOLDED || step > 0);
                    }
                    gb_end_products();
                }
                if (k < next.count) take(taken[k], w + (at + k) * STEP, scales + (at + k) * 16);
#if FOLDED
                gb_await_products<1>();
#else
                gb_await_products<0>();
#pragma unroll
                for (int i = 0; i < SUMS; ++i) sums[i] += scale[i / 2 % 2] * fresh[i];
#endif
            } else if (k < next.count) take(taken[k], w + (at + k) * STEP, scales + (at + k) * 16);
            if (k < next.count) store(stages + (here ^ AHEAD * GROUP_BYTES) + k * GROUP_BYTES, staged);
        }
#if FOLDED
        gb_await_products<0>();
#endif
        gb_async_fence();
        __syncthreads();
        if (group == end || now.block + now.count == blocks) {  // these are all sums of the panel that the block computes
            const u64 start = (u64)now.panel * blocks, stop = start + blocks;
            bool is_mine = first <= start && stop <= end;
            if (!is_mine) {
                const u32 from = (u32)(((start + 1) * gridDim.x - 1) / groups), to = (u32)((stop * gridDim.x - 1) / groups);
                float* const slot = partial + (2 * blockIdx.x + (first < start)) * (u64)(SUMS * THREADS) + threadIdx.x;
#pragma unroll
                for (int i = 0; i < SUMS; ++i) slot[i * THREADS] = sums[i];
                is_mine = gb_is_last(arrived + now.panel, to - from + 1);
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
                float* const gated = (float*)(stages + 2 * AHEAD * GROUP_BYTES) + 32 * own + lane;
#pragma unroll
                for (int i = 0; i < SUMS; ++i)
                    if (half == 1) gated[i * (THREADS / 2)] = sums[i];
                __syncthreads();
#pragma unroll
                for (int i = 0; i < SUMS; ++i)
                    if (half == 0) sums[i] = gb_gated(sums[i], gated[i * (THREADS / 2)]);
#endif
                const u32 row = now.panel * OUTPUTS + 16 * own + lane / 4, token = 2 * (lane % 4);
#pragma unroll
                for (int i = 0; i < SUMS; ++i) {
                    const u32 r = row + 8 * (i / 2 % 2), n = token + 8 * (i / 4) + i % 2;
                    if (half == 0 && r < rows && n < tokens) y[(u64)n * rows + r] = gb_to_half(sums[i]);
                }
            }
#pragma unroll
            for (int i = 0; i < SUMS; ++i) sums[i] = 0;
        }
        now = next;
    }
}
#endif
