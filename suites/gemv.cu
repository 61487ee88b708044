// y = W·x. W has `rows` × `cols` elements, stored row by row in one of five formats (WEIGHTS):
//   0 float32   1 float16   2 bfloat16   x and y have the format of the weights
//   3 int8      4 int4                   x and y are float16
// An int8 weight is stored as the byte q + 128. A word contains eight int4 weights, stored as q + 8: counted from the
// lowest bit, nibbles 0 to 3 are elements 0, 2, 4 and 6, and nibbles 4 to 7 are elements 1, 3, 5 and 7. Each weight is
// multiplied by a float16 scale; 128 elements of a row share one. `cols` is a multiple of 128.
//
// TEAM threads compute SHARE rows at once, each with AHEAD vectors of 16 bytes of every row in flight, and then
// continue with rows that lie one grid further on. They load the first vectors of those before the current sums are
// complete. With GATED, W has 2·`rows` rows, and y[r] is gb_gated of rows r (the gate) and `rows` + r.
#define THREADS 256
#ifndef GATED
#define GATED 0
#endif
#define OUTPUTS (SHARE / (1 + GATED))  // elements of y that a team computes
#define GROUP 128
#define LANES (GB_HIP ? 64 : 32)  // lanes of a warp

#define ZERO 0u  // a word of which all weights are zero
#if WEIGHTS == 0
#define PER_VECTOR 4  // weights in 16 bytes
#define X_VECTORS 1   // vectors of x that are multiplied with one vector of weights
typedef float Out;
#elif WEIGHTS == 1 || WEIGHTS == 2
#define PER_VECTOR 8
#define X_VECTORS 1
typedef unsigned short Out;
#elif WEIGHTS == 3
#undef ZERO
#define ZERO 0x80808080u
#define PER_VECTOR 16
#define X_VECTORS 2
typedef unsigned short Out;
#else
#undef ZERO
#define ZERO 0x88888888u
#define PER_VECTOR 32
#define X_VECTORS 4
typedef unsigned short Out;
#endif

static __device__ __forceinline__ u32 word_of(const uint4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

static __device__ __forceinline__ void pair_of(u32 word, float& low, float& high) {
#if WEIGHTS == 2
    low = __uint_as_float(word << 16);
    high = __uint_as_float(word & 0xffff0000u);
#else
    gb_halves(word, low, high);
#endif
}

// An unsigned integer below 2^23 in the fraction bits of the float 2^23 gives the float 2^23 plus the integer.
static __device__ __forceinline__ float weight_of(u32 bits, int offset) {
    return __uint_as_float(0x4b000000u | bits) - (8388608.0f + offset);
}

static __device__ __forceinline__ float dot(const uint4& w, const float* x) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const u32 word = word_of(w, i);
#if WEIGHTS == 0
        sum += __uint_as_float(word) * x[i];
#elif WEIGHTS == 1 || WEIGHTS == 2
        float low, high;
        pair_of(word, low, high);
        sum += low * x[2 * i] + high * x[2 * i + 1];
#elif WEIGHTS == 3
#pragma unroll
        for (int k = 0; k < 4; ++k) sum += weight_of(word >> (8 * k) & 255u, 128) * x[4 * i + k];
#else
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            sum += weight_of(word >> (4 * k) & 15u, 8) * x[8 * i + 2 * k];
            sum += weight_of(word >> (16 + 4 * k) & 15u, 8) * x[8 * i + 2 * k + 1];
        }
#endif
    }
    return sum;
}

static __device__ __forceinline__ void widen(const uint4* x, float* wide) {
#pragma unroll
    for (int v = 0; v < X_VECTORS; ++v) {
        const uint4 part = x[v];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#if WEIGHTS == 0
            wide[i] = __uint_as_float(word_of(part, i));
#else
            pair_of(word_of(part, i), wide[8 * v + 2 * i], wide[8 * v + 2 * i + 1]);
#endif
        }
    }
}

static __device__ __forceinline__ Out narrow(float value) {
#if WEIGHTS == 0
    return value;
#elif WEIGHTS == 2
    const u32 bits = __float_as_uint(value);
    return (Out)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
#else
    return gb_to_half(value);
#endif
}

// Returns the sums over a team, valid in its first thread only; `turn` alternates from call to call.
static __device__ __forceinline__ void fold(float (&sum)[SHARE], u32 turn) {
#pragma unroll
    for (int r = 0; r < SHARE; ++r)
#pragma unroll
        for (int lane = (TEAM < LANES ? TEAM : LANES) / 2; lane > 0; lane /= 2) sum[r] += gb_shuffle_xor(sum[r], lane);
#if TEAM > 32
    __shared__ float warps[2][SHARE][THREADS / LANES];
    if (threadIdx.x % LANES == 0)
#pragma unroll
        for (int r = 0; r < SHARE; ++r) warps[turn][r][threadIdx.x / LANES] = sum[r];
    __syncthreads();  // the barrier of the next call separates its writes from these reads
    if (threadIdx.x % TEAM == 0)
#pragma unroll
        for (int r = 0; r < SHARE; ++r)
#pragma unroll
            for (int warp = 1; warp < TEAM / LANES; ++warp) sum[r] += warps[turn][r][threadIdx.x / LANES + warp];
#endif
}

// The rows of W for the elements of y from `first` on; rows beyond the last one are replaced by it.
static __device__ __forceinline__ u32 row_of(u32 first, int r, u32 rows) {
    const u32 row = first + r % OUTPUTS;
    return (row < rows ? row : rows - 1) + r / OUTPUTS * rows;
}

// Loads one vector of each row, all at the same offset from vector `at` of W; beyond the end of a row the weights are
// zero.
static __device__ __forceinline__ void take(uint4 (&raw)[SHARE], const uint4* w, const u64 (&at)[SHARE], u32 v,
                                            u32 vectors) {
#pragma unroll
    for (int r = 0; r < SHARE; ++r) {
        raw[r] = make_uint4(ZERO, ZERO, ZERO, ZERO);
        if (v < vectors) raw[r] = gb_stream(w + at[r] + v);
    }
}

// The previous launch may write x, so this kernel loads its first weights before it waits for that launch.
extern "C" __global__ void __launch_bounds__(THREADS)
    gemv(const uint4* __restrict__ w, const unsigned short* __restrict__ scales, const uint4* x, Out* y, u32 rows,
         u32 cols) {
    const u32 lane = threadIdx.x % TEAM, vectors = cols / PER_VECTOR, block_rows = THREADS / TEAM * OUTPUTS;
    const u32 offset = threadIdx.x / TEAM * OUTPUTS, apart = gridDim.x * block_rows;
    u64 at[SHARE], next[SHARE];
    uint4 raw[AHEAD][SHARE];
#pragma unroll
    for (int r = 0; r < SHARE; ++r) next[r] = (u64)row_of(blockIdx.x * block_rows + offset, r, rows) * vectors;
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) take(raw[k], w, next, lane + k * TEAM, vectors);
    gb_allow_next();
    gb_wait_for_previous();
    u32 turn = 0;
    for (u32 start = blockIdx.x * block_rows; start < rows; start += apart, turn ^= 1) {
        // Number of vectors in the next rows.
        const u32 first = start + offset, further = start + apart < rows ? vectors : 0;
        float sum[SHARE];
#pragma unroll
        for (int r = 0; r < SHARE; ++r) {
            at[r] = next[r], sum[r] = 0;
            next[r] = (u64)row_of(first + apart, r, rows) * vectors;
        }
        for (u32 begin = 0; begin < vectors; begin += TEAM * AHEAD) {
            const u32 after = begin + TEAM * AHEAD;
#pragma unroll
            for (int k = 0; k < AHEAD; ++k) {
                const u32 v = lane + k * TEAM, place = begin + v < vectors ? begin + v : vectors - 1;
                float wide[X_VECTORS * (WEIGHTS == 0 ? 4 : 8)];
                widen(x + (u64)place * X_VECTORS, wide);
#pragma unroll
                for (int r = 0; r < SHARE; ++r) {
#if WEIGHTS >= 3
                    float scale, unused;
                    const u64 group = (u64)row_of(first, r, rows) * (cols / GROUP) + place / (GROUP / PER_VECTOR);
                    gb_halves(scales[group], scale, unused);
                    sum[r] += scale * dot(raw[k][r], wide);
#else
                    sum[r] += dot(raw[k][r], wide);
#endif
                }
                if (after < vectors) take(raw[k], w, at, after + v, vectors);
                else take(raw[k], w, next, v, further);
            }
        }
        fold(sum, turn);
#pragma unroll
        for (int r = 0; r < OUTPUTS; ++r) {
            const float total = GATED ? gb_gated(sum[r], sum[r + GATED * OUTPUTS]) : sum[r];
            if (lane == 0 && first + r < rows) y[first + r] = narrow(total);
        }
    }
}
