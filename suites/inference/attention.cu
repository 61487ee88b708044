// Attention of one new token per sequence over its cached keys and values. A block has a part of the tokens of one sequence
// and of one KV head; the last block of those to arrive joins the parts of their heads.
//
//   DIM    elements of a head: 64 or 128       GROUP  heads that share one KV head: a power of two up to 8
//   PAGE   tokens of a page: 0 for one run of `capacity` tokens per sequence, else a multiple of 16
//   ROTARY 1 where the kernel rotates queries and the newest key, and appends the newest key and value to the cache
//
// Keys and values are halves. Contiguous: [slot][KV head][capacity][DIM], and `table` has the slot of each sequence. Paged:
// [page][KV head][PAGE][DIM], and `table` has the pages of each sequence in order. Queries and results: [sequence][head][DIM]; the heads GROUP·k to
// GROUP·k + GROUP - 1 share the KV head k. The queries carry the factor log2(e)/√DIM, so that scores are powers of two.
// With ROTARY, `queries` has a row for each sequence: its heads, then the newest keys and the newest values of its KV heads;
// the queries have no factor yet.
//
// DIM/8 lanes hold a token, 16 bytes each. Such a team has TOKENS tokens of keys and of values in flight; the sums of
// TOKENS·GROUP products over a team leave one score in each lane (or in several lanes the same one).
#ifndef ROTARY
#define ROTARY 0
#endif
#define THREADS 128
#if GB_HIP
#define BOUNDS THREADS
#else
#define BOUNDS THREADS, (GROUP < 8 ? 4 : 2)  // resident blocks, for which registers are spared
#endif
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

static __device__ __forceinline__ u32 pair_of(float low, float high) {
    return gb_to_half(low) | (u32)gb_to_half(high) << 16;
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

struct Rows {  // where the keys and values of a block lie, and which part of a row a lane takes
    u32 kv_head, kv_heads, capacity, lane;
};

// Takes the keys and values of the tokens from `at` on that are this team's, the last token's in place of those beyond `end`.
static __device__ __forceinline__ void take(uint4 (&key)[TOKENS], uint4 (&value)[TOKENS], const uint4* keys,
                                            const uint4* values, const Rows& rows, u32 page, u32 at, u32 end) {
    u64 row[TOKENS];
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
        const u32 token = at + t * (warpSize / LANES);
        row[t] = row_of(page, token < end ? token : end - 1, rows.kv_head, rows.kv_heads, rows.capacity) + rows.lane;
    }
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) key[t] = gb_stream(keys + row[t]);
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) value[t] = gb_stream(values + row[t]);
}

// Whether this block is the last of those of one sequence and KV head, so that all others' parts can be read.
static __device__ __forceinline__ bool is_last(u32* arrived) {
    __shared__ u32 before;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) before = atomicAdd(arrived + blockIdx.y, 1u);
    __syncthreads();
    if (before + 1 < gridDim.x) return false;
    if (threadIdx.x == 0) arrived[blockIdx.y] = 0;  // for the next launch
    __threadfence();
    return true;
}

// Joins the parts of a head, whose factors come first: a warp for each head in turn, a lane for every warpSize-th part.
static __device__ __forceinline__ void join(const float* sums, const float* scales, uint2* out, float* factors) {
    const u32 parts = gridDim.x, lane = threadIdx.x % warpSize;
    for (u32 g = threadIdx.x / warpSize; g < GROUP; g += THREADS / warpSize) {
        const uint2* scale = (const uint2*)scales + ((u64)blockIdx.y * GROUP + g) * parts;
        float most = NOTHING, total = 0;
        for (u32 k = lane; k < parts; k += warpSize) {
            const float top = __uint_as_float(gb_load_l2(scale + k).x);
            most = top > most ? top : most;
        }
        for (int mask = warpSize / 2; mask > 0; mask /= 2) {
            const float other = gb_shuffle_xor(most, mask);
            most = other > most ? other : most;
        }
        for (u32 k = lane; k < parts; k += warpSize) {
            const uint2 part = gb_load_l2(scale + k);
            factors[g * parts + k] = exp2f(__uint_as_float(part.x) - most);
            total += factors[g * parts + k] * __uint_as_float(part.y);
        }
        for (int mask = warpSize / 2; mask > 0; mask /= 2) total += gb_shuffle_xor(total, mask);
        for (u32 k = lane; k < parts; k += warpSize) factors[g * parts + k] /= total;
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < GROUP * DIM / 4; i += THREADS) {
        const u32 g = i / (DIM / 4);
        const uint4* sum = (const uint4*)sums + ((u64)blockIdx.y * GROUP + g) * parts * (DIM / 4) + i % (DIM / 4);
        float joined[4] = {0, 0, 0, 0};
#pragma unroll 8
        for (u32 k = 0; k < parts; ++k) {
            const uint4 part = gb_load_l2(sum + k * (DIM / 4));
            const float factor = factors[g * parts + k];
            joined[0] += factor * __uint_as_float(part.x);
            joined[1] += factor * __uint_as_float(part.y);
            joined[2] += factor * __uint_as_float(part.z);
            joined[3] += factor * __uint_as_float(part.w);
        }
        out[(u64)blockIdx.y * (GROUP * DIM / 4) + i] = make_uint2(pair_of(joined[0], joined[1]), pair_of(joined[2], joined[3]));
    }
}

#if ROTARY
// Eight elements of a query or key, rotated by the angles whose cosines and sines are in `turn`: elements i and i + DIM/2
// are a point.
static __device__ __forceinline__ void rotate(const uint4* row, u32 lane, const float (&turn)[16], float (&out)[8]) {
    float own[8], other[8];
    widen(gb_word(row + lane), own);
    widen(gb_word(row + (lane ^ LANES / 2)), other);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float sine = lane < LANES / 2 ? -turn[2 * i + 1] : turn[2 * i + 1];
        out[i] = own[i] * turn[2 * i] + other[i] * sine;
    }
}
#endif

// The grid is (parts, sequences · kv_heads); a part is `chunk` tokens, a multiple of TEAMS · TOKENS. Of each part and head
// it leaves DIM sums in `sums`, and in `scales` the maximum of the scores and the sum of their powers. The launch before
// may write `queries`: keys and values are on their way before it has ended. `turns` has cosine and sine of the DIM/2
// angles of every place; it and `scale`, a factor of the queries, are for ROTARY.
extern "C" __global__ void __launch_bounds__(BOUNDS)
    attend(uint4* keys, uint4* values, const u32* __restrict__ table, const u32* __restrict__ lengths,
           const uint4* queries, uint2* out, float* sums, float* scales, u32* arrived, const uint4* __restrict__ turns,
           float scale, u32 kv_heads, u32 capacity, u32 chunk) {
    __shared__ float held[TEAMS][GROUP][DIM];
    __shared__ float tops[TEAMS][GROUP], totals[TEAMS][GROUP];
    const u32 sequence = blockIdx.y / kv_heads, kv_head = blockIdx.y % kv_heads;
    const u32 team = threadIdx.x / LANES, lane = threadIdx.x % LANES, start = threadIdx.x % warpSize - lane;
    const u32 first = blockIdx.x * chunk, length = lengths[sequence];
    const u32 end = first + chunk < length ? first + chunk : length;
    const Rows rows = {kv_head, kv_heads, capacity, lane};

    // A warp takes tokens that follow each other: those of its teams in turn, so that they lie in one page.
    const u32 warp_teams = warpSize / LANES, apart = TEAMS * TOKENS;
    const u32 mine = threadIdx.x / warpSize * warp_teams * TOKENS, offset = mine + team % warp_teams;
    uint4 key[TOKENS], value[TOKENS];
    u32 page = first < end ? page_of(table, sequence, first + mine < end ? first + mine : end - 1, capacity) : 0;
    float query[GROUP][8], sum[GROUP][8];
    if (first < end) take(key, value, keys, values, rows, page, first + offset, end);
#if ROTARY
    __shared__ uint4 newest[2][LANES];  // a key and a value
    float turn[16];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint4 four = gb_word(turns + ((u64)(length - 1) * (DIM / 2) + lane % (LANES / 2) * 8) / 2 + i);
        turn[4 * i] = __uint_as_float(four.x), turn[4 * i + 1] = __uint_as_float(four.y);
        turn[4 * i + 2] = __uint_as_float(four.z), turn[4 * i + 3] = __uint_as_float(four.w);
    }
    const uint4* own = queries + (u64)sequence * kv_heads * (GROUP + 2) * LANES;  // of the sequence
#endif
    gb_allow_next();
    gb_wait_for_previous();
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
#if ROTARY
        rotate(own + (kv_head * GROUP + g) * LANES, lane, turn, query[g]);
#pragma unroll
        for (int i = 0; i < 8; ++i) query[g][i] *= scale;
#else
        widen(gb_word(queries + ((u64)blockIdx.y * GROUP + g) * LANES + lane), query[g]);
#endif
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[g][i] = 0;
    }
#if ROTARY
    if (first < length && end == length) {  // appends the newest key and value
        if (team == 0) {
            const uint4* row = own + (kv_heads * GROUP + kv_head) * LANES;
            float wide[8];
            rotate(row, lane, turn, wide);
            newest[0][lane] = make_uint4(pair_of(wide[0], wide[1]), pair_of(wide[2], wide[3]), pair_of(wide[4], wide[5]),
                                         pair_of(wide[6], wide[7]));
            newest[1][lane] = gb_word(row + kv_heads * LANES + lane);
            const u32 place = page_of(table, sequence, length - 1, capacity);
            const u64 at = row_of(place, length - 1, kv_head, kv_heads, capacity) + lane;
            keys[at] = newest[0][lane], values[at] = newest[1][lane];
        }
        __syncthreads();
    }
#endif
    float top = NOTHING, total = 0;  // of the head that this lane has a score of
    for (u32 at = first; at < end; at += apart) {
        const u32 ahead = at + apart;
        page = page_of(table, sequence, ahead + mine < end ? ahead + mine : end - 1, capacity);
        float score[SCORES], wide[8];
#if ROTARY
        if (ahead >= length) {  // the newest token's row is being written; tokens beyond it are not counted
#pragma unroll
            for (int t = 0; t < TOKENS; ++t)
                if (at + offset + t * warp_teams + 1 >= length) key[t] = newest[0][lane], value[t] = newest[1][lane];
        }
#endif
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
        if (ahead < end) take(key, value, keys, values, rows, page, ahead + offset, end);
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
    if (is_last(arrived)) join(sums, scales, out, &held[0][0][0]);
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
