// C = A·Bᵀ of halves with sums in float, all matrices row-major: the kernels of the ladder without matrix instructions.
// The sides are multiples of 128.
typedef unsigned short u16;

// A thread computes one element of C, for which it reads a row of A and a row of B.
extern "C" __global__ void __launch_bounds__(256)
    naive(const u16* __restrict__ a, const u16* __restrict__ b, u16* __restrict__ c, u32 rows, u32 columns, u32 inner) {
    const u32 across = columns / 16, row = blockIdx.x / across * 16 + threadIdx.x / 16;
    const u32 column = blockIdx.x % across * 16 + threadIdx.x % 16;
    float sum = 0;
    if (row >= rows) return;
    for (u32 k = 0; k < inner; ++k) {
        float of_a, of_b, unused;
        gb_halves(a[(u64)row * inner + k], of_a, unused);
        gb_halves(b[(u64)column * inner + k], of_b, unused);
        sum += of_a * of_b;
    }
    c[(u64)row * columns + column] = gb_to_half(sum);
}

// A block computes 128 × 128 elements from parts of 16 inner elements. The parts lie in shared memory as floats, each
// widened once. A thread computes 8 × 8 elements in registers: four rows and four more rows 64 further down, and
// columns likewise.
#define SIDE 128
#define DEPTH 16
#define PITCH (SIDE + 4)  // floats per row, padded so that rows begin in different banks and can be read in 16 bytes

struct Eight {
    float values[8];
};

static __device__ __forceinline__ Eight widened(uint4 halves) {
    Eight found;
    gb_halves(halves.x, found.values[0], found.values[1]);
    gb_halves(halves.y, found.values[2], found.values[3]);
    gb_halves(halves.z, found.values[4], found.values[5]);
    gb_halves(halves.w, found.values[6], found.values[7]);
    return found;
}

static __device__ __forceinline__ Eight two_fours(const float* row, u32 first) {
    const float4 low = *(const float4*)(row + first), high = *(const float4*)(row + first + 64);
    return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}

extern "C" __global__ void __launch_bounds__(256, 2)
    tile(const u16* __restrict__ a, const u16* __restrict__ b, u16* __restrict__ c, u32 rows, u32 columns, u32 inner) {
    __shared__ __align__(16) float parts[2][2][DEPTH][PITCH];  // the current part and the next one, of A and of B
    const u32 across = columns / SIDE, row = blockIdx.x / across * SIDE, column = blockIdx.x % across * SIDE;
    const u32 line = threadIdx.x % SIDE, eighth = threadIdx.x / SIDE * 8;
    const u32 down = threadIdx.x / 16 * 4, right = threadIdx.x % 16 * 4;
    if (row >= rows) return;
    const u16* from_a = a + (u64)(row + line) * inner + eighth;
    const u16* from_b = b + (u64)(column + line) * inner + eighth;
    uint4 next_a = gb_word((const uint4*)from_a), next_b = gb_word((const uint4*)from_b);
    float sums[8][8] = {};
    for (u32 part = 0, half = 0; part < inner; part += DEPTH, half ^= 1) {
        const Eight of_a = widened(next_a), of_b = widened(next_b);
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            parts[half][0][eighth + i][line] = of_a.values[i];
            parts[half][1][eighth + i][line] = of_b.values[i];
        }
        __syncthreads();
        if (part + DEPTH < inner) {
            next_a = gb_word((const uint4*)(from_a + part + DEPTH));
            next_b = gb_word((const uint4*)(from_b + part + DEPTH));
        }
#pragma unroll
        for (u32 k = 0; k < DEPTH; ++k) {
            const Eight left = two_fours(parts[half][0][k], down), top = two_fours(parts[half][1][k], right);
#pragma unroll
            for (u32 i = 0; i < 8; ++i)
#pragma unroll
                for (u32 j = 0; j < 8; ++j) sums[i][j] += left.values[i] * top.values[j];
        }
    }
#pragma unroll
    for (u32 i = 0; i < 8; ++i)
#pragma unroll
        for (u32 j = 0; j < 8; j += 4) {
            const u64 there = (u64)(row + down + i % 4 + i / 4 * 64) * columns + column + right + j * 16;
            const u32 low = gb_to_half(sums[i][j]) | (u32)gb_to_half(sums[i][j + 1]) << 16;
            const u32 high = gb_to_half(sums[i][j + 2]) | (u32)gb_to_half(sums[i][j + 3]) << 16;
            *(u64*)(c + there) = low | (u64)high << 32;
        }
}
