// C = A·Bᵀ of halves with sums in float by the matrix instructions of AMD's CDNA (v_mfma_f32_32x32x8_f16, and on gfx950
// v_mfma_f32_32x32x16_f16; CDNA 3 and 4 ISA, "Matrix Arithmetic Instructions"; gfx90a). In the ladder it takes the place of
// NVIDIA's matrix instructions. A block computes 128 × 128 elements from parts of 32 inner elements in shared memory; each
// of its four waves computes 64 × 64. The sides are multiples of 128. Compiled for AMD, never run there.
#if GB_HIP
typedef unsigned short u16;

#define SIDE 128
#define DEPTH 32
#define LANE (4 * GB_LANE_WORDS)
#define PITCH (DEPTH + 4)  // halves per row, padded so that rows begin in different banks and can be read in 8 bytes

extern "C" __global__ void __launch_bounds__(256)
    mfma(const u16* __restrict__ a, const u16* __restrict__ b, u16* __restrict__ c, u32 rows, u32 columns, u32 inner) {
    __shared__ __align__(16) u16 parts[2][SIDE][PITCH];  // of A and of B
    const u32 across = columns / SIDE, row = blockIdx.x / across * SIDE, column = blockIdx.x % across * SIDE;
    const u32 wave = threadIdx.x / 64, lane = threadIdx.x % 64, down = wave / 2 * 64, right = wave % 2 * 64;
    const u32 line = threadIdx.x / 4, piece = threadIdx.x % 4 * 8;
    if (row >= rows) return;
    const u16* from_a = a + (u64)(row + line) * inner + piece;
    const u16* from_b = b + (u64)(column + line) * inner + piece;
    const u64 further = (u64)64 * inner;
    float sums[2][2][16] = {};
    uint4 next[4];
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        next[i] = gb_word((const uint4*)(from_a + i * further));
        next[2 + i] = gb_word((const uint4*)(from_b + i * further));
    }
    for (u32 part = 0; part < inner; part += DEPTH) {
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            u64* const there = (u64*)&parts[i / 2][line + i % 2 * 64][piece];
            there[0] = next[i].x | (u64)next[i].y << 32;
            there[1] = next[i].z | (u64)next[i].w << 32;
        }
        __syncthreads();
        if (part + DEPTH < inner) {
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                next[i] = gb_word((const uint4*)(from_a + i * further + part + DEPTH));
                next[2 + i] = gb_word((const uint4*)(from_b + i * further + part + DEPTH));
            }
        }
#pragma unroll
        for (u32 k = 0; k < DEPTH; k += 2 * LANE) {  // a lane holds LANE inner elements of one row of A and of B
            u64 left[2][GB_LANE_WORDS], top[2][GB_LANE_WORDS];
#pragma unroll
            for (u32 i = 0; i < 2 * GB_LANE_WORDS; ++i) {
                const u32 line = i / GB_LANE_WORDS * 32 + lane % 32, word = i % GB_LANE_WORDS;
                left[i / GB_LANE_WORDS][word] = *(const u64*)&parts[0][down + line][k + lane / 32 * LANE + word * 4];
                top[i / GB_LANE_WORDS][word] = *(const u64*)&parts[1][right + line][k + lane / 32 * LANE + word * 4];
            }
#pragma unroll
            for (u32 i = 0; i < 2; ++i)
#pragma unroll
                for (u32 j = 0; j < 2; ++j) gb_multiply_32(sums[i][j], left[i], top[j]);
        }
    }
#pragma unroll
    for (u32 i = 0; i < 2; ++i)
#pragma unroll
        for (u32 j = 0; j < 2; ++j)
#pragma unroll
            for (u32 k = 0; k < 16; ++k) {
                const u32 below = down + i * 32 + k / 4 * 8 + lane / 32 * 4 + k % 4;
                c[(u64)(row + below) * columns + column + right + j * 32 + lane % 32] = gb_to_half(sums[i][j][k]);
            }
}
#endif
