// Y = X·Wᵀ for up to TOKENS tokens (8, 16, 32, 64 or 128) by Hopper's warpgroup instructions (wgmma; PTX ISA 8.0,
// "Asynchronous Warpgroup Level Matrix Instructions"). W has int8 or int4 weights (WEIGHTS 3 or 4) in order 2 of
// matrix_data.cu; X and Y are those of skinny.cu.
//
// X is the right operand, in shared memory, and the weights are the left one: tensor copies bring both to shared memory,
// and the weights become halves in registers, scaled. A block has WARPGROUPS × 64 rows, and a further warp, which starts
// the copies: DEPTH stages of AHEAD × 128 columns are in flight. The others convert 32 columns while the tensor cores
// multiply the 32 before. The grid stays resident: each block takes an equal part of the groups of AHEAD × 128 columns of
// all panels of rows, panel after panel (gb_is_whole). With GATED, W has 2·`rows` rows, and half the warps have the second
// half of them.
#if !GB_HIP && (defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC_RTC__))
#include "panels.cuh"
#ifndef GATED
#define GATED 0
#endif
#define GROUP 128
#define STEPS 2  // steps of 16 columns that a warp converts at once
#if WEIGHTS == 4
#define VECTORS 1  // vectors of 16 bytes that a lane reads of a row's 128 columns
#else
#define VECTORS 2
#endif
#define WARPS (4 * WARPGROUPS)  // that multiply
#define THREADS (32 * WARPS)
static_assert(DEPTH > 1, "a stage is free when the products of the next one have begun");
#define SUMS (TOKENS / 2)                        // of a thread
#define OUTPUTS (64 * WARPGROUPS / (1 + GATED))  // rows of Y of a panel
#define TILE_BYTES (TOKENS * 128)                // 64 columns of all tokens
#define TILE (64 * VECTORS)                      // vectors of 16 rows of a group of weights
#define PIECE (AHEAD % 2 ? 1 : 2 / VECTORS)      // groups of a tensor copy of weights
#define WEIGHT_BYTES (AHEAD * WARPS * 16 * TILE)
#define SCALE_BYTES (AHEAD * WARPS * 32)
#define X_BYTES (2 * AHEAD * TILE_BYTES)

typedef unsigned short u16;

struct Part {  // `left` stages from `block` of a panel on, and then of the panels behind it
    u32 panel, block, left;
    __device__ __forceinline__ void pass(u32 blocks) {
        --left;
        if (++block == blocks) block = 0, ++panel;
    }
};

static __device__ __forceinline__ u32 word_of(const uint4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// A row's scale as pairs of halves: times 2^24, times 2^20, and times minus the bias of the weights, all of them over
// 2^(24 - power). `powers` has the power in the place of a half's exponent, twice.
struct Scale {
    u32 low, high, bias;
    __device__ __forceinline__ void set(u16 bits, u32 powers) {
        low = gb_bytes(bits, 0, 0x1010) + powers;
        high = low - 0x10001000u;
        bias = low + 0x80008000u - (WEIGHTS == 4 ? 0x54005400u : 0x44004400u);
    }
};

// The columns of step s of a group's eight that this thread has of a row, scaled. An integer n in the low bits of a half is
// n/2^24, and four bits higher it is n/2^20, so that one instruction subtracts the bias from two weights and scales them.
static __device__ __forceinline__ void convert(u32& low, u32& high, const uint4 (&v)[VECTORS], int s, const Scale& scale) {
#if WEIGHTS == 4
    const u32 word = word_of(v[0], s / 2) >> (8 * (s & 1));
    low = gb_half2_fma(word & 0x000f000fu, scale.low, scale.bias);
    high = gb_half2_fma(word & 0x00f000f0u, scale.high, scale.bias);
#else
    const u32 word = word_of(v[s / 4], s % 4);
    low = gb_half2_fma(gb_bytes(word, 0, 0x4140), scale.low, scale.bias);
    high = gb_half2_fma(gb_bytes(word, 0, 0x4342), scale.low, scale.bias);
#endif
}

// `w` has a row of tiles of 16 rows in words of 8 bytes, and `scales` their scales. The scales are less than 2^(16 - power).
extern "C" __global__ void __launch_bounds__(THREADS + 32, RESIDENT)
    skinny_wgmma(const __grid_constant__ GbTensorMap w, const __grid_constant__ GbTensorMap scales,
                 const __grid_constant__ GbTensorMap x, u16* y, u32 rows, u32 cols, u32 tokens, u32 power, float* partial,
                 u32* arrived) {
    extern __shared__ u8 memory[];
    __shared__ u64 full[DEPTH], empty[DEPTH];
    u8* const stages = memory + (0u - gb_shared_address(memory)) % 1024;  // of X
    u8* const ring = stages + DEPTH * X_BYTES;                           // of weights
    u16* const scales_of = (u16*)(ring + DEPTH * WEIGHT_BYTES);
    const u32 blocks = cols / (GROUP * AHEAD), all = (rows + OUTPUTS - 1) / OUTPUTS * blocks;
    const u32 first = (u32)((u64)all * blockIdx.x / gridDim.x), end = (u32)((u64)all * (blockIdx.x + 1) / gridDim.x);
    const u32 lane = threadIdx.x % 32, warp = gb_shuffle(threadIdx.x / 32, 0), powers = power * 0x04000400u;
    Part now = {first / blocks, first % blocks, end - first};
    if (threadIdx.x < DEPTH) gb_barrier_init(full + threadIdx.x), gb_barrier_init(empty + threadIdx.x, WARPS);
    __syncthreads();
    gb_allow_next();
    if (warp == WARPS) {
        if (lane != 0) return;
        const auto load = [&](u32 slot, const Part& at) {
            gb_barrier_expect(full + slot, WEIGHT_BYTES + SCALE_BYTES + X_BYTES);
#pragma unroll
            for (u32 half = 0; half <= GATED; ++half) {
                const u32 tile = at.panel * (OUTPUTS / 16) + half * (rows / 16), own = half * (WARPS / 2);
#pragma unroll
                for (u32 k = 0; k < AHEAD; k += PIECE)
                    gb_tensor_load(ring + slot * WEIGHT_BYTES + (k * WARPS + own * PIECE) * (16 * TILE), &w,
                                   (at.block * AHEAD + k) * (2 * TILE), tile, full + slot);
                gb_tensor_load(scales_of + slot * (SCALE_BYTES / 2) + own * (16 * AHEAD), &scales, at.block * (4 * AHEAD),
                               tile, full + slot);
            }
        };
        const auto load_x = [&](u32 slot, const Part& at) {
#pragma unroll
            for (u32 i = 0; i < 2 * AHEAD; ++i)
                gb_tensor_load(stages + slot * X_BYTES + i * TILE_BYTES, &x, (2 * AHEAD * at.block + i) * 64, 0, full + slot);
        };
        Part next = now;
        u32 number = 0;
        for (; number < DEPTH && next.left != 0; ++number, next.pass(blocks)) load(number, next);
        gb_wait_for_previous();
        for (u32 n = 0; n < number; ++n, now.pass(blocks)) load_x(n, now);
        for (; next.left != 0; ++number, next.pass(blocks)) {
            gb_barrier_await(empty + number % DEPTH, number / DEPTH % 2 ^ 1);
            load(number % DEPTH, next), load_x(number % DEPTH, next);
        }
        for (u32 n = number < DEPTH ? 0 : number - DEPTH; n < number; ++n)  // bounds the waits of the other warps
            gb_barrier_await(full + n % DEPTH, n / DEPTH % 2);
        return;
    }
    gb_wait_for_previous();
    const u32 half = GATED && warp % 4 / 2;  // two warps of a warpgroup have gates, and two the rows that these multiply
    const u32 own = GATED ? warp / 4 * 2 + warp % 2 : warp;  // number of the warp's 16 rows of Y in a panel
    const u32 place = half * (WARPS / 2) + own;
    const u64 described = gb_described(stages);
    u32 left[2][STEPS][4] = {};  // of the products that run, and the next ones
    for (u32 slot = 0, parity = 0, last = DEPTH; now.left != 0;) {
        const u32 panel = now.panel;
        float sums[SUMS] = {};
        do {
            const uint4* const tiles = (const uint4*)(ring + slot * WEIGHT_BYTES) + place * PIECE * TILE + lane;
            const u16* const two = scales_of + slot * (SCALE_BYTES / 2) + place * (16 * AHEAD) + lane / 4;
            const u64 columns = described + slot * (X_BYTES / 16);
            uint4 v[2][VECTORS];
            Scale scale[2];
            const auto take = [&](int k) {
#pragma unroll
                for (int i = 0; i < 2 * VECTORS; ++i)
                    v[i / VECTORS][i % VECTORS] = tiles[(k / PIECE * PIECE * WARPS + k % PIECE) * TILE + 32 * i];
                scale[0].set(two[16 * k], powers), scale[1].set(two[16 * k + 8], powers);
            };
            gb_products_await(full + slot, parity);
            take(0);
#pragma unroll
            for (int k = 0; k < AHEAD; ++k) {
#pragma unroll
                for (int from = 0; from < 8; from += STEPS) {
                    u32(&a)[STEPS][4] = left[from / STEPS % 2], (&before)[STEPS][4] = left[from / STEPS % 2 ^ 1];
#pragma unroll
                    for (int s = 0; s < STEPS; ++s) {
                        convert(a[s][0], a[s][2], v[0], from + s, scale[0]);
                        convert(a[s][1], a[s][3], v[1], from + s, scale[1]);
                    }
                    if (from + STEPS == 8 && k + 1 < AHEAD) take(k + 1);
                    gb_begin_products();
#pragma unroll
                    for (int s = from; s < from + STEPS; ++s)
                        gb_products(sums, a[s - from], columns + (2 * k + s / 4) * (TILE_BYTES / 16) + s % 4 * 2, 1);
                    gb_end_products();
                    gb_await_products<1>();
#pragma unroll
                    for (int s = 0; s < STEPS; ++s) gb_keep(before[s]);
                    if (k + from == 0 && lane == 0 && last != DEPTH) gb_barrier_arrive(empty + last);  // no product reads it
                }
            }
            last = slot;
            now.pass(blocks);
            if (++slot == DEPTH) slot = 0, parity ^= 1;
        } while (now.left != 0 && now.block != 0);
        gb_await_products<0>();
        if (gb_is_whole<THREADS>(sums, (u64)panel * blocks, blocks, all, partial, arrived + panel)) {
            const float unit = __uint_as_float((151 - power) << 23);
#pragma unroll
            for (int i = 0; i < SUMS; ++i) sums[i] *= unit;
#if GATED
            float* const gated = (float*)(scales_of + DEPTH * (SCALE_BYTES / 2)) + 32 * own + lane;
            gb_group_barrier(1, THREADS);  // all warps have read those of the panel before
#pragma unroll
            for (int i = 0; i < SUMS; ++i)
                if (half == 1) gated[i * (THREADS / 2)] = sums[i];
            gb_group_barrier(1, THREADS);
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
