// What ChatGLM-6B computes in place of a norm by the root mean square and of a gate: layer norm and GELU. The residual
// stream is in floats; what products read and write is in halves, row by row.
#define THREADS 256  // of a block

static __device__ __forceinline__ float half_of(unsigned short bits) {
    float value, unused;
    gb_halves(bits, value, unused);
    return value;
}

// The sum over the block, in every thread.
static __device__ __forceinline__ float block_sum(float mine, float* warps) {
    for (int mask = warpSize / 2; mask > 0; mask /= 2) mine += gb_shuffle_xor(mine, mask);
    if (threadIdx.x % warpSize == 0) warps[threadIdx.x / warpSize] = mine;
    __syncthreads();
    float sum = 0;
    for (u32 warp = 0; warp < THREADS / warpSize; ++warp) sum += warps[warp];
    return sum;
}

// Adds y to x unless `adds` is 0, and writes x without its mean over its standard deviation, times the factors, plus the
// shifts. A block for each row.
extern "C" __global__ void __launch_bounds__(THREADS)
    add_layer_norm(float* __restrict__ x, const unsigned short* __restrict__ y, const float* __restrict__ factors,
                   const float* __restrict__ shifts, unsigned short* __restrict__ out, u32 hidden, u32 adds) {
    __shared__ float first[THREADS / 32], second[THREADS / 32];
    const u64 row = (u64)blockIdx.x * hidden;
    float sum = 0, squares = 0;
    for (u32 i = threadIdx.x; i < hidden; i += THREADS) {
        const float value = x[row + i] + (adds ? half_of(y[row + i]) : 0);
        x[row + i] = value;
        sum += value;
    }
    const float mean = block_sum(sum, first) / hidden;
    for (u32 i = threadIdx.x; i < hidden; i += THREADS) {
        const float value = x[row + i] - mean;
        squares += value * value;
    }
    const float scale = 1 / sqrtf(block_sum(squares, second) / hidden + 1e-5f);
    for (u32 i = threadIdx.x; i < hidden; i += THREADS)
        out[row + i] = gb_to_half((x[row + i] - mean) * scale * factors[i] + shifts[i]);
}

// GELU by its approximation with a hyperbolic tangent: x/2·(1 + tanh z) is x·(1 − 1/(1 + exp 2z)).
extern "C" __global__ void gelu(const unsigned short* __restrict__ in, unsigned short* __restrict__ out, u64 count) {
    for (u64 i = gb_thread(); i < count; i += gb_threads()) {
        const float x = half_of(in[i]);
        const float z = 0.7978845608f * (x + 0.044715f * x * x * x);
        out[i] = gb_to_half(x - x / (1 + expf(2 * z)));
    }
}
