// Attention of one new token per sequence over its cached keys and values, in two passes: `partial` gives each block a
// part of the tokens of one sequence and of one KV head, `combine` joins the parts of a head.
//
//   DIM    elements of a head: 64 or 128       GROUP  heads that share one KV head: a power of two up to 8
//   PAGE   tokens of a page: 0 for one run of `capacity` tokens per sequence, else a multiple of 16
//
// Keys and values are halves. Contiguous: [slot][KV head][capacity][DIM], and `table` has the slot of each sequence. Paged:
// [page][KV head][PAGE][DIM], and `table` has the pages of each sequence in order. Queries and results: [sequence][head][DIM]; the heads GROUP·k to
// GROUP·k + GROUP - 1 share the KV head k. The queries carry the factor log2(e)/√DIM, so that scores are powers of two.
//
// DIM/8 lanes hold a token, 16 bytes each. Such a team has TOKENS tokens of keys and of values in flight; the sums of
// TOKENS·GROUP products over a team leave one score in each lane (or in several lanes the same one).
#define THREADS 128
#define LANES (DIM / 8)
#define TEAMS (THREADS / LANES)
#define FLIGHT (GB_HIP && DIM == 64 ? 2 : 4)  // so that the tokens of a warp lie in one page of 16
#define TOKENS (LANES / GROUP < FLIGHT ? LANES / GROUP : FLIGHT)
#define SCORES (TOKENS * GROUP)
#define SAME (LANES / SCORES)  // lanes that hold the same score
#define NOTHING -1e30f         // a maximum of no scores: finite, so that differences of it are numbers

static __device__ __forceinline__ void widen(const uint4& v, float (&wide)[8]) {
    gb_halves(v.x, wide[0], wide[1]);
    gb_halves(v.y, wide[2], wide[3]);
    gb_halves(v.z, wide[4], wide[5]);
    gb_halves(v.w, wide[6], wide[7]);
}

// Adds up each score over the team. Every stage halves what a lane holds, so that lane l is left with the sum of score
// l / SAME, in its first element.
static __device__ __forceinline__ float folded(float (&score)[SCORES], u32 lane) {
    int held = SCORES;
#pragma unroll
    for (int mask = LANES / 2; mask > 0; mask /= 2) {
        if (held > 1) {
            held /= 2;
            const bool is_upper = lane & mask;
#pragma unroll
            for (int i = 0; i < SCORES / 2; ++i)
                if (i < held) {
                    const float sent = is_upper ? score[i] : score[i + held];
                    const float kept = is_upper ? score[i + held] : score[i];
                    score[i] = kept + gb_shuffle_xor(sent, mask);
                }
        } else {
            score[0] += gb_shuffle_xor(score[0], mask);
        }
    }
    return score[0];
}

// Where the row of a token lies, in vectors of 16 bytes; `page` is that of the token, or the slot.
static __device__ __forceinline__ u64 row_of(u32 page, u32 token, u32 kv_head, u32 kv_heads, u32 capacity) {
#if PAGE
    return (((u64)page * kv_heads + kv_head) * PAGE + token % PAGE) * LANES;
#else
    return (((u64)page * kv_heads + kv_head) * capacity + token) * LANES;
#endif
}

// The page, or the slot, of a token; a sequence has capacity / PAGE pages.
static __device__ __forceinline__ u32 page_of(const u32* __restrict__ table, u32 sequence, u32 token, u32 capacity) {
#if PAGE
    return table[(u64)sequence * (capacity / PAGE) + token / PAGE];
#else
    return table[sequence];
#endif
}

// The grid is (parts, sequences · kv_heads); a part is `chunk` tokens, a multiple of TEAMS · TOKENS. Of each part and head
// it leaves DIM sums in `sums`, and in `scales` the maximum of the scores and the sum of their powers.
extern "C" __global__ void __launch_bounds__(THREADS)
    partial(const uint4* __restrict__ keys, const uint4* __restrict__ values, const u32* __restrict__ table,
            const u32* __restrict__ lengths, const uint4* __restrict__ queries, float* __restrict__ sums,
            float* __restrict__ scales, u32 kv_heads, u32 capacity, u32 chunk) {
    __shared__ float held[TEAMS][GROUP][DIM];
    __shared__ float tops[TEAMS][GROUP], totals[TEAMS][GROUP];
    const u32 sequence = blockIdx.y / kv_heads, kv_head = blockIdx.y % kv_heads;
    const u32 team = threadIdx.x / LANES, lane = threadIdx.x % LANES, start = threadIdx.x % warpSize - lane;
    const u32 first = blockIdx.x * chunk, length = lengths[sequence];
    const u32 end = first + chunk < length ? first + chunk : length;

    float query[GROUP][8], sum[GROUP][8];
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
        widen(queries[((u64)blockIdx.y * GROUP + g) * LANES + lane], query[g]);
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[g][i] = 0;
    }
    float top = NOTHING, total = 0;  // of the head that this lane has a score of

    // A warp takes tokens that follow each other: those of its teams in turn, so that they lie in one page.
    const u32 warp_teams = warpSize / LANES, apart = TEAMS * TOKENS;
    const u32 mine = threadIdx.x / warpSize * warp_teams * TOKENS, offset = mine + team % warp_teams;
    u32 page = first < end ? page_of(table, sequence, first + mine < end ? first + mine : end - 1, capacity) : 0;
    for (u32 at = first; at < end; at += apart) {
        uint4 key[TOKENS], value[TOKENS];
        u64 row[TOKENS];
#pragma unroll
        for (int t = 0; t < TOKENS; ++t) {
            const u32 token = at + offset + t * warp_teams;
            row[t] = row_of(page, token < end ? token : end - 1, kv_head, kv_heads, capacity) + lane;
        }
#pragma unroll
        for (int t = 0; t < TOKENS; ++t) key[t] = gb_stream(keys + row[t]);
#pragma unroll
        for (int t = 0; t < TOKENS; ++t) value[t] = gb_stream(values + row[t]);
        const u32 ahead = at + apart + mine;
        page = page_of(table, sequence, ahead < end ? ahead : end - 1, capacity);

        float score[SCORES], wide[8];
#pragma unroll
        for (int t = 0; t < TOKENS; ++t) {
            widen(key[t], wide);
#pragma unroll
            for (int g = 0; g < GROUP; ++g) {
                float product = query[g][0] * wide[0];
#pragma unroll
                for (int i = 1; i < 8; ++i) product += query[g][i] * wide[i];
                score[t * GROUP + g] = product;
            }
        }
        const float whole = folded(score, lane);
        const u32 token = at + offset + lane / SAME / GROUP * warp_teams;
        const float found = token < end ? whole : NOTHING;
        float most = found;
#pragma unroll
        for (int mask = LANES / 2; mask >= LANES / TOKENS; mask /= 2) {
            const float other = gb_shuffle_xor(most, mask);
            most = other > most ? other : most;
        }
        most = top > most ? top : most;
        const float kept = exp2f(top - most), power = token < end ? exp2f(found - most) : 0;
        total = total * kept + power;
        top = most;
#pragma unroll
        for (int g = 0; g < GROUP; ++g) {
            const float factor = gb_shuffle(kept, start + g * SAME);
#pragma unroll
            for (int i = 0; i < 8; ++i) sum[g][i] *= factor;
        }
#pragma unroll
        for (int t = 0; t < TOKENS; ++t) {
            widen(value[t], wide);
#pragma unroll
            for (int g = 0; g < GROUP; ++g) {
                const float factor = gb_shuffle(power, start + (t * GROUP + g) * SAME);
#pragma unroll
                for (int i = 0; i < 8; ++i) sum[g][i] += factor * wide[i];
            }
        }
    }
#pragma unroll
    for (int mask = LANES / 2; mask >= LANES / TOKENS; mask /= 2) total += gb_shuffle_xor(total, mask);
#pragma unroll
    for (int g = 0; g < GROUP; ++g)
#pragma unroll
        for (int i = 0; i < 8; ++i) held[team][g][8 * lane + i] = sum[g][i];
    if (lane / SAME < GROUP && lane % SAME == 0) {
        tops[team][lane / SAME] = top;
        totals[team][lane / SAME] = total;
    }
    __syncthreads();
    for (u32 g = 0; g < GROUP; ++g) {
        float most = NOTHING;
        for (u32 k = 0; k < TEAMS; ++k) most = tops[k][g] > most ? tops[k][g] : most;
        const u64 part = ((u64)blockIdx.y * GROUP + g) * gridDim.x + blockIdx.x;
        for (u32 i = threadIdx.x; i < DIM; i += THREADS) {
            float joined = 0;
            for (u32 k = 0; k < TEAMS; ++k) joined += exp2f(tops[k][g] - most) * held[k][g][i];
            sums[part * DIM + i] = joined;
        }
        if (threadIdx.x == 0) {
            float joined = 0;
            for (u32 k = 0; k < TEAMS; ++k) joined += exp2f(tops[k][g] - most) * totals[k][g];
            scales[2 * part] = most;
            scales[2 * part + 1] = joined;
        }
    }
}

// A block of DIM threads for each head of each sequence.
extern "C" __global__ void __launch_bounds__(DIM)
    combine(const float* __restrict__ sums, const float* __restrict__ scales, unsigned short* __restrict__ out, u32 parts) {
    const u64 first = (u64)blockIdx.x * parts;
    float most = NOTHING, total = 0, joined = 0;
    for (u32 k = 0; k < parts; ++k) most = scales[2 * (first + k)] > most ? scales[2 * (first + k)] : most;
    for (u32 k = 0; k < parts; ++k) {
        const float factor = exp2f(scales[2 * (first + k)] - most);
        total += factor * scales[2 * (first + k) + 1];
        joined += factor * sums[(first + k) * DIM + threadIdx.x];
    }
    out[(u64)blockIdx.x * DIM + threadIdx.x] = gb_to_half(joined / total);
}

// Element i of the seeded data, uniform with variance 1 and rounded to a half. Queries carry the factor of the scores.
extern "C" __global__ void draw(u64 count, u64 seed, float scale, unsigned short* __restrict__ out) {
    for (u64 i = gb_thread(); i < count; i += gb_threads())
        out[i] = gb_to_half(scale * 1.7320508f * ((float)(gb_random(seed, i) >> 40) * 0x1p-23f - 1.0f));
}

// Overwrites the keys and values beyond the length of each sequence with NaN; a block for each sequence and KV head.
extern "C" __global__ void poison_beyond(uint4* __restrict__ keys, uint4* __restrict__ values,
                                         const u32* __restrict__ table, const u32* __restrict__ lengths, u32 kv_heads,
                                         u32 capacity) {
    const u32 sequence = blockIdx.x / kv_heads, kv_head = blockIdx.x % kv_heads, length = lengths[sequence];
    const uint4 poison = make_uint4(0x7fff7fffu, 0x7fff7fffu, 0x7fff7fffu, 0x7fff7fffu);
    for (u32 i = length * LANES + threadIdx.x; i < capacity * LANES; i += blockDim.x) {
        const u32 token = i / LANES;
        const u64 at = row_of(page_of(table, sequence, token, capacity), token, kv_head, kv_heads, capacity) + i % LANES;
        keys[at] = poison;
        values[at] = poison;
    }
}
