// C = A·Bᵀ of halves with sums in float by the matrix instructions of a warp (mma.sync.m16n8k16 and ldmatrix; PTX ISA,
// "Warp Level Matrix Multiply-Accumulate Instructions"; sm_80). The kernels are in one file, so that each kernel of the
// ladder differs from the one before it by its macros alone:
//
//   TILE_M, TILE_N, TILE_K  the tile of a block, and the inner elements of a part in shared memory
//   DOWN, ACROSS            the warps of a block, one above the other and side by side
//   SWIZZLED                1: the 16-byte pieces of a row are permuted, so that ldmatrix has no bank conflicts
//   STAGES                  1: parts come through registers; more: that many parts in shared memory, by cp.async
//   BULK                    1: by bulk tensor copies (TMA), which a warpgroup of its own starts; sm_90a
//   BAND                    rows of tiles that are computed column by column, so that their inputs stay in the L2
#if !GB_HIP && (BULK ? defined(__CUDA_ARCH_FEAT_SM90_ALL) || GB_TCGEN05 : __CUDA_ARCH__ >= 800)
#include "tiles.cuh"
typedef unsigned short u16;

#define THREADS (32 * DOWN * ACROSS)
#define PIECES (TILE_K / 8)  // 16-byte pieces in a row
#define WARP_M (TILE_M / DOWN)
#define WARP_N (TILE_N / ACROSS)
#define HIGH (WARP_M / 16)
#define WIDE (WARP_N / 8)
#define STEPS (TILE_K / 16)
#define STAGE_BYTES ((TILE_M + TILE_N) * TILE_K * 2)
#define LINES (THREADS / PIECES)  // rows that all threads load at once: a multiple of 8
#define LOADS_A (TILE_M / LINES)
#define LOADS ((TILE_M + TILE_N) / LINES)  // loads per thread in a part

// Returns the place of a piece in a part: rows of PIECES, permuted so that eight consecutive rows lie in different
// banks.
static __device__ __forceinline__ u32 placed(u32 row, u32 piece) {
#if SWIZZLED
    piece ^= row / (8 / PIECES) % PIECES;
#endif
    return (row * PIECES + piece) * 16;
}

// Loads the fragments of a warp for one step of 16 inner elements.
struct Fragments {
    u32 a[HIGH][4], b[WIDE / 2][4];

    // `at_a` and `at_b` are this lane's places in the first step. The permutation repeats every 16 rows.
    __device__ __forceinline__ void load(const u8* part, u32 at_a, u32 at_b, u32 step) {
#pragma unroll
        for (u32 i = 0; i < HIGH; ++i) gb_matrices(a[i], part + (at_a ^ step * 32) + i * 16 * TILE_K * 2);
#pragma unroll
        for (u32 j = 0; j < WIDE / 2; ++j) gb_matrices(b[j], part + (at_b ^ step * 32) + j * 16 * TILE_K * 2);
    }

    __device__ __forceinline__ void multiply(float (&sums)[HIGH][WIDE][4]) const {
#pragma unroll
        for (u32 i = 0; i < HIGH; ++i)
#pragma unroll
            for (u32 j = 0; j < WIDE; ++j) {
                const u32 of_b[2] = {b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]};
                gb_multiply<false>(sums[i][j], a[i], of_b);
            }
    }
};

// The loads of a thread for each part: a piece every LINES rows, of A and then of B.
struct Source {
    const u16 *a, *b;
    u64 stride;
    u32 to;

    __device__ __forceinline__ Source(const u16* of_a, const u16* of_b, u32 row, u32 column, u32 inner) {
        const u32 line = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
        a = of_a + (u64)(row + line) * inner + piece * 8;
        b = of_b + (u64)(column + line) * inner + piece * 8;
        stride = (u64)LINES * inner;
        to = placed(line, piece);
    }
    __device__ __forceinline__ const u16* from(u32 i) const {
        return i < LOADS_A ? a + i * stride : b + (i - LOADS_A) * stride;
    }
    __device__ __forceinline__ u32 there(u32 i) const { return to + i * LINES * TILE_K * 2; }
    __device__ __forceinline__ void next() { a += TILE_K, b += TILE_K; }
};

static __device__ __forceinline__ void store_sums(
    const float (&sums)[HIGH][WIDE][4], u16* c, u32 row, u32 column, u32 columns) {
    const u32 warp = threadIdx.x / 32;
    row += warp / ACROSS * WARP_M;
    column += warp % ACROSS * WARP_N;
#pragma unroll
    for (u32 i = 0; i < HIGH; ++i)
#pragma unroll
        for (u32 j = 0; j < WIDE; ++j)
#pragma unroll
            for (u32 k = 0; k < 4; k += 2) {
                const u64 there = (u64)(row + i * 16 + gb_sum_row(k)) * columns + column + j * 8 + gb_sum_column(k);
                *(u32*)(c + there) = gb_to_half(sums[i][j][k]) | (u32)gb_to_half(sums[i][j][k + 1]) << 16;
            }
}

// Returns the place of this lane's rows of A and of B in a part, for the first step.
static __device__ __forceinline__ u32 place_in_a() {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    return placed(warp / ACROSS * WARP_M + lane % 16, lane / 16);
}
static __device__ __forceinline__ u32 place_in_b() {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    return placed(TILE_M + warp % ACROSS * WARP_N + lane % 8 + lane / 16 * 8, lane / 8 % 2);
}

#if BULK
// The grid stays resident. The barriers of the ring stand in for a barrier that stops all warps. The warps that multiply come first, so that their numbers are their places. They get
// registers of the warpgroup that copies.
extern "C" __global__ void __launch_bounds__(THREADS + 128, RESIDENT)
    bulk(const __grid_constant__ GbTensorMap map_a, const __grid_constant__ GbTensorMap map_b, u16* __restrict__ c,
         u32 rows, u32 columns, u32 inner) {
    extern __shared__ uint4 memory[];
    __shared__ u64 full[STAGES], empty[STAGES];
    // Aligned to 1024, because the copies swizzle by address.
    u8* const stages = (u8*)memory + (0u - gb_shared_address(memory)) % 1024;
    const u32 high = rows / TILE_M, wide = columns / TILE_N, parts = inner / TILE_K;
    Ring<STAGES> ring(full, empty);
    if (threadIdx.x == 0) ring.begin(THREADS / 32);
    __syncthreads();
    if (threadIdx.x >= THREADS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == THREADS)
            ring.load_tiles<TILE_M, TILE_N, TILE_K>(stages, &map_a, &map_b, high, wide, parts, BAND);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const u32 at_a = place_in_a(), at_b = place_in_b();
        for (u32 tile = blockIdx.x; tile < high * wide; tile += gridDim.x) {
            const Place place = place_of(tile, high, wide, BAND);
            float sums[HIGH][WIDE][4] = {};
            Fragments both[2];
            gb_barrier_await(full + ring.stage, ring.parity);
            both[0].load(stages + ring.stage * STAGE_BYTES, at_a, at_b, 0);
            for (u32 part = 0; part < parts; ++part) {
                u64* const read = empty + ring.stage;
#pragma unroll
                for (u32 step = 0; step < STEPS; ++step) {
                    if (step < STEPS - 1)
                        both[(step + 1) % 2].load(stages + ring.stage * STAGE_BYTES, at_a, at_b, step + 1);
                    else if (ring.next(), part + 1 < parts) {
                        gb_barrier_await(full + ring.stage, ring.parity);
                        both[0].load(stages + ring.stage * STAGE_BYTES, at_a, at_b, 0);
                    }
                    both[step % 2].multiply(sums);
                }
                if (threadIdx.x % 32 == 0) gb_barrier_arrive(read);
            }
            store_sums(sums, c, place.row * TILE_M, place.column * TILE_N, columns);
        }
    }
}
#else
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    mma(const u16* __restrict__ a, const u16* __restrict__ b, u16* __restrict__ c, u32 rows, u32 columns, u32 inner) {
    extern __shared__ uint4 memory[];
    const Place place = place_of(blockIdx.x, rows / TILE_M, columns / TILE_N, BAND);
    const u32 row = place.row * TILE_M, column = place.column * TILE_N;
    const u32 parts = inner / TILE_K, at_a = place_in_a(), at_b = place_in_b();
    u8* const shared = (u8*)memory;
    Source source(a, b, row, column, inner);
    float sums[HIGH][WIDE][4] = {};
#if STAGES == 1
    Fragments now;
    uint4 ahead[LOADS];
#pragma unroll
    for (u32 i = 0; i < LOADS; ++i) ahead[i] = *(const uint4*)source.from(i);
    for (u32 part = 0; part < parts; ++part) {
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < LOADS; ++i) *(uint4*)(shared + source.there(i)) = ahead[i];
        __syncthreads();
        source.next();
        if (part + 1 < parts) {
#pragma unroll
            for (u32 i = 0; i < LOADS; ++i) ahead[i] = *(const uint4*)source.from(i);
        }
#pragma unroll
        for (u32 step = 0; step < STEPS; ++step) {
            now.load(shared, at_a, at_b, step);
            now.multiply(sums);
        }
    }
#else
    Fragments both[2];
    u32 loading = 0, stage = 0, loaded = 0;
    const auto load_part = [&] {
        if (loaded++ < parts) {
#pragma unroll
            for (u32 i = 0; i < LOADS; ++i)
                gb_async_load((uint4*)(shared + loading + source.there(i)), (const uint4*)source.from(i));
            source.next();
        }
        gb_async_commit();
        loading = loading == (STAGES - 1) * STAGE_BYTES ? 0 : loading + STAGE_BYTES;
    };
    for (u32 part = 0; part < STAGES - 1; ++part) load_part();
    gb_async_wait<STAGES - 2>();
    __syncthreads();
    both[0].load(shared, at_a, at_b, 0);
    for (u32 part = 0; part < parts; ++part) {
#pragma unroll
        for (u32 step = 0; step < STEPS; ++step) {
            if (step == STEPS - 1) {  // the next part has arrived, and no warp still reads the previous one
                gb_async_wait<STAGES - 2>();
                __syncthreads();
                stage = stage == (STAGES - 1) * STAGE_BYTES ? 0 : stage + STAGE_BYTES;
            }
            both[(step + 1) % 2].load(shared + stage, at_a, at_b, (step + 1) % STEPS);
            if (step == 0) load_part();
            both[step % 2].multiply(sums);
        }
    }
#endif
    store_sums(sums, c, row, column, columns);
}
#endif
#endif
