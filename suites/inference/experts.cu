// The feed-forward network of a mixture of experts: a router chooses ACTIVE of EXPERTS networks for each token. The
// tokens of an expert are gathered, so that its weights are read once for all of them. Built with EXPERTS and ACTIVE,
// for at most 64 tokens.
//   weights  up: for each expert rows of gates, then as many rows of values; down: for each expert rows of the output
//   ranks    for each token and expert: the number of experts that the router prefers to this one
//   active   the experts with tokens; `masks` has a bit for each of their tokens, and is 0 for the remaining entries
#define THREADS 256       // threads of most blocks
#define MOST_THREADS 1024  // most threads of the block that chooses the experts
#define MOST_TOKENS 64

static __device__ __forceinline__ float half_of(unsigned short bits) {
    float value, unused;
    gb_halves(bits, value, unused);
    return value;
}

static __device__ __forceinline__ float warp_sum(float mine) {
    for (int mask = warpSize / 2; mask > 0; mask /= 2) mine += gb_shuffle_xor(mine, mask);
    return mine;
}

static __device__ __forceinline__ float product_of(u32 a, u32 b, float sum) {
    float low, high, first, second;
    gb_halves(a, low, high);
    gb_halves(b, first, second);
    return sum + low * first + high * second;
}

static __device__ __forceinline__ float product_of(uint4 a, uint4 b, float sum) {
    return product_of(a.w, b.w, product_of(a.z, b.z, product_of(a.y, b.y, product_of(a.x, b.x, sum))));
}

// Chooses the experts of every token by their logits; of equal logits the first wins. A share is that of a softmax over
// all experts. One block; each thread handles one expert and several tokens at once.
extern "C" __global__ void __launch_bounds__(MOST_THREADS)
    choose(const unsigned short* __restrict__ logits, u32* __restrict__ chosen, float* __restrict__ shares,
           u32* __restrict__ ranks, u32* __restrict__ active, u64* __restrict__ masks, u32 tokens) {
    __shared__ float values[MOST_THREADS];
    __shared__ u8 places[MOST_TOKENS * EXPERTS];
    __shared__ u64 found[EXPERTS];
    const u32 expert = threadIdx.x % EXPERTS, lane = threadIdx.x / EXPERTS, across = blockDim.x / EXPERTS;
    for (u32 first = 0; first < tokens; first += across) {
        const u32 token = first + lane;
        const float mine = token < tokens ? half_of(logits[token * EXPERTS + expert]) : 0;
        values[threadIdx.x] = mine;
        __syncthreads();
        if (token < tokens) {
            u32 rank = 0;
            float sum = 0;
            for (u32 other = 0; other < EXPERTS; ++other) {
                const float value = values[lane * EXPERTS + other];
                rank += value > mine || (value == mine && other < expert);
                sum += expf(value - mine);
            }
            places[token * EXPERTS + expert] = rank;
            ranks[token * EXPERTS + expert] = rank;
            if (rank < ACTIVE) {
                chosen[token * ACTIVE + rank] = expert;
                shares[token * ACTIVE + rank] = 1 / sum;
            }
        }
        __syncthreads();
    }
    const u32 me = threadIdx.x;
    if (me < EXPERTS) {
        u64 mask = 0;
        for (u32 token = 0; token < tokens; ++token) mask |= (u64)(places[token * EXPERTS + me] < ACTIVE) << token;
        found[me] = mask;
    }
    __syncthreads();
    if (me < EXPERTS) {
        u32 before = 0, count = 0;
        for (u32 other = 0; other < EXPERTS; ++other) {
            count += found[other] != 0;
            before += other < me && found[other] != 0;
        }
        if (found[me] != 0) {
            active[before] = me;
            masks[before] = found[me];
        }
        if (me >= count) masks[me] = 0;
    }
}

// Removes the positions of COUNT tokens from a mask and returns them.
template <int COUNT>
static __device__ __forceinline__ void take(u64& left, u32 (&tokens)[COUNT]) {
    u32 token = 0;
    for (int i = 0; i < COUNT; ++i) {
        while (!(left >> token & 1)) ++token;
        tokens[i] = token;
        left &= left - 1;
    }
}

template <int COUNT>
static __device__ __forceinline__ void up_row(const uint4* gate, const uint4* up, const uint4* x, u64& left,
                                              const u32* ranks, u32 expert, unsigned short* gated, u32 hidden, u32 inner,
                                              u32 row) {
    u32 tokens[COUNT];
    float opening[COUNT] = {}, value[COUNT] = {};
    take<COUNT>(left, tokens);
#pragma unroll 4
    for (u32 i = threadIdx.x % warpSize; i < hidden / 8; i += warpSize) {
        const uint4 a = gb_stream(gate + i), b = gb_stream(up + i);
#pragma unroll
        for (int k = 0; k < COUNT; ++k) {
            const uint4 other = gb_fetch(x + (u64)tokens[k] * (hidden / 8) + i);
            opening[k] = product_of(a, other, opening[k]);
            value[k] = product_of(b, other, value[k]);
        }
    }
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
        const float open = warp_sum(opening[k]), result = warp_sum(value[k]);
        const u64 pair = (u64)tokens[k] * ACTIVE + ranks[tokens[k] * EXPERTS + expert];
        if (threadIdx.x % warpSize == 0) gated[pair * inner + row] = gb_to_half(open / (1 + expf(-open)) * result);
    }
}

// Writes silu(gate·x)·(up·x) of every token of an expert to [token][rank][inner]. One warp per row of `inner`; the
// second axis of the grid is the active experts.
extern "C" __global__ void __launch_bounds__(THREADS)
    expert_up(const uint4* __restrict__ weights, const uint4* __restrict__ x, const u32* __restrict__ active,
              const u64* __restrict__ masks, const u32* __restrict__ ranks, unsigned short* __restrict__ gated, u32 hidden,
              u32 inner) {
    const u32 row = blockIdx.x * (THREADS / warpSize) + threadIdx.x / warpSize;
    u64 left = masks[blockIdx.y];
    if (left == 0 || row >= inner) return;
    const u32 expert = active[blockIdx.y];
    const uint4* gate = weights + ((u64)expert * 2 * inner + row) * (hidden / 8);
    const uint4* up = gate + (u64)inner * (hidden / 8);
    while (left) {
        const u64 few = left & (left - 1);
        if (few & (few - 1)) up_row<3>(gate, up, x, left, ranks, expert, gated, hidden, inner, row);
        else up_row<1>(gate, up, x, left, ranks, expert, gated, hidden, inner, row);
    }
}

template <int COUNT>
static __device__ __forceinline__ void down_row(const uint4* weights, const uint4* gated, u64& left, const u32* ranks,
                                                const float* shares, u32 expert, float* parts, u32 inner, u32 hidden,
                                                u32 row) {
    u32 tokens[COUNT];
    u64 pairs[COUNT];
    float value[COUNT] = {};
    take<COUNT>(left, tokens);
    for (int k = 0; k < COUNT; ++k) pairs[k] = (u64)tokens[k] * ACTIVE + ranks[tokens[k] * EXPERTS + expert];
#pragma unroll 4
    for (u32 i = threadIdx.x % warpSize; i < inner / 8; i += warpSize) {
        const uint4 a = gb_stream(weights + i);
#pragma unroll
        for (int k = 0; k < COUNT; ++k) value[k] = product_of(a, gb_fetch(gated + pairs[k] * (inner / 8) + i), value[k]);
    }
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
        const float result = warp_sum(value[k]);
        if (threadIdx.x % warpSize == 0) parts[pairs[k] * hidden + row] = shares[pairs[k]] * result;
    }
}

// Writes the output of every expert for every token, times its share, to [token][rank][hidden]; blocks as in expert_up.
extern "C" __global__ void __launch_bounds__(THREADS)
    expert_down(const uint4* __restrict__ weights, const uint4* __restrict__ gated, const u32* __restrict__ active,
                const u64* __restrict__ masks, const u32* __restrict__ ranks, const float* __restrict__ shares,
                float* __restrict__ parts, u32 inner, u32 hidden) {
    const u32 row = blockIdx.x * (THREADS / warpSize) + threadIdx.x / warpSize;
    u64 left = masks[blockIdx.y];
    if (left == 0 || row >= hidden) return;
    const u32 expert = active[blockIdx.y];
    const uint4* from = weights + ((u64)expert * hidden + row) * (inner / 8);
    while (left) {
        const u64 few = left & (left - 1);
        if (few & (few - 1)) down_row<3>(from, gated, left, ranks, shares, expert, parts, inner, hidden, row);
        else down_row<1>(from, gated, left, ranks, shares, expert, parts, inner, hidden, row);
    }
}

// Writes the sum over the experts of each token. The second axis of the grid is the tokens.
extern "C" __global__ void __launch_bounds__(THREADS)
    join_experts(const float* __restrict__ parts, unsigned short* __restrict__ out, u32 hidden) {
    const u32 i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= hidden) return;
    float sum = 0;
    for (u32 rank = 0; rank < ACTIVE; ++rank) sum += parts[((u64)blockIdx.y * ACTIVE + rank) * hidden + i];
    out[(u64)blockIdx.y * hidden + i] = gb_to_half(sum);
}
