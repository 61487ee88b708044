// Attention of one new token per sequence over its cached keys and values. A block processes a part of the tokens of
// one sequence and one KV head. The last block to arrive joins the parts of its heads.
//
//   DIM    elements of a head: 64 or 128       GROUP  heads that share one KV head: a power of two up to 8
//   PAGE   tokens of a page: 0 for one run of `capacity` tokens per sequence, else a multiple of 16
//   THREADS of a block: 128, 256 or 512
//   ROTARY 1 if the kernel rotates queries and the newest key, and appends the newest key and value to the cache
//
// Keys and values are halves. Contiguous: [slot][KV head][capacity][DIM], and `table` has the slot of each sequence.
// Paged: [page][KV head][PAGE][DIM], and `table` has the pages of each sequence in order. Queries and results:
// [sequence][head][DIM]; the heads GROUP·k to GROUP·k + GROUP - 1 share the KV head k. The queries carry the factor
// log2(e)/√DIM, so that scores are exponents of two. With ROTARY, `queries` has a row for each sequence: its heads,
// then the newest keys and the newest values of its KV heads. These queries do not carry the factor yet.
//
// A team of DIM/8 lanes holds a token, 16 bytes per lane. It has TOKENS tokens of keys and of values in flight. Adding
// up TOKENS·GROUP products over a team leaves one score in each lane, or the same score in several lanes.
#ifndef ROTARY
#define ROTARY 0
#endif
#ifndef THREADS
#define THREADS 128
#endif
#if GB_HIP
#define BOUNDS THREADS
#define WARP_LANES 64
#else
#define BOUNDS THREADS, ((GROUP < 8 ? 512 : 256) / THREADS)  // resident blocks, which limit the registers of a thread
#define WARP_LANES 32
#endif
#define WARPS (THREADS / WARP_LANES)
#define MOST_PARTS 256  // parts of a sequence
#define LANES (DIM / 8)
#define TEAMS (THREADS / LANES)
// Tokens in flight per team; the tokens of a warp then lie in one page of 16.
#define FLIGHT (GB_HIP && DIM == 64 ? 2 : 4)
#define TOKENS (LANES / GROUP < FLIGHT ? LANES / GROUP : FLIGHT)
#define SCORES (TOKENS * GROUP)
#define SAME (LANES / SCORES)  // lanes that hold the same score
#define NOTHING -1e30f         // the maximum of no scores: finite, so that its differences are numbers

static __device__ __forceinline__ void widen(const uint4& v, float (&wide)[8]) {
    gb_halves(v.x, wide[0], wide[1]);
    gb_halves(v.y, wide[2], wide[3]);
    gb_halves(v.z, wide[4], wide[5]);
    gb_halves(v.w, wide[6], wide[7]);
}

static __device__ __forceinline__ u32 pair_of(float low, float high) {
    return gb_to_half(low) | (u32)gb_to_half(high) << 16;
}

// Adds up each score over the team. Every step halves the number of scores in a lane, so that lane l ends with the sum
// of score l / SAME in its first element.
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

// Returns the place of a token's row in vectors of 16 bytes; `page` is the page of the token, or the slot.
static __device__ __forceinline__ u64 row_of(u32 page, u32 token, u32 kv_head, u32 kv_heads, u32 capacity) {
#if PAGE
    return (((u64)page * kv_heads + kv_head) * PAGE + token % PAGE) * LANES;
#else
    return (((u64)page * kv_heads + kv_head) * capacity + token) * LANES;
#endif
}

// Returns the page, or the slot, of a token; a sequence has capacity / PAGE pages.
static __device__ __forceinline__ u32 page_of(const u32* __restrict__ table, u32 sequence, u32 token, u32 capacity) {
#if PAGE
    return table[(u64)sequence * (capacity / PAGE) + token / PAGE];
#else
    return table[sequence];
#endif
}

struct Rows {  // where the keys and values of a block lie, and which part of a row a lane loads
    u32 kv_head, kv_heads, capacity, lane;
};

// Loads the keys and values of this team's tokens from `at` on; tokens beyond `end` are replaced by the last one.
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

// Joins the parts of the heads. First a warp computes the factors of each head in turn. Then SLICES threads share the
// parts of each four elements.
#define COLUMNS (GROUP * DIM / 4)
#define SLICES (THREADS > COLUMNS ? THREADS / COLUMNS : 1)
#define ROOM_OF_JOIN (GROUP * MOST_PARTS / 4 + SLICES * COLUMNS)
static __device__ __forceinline__ void join(const float* sums, const float* scales, uint2* out, uint4* room) {
    float(&factors)[GROUP][MOST_PARTS] = *(float(*)[GROUP][MOST_PARTS])room;
    uint4(&shares)[SLICES][COLUMNS] = *(uint4(*)[SLICES][COLUMNS])(room + GROUP * MOST_PARTS / 4);
    const u32 parts = gridDim.x, lane = threadIdx.x % warpSize;
    for (u32 g = threadIdx.x / warpSize; g < GROUP; g += WARPS) {
        const uint2* scale = (const uint2*)scales + ((u64)blockIdx.y * GROUP + g) * parts;
        float top[MOST_PARTS / 32], sum[MOST_PARTS / 32], most = NOTHING, total = 0;
#pragma unroll
        for (int i = 0; i < MOST_PARTS / 32; ++i) {
            const u32 k = lane + i * warpSize;
            const uint2 part = k < parts ? gb_load_l2(scale + k) : make_uint2(__float_as_uint(NOTHING), 0);
            top[i] = __uint_as_float(part.x), sum[i] = __uint_as_float(part.y);
        }
#pragma unroll
        for (int i = 0; i < MOST_PARTS / 32; ++i) most = top[i] > most ? top[i] : most;
        for (int mask = warpSize / 2; mask > 0; mask /= 2) {
            const float other = gb_shuffle_xor(most, mask);
            most = other > most ? other : most;
        }
#pragma unroll
        for (int i = 0; i < MOST_PARTS / 32; ++i) total += exp2f(top[i] - most) * sum[i];
        for (int mask = warpSize / 2; mask > 0; mask /= 2) total += gb_shuffle_xor(total, mask);
#pragma unroll
        for (int i = 0; i < MOST_PARTS / 32; ++i)
            if (lane + i * warpSize < parts) factors[g][lane + i * warpSize] = exp2f(top[i] - most) / total;
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < SLICES * COLUMNS; i += THREADS) {
        const u32 slice = i / COLUMNS, column = i % COLUMNS, g = column / (DIM / 4);
        const uint4* sum = (const uint4*)sums + ((u64)blockIdx.y * GROUP + g) * parts * (DIM / 4) + column % (DIM / 4);
        float joined[4] = {0, 0, 0, 0};
#pragma unroll 8
        for (u32 k = slice; k < parts; k += SLICES) {
            const uint4 part = gb_load_l2(sum + k * (DIM / 4));
            const float factor = factors[g][k];
            joined[0] += factor * __uint_as_float(part.x);
            joined[1] += factor * __uint_as_float(part.y);
            joined[2] += factor * __uint_as_float(part.z);
            joined[3] += factor * __uint_as_float(part.w);
        }
        shares[slice][column] = make_uint4(__float_as_uint(joined[0]), __float_as_uint(joined[1]),
                                           __float_as_uint(joined[2]), __float_as_uint(joined[3]));
    }
    __syncthreads();
    for (u32 column = threadIdx.x; column < COLUMNS; column += THREADS) {
        float joined[4] = {0, 0, 0, 0};
#pragma unroll
        for (int slice = 0; slice < SLICES; ++slice) {
            const uint4 share = shares[slice][column];
            joined[0] += __uint_as_float(share.x), joined[1] += __uint_as_float(share.y);
            joined[2] += __uint_as_float(share.z), joined[3] += __uint_as_float(share.w);
        }
        out[(u64)blockIdx.y * COLUMNS + column] = make_uint2(pair_of(joined[0], joined[1]), pair_of(joined[2], joined[3]));
    }
}

#if ROTARY
// Returns eight elements of a query or key, rotated by the angles whose cosines and sines are in `turn`: elements i and
// i + DIM/2 are the coordinates of a point.
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

// The grid is (parts, sequences · kv_heads). A part is `chunk` tokens, a multiple of TEAMS · TOKENS. For each part and
// head the kernel writes DIM sums to `sums`, and the maximum of the scores and the sum of their powers to `scales`. The
// previous launch may write `queries`, so keys and values are loaded before it has ended. With ROTARY, `turns` has
// cosine and sine of the DIM/2 angles of every position, and `scale` is a factor of the queries.
extern "C" __global__ void __launch_bounds__(BOUNDS)
    attend(uint4* keys, uint4* values, const u32* __restrict__ table, const u32* __restrict__ lengths,
           const uint4* queries, uint2* out, float* sums, float* scales, u32* arrived, const uint4* __restrict__ turns,
           float scale, u32 kv_heads, u32 capacity, u32 chunk) {
    __shared__ uint4 room[WARPS * GROUP * DIM > 4 * ROOM_OF_JOIN ? WARPS * GROUP * DIM / 4 : ROOM_OF_JOIN];
    __shared__ float tops[WARPS][GROUP], totals[WARPS][GROUP];
    float(&held)[WARPS][GROUP][DIM] = *(float(*)[WARPS][GROUP][DIM])room;
    const u32 sequence = blockIdx.y / kv_heads, kv_head = blockIdx.y % kv_heads;
    const u32 team = threadIdx.x / LANES, lane = threadIdx.x % LANES, start = threadIdx.x % warpSize - lane;
    const u32 first = blockIdx.x * chunk, length = lengths[sequence];
    const u32 end = first + chunk < length ? first + chunk : length;
    const Rows rows = {kv_head, kv_heads, capacity, lane};

    // A warp takes consecutive tokens, one after another for its teams, so that they lie in one page.
    const u32 warp_teams = warpSize / LANES, apart = TEAMS * TOKENS;
    const u32 mine = threadIdx.x / warpSize * warp_teams * TOKENS, offset = mine + team % warp_teams;
    uint4 key[TOKENS], value[TOKENS];
    u32 page = first < end ? page_of(table, sequence, first + mine < end ? first + mine : end - 1, capacity) : 0;
    float query[GROUP][8], sum[GROUP][8];
    if (first < end) take(key, value, keys, values, rows, page, first + offset, end);
#if ROTARY
    __shared__ uint4 newest[2][LANES];  // the newest key and the newest value
    float turn[16];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint4 four = gb_word(turns + ((u64)(length - 1) * (DIM / 2) + lane % (LANES / 2) * 8) / 2 + i);
        turn[4 * i] = __uint_as_float(four.x), turn[4 * i + 1] = __uint_as_float(four.y);
        turn[4 * i + 2] = __uint_as_float(four.z), turn[4 * i + 3] = __uint_as_float(four.w);
    }
    const uint4* own = queries + (u64)sequence * kv_heads * (GROUP + 2) * LANES;  // the row of this sequence
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
    if (first < length && end == length) {  // append the newest key and value
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
    float top = NOTHING, total = 0;  // of the head whose score this lane holds
    for (u32 at = first; at < end; at += apart) {
        const u32 ahead = at + apart;
        page = page_of(table, sequence, ahead + mine < end ? ahead + mine : end - 1, capacity);
        float score[SCORES], wide[8];
#if ROTARY
        if (ahead >= length) {  // the newest token's row is being written, and tokens beyond it are not counted
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
    // The teams of a warp add their sums, then each team writes some of the heads.
#pragma unroll
    for (int mask = LANES; mask < WARP_LANES; mask *= 2) {
        const float other = gb_shuffle_xor(top, mask), most = other > top ? other : top, kept = exp2f(top - most);
        total = total * kept, total += gb_shuffle_xor(total, mask), top = most;
#pragma unroll
        for (int g = 0; g < GROUP; ++g) {
            const float factor = gb_shuffle(kept, start + g * SAME);
#pragma unroll
            for (int i = 0; i < 8; ++i) sum[g][i] *= factor, sum[g][i] += gb_shuffle_xor(sum[g][i], mask);
        }
    }
    const u32 warp = threadIdx.x / warpSize;
#pragma unroll
    for (int g = 0; g < GROUP; ++g)
        if (g % warp_teams == team % warp_teams) {
            uint4* to = (uint4*)held[warp][g] + 2 * lane;
#pragma unroll
            for (int i = 0; i < 2; ++i)
                to[i] = make_uint4(__float_as_uint(sum[g][4 * i]), __float_as_uint(sum[g][4 * i + 1]),
                                   __float_as_uint(sum[g][4 * i + 2]), __float_as_uint(sum[g][4 * i + 3]));
        }
    if (threadIdx.x % warpSize == lane && lane / SAME < GROUP && lane % SAME == 0) {
        tops[warp][lane / SAME] = top;
        totals[warp][lane / SAME] = total;
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < GROUP * DIM; i += THREADS) {
        const u32 g = i / DIM;
        const u64 part = ((u64)blockIdx.y * GROUP + g) * gridDim.x + blockIdx.x;
        float most = NOTHING, joined = 0, joined_total = 0;
#pragma unroll
        for (int k = 0; k < WARPS; ++k) most = tops[k][g] > most ? tops[k][g] : most;
#pragma unroll
        for (int k = 0; k < WARPS; ++k) {
            const float factor = exp2f(tops[k][g] - most);
            joined += factor * held[k][g][i % DIM], joined_total += factor * totals[k][g];
        }
        sums[part * DIM + i % DIM] = joined;
        if (i % DIM == 0) scales[2 * part] = most, scales[2 * part + 1] = joined_total;
    }
    if (gb_is_last(arrived + blockIdx.y, gridDim.x)) join(sums, scales, out, room);
}

// Element i of the seeded data: uniform with variance 1, rounded to a half. Queries carry the factor of the scores.
extern "C" __global__ void draw(u64 count, u64 seed, float scale, unsigned short* __restrict__ out) {
    for (u64 i = gb_thread(); i < count; i += gb_threads())
        out[i] = gb_to_half(scale * 1.7320508f * ((float)(gb_random(seed, i) >> 40) * 0x1p-23f - 1.0f));
}

// Overwrites the keys and values beyond the length of each sequence with NaN. One block per sequence and KV head.
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
