// Y = X·Wᵀ for up to GB_COLUMNS·TILES tokens. W has `rows` × `cols` elements in a format of gemv.cu (WEIGHTS 1 to 4), X
// has `tokens` × `cols` halves, Y has `tokens` × `rows`, all row by row. The weights go from memory to registers and
// from there into matrix instructions of 16 rows × GB_COLUMNS tokens × 16 columns. The order of the columns within an
// instruction is free as long as W and X use the same one, so each lane loads 16 bytes of a row as they lie in memory.
// Quantised weights lie in the order in which a warp reads them (matrix_data.cu); with PAIRED that order suits
// skinny_wgmma.cu, and few tokens of X are read in pairs of columns.
//
// A warp has PANELS × 16 rows, and keeps AHEAD × 128 columns of their weights in flight. A block has ACROSS × DOWN
// warps: DOWN groups of rows, and ACROSS warps that share the columns. gridDim.y blocks share the columns once more;
// the last block to arrive adds up the sums that the others left in `partial`. With one tile of tokens a warp loads its
// part of X itself, through the first-level cache. With more tiles, a block stages X in shared memory for all its rows,
// and ACROSS is 1. With GATED, W has 2·`rows` rows, the second half of a warp's panels is `rows` rows after the first
// half, and y[r] is gb_gated of rows r (the gate) and `rows` + r.
#ifndef GATED
#define GATED 0
#endif
#ifndef PAIRED
#define PAIRED 0
#endif
#define GROUP 128
#define HEIGHT (16 * PANELS * DOWN)  // rows of W that a block computes
#define OUTPUTS (PANELS / (1 + GATED))  // panels of y that a warp computes
#define WIDTH (GB_COLUMNS * TILES)
#define LANES (4 * GB_COLUMNS)
#define THREADS (LANES * ACROSS * DOWN)
#if WEIGHTS == 4
#define VECTORS 1  // vectors of 16 bytes that a lane reads of a row's 128 columns
#elif WEIGHTS == 3
#define VECTORS 2
#else
#define VECTORS 4
#endif

#define STAGED (TILES > 1)
// Int4 weights are multiplied with their bias, which is subtracted from the sums.
#define BIASED (WEIGHTS == 4 && TILES == 1)
#if STAGED && ACROSS > 1
#error "warps that share out the columns would need a part of X each"
#endif
#define STAGES (STAGED ? AHEAD * WIDTH * PITCH : 0)  // vectors in shared memory
#define SUMS (ACROSS * WIDTH * HEIGHT / 4)
// Vectors from one token's 128 columns to the next token's in shared memory: 16, and 4 that avoid bank conflicts.
#define PITCH 20

struct Taken {  // 128 columns as they lie in memory: a lane's quarter of its rows, and the scales of its sums
    uint4 w[PANELS][GB_ROWS][VECTORS];
#if WEIGHTS >= 3
    unsigned short scales[PANELS][4];
#endif
};

#if STAGED
#define STAGED_AT(k) staged[k]
#else
#define STAGED_AT(k) nullptr
#endif

struct Piece {  // a lane's part of an operand of a matrix instruction: 4 columns of a row
    u32 low, high;
};

static __device__ __forceinline__ u32 word_of(const uint4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Returns the columns that a lane contributes to step s of the eight steps of a panel, exact in half precision: an
// integer in the low bits of the half 1024 gives 1024 plus the integer. Of int4 weights, the high piece contains 16
// times the weights; if they are BIASED, it is multiplied by x/16. The masks of int4 come from registers, because an
// instruction holds only one constant.
static __device__ __forceinline__ Piece piece_of(const uint4 (&v)[VECTORS], int s, const Piece& mask) {
#if WEIGHTS == 4
    const u32 word = word_of(v[0], s / 2) >> (8 * (s & 1));
    const u32 low = (word & mask.low) | 0x64006400u, high = (word & mask.high) | 0x64006400u;
#if BIASED
    return {low, high};
#else
    return {gb_half2_minus(low, 0x64086408u), gb_half2_fma(high, 0x2c002c00u, 0xd480d480u)};  // high/16 - 72
#endif
#elif WEIGHTS == 3
    const u32 word = word_of(v[s / 4], s % 4);
    const u32 low = gb_bytes(word, 0x64646464u, 0x4140), high = gb_bytes(word, 0x64646464u, 0x4342);
    return {gb_half2_minus(low, 0x64806480u), gb_half2_minus(high, 0x64806480u)};
#else
    return {word_of(v[s / 2], 2 * (s & 1)), word_of(v[s / 2], 2 * (s & 1) + 1)};
#endif
}

// The offset of the i-th of the four vectors of x that lane t of a token needs for 128 columns.
static __device__ __forceinline__ u32 place_of(u32 i, u32 t) {
#if WEIGHTS == 4
    return 4 * t + i;
#elif WEIGHTS == 3
    return 8 * (i / 2) + 2 * t + i % 2;
#else
    return 4 * i + t;
#endif
}

// Returns what lane t needs of a token's 128 columns for the steps 2·pair and 2·pair + 1.
static __device__ __forceinline__ uint4 columns_of(const uint4* token, u32 pair, u32 t) {
#if PAIRED
    const u32* const two = (const u32*)(token + 4 * pair) + t;
    return make_uint4(gb_word(two), gb_word(two + 4), gb_word(two + 8), gb_word(two + 12));
#else
    return gb_word(token + place_of(pair, t));
#endif
}

#if WEIGHTS >= 3
#define STEP (64 * VECTORS)  // vectors from a lane's 128 columns to its next 128
#define APART 32             // vectors between those of the same 128 columns
#else
#define STEP (4 * VECTORS)
#define APART 4
#endif

struct Place {  // where a lane reads, from the first column on
    const uint4* w[PANELS][GB_ROWS];
    const unsigned short* scales[PANELS];
    const uint4* x;
    u32 blocks, tokens;
    Piece mask;
};

// Returns the addresses of a lane of a warp that computes y from `first` on; rows beyond the last one are replaced by
// it.
static __device__ __forceinline__ Place place_at(const uint4* w, const unsigned short* scales, const uint4* x, u32 first,
                                                 u32 rows, u32 cols, u32 tokens) {
    const u32 g = gb_row(), t = gb_part(), blocks = cols / GROUP, none = cols % GROUP;
#if !STAGED
    x += (u64)g * blocks * 16;  // the token of this lane
#endif
    // A sum at run time, or the compiler would make the masks constants.
    Place at = {{}, {}, x, blocks, tokens, {0x000f000fu + none, 0x00f000f0u + none}};
#pragma unroll
    for (int p = 0; p < PANELS; ++p) {
#if WEIGHTS >= 3
        const u32 wanted = first / 16 + p % OUTPUTS, last = (rows - 1) / 16;
        const u64 tile = (u64)((wanted < last ? wanted : last) + p / OUTPUTS * (rows / 16)) * blocks;
        at.scales[p] = scales + tile * 16;
#pragma unroll
        for (int half = 0; half < GB_ROWS; ++half)
            at.w[p][half] = w + tile * STEP + (half + g / 8) * (32 * VECTORS) + 4 * (g % 8) + t;
#else
#pragma unroll
        for (int half = 0; half < GB_ROWS; ++half) {
            const u32 wanted = first + 16 * (p % OUTPUTS) + 8 * half + g;
            at.w[p][half] = w + (u64)((wanted < rows ? wanted : rows - 1) + p / OUTPUTS * rows) * blocks * STEP + t;
        }
#endif
    }
    return at;
}

static __device__ __forceinline__ void take(Taken& taken, const Place& at, u32 block) {
#pragma unroll
    for (int p = 0; p < PANELS; ++p) {
#pragma unroll
        for (int half = 0; half < GB_ROWS; ++half)
#pragma unroll
            for (int j = 0; j < VECTORS; ++j) taken.w[p][half][j] = gb_stream(at.w[p][half] + block * STEP + APART * j);
#if WEIGHTS >= 3
#pragma unroll
        for (int i = 0; i < 4; ++i) taken.scales[p][i] = at.scales[p][block * 16 + gb_sum_row(i)];
#endif
    }
}

#if STAGED
// Starts the copy of 128 columns of all tokens into shared memory: lane t's i-th vector is vector 4·i + t of a token.
static __device__ __forceinline__ void stage(uint4* staged, const Place& at, u32 block) {
    for (u32 k = threadIdx.x; k < 16 * at.tokens; k += THREADS) {
        const u32 token = k / 16, slot = k % 16;
        gb_async_load(staged + token * PITCH + slot,
                      at.x + ((u64)token * at.blocks + block) * 16 + place_of(slot / 4, slot % 4));
    }
    gb_async_commit();
}
#endif

static __device__ __forceinline__ float float_of(unsigned short half) {
    float value, unused;
    gb_halves(half, value, unused);
    return value;
}

struct Sums {
    float c[PANELS][TILES][4];
};

// Multiplies 128 columns: eight steps of 16, then the scales of the group.
static __device__ __forceinline__ void multiply(Sums& sums, const Taken& taken, const uint4* staged, const Place& at,
                                                u32 block) {
    const u32 g = gb_row(), t = gb_part();
    Sums fresh = {};
    Sums& into = WEIGHTS >= 3 ? fresh : sums;
    float bias[TILES][4] = {};  // the bias of BIASED weights, which is subtracted: 1024 + 8, and 1024 + 16·8
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
        uint4 x[TILES];
#pragma unroll
        for (int n = 0; n < TILES; ++n) {
#if STAGED
            x[n] = staged[(GB_COLUMNS * n + g) * PITCH + 4 * pair + t];
#else
            x[n] = g < at.tokens ? columns_of(at.x + block * 16, pair, t) : make_uint4(0, 0, 0, 0);
#endif
#if BIASED
            x[n].y = gb_half2_fma(x[n].y, 0x2c002c00u, 0), x[n].w = gb_half2_fma(x[n].w, 0x2c002c00u, 0);
#endif
        }
#pragma unroll
        for (int s = 2 * pair; s < 2 * pair + 2; ++s) {
#if BIASED
            u32 too_much[2 * GB_ROWS];
#pragma unroll
            for (int half = 0; half < GB_ROWS; ++half) too_much[half] = 0xe408e408u, too_much[GB_ROWS + half] = 0xe480e480u;
#pragma unroll
            for (int n = 0; n < TILES; ++n) {
                const u32 b[2] = {word_of(x[n], 2 * (s & 1)), word_of(x[n], 2 * (s & 1) + 1)};
                gb_multiply<false>(bias[n], too_much, b);
            }
#endif
#pragma unroll
            for (int p = 0; p < PANELS; ++p) {
                u32 a[2 * GB_ROWS];
#pragma unroll
                for (int half = 0; half < GB_ROWS; ++half) {
                    const Piece piece = piece_of(taken.w[p][half], s, at.mask);
                    a[half] = piece.low, a[GB_ROWS + half] = piece.high;
                }
#pragma unroll
                for (int n = 0; n < TILES; ++n) {
                    const u32 b[2] = {word_of(x[n], 2 * (s & 1)), word_of(x[n], 2 * (s & 1) + 1)};
                    gb_multiply<WEIGHTS == 2>(into.c[p][n], a, b);
                }
            }
        }
    }
#if WEIGHTS >= 3
#pragma unroll
    for (int p = 0; p < PANELS; ++p) {
        float scale[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) scale[i] = float_of(taken.scales[p][i]);
#pragma unroll
        for (int n = 0; n < TILES; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) sums.c[p][n][i] += scale[i] * (fresh.c[p][n][i] + bias[n][i]);
    }
#endif
}

// Writes the sums of a warp, beside those of the warps that compute the same rows.
static __device__ __forceinline__ void leave(float (&tile)[WIDTH][HEIGHT], const Sums& sums, u32 down) {
#pragma unroll
    for (int p = 0; p < PANELS; ++p)
#pragma unroll
        for (int n = 0; n < TILES; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                tile[GB_COLUMNS * n + gb_sum_column(i)][16 * (PANELS * down + p) + gb_sum_row(i)] = sums.c[p][n][i];
}

static __device__ __forceinline__ unsigned short narrow(float value) {
#if WEIGHTS == 2
    const u32 bits = __float_as_uint(value);
    return (unsigned short)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
#else
    return gb_to_half(value);
#endif
}

static __device__ __forceinline__ unsigned short result_of(const float (&total)[1 + GATED]) {
    return narrow(GATED ? gb_gated(total[0], total[GATED]) : total[0]);
}

// The previous launch may write x, so this kernel loads its first weights before it waits for that launch.
extern "C" __global__ void __launch_bounds__(THREADS)
    skinny(const uint4* __restrict__ w, const unsigned short* __restrict__ scales, const uint4* x, unsigned short* y,
           u32 rows, u32 cols, u32 tokens, float* partial, u32* arrived) {
    __shared__ uint4 room[STAGES > SUMS ? STAGES : SUMS];  // for X during the multiplication, then for the sums
    float(&tiles)[ACROSS][WIDTH][HEIGHT] = *(float(*)[ACROSS][WIDTH][HEIGHT])room;
    const u32 warp = threadIdx.x / LANES, down = warp % DOWN, across = warp / DOWN, blocks = cols / GROUP;
    const u32 first_row = blockIdx.x * (16 * OUTPUTS * DOWN);
    const Place at = place_at(w, scales, x, first_row + 16 * OUTPUTS * down, rows, cols, tokens);
    const u32 shares = gridDim.y * ACROSS, share = blockIdx.y * ACROSS + across;
    const u32 first = (u32)((u64)blocks * share / shares), end = (u32)((u64)blocks * (share + 1) / shares);
    Sums sums = {};
    Taken taken[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k)
        if (first + k < end) take(taken[k], at, first + k);
    gb_allow_next();
#if STAGED
    // Fill the places of missing tokens.
    for (u32 i = threadIdx.x; i < STAGES; i += THREADS) room[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
#endif
    gb_wait_for_previous();
#if STAGED
    uint4(&staged)[AHEAD][WIDTH * PITCH] = *(uint4(*)[AHEAD][WIDTH * PITCH])room;
#pragma unroll
    for (int k = 0; k < AHEAD; ++k)
        if (first + k < end) stage(staged[k], at, first + k);
#endif
    for (u32 block = first; block < end; block += AHEAD) {
#pragma unroll
        for (int k = 0; k < AHEAD; ++k)
            if (block + k < end) {
#if STAGED
                if (block + k + AHEAD <= end) gb_async_wait<AHEAD - 1>();
                else gb_async_wait<0>();
                __syncthreads();
#endif
                multiply(sums, taken[k], STAGED_AT(k), at, block + k);
                if (block + AHEAD + k < end) take(taken[k], at, block + AHEAD + k);
#if STAGED
                __syncthreads();  // the next copies, or the sums, overwrite this memory
                if (block + AHEAD + k < end) stage(staged[k], at, block + AHEAD + k);
#endif
            }
    }
    leave(tiles[across], sums, down);
    __syncthreads();
    const u64 size = (u64)tokens * rows;
    for (u32 i = threadIdx.x; i < tokens * (16 * OUTPUTS * DOWN); i += THREADS) {
        const u32 token = i / (16 * OUTPUTS * DOWN), output = i % (16 * OUTPUTS * DOWN);
        const u32 row = output / (16 * OUTPUTS) * (16 * PANELS) + output % (16 * OUTPUTS);
        const u64 place = (u64)token * rows + first_row + output;
        if (first_row + output >= rows) continue;
        float total[1 + GATED] = {};  // always added in the same order
#pragma unroll
        for (int half = 0; half <= GATED; ++half)
#pragma unroll
            for (int part = 0; part < ACROSS; ++part) total[half] += tiles[part][token][row + half * 16 * OUTPUTS];
        if (gridDim.y == 1) y[place] = result_of(total);
        else
            for (int half = 0; half <= GATED; ++half)
                partial[(blockIdx.y * (1 + GATED) + half) * size + place] = total[half];
    }
    if (gridDim.y == 1 || !gb_is_last(arrived + blockIdx.x, gridDim.y)) return;
    for (u32 i = threadIdx.x; i < tokens * (16 * OUTPUTS * DOWN); i += THREADS) {
        const u32 token = i / (16 * OUTPUTS * DOWN), row = first_row + i % (16 * OUTPUTS * DOWN);
        const u64 place = (u64)token * rows + row;
        if (row >= rows) continue;
        float total[1 + GATED] = {};
        for (u32 part = 0; part < gridDim.y; ++part)
#pragma unroll
            for (int half = 0; half <= GATED; ++half)
                total[half] += gb_load_l2(partial + (part * (1 + GATED) + half) * size + place);
        y[place] = result_of(total);
    }
}
