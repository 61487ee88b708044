// Operators on matrices in one kernel each: every input is read once, every output written once. A thread holds its vectors
// of a row as they are stored, in registers, some of a long row in shared memory, and a row is reduced once.
//
//   OPERATOR  its number, as _by_nvrtc.py counts them    HALVES    1 for float16, 0 for float32
//   COLS      elements of a row                          THREADS   of a row; each has VECTORS vectors of 16 bytes of it
//   ROWS      of a block: several if THREADS is a warp   RESIDENT  blocks that a multiprocessor is to hold
//   HELD      vectors of a thread in registers           (these three for `rows` alone)
#ifndef ROWS
#define ROWS 1
#define HELD 1
#define RESIDENT 1
#endif
#define WIDE (HALVES ? 8 : 4)  // elements of a vector
#define VECTORS ((COLS + THREADS * WIDE - 1) / (THREADS * WIDE))
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

static __device__ __forceinline__ float pointwise(float a, float b, float c) {
#if OPERATOR == 0
    const float y = a + b;
    return y / (1 + exp2f(-2.302208198f * (y + 0.044715f * y * y * y)));  // (1 + tanh(z)) / 2 = 1 / (1 + e^(-2·z))
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

// What is known of some elements of a row: softmax has the largest x and the sum of e^(x - largest), layernorm the mean, the
// sum of squared differences from it and the number of elements, the other norms the sum of squares as `second`.
struct Part {
    float first, second, count;
};

static __device__ __forceinline__ Part merged(const Part& a, const Part& b) {
#if OPERATOR == 4
    const float most = fmaxf(a.first, b.first);
    return {most, a.second * exp2f(LOG2_E * (a.first - most)) + b.second * exp2f(LOG2_E * (b.first - most)), 0};
#elif OPERATOR == 6  // Chan, Golub & LeVeque, "Updating Formulae and a Pairwise Algorithm", 1979
    const float count = a.count + b.count, share = count > 0 ? b.count / count : 0, apart = b.first - a.first;
    return {a.first + apart * share, a.second + b.second + apart * apart * a.count * share, count};
#else
    return {0, a.second + b.second, 0};
#endif
}

static __device__ __forceinline__ Part merged_lanes(Part part, int lanes) {
    for (int mask = lanes / 2; mask > 0; mask /= 2) {
        Part other = {0, gb_shuffle_xor(part.second, mask), 0};
        if (OPERATOR == 4 || OPERATOR == 6) other.first = gb_shuffle_xor(part.first, mask);
        if (OPERATOR == 6) other.count = gb_shuffle_xor(part.count, mask);
        part = merged(part, other);
    }
    return part;
}

// The parts of all threads of a row in one, in each of them.
static __device__ __forceinline__ Part of_row(Part part) {
    part = merged_lanes(part, warpSize);
#if ROWS == 1
    __shared__ Part warps[32];
    if (threadIdx.x % warpSize == 0) warps[threadIdx.x / warpSize] = part;
    __syncthreads();
    part = merged_lanes(warps[threadIdx.x % warpSize % (THREADS / warpSize)], THREADS / warpSize);
#endif
    return part;
}

// The vectors of a row that a thread has: vector v stands at v·THREADS + lane.
struct Vectors {
    uint4 held[HELD];
    uint4* spare;  // of this thread: one in THREADS

    __device__ __forceinline__ uint4 at(int v) const { return v < HELD ? held[v < HELD ? v : 0] : spare[(v - HELD) * THREADS]; }
    __device__ __forceinline__ void put(int v, const uint4& vector) {
        if (v < HELD) held[v < HELD ? v : 0] = vector;
        else spare[(v - HELD) * THREADS] = vector;
    }
    // Lets the compiler forget what it has converted, which takes twice the registers; it cannot know that `zero` is 0.
    __device__ __forceinline__ void forget(u32 zero) {
#pragma unroll
        for (int v = 0; v < HELD; ++v)
            held[v] = make_uint4(held[v].x ^ zero, held[v].y ^ zero, held[v].z ^ zero, held[v].w ^ zero);
    }
};

// What a thread knows of its elements; a vector that is not in the row has no part in it.
static __device__ __forceinline__ Part part_of(Vectors& row, u32 lane) {
    Part part = {OPERATOR == 4 ? -1e30f : 0, 0, 0};
    float x[WIDE];
#if OPERATOR == 4 || OPERATOR == 6
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        if (v * THREADS + lane >= COLS / WIDE) break;
        widen(row.at(v), x);
        part.count += WIDE;
#pragma unroll
        for (int k = 0; k < WIDE; ++k) part.first = OPERATOR == 4 ? fmaxf(part.first, x[k]) : part.first + x[k];
    }
    if (OPERATOR == 6) part.first /= fmaxf(part.count, 1);
    if (HALVES) row.forget(part.first > 1e30f);
#endif
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        if (v * THREADS + lane >= COLS / WIDE) break;
        widen(row.at(v), x);
#pragma unroll
        for (int k = 0; k < WIDE; ++k) {
            const float apart = x[k] - part.first;
            part.second += OPERATOR == 4 ? exp2f(LOG2_E * apart) : apart * apart;
        }
    }
    return part;
}

extern __shared__ uint4 shared[];

// OPERATOR 4 softmax, 5 rmsnorm, 6 layernorm, 7 residual_norm: a is the matrix, b what is added to it (7), weight and bias
// are vectors; `summed` is a + b (7).
extern "C" __global__ void __launch_bounds__(THREADS * ROWS, RESIDENT)
    rows(const uint4* __restrict__ a, const uint4* __restrict__ b, const uint4* __restrict__ weight,
         const uint4* __restrict__ bias, uint4* __restrict__ summed, uint4* __restrict__ out) {
    const u32 lane = threadIdx.x % THREADS;
    const u64 first = ((u64)blockIdx.x * ROWS + threadIdx.x / THREADS) * (COLS / WIDE) + lane;
    Vectors row;
    row.spare = shared + lane;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        if (v * THREADS + lane < COLS / WIDE) row.put(v, gb_stream(a + first + v * THREADS));
#if OPERATOR == 7
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        if (v * THREADS + lane < COLS / WIDE) {
            float x[WIDE], other[WIDE];
            widen(gb_stream(b + first + v * THREADS), other);
            widen(row.at(v), x);
#pragma unroll
            for (int k = 0; k < WIDE; ++k) x[k] += other[k];
            row.put(v, narrow(x));
            summed[first + v * THREADS] = row.at(v);
        }
#endif
    const Part part = of_row(part_of(row, lane));
    if (HALVES) row.forget(__float_as_uint(part.second) >> 31);
    const float scale = OPERATOR == 4 ? 1 / part.second : 1 / sqrtf(part.second / COLS + EPSILON);
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        if (v * THREADS + lane < COLS / WIDE) {
            float x[WIDE], factor[WIDE], more[WIDE];
            widen(row.at(v), x);
            if (OPERATOR > 4) widen(weight[v * THREADS + lane], factor);
            if (OPERATOR == 6) widen(bias[v * THREADS + lane], more);
#pragma unroll
            for (int k = 0; k < WIDE; ++k) {
                const float apart = x[k] - part.first;
                x[k] = OPERATOR == 4 ? scale * exp2f(LOG2_E * apart) : scale * apart * factor[k];
                if (OPERATOR == 6) x[k] += more[k];
            }
            out[first + v * THREADS] = narrow(x);
        }
}
