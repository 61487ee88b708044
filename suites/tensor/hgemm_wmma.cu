// C = A·Bᵀ of halves with sums in float by the C++ interface to the matrix instructions (nvcuda::wmma; CUDA C++
// Programming Guide, "Warp Matrix Functions"), whose header comes with the CUDA toolkit. A block computes 128 × 128
// elements from parts of 32 inner elements in shared memory; each of its eight warps computes 64 × 32. The sides are
// multiples of 128.
#if !GB_HIP
#include WMMA_HEADER  // <…/mma.h>, which is not always in the compiler's search path
typedef unsigned short u16;

#define SIDE 128
#define DEPTH 32
#define PITCH (DEPTH + 8)  // halves per row, padded so that rows begin in different banks
#define RESULT 20  // floats per row of 16 sums, with padding

extern "C" __global__ void __launch_bounds__(256, 2)
    wmma(const u16* __restrict__ a, const u16* __restrict__ b, u16* __restrict__ c, u32 rows, u32 columns, u32 inner) {
    using namespace nvcuda::wmma;
    __shared__ __align__(128) u16 parts[2][SIDE][PITCH];  // of A and of B
    __shared__ __align__(128) float results[8][16][RESULT];
    const u32 across = columns / SIDE, row = blockIdx.x / across * SIDE, column = blockIdx.x % across * SIDE;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, down = warp / 4 * 64, right = warp % 4 * 32;
    const u32 line = threadIdx.x / 4, piece = threadIdx.x % 4 * 8;
    if (row >= rows) return;
    const u16* from_a = a + (u64)(row + line) * inner + piece;
    const u16* from_b = b + (u64)(column + line) * inner + piece;
    const u64 further = (u64)64 * inner;
    fragment<accumulator, 16, 16, 16, float> sums[4][2];
    for (auto& line_of_sums : sums)
        for (auto& sum : line_of_sums) fill_fragment(sum, 0.0f);
    uint4 next[4];
    for (u32 i = 0; i < 2; ++i) {
        next[i] = *(const uint4*)(from_a + i * further);
        next[2 + i] = *(const uint4*)(from_b + i * further);
    }
    for (u32 part = 0; part < inner; part += DEPTH) {
        __syncthreads();
        for (u32 i = 0; i < 4; ++i) *(uint4*)&parts[i / 2][line + i % 2 * 64][piece] = next[i];
        __syncthreads();
        if (part + DEPTH < inner)
            for (u32 i = 0; i < 2; ++i) {
                next[i] = *(const uint4*)(from_a + i * further + part + DEPTH);
                next[2 + i] = *(const uint4*)(from_b + i * further + part + DEPTH);
            }
#pragma unroll
        for (u32 k = 0; k < DEPTH; k += 16) {
            fragment<matrix_a, 16, 16, 16, __half, row_major> left[4];
            fragment<matrix_b, 16, 16, 16, __half, col_major> top[2];
            for (u32 i = 0; i < 4; ++i) load_matrix_sync(left[i], (const __half*)&parts[0][down + i * 16][k], PITCH);
            for (u32 j = 0; j < 2; ++j) load_matrix_sync(top[j], (const __half*)&parts[1][right + j * 16][k], PITCH);
            for (u32 i = 0; i < 4; ++i)
                for (u32 j = 0; j < 2; ++j) mma_sync(sums[i][j], left[i], top[j], sums[i][j]);
        }
    }
    for (u32 i = 0; i < 4; ++i)
        // The interface does not specify where a lane's sums lie, so they go through shared memory.
        for (u32 j = 0; j < 2; ++j) {
            store_matrix_sync(&results[warp][0][0], sums[i][j], RESULT, mem_row_major);
            __syncwarp();
            const float* const eight = &results[warp][lane / 2][lane % 2 * 8];
            uint4 halves;
            u32* const words = &halves.x;
            for (u32 k = 0; k < 4; ++k)
                words[k] = gb_to_half(eight[2 * k]) | (u32)gb_to_half(eight[2 * k + 1]) << 16;
            const u64 there = (u64)(row + down + i * 16 + lane / 2) * columns + column + right + j * 16 + lane % 2 * 8;
            *(uint4*)(c + there) = halves;
            __syncwarp();
        }
}
#endif
