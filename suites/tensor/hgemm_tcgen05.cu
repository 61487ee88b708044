// C = A·Bᵀ of halves with sums in float by Blackwell's tcgen05.mma, bulk tensor copies (TMA) and tensor memory. It was
// compiled for sm_100a, sm_103a and sm_110a, and has run on no GPU.
//
//   STAGES  parts of 64 inner elements in shared memory
//   BAND    rows of tiles that are computed column by column, so that their inputs stay in the L2
//
// The grid stays resident. Warps 0 to 3 store sums, warp 4 copies, and warp 5 multiplies. Tensor memory holds the sums of
// two tiles, so that one is multiplied while the other is stored.
#if GB_TCGEN05
#include "tiles.cuh"
#define TILE_M 128
#define TILE_N 256
#define TILE_K 64
#define A_BYTES (TILE_M * TILE_K * 2)
#define STAGE_BYTES (A_BYTES + TILE_N * TILE_K * 2)

extern "C" __global__ void __launch_bounds__(192, 1)
    tcgen05(const __grid_constant__ GbTensorMap map_a, const __grid_constant__ GbTensorMap map_b,
            unsigned short* __restrict__ c, u32 rows, u32 columns, u32 inner) {
    extern __shared__ u8 memory[];
    __shared__ u64 full[STAGES], empty[STAGES], multiplied[2], stored[2];
    __shared__ u32 reserved;
    u8* const stages = memory + (0u - gb_shared_address(memory)) % 1024;
    const u32 high = rows / TILE_M, wide = columns / TILE_N, parts = inner / TILE_K, warp = threadIdx.x / 32;
    Ring<STAGES> ring(full, empty);
    if (threadIdx.x == 0) {
        ring.begin(1);
        for (u32 half = 0; half < 2; ++half) {
            gb_barrier_init(multiplied + half);
            gb_barrier_init(stored + half, 128);
        }
    }
    if (warp == 0) gb_tensor_memory<512>(&reserved);
    gb_before_barrier();
    __syncthreads();
    gb_after_barrier();
    const u32 sums = reserved;
    u32 half = 0, turn = 0;
    const auto next_half = [&] {
        if (half ^= 1, half == 0) turn ^= 1;
    };
    if (threadIdx.x == 128) {
        ring.load_tiles<TILE_M, TILE_N, TILE_K>(stages, &map_a, &map_b, high, wide, parts, BAND);
    } else if (threadIdx.x == 160) {
        const u32 product = gb_product_of(0, TILE_N);
        for (u32 tile = blockIdx.x; tile < high * wide; tile += gridDim.x, next_half()) {
            gb_barrier_await(stored + half, turn ^ 1);
            gb_after_barrier();
            for (u32 part = 0; part < parts; ++part, ring.next()) {
                gb_barrier_await(full + ring.stage, ring.parity);
                gb_after_barrier();
                const u64 a = gb_described(stages + ring.stage * STAGE_BYTES);
                const u64 b = gb_described(stages + ring.stage * STAGE_BYTES + A_BYTES);
#pragma unroll
                for (u32 k = 0; k < TILE_K / 16; ++k)  // 32 bytes of each row
                    GB_TCGEN05_MMA("f16", sums + half * TILE_N, a + 2 * k, b + 2 * k, product, part > 0 || k > 0);
                gb_products_arrive(empty + ring.stage);
            }
            gb_products_arrive(multiplied + half);
        }
    } else if (warp < 4) {
        for (u32 tile = blockIdx.x; tile < high * wide; tile += gridDim.x, next_half()) {
            const Place place = place_of(tile, high, wide, BAND);
            gb_barrier_await(multiplied + half, turn);
            gb_after_barrier();
            uint4* const row = (uint4*)(c + (u64)(place.row * TILE_M + threadIdx.x) * columns + place.column * TILE_N);
#pragma unroll 1
            for (u32 first = 0; first < TILE_N; first += 16) {
                u32 mine[16], words[8];
                gb_read_sums(sums + (warp << 21) + half * TILE_N + first, mine);
#pragma unroll
                for (u32 i = 0; i < 8; ++i)
                    words[i] = gb_to_half(__uint_as_float(mine[2 * i])) |
                               (u32)gb_to_half(__uint_as_float(mine[2 * i + 1])) << 16;
                row[first / 8] = make_uint4(words[0], words[1], words[2], words[3]);
                row[first / 8 + 1] = make_uint4(words[4], words[5], words[6], words[7]);
            }
            gb_before_barrier();
            gb_barrier_arrive(stored + half);
        }
    }
    __syncthreads();
    if (warp == 0) gb_free_tensor_memory<512>(sums);
}
#endif
