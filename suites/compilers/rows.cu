// Operators on matrices in one kernel each: every input is read once, every output written once. A block takes a row, a
// thread holds its elements of a row in registers, and a row is reduced once.
//
//   OPERATOR  its number, as _by_nvrtc.py counts them    HALVES  1 for float16, 0 for float32
//   COLS      elements of a row                          THREADS of a block; each has VECTORS vectors of 16 bytes of a row
//   LANES     of a warp (for `rows` alone)
//
// Rows are loaded with high priority in the second-level cache (evict_last), all else with ordinary priority. On an H200
// that is 1 % faster with 1024 columns, 3 to 4 % with 4096, and between 2 % slower (layernorm) and 3 % faster with 32768.
// With low priority (no_allocate, cs) lines of earlier kernels stay in the cache: then a kernel takes 5 % longer, and at
// most 1.5 % less in a cache without such lines.
#ifndef LANES
#define LANES 32
#endif
#define WIDE (HALVES ? 8 : 4)  // elements of a vector
#define VECTORS ((COLS + THREADS * WIDE - 1) / (THREADS * WIDE))
#define IS_FULL (COLS % (THREADS * WIDE) == 0)  // every thread has as many elements
#define IS_INSIDE(v) (IS_FULL || (v) * THREADS + threadIdx.x < COLS / WIDE)  // whether a thread has its vector v
#define EPSILON 1e-5f
#define LOG2_E 1.44269504f

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

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
static __device__ __forceinline__ u32 word_of(float low, float high) {
    u32 word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}
#else
static __device__ __forceinline__ u32 word_of(float low, float high) {
    return (u32)gb_to_half(low) | (u32)gb_to_half(high) << 16;
}
#endif

// The vector at `from`, with high priority in the second-level cache.
static __device__ __forceinline__ uint4 fetch_to_keep(const uint4* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    u64 policy;
    uint4 v;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from), "l"(policy));
    return v;
#else
    return gb_fetch(from);
#endif
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

// 2^x, 1 / x and 1 / √x in one instruction each, within 2^-22 of them: exact division takes a branch for every element.
#ifdef __CUDA_ARCH__
#define APPROXIMATE(NAME, INSTRUCTION, EXACT)                          \
    static __device__ __forceinline__ float NAME(float x) {            \
        float found;                                                   \
        asm(INSTRUCTION ".approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x)); \
        return found;                                                  \
    }
#else
#define APPROXIMATE(NAME, INSTRUCTION, EXACT) \
    static __device__ __forceinline__ float NAME(float x) { return EXACT; }
#endif
APPROXIMATE(power_of_two, "ex2", exp2f(x))
APPROXIMATE(inverse, "rcp", 1 / x)
APPROXIMATE(inverse_root, "rsqrt", 1 / sqrtf(x))

static __device__ __forceinline__ float pointwise(float a, float b, float c) {
#if OPERATOR == 0
    const float y = a + b;
    const float z = 2 * LOG2_E * 0.7978845608f * (y + 0.044715f * y * y * y);
    return y * inverse(1 + power_of_two(-z));  // (1 + tanh(z)) / 2 = 1 / (1 + e^(-2·z))
#elif OPERATOR == 1
    return a * inverse(1 + power_of_two(-LOG2_E * a)) * b;
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
    const u64 i = gb_thread();
    if (i >= vectors) return;
    float x[WIDE], y[WIDE], z[WIDE] = {};
    widen(gb_fetch(a + i), x);
    widen(gb_fetch(b + (OPERATOR == 0 ? i % (COLS / WIDE) : i)), y);
    if (OPERATOR == 2) widen(gb_fetch(c + i), z);
#pragma unroll
    for (int k = 0; k < WIDE; ++k) x[k] = pointwise(x[k], y[k], z[k]);
    out[i] = narrow(x);
}

static __device__ __forceinline__ float power_of(float x, float from) { return power_of_two(LOG2_E * (x - from)); }  // of e

// What is known of some elements of a row: softmax has the largest x and the sum of e^(x - largest), layernorm the mean, the
// sum of squared differences from it and the number of elements, the other norms the sum of squares as `second`.
struct Part {
    float first, second, count;
};

static __device__ __forceinline__ float sum_of(float mine, int lanes) {
#pragma unroll
    for (int mask = lanes / 2; mask > 0; mask /= 2) mine += gb_shuffle_xor(mine, mask);
    return mine;
}

static __device__ __forceinline__ float most_of(float mine, int lanes) {
#pragma unroll
    for (int mask = lanes / 2; mask > 0; mask /= 2) mine = fmaxf(mine, gb_shuffle_xor(mine, mask));
    return mine;
}

// The parts of so many lanes in one, in each of them; `each` is how many elements a full one has.
static __device__ __forceinline__ Part merged(Part part, int lanes, float each) {
#if OPERATOR == 4
    const float mine = part.first;
    part.first = most_of(mine, lanes);
    part.second *= power_of(mine, part.first);
#elif OPERATOR == 6  // Chan, Golub & LeVeque, "Updating Formulae and a Pairwise Algorithm", 1979
    const float mine = part.first, count = IS_FULL ? each : part.count, sum = sum_of(count * mine, lanes);
    part.count = IS_FULL ? each * lanes : sum_of(count, lanes);
    part.first = sum / fmaxf(part.count, 1);
    part.second += count * (mine - part.first) * (mine - part.first);
#endif
    part.second = sum_of(part.second, lanes);
    return part;
}

// The parts of all threads of a block in one, in each of them.
static __device__ __forceinline__ Part of_row(Part part) {
    __shared__ Part warps[32];
    part = merged(part, LANES, COLS / THREADS);
    if (threadIdx.x % LANES == 0) warps[threadIdx.x / LANES] = part;
    __syncthreads();
    return merged(warps[threadIdx.x % LANES % (THREADS / LANES)], THREADS / LANES, COLS / THREADS * LANES);
}

// The elements of the row that the thread still needs after the reduction: in float32 those that were computed (softmax's
// powers, the sums of residual_norm), else as they were loaded, which takes half the registers for halves.
#if OPERATOR == 4 || OPERATOR == 7
#define ELEMENTS(v, x) float(&x)[WIDE] = wide[v]
#else
#define ELEMENTS(v, x) \
    float x[WIDE];     \
    widen(row[v], x)
#endif
#define IS_EARLY ((OPERATOR == 5 || OPERATOR == 7) && VECTORS <= 4)  // weights are loaded before the reduction

// A block for each row. OPERATOR 4 softmax, 5 rmsnorm, 6 layernorm, 7 residual_norm: a is the matrix, b what is added to
// it (7), weight and bias are vectors; `summed` is a + b (7). With the 1, the least number of blocks that share an SM, a
// thread may have all the registers of early weights; without it the compiler loads them after the reduction after all.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    rows(const uint4* __restrict__ a, const uint4* __restrict__ b, const uint4* __restrict__ weight,
         const uint4* __restrict__ bias, uint4* __restrict__ summed, uint4* __restrict__ out) {
    const u64 first = (u64)blockIdx.x * (COLS / WIDE) + threadIdx.x;
    uint4 row[VECTORS], others[VECTORS], weights[VECTORS];
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        if (IS_INSIDE(v)) row[v] = fetch_to_keep(a + first + v * THREADS);
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        if (IS_INSIDE(v)) {
            if (OPERATOR == 7) others[v] = fetch_to_keep(b + first + v * THREADS);
            if (IS_EARLY) weights[v] = gb_fetch(weight + v * THREADS + threadIdx.x);
        }
#if OPERATOR == 4 || OPERATOR == 7
    float wide[VECTORS][WIDE];
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        if (IS_INSIDE(v)) {
            widen(row[v], wide[v]);
            if (OPERATOR == 4) continue;
            float other[WIDE];
            widen(others[v], other);
#pragma unroll
            for (int k = 0; k < WIDE; ++k) wide[v][k] += other[k];
            summed[first + v * THREADS] = narrow(wide[v]);
        }
#endif
    Part own = {OPERATOR == 4 ? -1e30f : 0, 0, 0};
#if OPERATOR == 4 || OPERATOR == 6
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        if (IS_INSIDE(v)) {
            ELEMENTS(v, x);
            own.count += WIDE;
#pragma unroll
            for (int k = 0; k < WIDE; ++k) own.first = OPERATOR == 4 ? fmaxf(own.first, x[k]) : own.first + x[k];
        }
    if (OPERATOR == 6) own.first /= fmaxf(own.count, 1);
#endif
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        if (IS_INSIDE(v)) {
            ELEMENTS(v, x);
#pragma unroll
            for (int k = 0; k < WIDE; ++k) {
                if (OPERATOR == 4) x[k] = power_of(x[k], own.first);
                const float apart = x[k] - own.first;
                own.second += OPERATOR == 4 ? x[k] : apart * apart;
            }
        }
    const Part part = of_row(own);
    // softmax has the powers that belong to the thread's own largest element
    const float scale = OPERATOR == 4 ? power_of(own.first, part.first) * inverse(part.second)
                                      : inverse_root(part.second / COLS + EPSILON);
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        if (IS_INSIDE(v)) {
            ELEMENTS(v, x);
            float factor[WIDE], more[WIDE];
            if (OPERATOR > 4) widen(IS_EARLY ? weights[v] : gb_fetch(weight + v * THREADS + threadIdx.x), factor);
            if (OPERATOR == 6) widen(gb_fetch(bias + v * THREADS + threadIdx.x), more);
#pragma unroll
            for (int k = 0; k < WIDE; ++k) {
                if (OPERATOR == 4) x[k] *= scale;
                else if (OPERATOR == 6) x[k] = fmaf(fmaf(x[k], scale, -part.first * scale), factor[k], more[k]);
                else x[k] *= scale * factor[k];
            }
            out[first + v * THREADS] = narrow(x);
        }
}
