// C = A·Bᵀ of halves with sums in float by Hopper's warpgroup instructions (wgmma; PTX ISA 8.0, "Asynchronous Warpgroup
// Level Matrix Instructions"), its bulk tensor copies (TMA) and barriers in shared memory.
//
//   TILE_N   columns of a tile of 128 rows: 128 or 256. Two warpgroups multiply 64 rows each.
//   STAGES   parts of 64 inner elements in shared memory. One warpgroup of copies runs ahead of the products.
//   CLUSTER  1, or 2 blocks one above the other: each loads half of the part of B, for both
//   BAND     rows of tiles (of the cluster) that are computed column by column, so that their inputs stay in the L2
//
// The grid stays resident and processes tile after tile. The copies of the next tile begin while this tile is stored.
#if !GB_HIP && defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "tiles.cuh"
#define TILE_M 128
#define TILE_K 64
#define ACCUMULATORS (TILE_N / 2)  // accumulators per thread
#define A_BYTES (TILE_M * TILE_K * 2)
#define B_BYTES (TILE_N * TILE_K * 2)
#define STAGE_BYTES (A_BYTES + B_BYTES)
#define BOX_BYTES (16 * 64 * 2)  // 16 rows × 64 columns of C
#define WARP_BYTES (2 * BOX_BYTES)

typedef unsigned short u16;

#define SUMS_8(i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])
#define SUMS_32(i) SUMS_8(i), SUMS_8(i + 8), SUMS_8(i + 16), SUMS_8(i + 24)

// d = a·b, or d += a·b with `adds`: 64 rows, TILE_N columns, 16 inner elements.
static __device__ __forceinline__ void multiply(float (&d)[ACCUMULATORS], u64 a, u64 b, u32 adds) {
#if TILE_N == 256
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "%128, %129, p, 1, 1, 0, 0;\n}"
        : SUMS_32(0), SUMS_32(32), SUMS_32(64), SUMS_32(96)
        : "l"(a), "l"(b), "r"(adds));
#else
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1, 0, 0;\n}"
        : SUMS_32(0), SUMS_32(32)
        : "l"(a), "l"(b), "r"(adds));
#endif
}

// Stores the 16 rows of sums of a warp as halves. They go through `boxes`, shared memory of this warp alone, so that
// eight lanes store 128 bytes of a row and no warp waits for another one.
static __device__ __forceinline__ void store_sums(const float (&d)[ACCUMULATORS], u8* boxes, u16* c, u32 columns) {
    const u32 lane = threadIdx.x % 32, row = lane % 16;
    u16* const there = c + (u64)(lane / 8) * columns + lane % 8 * 8;
#pragma unroll
    for (u32 first = 0; first < TILE_N; first += 128) {
#pragma unroll
        for (u32 pair = 0; pair < 8; ++pair) {  // pairs of groups of eight columns
            const u32 i = first / 2 + pair * 8, eight = pair * 2 + lane / 16;
            u8* const at = boxes + eight / 8 * BOX_BYTES + row * 128 + ((eight ^ row) % 8) * 16;
            gb_store_matrices(at, make_uint4(gb_packed(d[i], d[i + 1]), gb_packed(d[i + 2], d[i + 3]),
                                             gb_packed(d[i + 4], d[i + 5]), gb_packed(d[i + 6], d[i + 7])));
        }
        __syncwarp();
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            const u32 line = i % 4 * 4 + lane / 8;
            const u8* const at = boxes + i / 4 * BOX_BYTES + line * 128 + ((lane ^ line) % 8) * 16;
            *(uint4*)(there + (u64)(i % 4 * 4) * columns + first + i / 4 * 64) = *(const uint4*)at;
        }
        __syncwarp();
    }
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(384, 1)
    wgmma(const __grid_constant__ GbTensorMap map_a, const __grid_constant__ GbTensorMap map_b,
          u16* __restrict__ c, u32 rows, u32 columns, u32 inner) {
    extern __shared__ u8 memory[];
    __shared__ u64 full[STAGES], empty[STAGES];
    u8* const stages = memory + (0u - gb_shared_address(memory)) % 1024;
    const u32 rank = CLUSTER > 1 ? gb_cluster_rank() : 0, group = gb_shuffle(threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        for (u32 stage = 0; stage < STAGES; ++stage) {
            gb_barrier_init(full + stage);
            gb_barrier_init(empty + stage, 2 * CLUSTER);
        }
    }
    __syncthreads();
    if (CLUSTER > 1) gb_cluster_barrier();
    const u32 high = rows / (TILE_M * CLUSTER), wide = columns / TILE_N, parts = inner / TILE_K;
    const u32 first = blockIdx.x / CLUSTER, step = gridDim.x / CLUSTER;
    u32 stage = 0, parity = 0;
    if (group == 0) {
        gb_fewer_registers<40>();
        if (threadIdx.x == 0) {
            for (u32 tile = first; tile < high * wide; tile += step) {
                const Place place = place_of(tile, high, wide, BAND);
                const u32 row = (place.row * CLUSTER + rank) * TILE_M, column = place.column * TILE_N;
                for (u32 part = 0; part < parts; ++part) {
                    u8* const a = stages + stage * STAGE_BYTES;
                    u8* const b = a + A_BYTES;
                    gb_barrier_await(empty + stage, parity ^ 1);
                    gb_barrier_expect(full + stage, STAGE_BYTES);
                    gb_tensor_load(a, &map_a, part * TILE_K, row, full + stage);
#if CLUSTER > 1
                    const u32 half = rank * (TILE_N / 2);
                    gb_tensor_load_both(b + half * TILE_K * 2, &map_b, part * TILE_K, column + half, full + stage);
#else
                    gb_tensor_load(b, &map_b, part * TILE_K, column, full + stage);
#endif
                    if (++stage == STAGES) stage = 0, parity ^= 1;
                }
            }
        }
    } else {
        gb_more_registers<232>();
        float d[ACCUMULATORS];
        const u32 mine = threadIdx.x % 128, warp = threadIdx.x / 32 - 4;
        u8* const boxes = stages + STAGES * STAGE_BYTES + warp * WARP_BYTES;
        for (u32 tile = first; tile < high * wide; tile += step) {
            const Place place = place_of(tile, high, wide, BAND);
            u32 last = 0;
            for (u32 part = 0; part < parts; ++part) {
                const u8* const a = stages + stage * STAGE_BYTES + (group - 1) * (A_BYTES / 2);
                const u64 of_a = gb_described(a), of_b = gb_described(stages + stage * STAGE_BYTES + A_BYTES);
                gb_barrier_await(full + stage, parity);
                gb_begin_products();
#pragma unroll
                for (int k = 0; k < TILE_K / 16; ++k) multiply(d, of_a + 2 * k, of_b + 2 * k, part > 0 || k > 0);
                gb_end_products();
                gb_await_products<1>();  // wait for the products of the previous part, whose stage is then free
                if (part > 0 && mine < CLUSTER) gb_barrier_arrive_at(empty + last, mine);
                last = stage;
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
            gb_await_products<0>();
            if (mine < CLUSTER) gb_barrier_arrive_at(empty + last, mine);
            const u32 row = (place.row * CLUSTER + rank) * TILE_M + warp * 16;
            store_sums(d, boxes, c + (u64)row * columns + place.column * TILE_N, columns);
        }
    }
    if (CLUSTER > 1) gb_cluster_barrier();  // until it has ended, a block may arrive at the other block's barriers
}
#endif
