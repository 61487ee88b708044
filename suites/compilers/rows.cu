// Operators on matrices in one kernel each: every input is read once, every output written once. A block takes whole rows,
// and a thread holds its elements of a row in registers between the passes.
//
//   OPERATOR  its number, as _by_nvrtc.py counts them    HALVES  1 for float16, 0 for float32
//   COLS      elements of a row                          THREADS of a block; each has VECTORS vectors of 16 bytes of a row
#define WIDE (HALVES ? 8 : 4)  // elements of a vector
#define VECTORS ((COLS + THREADS * WIDE - 1) / (THREADS * WIDE))
#define EPSILON 1e-5f

static __device__ __forceinline__ void widen(const uint4& v, float (&wide)[WIDE]) {
#if HALVES
    gb_halves(v.x, wide[0], wide[1]);
    gb_halves(v.y, wide[2], wide[3]);
    gb_halves(v.z, wide[4], wide[5]);
    gb_halves(v.w, wide[6], wide[7]);
#else
    wide[0] = __uint_as_float(v.x), wide[1] = __uint_as_float(v.y);
    wide[2] = __uint_as_float(v.z), wide[3] = __uint_as_float(v.w);
#endif
}

static __device__ __forceinline__ u32 word_of(float low, float high) {
    return (u32)gb_to_half(low) | (u32)gb_to_half(high) << 16;
}

static __device__ __forceinline__ uint4 narrow(const float (&wide)[WIDE]) {
#if HALVES
    return make_uint4(word_of(wide[0], wide[1]), word_of(wide[2], wide[3]), word_of(wide[4], wide[5]),
                      word_of(wide[6], wide[7]));
#else
    return make_uint4(__float_as_uint(wide[0]), __float_as_uint(wide[1]), __float_as_uint(wide[2]),
                      __float_as_uint(wide[3]));
#endif
}

// The sum of a value over the block, or its maximum, in every thread.
template <bool IS_MAXIMUM>
static __device__ __forceinline__ float over_block(float mine) {
    __shared__ float warps[32];
    for (int mask = warpSize / 2; mask > 0; mask /= 2) {
        const float other = gb_shuffle_xor(mine, mask);
        mine = IS_MAXIMUM ? fmaxf(mine, other) : mine + other;
    }
    __syncthreads();  // the array may still be read
    if (threadIdx.x % warpSize == 0) warps[threadIdx.x / warpSize] = mine;
    __syncthreads();
    float joined = warps[0];
    for (u32 warp = 1; warp < THREADS / warpSize; ++warp)
        joined = IS_MAXIMUM ? fmaxf(joined, warps[warp]) : joined + warps[warp];
    return joined;
}

static __device__ __forceinline__ float pointwise(float a, float b, float c) {
#if OPERATOR == 0
    const float y = a + b;
    return 0.5f * y * (1 + tanhf(0.7978845608f * (y + 0.044715f * y * y * y)));
#elif OPERATOR == 1
    return a / (1 + expf(-a)) * b;
#elif OPERATOR == 2
    return a * c * 1.25f + b;
#else
    const float s = a + b, t = a - b, u = s * t + 0.25f;
    return (u * 0.125f - s * 0.5f + t) * 0.5f - b * 0.125f + a;
#endif
}

// Pointwise: out = pointwise(a, b, c), where b is a vector of COLS for OPERATOR 0, and c is there for OPERATOR 2 alone.
extern "C" __global__ void __launch_bounds__(THREADS)
    elements(const uint4* __restrict__ a, const uint4* __restrict__ b, const uint4* __restrict__ c,
             uint4* __restrict__ out, u64 vectors) {
    for (u64 i = gb_thread(); i < vectors; i += gb_threads()) {
        float x[WIDE], y[WIDE], z[WIDE] = {};
        widen(gb_stream(a + i), x);
        widen(OPERATOR == 0 ? b[i % (COLS / WIDE)] : gb_stream(b + i), y);
        if (OPERATOR == 2) widen(gb_stream(c + i), z);
#pragma unroll
        for (int k = 0; k < WIDE; ++k) x[k] = pointwise(x[k], y[k], z[k]);
        out[i] = narrow(x);
    }
}

// A block for each row. OPERATOR 4 softmax, 5 rmsnorm, 6 layernorm, 7 residual_norm: a is the row, b what is added to it (7),
// weight and bias are vectors; `summed` is a + b (7).
extern "C" __global__ void __launch_bounds__(THREADS)
    rows(const uint4* __restrict__ a, const uint4* __restrict__ b, const uint4* __restrict__ weight,
         const uint4* __restrict__ bias, uint4* __restrict__ summed, uint4* __restrict__ out) {
    const u64 first = (u64)blockIdx.x * (COLS / WIDE);
    float row[VECTORS][WIDE];
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        const u32 at = v * THREADS + threadIdx.x;
        if (at < COLS / WIDE) widen(gb_stream(a + first + at), row[v]);
    }
#if OPERATOR == 7
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        const u32 at = v * THREADS + threadIdx.x;
        if (at < COLS / WIDE) {
            float other[WIDE];
            widen(gb_stream(b + first + at), other);
#pragma unroll
            for (int k = 0; k < WIDE; ++k) row[v][k] += other[k];
            summed[first + at] = narrow(row[v]);
        }
    }
#endif
    float mean = 0, joined = 0;
#if OPERATOR == 4
    float most = -1e30f;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        if (v * THREADS + threadIdx.x < COLS / WIDE)
#pragma unroll
            for (int k = 0; k < WIDE; ++k) most = fmaxf(most, row[v][k]);
    mean = over_block<true>(most);
#elif OPERATOR == 6
    float total = 0;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        if (v * THREADS + threadIdx.x < COLS / WIDE)
#pragma unroll
            for (int k = 0; k < WIDE; ++k) total += row[v][k];
    mean = over_block<false>(total) / COLS;
#endif
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        if (v * THREADS + threadIdx.x < COLS / WIDE)
#pragma unroll
            for (int k = 0; k < WIDE; ++k) {
                const float centred = row[v][k] - mean;
                row[v][k] = OPERATOR == 4 ? exp2f(1.44269504f * centred) : centred;
                joined += OPERATOR == 4 ? row[v][k] : centred * centred;
            }
    joined = over_block<false>(joined);
    const float scale = OPERATOR == 4 ? 1 / joined : 1 / sqrtf(joined / COLS + EPSILON);
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        const u32 at = v * THREADS + threadIdx.x;
        if (at < COLS / WIDE) {
            float factor[WIDE], more[WIDE];
            if (OPERATOR > 4) widen(weight[at], factor);
            if (OPERATOR == 6) widen(bias[at], more);
#pragma unroll
            for (int k = 0; k < WIDE; ++k) {
                row[v][k] *= OPERATOR > 4 ? scale * factor[k] : scale;
                if (OPERATOR == 6) row[v][k] += more[k];
            }
            out[first + at] = narrow(row[v]);
        }
    }
}
