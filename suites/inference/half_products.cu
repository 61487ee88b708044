// Y = X·Wᵀ of halves for up to TOKENS tokens (16 or 32) by Hopper's warpgroup instructions. W is the left operand: a panel has
// two warpgroups × 64 rows, with GATED the first of the gates and the second of the rows that these multiply (W then has
// 2·`rows` rows). One warp copies stages of two boxes of 64 columns of a panel's rows and of X, DEPTH stages ahead; weights
// come before the launch before has ended.
//
// The grid stays resident: each block takes an equal part of the stages of all panels, panel after panel (gb_is_whole). With
// more than half of the shared memory, no two blocks of an early launch meet on a compute unit while another is idle.
#if !GB_HIP && (defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC_RTC__))
#include "panels.cuh"
#define CONSUMERS 256                      // threads that multiply
#define SUMS (TOKENS / 2)                  // of a thread
#define OUTPUTS (GATED ? 64 : 128)         // rows of Y of a panel
#define BOX_BYTES (64 * 128)
#define X_BYTES (TOKENS * 128)
#define STAGE_BYTES (4 * BOX_BYTES + 2 * X_BYTES)  // two boxes of each warpgroup, and of X

extern "C" __global__ void __launch_bounds__(CONSUMERS + 32, 1)
    half_products(const __grid_constant__ GbTensorMap w, const __grid_constant__ GbTensorMap x, unsigned short* y, u32 rows,
                  u32 cols, u32 tokens, float* partial, u32* arrived) {
    extern __shared__ u8 memory[];
    __shared__ u64 full[DEPTH], empty[DEPTH];
    u8* const stages = memory + (0u - gb_shared_address(memory)) % 1024;
    const u32 blocks = cols / 128, units = (rows + OUTPUTS - 1) / OUTPUTS * blocks, group = gb_shuffle(threadIdx.x / 128, 0);
    const u32 first = (u32)((u64)units * blockIdx.x / gridDim.x), end = (u32)((u64)units * (blockIdx.x + 1) / gridDim.x);
    if (threadIdx.x < DEPTH) gb_barrier_init(full + threadIdx.x), gb_barrier_init(empty + threadIdx.x, CONSUMERS / 32);
    __syncthreads();
    gb_allow_next();
    if (group == 2) {
        if (threadIdx.x != CONSUMERS) return;
        const auto load = [&](u32 unit, u32 slot) {
            gb_barrier_expect(full + slot, STAGE_BYTES);
#pragma unroll
            for (u32 i = 0; i < 4; ++i)
                gb_tensor_load(stages + slot * STAGE_BYTES + i * BOX_BYTES, &w, unit % blocks * 128 + i % 2 * 64,
                               unit / blocks * OUTPUTS + i / 2 * (GATED ? rows : 64), full + slot);
        };
        const auto load_x = [&](u32 unit, u32 slot) {
#pragma unroll
            for (u32 i = 0; i < 2; ++i)
                gb_tensor_load(stages + slot * STAGE_BYTES + 4 * BOX_BYTES + i * X_BYTES, &x, unit % blocks * 128 + i * 64, 0,
                               full + slot);
        };
        const u32 ready = end - first < DEPTH ? end : first + DEPTH;
        for (u32 unit = first; unit < ready; ++unit) load(unit, unit - first);
        gb_wait_for_previous();
        for (u32 unit = first; unit < ready; ++unit) load_x(unit, unit - first);
        for (u32 unit = ready; unit < end; ++unit) {
            const u32 slot = (unit - first) % DEPTH;
            gb_barrier_await(empty + slot, (unit - first) / DEPTH % 2 ^ 1);
            load(unit, slot);
            load_x(unit, slot);
        }
        return;
    }
    const u32 lane = threadIdx.x % 32, place = threadIdx.x % 128;
    for (u32 unit = first; unit < end;) {
        const u32 panel = unit / blocks, start = panel * blocks, stop = start + blocks, until = stop < end ? stop : end;
        float sums[SUMS];
        for (u32 adds = 0; unit < until; ++unit, adds = 1) {
            const u32 slot = (unit - first) % DEPTH;
            u8* const stage = stages + slot * STAGE_BYTES;
            gb_barrier_await(full + slot, (unit - first) / DEPTH % 2);
            const u64 a = gb_described(stage + group * (2 * BOX_BYTES)), b = gb_described(stage + 4 * BOX_BYTES);
            gb_begin_products();
#pragma unroll
            for (u32 k = 0; k < 8; ++k)
                gb_products_shared(sums, a + k / 4 * (BOX_BYTES / 16) + k % 4 * 2, b + k / 4 * (X_BYTES / 16) + k % 4 * 2, k + adds);
            gb_end_products();
            gb_await_products<0>();
            if (lane == 0) gb_barrier_arrive(empty + slot);
        }
        if (!gb_is_whole<CONSUMERS>(sums, start, blocks, units, partial, arrived + panel)) continue;
#if GATED
        float* const gated = (float*)(stages + DEPTH * STAGE_BYTES) + place;
        gb_group_barrier(1, CONSUMERS);  // all have read those of the panel before
#pragma unroll
        for (int i = 0; i < SUMS; ++i)
            if (group == 1) gated[i * 128] = sums[i];
        gb_group_barrier(1, CONSUMERS);
        if (group == 1) continue;
#pragma unroll
        for (int i = 0; i < SUMS; ++i) sums[i] = gb_gated(sums[i], gated[i * 128]);
#endif
        const u32 row = panel * OUTPUTS + group * 64 + place / 32 * 16 + lane / 4, token = 2 * (lane % 4);
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
            const u32 r = row + 8 * (i / 2 % 2), n = token + 8 * (i / 4) + i % 2;
            if (r < rows && n < tokens) y[(u64)n * rows + r] = gb_to_half(sums[i]);
        }
    }
}
#endif
