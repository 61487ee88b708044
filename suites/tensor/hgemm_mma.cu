// C = A·Bᵀ of halves with sums in float by the matrix instructions of a warp (mma.sync.m16n8k16 and ldmatrix; PTX ISA,
// "Warp Level Matrix Multiply-Accumulate Instructions"; sm_80). One file, so that a rung of the ladder differs from the
// rung below by its macros alone:
//
//   TILE_M, TILE_N, TILE_K  the tile of a block, and the part of the inner side that lies in shared memory
//   DOWN, ACROSS            the warps of a block, one above the other and side by side
//   SWIZZLED                1: the sixteen-byte pieces of a row are permuted, so that ldmatrix meets no bank twice
//   STAGES                  1: parts come through registers; more: that many parts in shared memory, by cp.async
//   BAND                    rows of tiles that are computed column by column, so that what is read stays in the L2
#if !GB_HIP && __CUDA_ARCH__ >= 800
typedef unsigned short u16;

#define THREADS (32 * DOWN * ACROSS)
#define PIECES (TILE_K / 8)  // of sixteen bytes in a row
#define WARP_M (TILE_M / DOWN)
#define WARP_N (TILE_N / ACROSS)
#define HIGH (WARP_M / 16)
#define WIDE (WARP_N / 8)
#define STEPS (TILE_K / 16)
#define STAGE_BYTES ((TILE_M + TILE_N) * TILE_K * 2)
#define LINES (THREADS / PIECES)  // rows that all threads load at once: a multiple of 8
#define LOADS_A (TILE_M / LINES)
#define LOADS ((TILE_M + TILE_N) / LINES)  // of a thread in a part

// The place of a piece in a part: rows of PIECES, permuted so that eight rows that follow each other lie in other banks.
static __device__ __forceinline__ u32 placed(u32 row, u32 piece) {
#if SWIZZLED
    piece ^= row / (8 / PIECES) % PIECES;
#endif
    return (row * PIECES + piece) * 16;
}

// The fragments of a warp for one step of sixteen inner elements.
struct Fragments {
    u32 a[HIGH][4], b[WIDE / 2][4];

    // `at_a` and `at_b` are this lane's places in the first step: sixteen rows further down the permutation is the same.
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

// What a thread loads of each part: a piece every LINES rows, of A and then of B.
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

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    mma(const u16* __restrict__ a, const u16* __restrict__ b, u16* __restrict__ c, u32 rows, u32 columns, u32 inner) {
    extern __shared__ uint4 memory[];
    const u32 high = rows / TILE_M, wide = columns / TILE_N;
    const u32 band = blockIdx.x / (BAND * wide) * BAND, in_band = blockIdx.x - band * wide;
    const u32 of_band = high - band < BAND ? high - band : BAND;
    const u32 row = (band + in_band % of_band) * TILE_M, column = in_band / of_band * TILE_N;
    u8* const shared = (u8*)memory;
    const u32 parts = inner / TILE_K, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 at_a = placed(warp / ACROSS * WARP_M + lane % 16, lane / 16);
    const u32 at_b = placed(TILE_M + warp % ACROSS * WARP_N + lane % 8 + lane / 16 * 8, lane / 8 % 2);
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
            if (step == STEPS - 1) {  // the next part is there, and no warp reads the part before this one
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
