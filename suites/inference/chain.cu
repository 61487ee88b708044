// What a language model computes between its products with weights: embedding, norms, rotary embedding and KV append, the
// gate of the feed-forward network, and the most likely token. Products and attention have kernels of their own.
//
// The residual stream is in floats; what products and attention read and write is in halves, row by row.
#define THREADS 256  // of a block, where a block has a row

static __device__ __forceinline__ float half_of(unsigned short bits) {
    float value, unused;
    gb_halves(bits, value, unused);
    return value;
}

// The sum over the block, in every thread.
static __device__ __forceinline__ float block_sum(float mine) {
    __shared__ float warps[THREADS / 32];
    for (int mask = warpSize / 2; mask > 0; mask /= 2) mine += gb_shuffle_xor(mine, mask);
    if (threadIdx.x % warpSize == 0) warps[threadIdx.x / warpSize] = mine;
    __syncthreads();
    float sum = 0;
    for (u32 warp = 0; warp < THREADS / warpSize; ++warp) sum += warps[warp];
    return sum;
}

// The maximum over the block, in every thread.
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

extern "C" __global__ void __launch_bounds__(THREADS)
    embed(const unsigned short* __restrict__ table, const u32* __restrict__ tokens, float* __restrict__ x, u32 hidden) {
    const u64 row = (u64)blockIdx.x * hidden, from = (u64)tokens[blockIdx.x] * hidden;
    for (u32 i = threadIdx.x; i < hidden; i += THREADS) x[row + i] = half_of(table[from + i]);
}

// Adds y to x unless `adds` is 0, and writes x over its root mean square, times the factors.
extern "C" __global__ void __launch_bounds__(THREADS)
    add_norm(float* __restrict__ x, const unsigned short* __restrict__ y, const float* __restrict__ factors,
             unsigned short* __restrict__ out, u32 hidden, u32 adds) {
    const u64 row = (u64)blockIdx.x * hidden;
    float squares = 0;
    for (u32 i = threadIdx.x; i < hidden; i += THREADS) {
        const float value = x[row + i] + (adds ? half_of(y[row + i]) : 0);
        x[row + i] = value;
        squares += value * value;
    }
    const float scale = 1 / sqrtf(block_sum(squares) / hidden + 1e-5f);
    for (u32 i = threadIdx.x; i < hidden; i += THREADS) out[row + i] = gb_to_half(x[row + i] * scale * factors[i]);
}

// Rotates the elements i and i + dim/2 of each query and key by the angle of the token's place, whose cosine and sine are
// in `turns`, appends keys and values to the cache, and multiplies queries by `scale`. A block for each row.
//   steps    a row for each sequence, in the slot slots[row]: its place is lengths[row] - 1; queries are [row][head][dim]
//   prompts  a row for each token of one sequence: its place is the row; queries are [head][row][dim]
extern "C" __global__ void __launch_bounds__(THREADS)
    rotary_append(const unsigned short* __restrict__ qkv, const float* __restrict__ turns, const u32* __restrict__ lengths,
                  const u32* __restrict__ slots, unsigned short* __restrict__ queries, unsigned short* __restrict__ keys,
                  unsigned short* __restrict__ values, u32 heads, u32 kv_heads, u32 dim, u32 capacity, float scale,
                  u32 is_prompt) {
    const u32 half = dim / 2, sequence = is_prompt ? 0 : slots[blockIdx.x];
    const u32 place = is_prompt ? blockIdx.x : lengths[blockIdx.x] - 1;
    const unsigned short* from = qkv + (u64)blockIdx.x * (heads + 2 * kv_heads) * dim;
    for (u32 i = threadIdx.x; i < (heads + kv_heads) * half; i += THREADS) {
        const u32 head = i / half, e = i % half;
        const float first = half_of(from[head * dim + e]), second = half_of(from[head * dim + half + e]);
        const float cosine = turns[2 * ((u64)place * half + e)], sine = turns[2 * ((u64)place * half + e) + 1];
        const float low = first * cosine - second * sine, high = second * cosine + first * sine;
        if (head < heads) {
            const u64 at = is_prompt ? ((u64)head * gridDim.x + blockIdx.x) * dim : ((u64)blockIdx.x * heads + head) * dim;
            queries[at + e] = gb_to_half(low * scale);
            queries[at + half + e] = gb_to_half(high * scale);
        } else {
            const u64 at = (((u64)sequence * kv_heads + head - heads) * capacity + place) * dim;
            keys[at + e] = gb_to_half(low);
            keys[at + half + e] = gb_to_half(high);
        }
    }
    for (u32 i = threadIdx.x; i < kv_heads * dim; i += THREADS)
        values[(((u64)sequence * kv_heads + i / dim) * capacity + place) * dim + i % dim] = from[(heads + kv_heads) * dim + i];
}

// Rows of scores, exponents of two, become shares of 1: row r is of token r % tokens, which attends to the tokens up to
// itself. A block for each row.
extern "C" __global__ void __launch_bounds__(THREADS)
    causal_softmax(unsigned short* __restrict__ scores, u32 tokens) {
    unsigned short* row = scores + (u64)blockIdx.x * tokens;
    const u32 count = blockIdx.x % tokens + 1;
    float most = -1e30f, sum = 0;
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
        const float score = half_of(row[i]);
        most = score > most ? score : most;
    }
    most = block_most(most);
    for (u32 i = threadIdx.x; i < count; i += THREADS) sum += exp2f(half_of(row[i]) - most);
    const float scale = 1 / block_sum(sum);
    for (u32 i = threadIdx.x; i < tokens; i += THREADS)
        row[i] = i < count ? gb_to_half(exp2f(half_of(row[i]) - most) * scale) : 0;
}

// [head][token][dim] becomes [token][head][dim]. A block for each token.
extern "C" __global__ void __launch_bounds__(THREADS)
    join_heads(const unsigned short* __restrict__ from, unsigned short* __restrict__ out, u32 heads, u32 dim) {
    for (u32 i = threadIdx.x; i < heads * dim; i += THREADS)
        out[(u64)blockIdx.x * heads * dim + i] = from[((u64)(i / dim) * gridDim.x + blockIdx.x) * dim + i % dim];
}

// Copies the keys and values of a prompt, [KV head][tokens][dim], to a slot of [slot][KV head][capacity][dim]. A block for
// each token.
extern "C" __global__ void __launch_bounds__(THREADS)
    store_prompt(const unsigned short* __restrict__ from_keys, const unsigned short* __restrict__ from_values,
                 unsigned short* __restrict__ keys, unsigned short* __restrict__ values, const u32* __restrict__ slot,
                 u32 kv_heads, u32 capacity, u32 dim) {
    for (u32 i = threadIdx.x; i < kv_heads * dim; i += THREADS) {
        const u64 from = ((u64)(i / dim) * gridDim.x + blockIdx.x) * dim + i % dim;
        const u64 to = (((u64)slot[0] * kv_heads + i / dim) * capacity + blockIdx.x) * dim + i % dim;
        keys[to] = from_keys[from];
        values[to] = from_values[from];
    }
}

// silu(gate)·up, where a row of `both` has the gates of `inner` elements and then what they are applied to.
extern "C" __global__ void gate(const unsigned short* __restrict__ both, unsigned short* __restrict__ out, u64 count,
                                u32 inner) {
    for (u64 i = gb_thread(); i < count; i += gb_threads()) {
        const u64 at = i / inner * 2 * inner + i % inner;
        const float opening = half_of(both[at]);
        out[i] = gb_to_half(opening / (1 + expf(-opening)) * half_of(both[at + inner]));
    }
}

// The place of the largest logit of each row, of equal ones the first. A block for each row.
extern "C" __global__ void __launch_bounds__(THREADS)
    most_likely(const unsigned short* __restrict__ logits, u32* __restrict__ tokens, u32 vocabulary) {
    __shared__ float values[THREADS];
    __shared__ u32 places[THREADS];
    float most = -1e30f;  // below every half
    u32 place = 0;
    for (u32 i = threadIdx.x; i < vocabulary; i += THREADS) {
        const float value = half_of(logits[(u64)blockIdx.x * vocabulary + i]);
        if (value > most) most = value, place = i;
    }
    values[threadIdx.x] = most;
    places[threadIdx.x] = place;
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            const float other = values[threadIdx.x + half];
            const u32 there = places[threadIdx.x + half];
            const bool is_same = other == values[threadIdx.x];
            if (other > values[threadIdx.x] || (is_same && there < places[threadIdx.x])) {
                values[threadIdx.x] = other;
                places[threadIdx.x] = there;
            }
        }
    }
    if (threadIdx.x == 0) tokens[blockIdx.x] = places[0];
}
