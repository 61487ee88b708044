// y = W·x of halves with sums in float; W has `rows` × `cols` elements, row by row. A ladder of kernels, each of which
// changes one thing. `cols` is a multiple of 128, and a block has 256 threads.

#define THREADS 256
#ifndef RESIDENT
#define RESIDENT 8  // blocks per SM of NVIDIA: as many threads as it holds
#endif
#define TOGETHER 2  // rows that a warp processes at once
typedef unsigned short u16;

static __device__ __forceinline__ float widened(u16 half) {
    float low, high;
    gb_halves(half, low, high);
    return low;
}

// Returns the sum of a value over the lanes of a warp, in every lane.
static __device__ __forceinline__ float over_warp(float mine) {
    for (int lane = warpSize / 2; lane > 0; lane /= 2) mine += gb_shuffle_xor(mine, lane);
    return mine;
}

// A thread computes one row. Neighbouring threads read words that are a whole row apart.
extern "C" __global__ void __launch_bounds__(THREADS)
    naive(const u16* __restrict__ w, const u16* __restrict__ x, u16* __restrict__ y, u32 rows, u32 cols) {
    const u32 row = blockIdx.x * THREADS + threadIdx.x;
    if (row >= rows) return;
    float sum = 0;
    for (u32 k = 0; k < cols; ++k) sum += widened(w[(u64)row * cols + k]) * widened(x[k]);
    y[row] = gb_to_half(sum);
}

// A warp computes one row. Neighbouring lanes read neighbouring halves.
extern "C" __global__ void __launch_bounds__(THREADS)
    warp(const u16* __restrict__ w, const u16* __restrict__ x, u16* __restrict__ y, u32 rows, u32 cols) {
    const u32 lane = threadIdx.x % warpSize, row = (blockIdx.x * THREADS + threadIdx.x) / warpSize;
    if (row >= rows) return;
    float sum = 0;
    for (u32 k = lane; k < cols; k += warpSize) sum += widened(w[(u64)row * cols + k]) * widened(x[k]);
    sum = over_warp(sum);
    if (lane == 0) y[row] = gb_to_half(sum);
}

static __device__ __forceinline__ void widen(const uint4& vector, float (&wide)[8]) {
    gb_halves(vector.x, wide[0], wide[1]);
    gb_halves(vector.y, wide[2], wide[3]);
    gb_halves(vector.z, wide[4], wide[5]);
    gb_halves(vector.w, wide[6], wide[7]);
}
static __device__ __forceinline__ float dot(const uint4& weights, const float (&x)[8]) {
    float wide[8], sum = 0;
    widen(weights, wide);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += wide[i] * x[i];
    return sum;
}

// The same with loads of 16 bytes: an eighth of the load instructions, and more bytes in flight.
extern "C" __global__ void __launch_bounds__(THREADS)
    vectorised(const uint4* __restrict__ w, const uint4* __restrict__ x, u16* __restrict__ y, u32 rows, u32 cols) {
    const u32 lane = threadIdx.x % warpSize, row = (blockIdx.x * THREADS + threadIdx.x) / warpSize, vectors = cols / 8;
    if (row >= rows) return;
    float sum = 0;
    for (u32 v = lane; v < vectors; v += warpSize) {
        float wide[8];
        widen(gb_word(x + v), wide);
        sum += dot(gb_stream(w + (u64)row * vectors + v), wide);
    }
    sum = over_warp(sum);
    if (lane == 0) y[row] = gb_to_half(sum);
}

// Computes the sums of TOGETHER rows from `first` on, over the whole warp. Of each row it reads the vectors from +
// lane, from + lane + stride and so on. Rows beyond the last one are replaced by it.
static __device__ __forceinline__ void sum_rows(const uint4* w, const uint4* x, u32 rows, u32 vectors, u32 first,
                                                u32 from, u32 stride, float (&sums)[TOGETHER]) {
    const uint4* at[TOGETHER];
#pragma unroll
    for (int r = 0; r < TOGETHER; ++r) {
        at[r] = w + (u64)(first + r < rows ? first + r : rows - 1) * vectors;
        sums[r] = 0;
    }
#pragma unroll 1  // more loads at once would need more registers than eight blocks per SM leave
    for (u32 v = from + threadIdx.x % warpSize; v < vectors; v += stride) {
        uint4 weights[TOGETHER];
#pragma unroll
        for (int r = 0; r < TOGETHER; ++r) weights[r] = gb_stream(at[r] + v);
        float wide[8];
        widen(gb_word(x + v), wide);
#pragma unroll
        for (int r = 0; r < TOGETHER; ++r) sums[r] += dot(weights[r], wide);
    }
#pragma unroll
    for (int r = 0; r < TOGETHER; ++r) sums[r] = over_warp(sums[r]);
}

// A warp computes TOGETHER rows, for all of which one load of x suffices.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    rows(const uint4* __restrict__ w, const uint4* __restrict__ x, u16* __restrict__ y, u32 rows, u32 cols) {
    const u32 first = (blockIdx.x * THREADS + threadIdx.x) / warpSize * TOGETHER;
    float sums[TOGETHER];
    sum_rows(w, x, rows, cols / 8, first, 0, warpSize, sums);
    if (threadIdx.x % warpSize != 0) return;
#pragma unroll
    for (int r = 0; r < TOGETHER; ++r)
        if (first + r < rows) y[first + r] = gb_to_half(sums[r]);
}

// A block computes TOGETHER rows. Its warps share the columns, and their sums are added in shared memory.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    split(const uint4* __restrict__ w, const uint4* __restrict__ x, u16* __restrict__ y, u32 rows, u32 cols) {
    const u32 first = blockIdx.x * TOGETHER, warp = threadIdx.x / warpSize;
    __shared__ float shares[THREADS / 32][TOGETHER];
    float sums[TOGETHER];
    sum_rows(w, x, rows, cols / 8, first, warp * warpSize, THREADS, sums);
    if (threadIdx.x % warpSize == 0) {
#pragma unroll
        for (int r = 0; r < TOGETHER; ++r) shares[warp][r] = sums[r];
    }
    __syncthreads();
    if (threadIdx.x >= TOGETHER || first + threadIdx.x >= rows) return;
    float sum = 0;
    for (u32 share = 0; share < THREADS / warpSize; ++share) sum += shares[share][threadIdx.x];
    y[first + threadIdx.x] = gb_to_half(sum);
}
