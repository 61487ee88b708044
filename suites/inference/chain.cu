// Operations of a language model between its products with weights: embedding, norms, the rotary embedding of a prompt,
// the gate of the feed-forward network, and the most likely token. Products and attention have kernels of their own;
// attention.cu contains the rotary embedding and the KV append of a step.
//
// The residual stream is in floats. Inputs and outputs of products and attention are in halves, row by row. The kernels
// of a step may be launched early: each waits for the previous launch, and outputs of other kernels are not
// `__restrict__`.
#define THREADS 256       // threads of most blocks
#define NORM_THREADS 1024  // most threads of a block that computes a norm
#ifndef CENTRED
#define CENTRED 0  // 1 if norms first subtract the mean and finally add shifts
#endif
#ifndef VECTORS
#define VECTORS 0  // vectors of eight scores of a row that a thread of a softmax holds; 0 for rows of any length
#endif
#ifndef EVERY
#define EVERY 0  // 1 if each row of scores counts as a whole: no mask
#endif
#ifndef HELD
#define HELD 1  // groups of four elements of a row that a thread of a norm holds
#endif

static __device__ __forceinline__ float half_of(unsigned short bits) {
    float value, unused;
    gb_halves(bits, value, unused);
    return value;
}

static __device__ __forceinline__ u32 pair_of(float low, float high) {
    return gb_to_half(low) | (u32)gb_to_half(high) << 16;
}

// Returns the sum over the block in every thread. Each NUMBER may be used once per kernel.
template <int NUMBER>
static __device__ __forceinline__ float block_sum(float mine) {
    __shared__ float warps[32];
    for (int mask = warpSize / 2; mask > 0; mask /= 2) mine += gb_shuffle_xor(mine, mask);
    if (threadIdx.x % warpSize == 0) warps[threadIdx.x / warpSize] = mine;
    __syncthreads();
    float sum = 0;
    for (u32 warp = 0; warp < blockDim.x / warpSize; ++warp) sum += warps[warp];
    return sum;
}

// Returns the maximum over the block of THREADS threads, in every thread.
static __device__ __forceinline__ float block_most(float mine) {
    __shared__ float warps[THREADS / 32];
    for (int mask = warpSize / 2; mask > 0; mask /= 2) {
        const float other = gb_shuffle_xor(mine, mask);
        mine = other > mine ? other : mine;
    }
    if (threadIdx.x % warpSize == 0) warps[threadIdx.x / warpSize] = mine;
    __syncthreads();
    for (u32 warp = 0; warp < THREADS / warpSize; ++warp) mine = warps[warp] > mine ? warps[warp] : mine;
    return mine;
}

// Numbers of e4m3 and their scales, column after column: the scale is `one`, or if it is 0 one for each 128 elements of a
// row, whose largest element then becomes 448.
struct Eight {
    u32* codes;
    float *scales, one;
};

#if !GB_HIP && (__CUDA_ARCH__ >= 890 || !defined(__CUDACC_RTC__))
#define HAS_EIGHT 1
#else
#define HAS_EIGHT 0
#endif
// Writes COUNT elements, the ones from element COUNT·at on, of which 128/COUNT lanes of a warp have the same scale.
template <int COUNT>
static __device__ __forceinline__ void write_eight(const float (&v)[COUNT], const Eight& to, u32 at, u32 rows, u32 groups) {
#if HAS_EIGHT
    float scale = to.one;
    if (scale == 0) {
        float most = 0;
        for (int e = 0; e < COUNT; ++e) most = fmaxf(most, fabsf(v[e]));
        for (int mask = 64 / COUNT; mask > 0; mask /= 2) most = fmaxf(most, gb_shuffle_xor(most, mask));
        scale = fmaxf(most / 448, 1e-12f);
        const u32 group = at / (128 / COUNT);
        if (at % (128 / COUNT) == 0) to.scales[group % groups * rows + group / groups] = scale;
    }
    for (int e = 0; e < COUNT; e += 4)
        to.codes[(u64)at * (COUNT / 4) + e / 4] =
            gb_to_e4m3(v[e] / scale, v[e + 1] / scale) | gb_to_e4m3(v[e + 2] / scale, v[e + 3] / scale) << 16;
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS)
    embed(const unsigned short* __restrict__ table, const u32* __restrict__ tokens, float* __restrict__ x, u32 hidden) {
    gb_allow_next();
    const u64 row = (u64)blockIdx.x * hidden, from = (u64)tokens[blockIdx.x] * hidden;
    for (u32 i = threadIdx.x; i < hidden; i += THREADS) x[row + i] = half_of(table[from + i]);
}

static __device__ __forceinline__ float float_of(u32 bits) { return __uint_as_float(bits); }

// Adds y to x unless `adds` is 0. Then writes x divided by its root mean square, times the factors; with CENTRED, it
// subtracts the mean first and adds the shifts. One block per row, whose threads hold HELD times four elements each;
// `hidden` is a multiple of four.
extern "C" __global__ void __launch_bounds__(NORM_THREADS)
    add_norm(uint4* x, const uint2* y, const uint4* __restrict__ factors, const uint4* __restrict__ shifts, uint2* out,
             u32 hidden, u32 adds, u32* codes, float* scales, float one) {
    const u32 count = hidden / 4;
    const u64 row = (u64)blockIdx.x * count;
    uint4 factor[HELD], shift[HELD];
    float value[HELD][4], sum = 0, squares = 0;
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
        const u32 i = threadIdx.x + k * blockDim.x;
        if (i >= count) continue;
        factor[k] = gb_word(factors + i);
        shift[k] = CENTRED ? gb_word(shifts + i) : make_uint4(0, 0, 0, 0);
    }
    gb_allow_next();
    gb_wait_for_previous();
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
        const u32 i = threadIdx.x + k * blockDim.x;
        if (i >= count) continue;
        const uint4 before = gb_word(x + row + i);
        const uint2 more = adds ? gb_word(y + row + i) : make_uint2(0, 0);
        float added[4];
        gb_halves(more.x, added[0], added[1]);
        gb_halves(more.y, added[2], added[3]);
        value[k][0] = float_of(before.x) + added[0];
        value[k][1] = float_of(before.y) + added[1];
        value[k][2] = float_of(before.z) + added[2];
        value[k][3] = float_of(before.w) + added[3];
#pragma unroll
        for (int e = 0; e < 4; ++e) sum += value[k][e];
    }
    const float mean = CENTRED ? block_sum<0>(sum) / hidden : 0;
#pragma unroll
    for (int k = 0; k < HELD; ++k)
#pragma unroll
        for (int e = 0; e < 4; ++e)
            if (threadIdx.x + k * blockDim.x < count) squares += (value[k][e] - mean) * (value[k][e] - mean);
    const float scale = 1 / sqrtf(block_sum<1>(squares) / hidden + 1e-5f);
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
        const u32 i = threadIdx.x + k * blockDim.x;
        if (i >= count) continue;
        const float* v = value[k];
        x[row + i] = make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3]));
        const uint4 by = factor[k], plus = shift[k];
        const float normed[4] = {
            (v[0] - mean) * scale * float_of(by.x) + float_of(plus.x), (v[1] - mean) * scale * float_of(by.y) + float_of(plus.y),
            (v[2] - mean) * scale * float_of(by.z) + float_of(plus.z), (v[3] - mean) * scale * float_of(by.w) + float_of(plus.w)};
        if (codes)
            write_eight(normed, {codes, scales, one}, (u32)row + i, gridDim.x, count / 32);
        else
            out[row + i] = make_uint2(pair_of(normed[0], normed[1]), pair_of(normed[2], normed[3]));
    }
}

// Rotates the elements i and i + dim/2 of each query and key of a prompt by the angle of the token's position, whose
// cosine and sine are in `turns`; multiplies queries by `scale`; copies values. One block per token, in vectors of eight
// elements, which `dim` counts too. Queries, keys and values are [head][token][dim].
extern "C" __global__ void __launch_bounds__(THREADS)
    rotary(const uint4* qkv, const uint4* __restrict__ turns, uint4* queries, uint4* keys, uint4* values, u32 heads,
           u32 kv_heads, u32 dim, float scale) {
    gb_allow_next();
    gb_wait_for_previous();
    const u32 half = dim / 2, place = blockIdx.x;
    const uint4* from = qkv + (u64)place * (heads + 2 * kv_heads) * dim;
    for (u32 i = threadIdx.x; i < (heads + kv_heads) * half; i += THREADS) {
        const u32 head = i / half, e = i % half;
        const uint4 near = gb_word(from + head * dim + e), far = gb_word(from + head * dim + half + e);
        const u32 first[4] = {near.x, near.y, near.z, near.w}, second[4] = {far.x, far.y, far.z, far.w};
        const float factor = head < heads ? scale : 1;
        u32 low[4], high[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const uint4 turn = gb_word(turns + 4 * ((u64)place * half + e) + k);
            float a, b, c, d;
            gb_halves(first[k], a, b);
            gb_halves(second[k], c, d);
            const float cosine = factor * float_of(turn.x), sine = factor * float_of(turn.y);
            const float cosine2 = factor * float_of(turn.z), sine2 = factor * float_of(turn.w);
            low[k] = pair_of(a * cosine - c * sine, b * cosine2 - d * sine2);
            high[k] = pair_of(c * cosine + a * sine, d * cosine2 + b * sine2);
        }
        uint4* to = (head < heads ? queries + (u64)head * gridDim.x * dim : keys + (u64)(head - heads) * gridDim.x * dim);
        to[place * dim + e] = make_uint4(low[0], low[1], low[2], low[3]);
        to[place * dim + half + e] = make_uint4(high[0], high[1], high[2], high[3]);
    }
    for (u32 i = threadIdx.x; i < kv_heads * dim; i += THREADS)
        values[((u64)(i / dim) * gridDim.x + place) * dim + i % dim] = gb_word(from + (heads + kv_heads) * dim + i);
}

// Turns rows of scores, which are exponents of two, into shares of 1. Row r belongs to token r % tokens, which attends
// to the tokens up to itself, or with EVERY to all of a row. One block per row, whose threads hold VECTORS times eight scores. Without VECTORS a row
// may have any length, and is read three times.
extern "C" __global__ void __launch_bounds__(THREADS)
    causal_softmax(unsigned short* __restrict__ scores, u32 tokens) {
    const u32 count = EVERY ? tokens : blockIdx.x % tokens + 1;
    unsigned short* row = scores + (u64)blockIdx.x * tokens;
    float most = -1e30f, sum = 0;
#if VECTORS
    uint4* vectors = (uint4*)row;
    float held[VECTORS][8];
#pragma unroll
    for (int k = 0; k < VECTORS; ++k) {
        const u32 i = threadIdx.x + k * THREADS;
        uint4 word = make_uint4(0, 0, 0, 0);
        if (8 * i < count) word = gb_word(vectors + i);
        gb_halves(word.x, held[k][0], held[k][1]);
        gb_halves(word.y, held[k][2], held[k][3]);
        gb_halves(word.z, held[k][4], held[k][5]);
        gb_halves(word.w, held[k][6], held[k][7]);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            if (8 * i + e >= count) held[k][e] = -1e30f;
            most = held[k][e] > most ? held[k][e] : most;
        }
    }
    most = block_most(most);
#pragma unroll
    for (int k = 0; k < VECTORS; ++k)
#pragma unroll
        for (int e = 0; e < 8; ++e) sum += held[k][e] = exp2f(held[k][e] - most);
    const float scale = 1 / block_sum<0>(sum);
#pragma unroll
    for (int k = 0; k < VECTORS; ++k) {
        const u32 i = threadIdx.x + k * THREADS;
        const float* of = held[k];
        if (8 * i < tokens)
            vectors[i] = make_uint4(pair_of(of[0] * scale, of[1] * scale), pair_of(of[2] * scale, of[3] * scale),
                                    pair_of(of[4] * scale, of[5] * scale), pair_of(of[6] * scale, of[7] * scale));
    }
#else
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
        const float score = half_of(row[i]);
        most = score > most ? score : most;
    }
    most = block_most(most);
    for (u32 i = threadIdx.x; i < count; i += THREADS) sum += exp2f(half_of(row[i]) - most);
    const float scale = 1 / block_sum<0>(sum);
    for (u32 i = threadIdx.x; i < tokens; i += THREADS)
        row[i] = i < count ? gb_to_half(exp2f(half_of(row[i]) - most) * scale) : 0;
#endif
}

// Transposes [head][token][dim] to [token][head][dim]; `dim` counts vectors of eight. One block per token.
extern "C" __global__ void __launch_bounds__(THREADS)
    join_heads(const uint4* __restrict__ from, uint4* __restrict__ out, u32 heads, u32 dim) {
    for (u32 i = threadIdx.x; i < heads * dim; i += THREADS)
        out[(u64)blockIdx.x * heads * dim + i] = gb_word(from + ((u64)(i / dim) * gridDim.x + blockIdx.x) * dim + i % dim);
}

// Computes silu(gate)·up, eight elements per thread. A row of `both` has the gates of `inner` elements, then the values
// that they are applied to; `count` and `inner` count vectors of eight. With `codes` the results are numbers of e4m3.
extern "C" __global__ void __launch_bounds__(THREADS)
    gate(const uint4* both, uint4* out, u32 count, u32 inner, u32* codes, float* scales, float one) {
    gb_allow_next();
    gb_wait_for_previous();
    const u32 i = blockIdx.x * THREADS + threadIdx.x, at = i / inner * 2 * inner + i % inner;
    if (i >= count) return;
    const uint4 gates = gb_word(both + at), ups = gb_word(both + at + inner);
    const u32 first[4] = {gates.x, gates.y, gates.z, gates.w}, second[4] = {ups.x, ups.y, ups.z, ups.w};
    float gated[8];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        float a, b, low, high;
        gb_halves(first[k], a, b);
        gb_halves(second[k], low, high);
        gated[2 * k] = gb_gated(a, low), gated[2 * k + 1] = gb_gated(b, high);
    }
    if (codes)
        write_eight(gated, {codes, scales, one}, i, count / inner, inner / 16);
    else
        out[i] = make_uint4(pair_of(gated[0], gated[1]), pair_of(gated[2], gated[3]), pair_of(gated[4], gated[5]),
                            pair_of(gated[6], gated[7]));
}

// GELU by its approximation with a hyperbolic tangent: x/2·(1 + tanh z) = x·(1 − 1/(1 + exp 2z)).
static __device__ __forceinline__ float gelu_of(float x) {
    return x - x / (1 + expf(2 * 0.7978845608f * (x + 0.044715f * x * x * x)));
}

static __device__ __forceinline__ u32 gelus(u32 word) {
    float low, high;
    gb_halves(word, low, high);
    return pair_of(gelu_of(low), gelu_of(high));
}

// Computes GELU of eight elements per thread, for models without a gate; `count` counts vectors of eight.
extern "C" __global__ void __launch_bounds__(THREADS) gelu(const uint4* in, uint4* out, u32 count) {
    gb_allow_next();
    gb_wait_for_previous();
    const u32 i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const uint4 word = gb_word(in + i);
    out[i] = make_uint4(gelus(word.x), gelus(word.y), gelus(word.z), gelus(word.w));
}

// Returns a logit and its index as a number that grows with the logit; of equal logits, the first gives the largest
// number.
static __device__ __forceinline__ u64 ranked(unsigned short logit, u32 place) {
    const u32 bits = logit == 0x8000u ? 0 : logit;  // both zeros are equal
    const u32 ordered = bits & 0x8000u ? 0xffffu - bits : bits + 0x8000u;
    return (u64)ordered << 32 | (0xffffffffu - place);
}

// Returns the largest number over the block of THREADS threads, in every thread.
static __device__ __forceinline__ u64 block_largest(u64 mine) {
    __shared__ u64 warps[THREADS / 32];
    for (int mask = warpSize / 2; mask > 0; mask /= 2) {
        const u64 other = gb_shuffle_xor(mine, mask);
        mine = other > mine ? other : mine;
    }
    __syncthreads();  // separates these writes from the reads of an earlier call
    if (threadIdx.x % warpSize == 0) warps[threadIdx.x / warpSize] = mine;
    __syncthreads();
    for (u32 warp = 0; warp < THREADS / warpSize; ++warp) mine = warps[warp] > mine ? warps[warp] : mine;
    return mine;
}

// Writes the index of the largest logit of each row, the first one of equal logits. gridDim.x blocks share a row. The
// last block to arrive compares their results in `parts`.
extern "C" __global__ void __launch_bounds__(THREADS)
    most_likely(const unsigned short* logits, u32* tokens, u32 vocabulary, u64* parts, u32* arrived) {
    gb_allow_next();
    gb_wait_for_previous();
    u64 most = 0;
    for (u32 i = blockIdx.x * THREADS + threadIdx.x; i < vocabulary; i += gridDim.x * THREADS) {
        const u64 rank = ranked(logits[(u64)blockIdx.y * vocabulary + i], i);
        most = rank > most ? rank : most;
    }
    most = block_largest(most);
    if (threadIdx.x == 0) parts[blockIdx.y * gridDim.x + blockIdx.x] = most;
    if (!gb_is_last(arrived + blockIdx.y, gridDim.x)) return;
    most = 0;
    for (u32 i = threadIdx.x; i < gridDim.x; i += THREADS) {
        const u64 part = gb_load_l2(parts + blockIdx.y * gridDim.x + i);
        most = part > most ? part : most;
    }
    most = block_largest(most);
    if (threadIdx.x == 0) tokens[blockIdx.y] = 0xffffffffu - (u32)most;
}

#if HAS_EIGHT
// Writes halves as numbers of e4m3, a warp for each 128 elements.
extern "C" __global__ void __launch_bounds__(THREADS)
    to_eight(const uint2* x, u32* codes, float* scales, u32 rows, u32 groups, float scale) {
    gb_allow_next();
    gb_wait_for_previous();
    const u32 at = blockIdx.x * THREADS + threadIdx.x;
    if (at >= rows * groups * 32) return;
    const uint2 four = gb_word(x + at);
    float v[4];
    gb_halves(four.x, v[0], v[1]);
    gb_halves(four.y, v[2], v[3]);
    write_eight(v, {codes, scales, scale}, at, rows, groups);
}
#endif
