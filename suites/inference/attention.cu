// Attention of one new token per sequence over its cached keys and values. A block processes a part of the tokens of
// one sequence and one KV head. The last block to arrive joins the parts of its heads.
//
//   DIM    elements of a head: 64 or 128, with MATRIX also 256
//   GROUP  heads that share one KV head: a power of two up to 8, with MATRIX any number
//   MATRIX 1 if matrix instructions compute scores and results (NVIDIA, since sm_80)
//   FRESH  the newest tokens of each sequence that have queries: 1, with MATRIX more; each sees the tokens up to itself
//   EIGHT  with MATRIX, 1 if keys and values are e4m3 in place of halves (since sm_89)
//   PAGE   tokens of a page: 0 for one run of `capacity` tokens per sequence, else a multiple of 16
//   THREADS of a block: 128, 256 or 512, with MATRIX 64 or 128
//   ROTARY 1 if the kernel rotates queries and the newest key, and appends the newest key and value to the cache
//
// Keys and values are halves. Contiguous: [slot][KV head][capacity][DIM], and `table` has the slot of each sequence.
// Paged: [page][KV head][PAGE][DIM], and `table` has the pages of each sequence in order. Queries and results:
// [sequence][head][DIM]; the heads GROUP·k to GROUP·k + GROUP - 1 share the KV head k. With FRESH > 1 they are
// [sequence][KV head][fresh token][head of the group][DIM]. The queries carry the factor
// log2(e)/√DIM, so that scores are exponents of two. With ROTARY, `queries` has a row for each sequence: its heads,
// then the newest keys and the newest values of its KV heads. These queries do not carry the factor yet.
//
// Without MATRIX, a team of DIM/8 lanes holds a token, 16 bytes per lane. It has TOKENS tokens of keys and of values in flight. Adding
// up TOKENS·GROUP products over a team leaves one score in each lane, or the same score in several lanes.
#ifndef ROTARY
#define ROTARY 0
#endif
#ifndef MATRIX
#define MATRIX 0
#endif
#ifndef FRESH
#define FRESH 1
#endif
#ifndef THREADS
#define THREADS 128
#endif
#ifndef EIGHT
#define EIGHT 0
#endif
#define ROWS (GROUP * FRESH)  // rows of queries that share a KV head
#if GB_HIP
#define BOUNDS THREADS
#define WARP_LANES 64
#elif MATRIX
#define BOUNDS THREADS, (TILES * DIM > 128 ? 256 : DIM == 64 ? 768 : EIGHT ? 640 : 512) / THREADS
#define WARP_LANES 32
#else
#define BOUNDS THREADS, ((GROUP < 8 ? 512 : 256) / THREADS)  // resident blocks, which limit the registers of a thread
#define WARP_LANES 32
#endif
#define WARPS (THREADS / WARP_LANES)
#define MOST_PARTS (ROWS > 16 ? 64 : 256)  // parts of a sequence
#define LANES (DIM / 8)  // vectors of 16 bytes of a row of halves
#define VECTOR (EIGHT ? 16 : 8)  // elements in 16 bytes of keys and values
#define STORED (DIM / VECTOR)    // vectors of a row of keys or values
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

#if !MATRIX
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

#endif

// Returns the place of a token's row in vectors of 16 bytes; `page` is the page of the token, or the slot.
static __device__ __forceinline__ u64 row_of(u32 page, u32 token, u32 kv_head, u32 kv_heads, u32 capacity) {
#if PAGE
    return (((u64)page * kv_heads + kv_head) * PAGE + token % PAGE) * STORED;
#else
    return (((u64)page * kv_heads + kv_head) * capacity + token) * STORED;
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

// A block's part of a sequence: `number` of `parts`, and the number of its KV head among those of all sequences.
struct Part {
    u32 sequence, number, parts, head;
};

static __device__ __forceinline__ Part part_of(const uint4* __restrict__ items) {
    const uint4 item = gb_word(items + blockIdx.x);
    return {item.x, item.y, item.z, item.x * gridDim.y + blockIdx.y};
}

#if !MATRIX
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
#endif

// Joins the parts of the heads. First a warp computes the factors of each head in turn. Then SLICES threads share the
// parts of each four elements.
#define COLUMNS (ROWS * DIM / 4)
#define SLICES (THREADS > COLUMNS ? THREADS / COLUMNS : 1)
#define ROOM_OF_JOIN (ROWS * MOST_PARTS / 4 + SLICES * COLUMNS)
static __device__ __forceinline__ void join(const Part& part, const float* sums, const float* scales, uint2* out,
                                            uint4* room) {
    float(&factors)[ROWS][MOST_PARTS] = *(float(*)[ROWS][MOST_PARTS])room;
    uint4(&shares)[SLICES][COLUMNS] = *(uint4(*)[SLICES][COLUMNS])(room + ROWS * MOST_PARTS / 4);
    const u32 parts = part.parts, lane = threadIdx.x % warpSize, first = blockIdx.x - part.number, apart = gridDim.y * ROWS;
    for (u32 g = threadIdx.x / warpSize; g < ROWS; g += WARPS) {
        const uint2* scale = (const uint2*)scales + (u64)first * apart + blockIdx.y * ROWS + g;
        float top[MOST_PARTS / 32], sum[MOST_PARTS / 32], most = NOTHING, total = 0;
#pragma unroll
        for (int i = 0; i < MOST_PARTS / 32; ++i) {
            const u32 k = lane + i * warpSize;
            const uint2 found = k < parts ? gb_load_l2(scale + k * apart) : make_uint2(__float_as_uint(NOTHING), 0);
            top[i] = __uint_as_float(found.x), sum[i] = __uint_as_float(found.y);
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
        const u64 row = (u64)first * apart + blockIdx.y * ROWS + g;
        const uint4* sum = (const uint4*)sums + row * (DIM / 4) + column % (DIM / 4);
        float joined[4] = {0, 0, 0, 0};
#pragma unroll 8
        for (u32 k = slice; k < parts; k += SLICES) {
            const uint4 found = gb_load_l2(sum + k * apart * (DIM / 4));
            const float factor = factors[g][k];
            joined[0] += factor * __uint_as_float(found.x);
            joined[1] += factor * __uint_as_float(found.y);
            joined[2] += factor * __uint_as_float(found.z);
            joined[3] += factor * __uint_as_float(found.w);
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
        out[(u64)part.head * COLUMNS + column] = make_uint2(pair_of(joined[0], joined[1]), pair_of(joined[2], joined[3]));
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

static __device__ __forceinline__ uint4 eight_of(const float (&wide)[8]) {
    return make_uint4(pair_of(wide[0], wide[1]), pair_of(wide[2], wide[3]), pair_of(wide[4], wide[5]),
                      pair_of(wide[6], wide[7]));
}

// Loads cosine and sine of the angles of this lane's elements at the position of the newest token.
static __device__ __forceinline__ void turn_of(float (&turn)[16], const uint4* __restrict__ turns, u32 length, u32 lane) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint4 four = gb_word(turns + ((u64)(length - 1) * (DIM / 2) + lane % (LANES / 2) * 8) / 2 + i);
        turn[4 * i] = __uint_as_float(four.x), turn[4 * i + 1] = __uint_as_float(four.y);
        turn[4 * i + 2] = __uint_as_float(four.z), turn[4 * i + 3] = __uint_as_float(four.w);
    }
}

// Appends the newest key and value to the cache, by the first team of the block, and keeps them in `newest`.
static __device__ __forceinline__ void append(uint4 (&newest)[2][LANES], uint4* keys, uint4* values, const uint4* own,
                                              const float (&turn)[16], const Rows& rows, u64 at) {
    if (threadIdx.x < LANES) {
        const u32 lane = threadIdx.x;
        const uint4* row = own + (rows.kv_heads * GROUP + rows.kv_head) * LANES;
        float wide[8];
        rotate(row, lane, turn, wide);
        newest[0][lane] = eight_of(wide);
        newest[1][lane] = gb_word(row + rows.kv_heads * LANES + lane);
        keys[at + lane] = newest[0][lane], values[at + lane] = newest[1][lane];
    }
    __syncthreads();
}
#endif

// Adds up what the warps of a block hold of each row: DIM sums, the maximum of the scores and the sum of their powers.
static __device__ __forceinline__ void leave(const float (&held)[WARPS][ROWS][DIM], const float (&tops)[WARPS][ROWS],
                                             const float (&totals)[WARPS][ROWS], float* sums, float* scales) {
    __syncthreads();
    for (u32 i = threadIdx.x; i < ROWS * DIM; i += THREADS) {
        const u32 g = i / DIM;
        const u64 row = ((u64)blockIdx.x * gridDim.y + blockIdx.y) * ROWS + g;
        float most = NOTHING, joined = 0, joined_total = 0;
#pragma unroll
        for (int k = 0; k < WARPS; ++k) most = tops[k][g] > most ? tops[k][g] : most;
#pragma unroll
        for (int k = 0; k < WARPS; ++k) {
            const float factor = exp2f(tops[k][g] - most);
            joined += factor * held[k][g][i % DIM], joined_total += factor * totals[k][g];
        }
        sums[row * DIM + i % DIM] = joined;
        if (i % DIM == 0) scales[2 * row] = most, scales[2 * row + 1] = joined_total;
    }
}
#define ROOM (WARPS * ROWS * DIM > 4 * ROOM_OF_JOIN ? WARPS * ROWS * DIM / 4 : ROOM_OF_JOIN)

// The grid is (items, KV heads). An item is a part of a sequence: the number of the sequence, that of the part and the
// number of parts. The items of a sequence lie together, and its part k has the tokens from k·`chunk` on; `chunk` is a
// multiple of the tokens that a block takes at once. For each item, KV head and row of queries the kernel writes DIM sums
// to `sums`, and the maximum of the scores and the sum of their powers to `scales`. The previous launch may write
// `queries`, so keys and values are loaded before it has ended. With ROTARY, `turns` has cosine and sine of the DIM/2
// angles of every position, and `scale` is a factor of the queries.
#if MATRIX
// Scores are K·Qᵀ and results Vᵀ·Pᵀ, by instructions of 16 rows × 8 columns × 16 inner places: the columns are rows of
// queries in TILES tiles of eight. A warp takes 16 tokens. The inner places of the scores are elements of a head, whose
// order is free, so each lane loads 16 bytes of a key as they lie in memory. The inner places of the results are tokens:
// a lane loads 16 bytes of four values and joins the halves of two tokens to words.
#define TILES ((ROWS + 7) / 8)
#define PITCH (LANES + 4)  // vectors from one row of queries to the next in shared memory; 4 avoid bank conflicts

static __device__ __forceinline__ u32 word_of(const uint4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

#define KEYS (STORED / 4)    // vectors that a lane has of a key
#define VALUES (STORED / 8)  // vectors that a lane has of a value
struct Taken {               // a lane's part of 16 tokens: of two keys, and of four values
    uint4 key[2][KEYS], value[4][VALUES];
};

// Returns elements 2·i and 2·i + 1 of a vector of keys or values as halves.
static __device__ __forceinline__ u32 two_of(const uint4& v, int i) {
#if EIGHT
    return gb_e4m3_halves(word_of(v, i / 2) >> (16 * (i % 2)));
#else
    return word_of(v, i);
#endif
}

// Returns the row of a token in the cache; tokens beyond `end` are replaced by the last one.
static __device__ __forceinline__ u64 place_of(const Rows& rows, u32 page, u32 token, u32 end) {
    return row_of(page, token < end ? token : end - 1, rows.kv_head, rows.kv_heads, rows.capacity);
}

static __device__ __forceinline__ void take_keys(Taken& taken, const uint4* keys, const Rows& rows, u32 page, u32 at,
                                                 u32 end) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const uint4* row = keys + place_of(rows, page, at + gb_row() + 8 * half, end) + gb_part();
#pragma unroll
        for (int j = 0; j < KEYS; ++j) taken.key[half][j] = gb_stream(row + 4 * j);
    }
}

static __device__ __forceinline__ u32 token_of(int k) { return 2 * gb_part() + k % 2 + 8 * (k / 2); }

static __device__ __forceinline__ void take_values(Taken& taken, const uint4* values, const Rows& rows, u32 page, u32 at,
                                                   u32 end) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const uint4* row = values + place_of(rows, page, at + token_of(k), end) + gb_row();
#pragma unroll
        for (int j = 0; j < VALUES; ++j) taken.value[k][j] = gb_stream(row + 8 * j);
    }
}

struct Gathered {  // a lane's sums over the tokens of its warp, of two columns of each tile
    float sum[TILES][DIM / 16][4], top[TILES][2], total[TILES][2];
};

// Multiplies 16 keys from token `at` on with all queries, and returns the powers of their scores as the second operand of
// the results. Rows whose query is of an earlier fresh token see fewer tokens.
static __device__ __forceinline__ void weigh(u32 (&powers)[TILES][2], Gathered& all, const Taken& taken,
                                             const uint4* asked, u32 at, u32 end, u32 length) {
#pragma unroll
    for (int n = 0; n < TILES; ++n) {
        float score[4] = {0, 0, 0, 0};
#pragma unroll
        for (int j = 0; j < KEYS; ++j) {
            uint4 query[VECTOR / 8];
#pragma unroll
            for (int i = 0; i < VECTOR / 8; ++i)
                query[i] = asked[(8 * n + gb_row()) * PITCH + (4 * j + gb_part()) * (VECTOR / 8) + i];
#pragma unroll
            for (int s = 0; s < VECTOR / 4; ++s) {
                const u32 a[4] = {two_of(taken.key[0][j], 2 * s), two_of(taken.key[1][j], 2 * s),
                                  two_of(taken.key[0][j], 2 * s + 1), two_of(taken.key[1][j], 2 * s + 1)};
                const u32 b[2] = {word_of(query[s / 2], 2 * (s % 2)), word_of(query[s / 2], 2 * (s % 2) + 1)};
                gb_multiply<false>(score, a, b);
            }
        }
        float power[4];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            const u32 later = FRESH > 1 ? FRESH - 1 - (8 * n + gb_sum_column(c)) / GROUP % FRESH : 0;
            const u32 seen = length - later < end ? length - later : end;
            const bool sees[2] = {at + gb_row() < seen, at + gb_row() + 8 < seen};
            const float low = sees[0] ? score[c] : NOTHING, high = sees[1] ? score[c + 2] : NOTHING;
            float most = low > high ? low : high;
#pragma unroll
            for (int mask = 4; mask < 32; mask *= 2) {
                const float other = gb_shuffle_xor(most, mask);
                most = other > most ? other : most;
            }
            most = all.top[n][c] > most ? all.top[n][c] : most;
            const float kept = exp2f(all.top[n][c] - most);
            all.top[n][c] = most;
            power[c] = sees[0] ? exp2f(low - most) : 0, power[c + 2] = sees[1] ? exp2f(high - most) : 0;
            all.total[n][c] = all.total[n][c] * kept + power[c] + power[c + 2];
#pragma unroll
            for (int m = 0; m < DIM / 16; ++m) all.sum[n][m][c] *= kept, all.sum[n][m][c + 2] *= kept;
        }
#pragma unroll
        for (int half = 0; half < 2; ++half)
            powers[n][half] = gb_transpose(pair_of(power[2 * half], power[2 * half + 1]));
    }
}

static __device__ __forceinline__ void gather(Gathered& all, const Taken& taken, const u32 (&powers)[TILES][2]) {
#pragma unroll
    for (int j = 0; j < VALUES; ++j)
#pragma unroll
        for (int i = 0; i < VECTOR / 2; ++i) {
            u32 word[4];
#pragma unroll
            for (int k = 0; k < 4; ++k) word[k] = two_of(taken.value[k][j], i);
            const u32 a[4] = {gb_bytes(word[0], word[1], 0x5410), gb_bytes(word[0], word[1], 0x7632),
                              gb_bytes(word[2], word[3], 0x5410), gb_bytes(word[2], word[3], 0x7632)};
#pragma unroll
            for (int n = 0; n < TILES; ++n) gb_multiply<false>(all.sum[n][VECTOR / 2 * j + i], a, powers[n]);
        }
}

extern "C" __global__ void __launch_bounds__(BOUNDS)
    attend(uint4* keys, uint4* values, const u32* __restrict__ table, const u32* __restrict__ lengths,
           const uint4* queries, uint2* out, float* sums, float* scales, u32* arrived, const uint4* __restrict__ turns,
           float scale, const uint4* __restrict__ items, u32 capacity, u32 chunk) {
    __shared__ uint4 room[ROOM], asked[8 * TILES * PITCH];
    __shared__ float tops[WARPS][ROWS], totals[WARPS][ROWS];
    float(&held)[WARPS][ROWS][DIM] = *(float(*)[WARPS][ROWS][DIM])room;
    const Part part = part_of(items);
    const u32 sequence = part.sequence, kv_head = blockIdx.y, kv_heads = gridDim.y, warp = threadIdx.x / 32;
    const u32 first = part.number * chunk, length = lengths[sequence];
    const u32 end = first + chunk < length ? first + chunk : length;
    const Rows rows = {kv_head, kv_heads, capacity, 0};
    Taken taken;
    u32 at = first + 16 * warp;
    if (at < end) {
        const u32 page = page_of(table, sequence, at, capacity);
        take_keys(taken, keys, rows, page, at, end);
        take_values(taken, values, rows, page, at, end);
    }
#if ROTARY
    __shared__ uint4 newest[2][LANES];
    float turn[16];
    turn_of(turn, turns, length, threadIdx.x % LANES);
    const uint4* own = queries + (u64)sequence * kv_heads * (GROUP + 2) * LANES;  // the row of this sequence
#endif
    gb_allow_next();
    gb_wait_for_previous();
    for (u32 i = threadIdx.x; i < 8 * TILES * LANES; i += THREADS) {
        uint4 query = make_uint4(0, 0, 0, 0);
        if (i < ROWS * LANES) {
#if ROTARY
            float wide[8];
            rotate(own + (kv_head * GROUP + i / LANES) * LANES, i % LANES, turn, wide);
#pragma unroll
            for (int k = 0; k < 8; ++k) wide[k] *= scale;
            query = eight_of(wide);
#else
            query = gb_word(queries + (u64)part.head * ROWS * LANES + i);
#endif
        }
        asked[i / LANES * PITCH + i % LANES] = query;
    }
    __syncthreads();
#if ROTARY
    if (first < length && end == length) {
        const u32 place = page_of(table, sequence, length - 1, capacity);
        append(newest, keys, values, own, turn, rows, row_of(place, length - 1, kv_head, kv_heads, capacity));
    }
#endif
    Gathered all = {};
#pragma unroll
    for (int n = 0; n < TILES; ++n) all.top[n][0] = all.top[n][1] = NOTHING;
    for (; at < end; at += 16 * WARPS) {
        const u32 ahead = at + 16 * WARPS;
        const u32 page = ahead < end ? page_of(table, sequence, ahead, capacity) : 0;
#if ROTARY
        if (at + 16 >= length) {  // the newest token's row is being written
#pragma unroll
            for (int half = 0; half < 2; ++half)
                if (at + gb_row() + 8 * half + 1 >= length)
#pragma unroll
                    for (int j = 0; j < KEYS; ++j) taken.key[half][j] = newest[0][4 * j + gb_part()];
#pragma unroll
            for (int k = 0; k < 4; ++k)
                if (at + token_of(k) + 1 >= length)
#pragma unroll
                    for (int j = 0; j < VALUES; ++j) taken.value[k][j] = newest[1][8 * j + gb_row()];
        }
#endif
        u32 powers[TILES][2];
        weigh(powers, all, taken, asked, at, end, length);
        if (ahead < end) take_keys(taken, keys, rows, page, ahead, end);
        gather(all, taken, powers);
        if (ahead < end) take_values(taken, values, rows, page, ahead, end);
    }
#pragma unroll
    for (int n = 0; n < TILES; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
#pragma unroll
            for (int mask = 4; mask < 32; mask *= 2) all.total[n][c] += gb_shuffle_xor(all.total[n][c], mask);
            const u32 row = 8 * n + gb_sum_column(c);
            if (row >= ROWS) continue;
            if (gb_row() == 0) tops[warp][row] = all.top[n][c], totals[warp][row] = all.total[n][c];
#pragma unroll
            for (int m = 0; m < DIM / 16; ++m) {
                const int vector = 8 * (m / (VECTOR / 2)) + gb_row(), place = 2 * (m % (VECTOR / 2));
                float2* to = (float2*)&held[warp][row][vector * VECTOR + place];
                *to = make_float2(all.sum[n][m][c], all.sum[n][m][c + 2]);
            }
        }
    leave(held, tops, totals, sums, scales);
    if (gb_is_last(arrived + part.head, part.parts)) join(part, sums, scales, out, room);
}
#else
extern "C" __global__ void __launch_bounds__(BOUNDS)
    attend(uint4* keys, uint4* values, const u32* __restrict__ table, const u32* __restrict__ lengths,
           const uint4* queries, uint2* out, float* sums, float* scales, u32* arrived, const uint4* __restrict__ turns,
           float scale, const uint4* __restrict__ items, u32 capacity, u32 chunk) {
    __shared__ uint4 room[ROOM];
    __shared__ float tops[WARPS][GROUP], totals[WARPS][GROUP];
    float(&held)[WARPS][GROUP][DIM] = *(float(*)[WARPS][GROUP][DIM])room;
    const Part part = part_of(items);
    const u32 sequence = part.sequence, kv_head = blockIdx.y, kv_heads = gridDim.y;
    const u32 team = threadIdx.x / LANES, lane = threadIdx.x % LANES, start = threadIdx.x % warpSize - lane;
    const u32 first = part.number * chunk, length = lengths[sequence];
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
    turn_of(turn, turns, length, lane);
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
        widen(gb_word(queries + ((u64)part.head * GROUP + g) * LANES + lane), query[g]);
#endif
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[g][i] = 0;
    }
#if ROTARY
    if (first < length && end == length) {
        const u32 place = page_of(table, sequence, length - 1, capacity);
        append(newest, keys, values, own, turn, rows, row_of(place, length - 1, kv_head, kv_heads, capacity));
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
    leave(held, tops, totals, sums, scales);
    if (gb_is_last(arrived + part.head, part.parts)) join(part, sums, scales, out, room);
}
#endif

// Element i of the seeded data: uniform with variance 1, rounded to a half. Queries carry the factor of the scores.
extern "C" __global__ void draw(u64 count, u64 seed, float scale, unsigned short* __restrict__ out) {
    for (u64 i = gb_thread(); i < count; i += gb_threads())
        out[i] = gb_to_half(scale * 1.7320508f * ((float)(gb_random(seed, i) >> 40) * 0x1p-23f - 1.0f));
}

// Eight numbers of e4m3 in each word of 64 bits: their bytes are random, their magnitudes below 2.
extern "C" __global__ void draw_eight(u64 words, u64 seed, u64* __restrict__ out) {
    for (u64 i = gb_thread(); i < words; i += gb_threads()) out[i] = gb_random(seed, i) & 0xbfbfbfbfbfbfbfbfull;
}

// Overwrites the keys and values beyond the length of each sequence with NaN. One block per sequence and KV head.
extern "C" __global__ void poison_beyond(uint4* __restrict__ keys, uint4* __restrict__ values,
                                         const u32* __restrict__ table, const u32* __restrict__ lengths, u32 kv_heads,
                                         u32 capacity) {
    const u32 sequence = blockIdx.x / kv_heads, kv_head = blockIdx.x % kv_heads, length = lengths[sequence];
    // NaN in halves and in e4m3
    const uint4 poison = make_uint4(0x7fff7fffu, 0x7fff7fffu, 0x7fff7fffu, 0x7fff7fffu);
    for (u32 i = length * STORED + threadIdx.x; i < capacity * STORED; i += blockDim.x) {
        const u32 token = i / STORED;
        const u64 at = row_of(page_of(table, sequence, token, capacity), token, kv_head, kv_heads, capacity) + i % STORED;
        keys[at] = poison;
        values[at] = poison;
    }
}
