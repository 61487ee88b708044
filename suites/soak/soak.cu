// Write patterns to memory, compare them, exchange them for their inverse, and compare results with expected ones.
//
// A pattern gives each vector of 16 bytes its own words from (pattern, seed, index); `flip` is 0, or all ones for the
// inverse. Wrong words are rare: only a thread that sees one counts it in found[0]. Record k < RECORDS, from found[1 + 3·k]
// on, has the index of the word, its bits, and the expected bits.

#define THREADS 512
#define BATCH 8
#define RECORDS 16

enum { RANDOM, ADDRESS, CHECKERBOARD, WALKING };

// A finaliser of 32 bits (C. Wellons, "Prospecting for Hash Functions", 2018): eight instructions for four words.
static __device__ __forceinline__ u32 hashed(u32 x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

static __device__ __forceinline__ u32 turned(u32 x, int bits) { return (x << bits) | (x >> (32 - bits)); }

template <int PATTERN>
static __device__ __forceinline__ uint4 expected(u64 i, u32 seed, u32 flip) {
    if (PATTERN == RANDOM) {
        const u32 x = hashed((u32)i ^ ((u32)(i >> 32) * 0x9e3779b9u) ^ seed);
        return make_uint4(x ^ flip, turned(x, 8) ^ ~flip, turned(x, 17) ^ 0x9e3779b9u ^ flip,
                          turned(x, 25) ^ 0xc2b2ae35u ^ flip);
    }
    if (PATTERN == ADDRESS) {
        const u64 first = 16 * i;
        const u32 low = (u32)first, high = (u32)(first >> 32);
        return make_uint4(low ^ flip, high ^ flip, (low | 8) ^ flip, high ^ flip);
    }
    if (PATTERN == WALKING) {
        const u64 a = 1ull << ((2 * i + seed) & 63), b = 1ull << ((2 * i + 1 + seed) & 63);
        return make_uint4((u32)a ^ flip, (u32)(a >> 32) ^ flip, (u32)b ^ flip, (u32)(b >> 32) ^ flip);
    }
    const u32 board = 0x55555555u ^ flip;
    return make_uint4(board, board, board, board);
}

static __device__ __forceinline__ u32 differing(uint4 a, uint4 b) {
    return (a.x ^ b.x) | (a.y ^ b.y) | (a.z ^ b.z) | (a.w ^ b.w);
}

static __device__ void record(u64 index, u64 seen, u64 wanted, u64* found) {
    if (seen == wanted) return;
    const u64 place = gb_add((u64)found, 1);
    if (place >= RECORDS) return;
    u64* const at = found + 1 + 3 * place;
    at[0] = index;
    at[1] = seen;
    at[2] = wanted;
}

// Counts the wrong words of 64 bits in a vector that differs.
static __device__ void record_vector(u64 i, uint4 seen, uint4 wanted, u64* found) {
    record(2 * i, seen.x | (u64)seen.y << 32, wanted.x | (u64)wanted.y << 32, found);
    record(2 * i + 1, seen.z | (u64)seen.w << 32, wanted.z | (u64)wanted.w << 32, found);
}

// Calls `each(index, in)` for the vectors first, first + step, … below `end`, BATCH of them in flight.
template <class LOAD, class EACH>
static __device__ __forceinline__ void in_batches(u64 first, u64 step, u64 end, LOAD load, EACH each) {
    u64 i = first;
    for (; i + (BATCH - 1) * step < end; i += BATCH * step) {
        uint4 in[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; ++k) in[k] = load(i + k * step);
#pragma unroll
        for (int k = 0; k < BATCH; ++k) each(i + k * step, in[k]);
    }
    for (; i < end; i += step) each(i, load(i));
}

template <int PATTERN>
static __device__ __forceinline__ void write_all(uint4* at, u64 n, u32 seed, u32 flip) {
    const u64 step = gb_threads();
#pragma unroll 4
    for (u64 i = gb_thread(); i < n; i += step) at[i] = expected<PATTERN>(i, seed, flip);
}

template <int PATTERN>
static __device__ __forceinline__ void verify_all(const uint4* at, u64 n, u32 seed, u32 flip, u64* found) {
    in_batches(gb_thread(), gb_threads(), n, [&](u64 i) { return gb_word(at + i); }, [&](u64 i, uint4 seen) {
        const uint4 wanted = expected<PATTERN>(i, seed, flip);
        if (differing(seen, wanted)) record_vector(i, seen, wanted, found);
    });
}

// Compares the pattern and writes its inverse in the same pass, downwards if `down` is set: a step of moving inversions.
template <int PATTERN>
static __device__ __forceinline__ void exchange_part(uint4* at, u64 first, u64 step, u64 end, u64 last, u32 seed,
                                                     u32 flip, u64* found) {
    in_batches(first, step, end, [&](u64 i) { return gb_word(at + (last ? last - i : i)); }, [&](u64 i, uint4 seen) {
        const u64 index = last ? last - i : i;
        const uint4 wanted = expected<PATTERN>(index, seed, flip);
        if (differing(seen, wanted)) record_vector(index, seen, wanted, found);
        at[index] = make_uint4(~wanted.x, ~wanted.y, ~wanted.z, ~wanted.w);
    });
}

#define BY_PATTERN(CALL)                                  \
    switch (pattern) {                                    \
        case RANDOM: CALL(RANDOM); break;                 \
        case ADDRESS: CALL(ADDRESS); break;               \
        case WALKING: CALL(WALKING); break;               \
        default: CALL(CHECKERBOARD);                      \
    }

extern "C" __global__ void __launch_bounds__(THREADS) write_pattern(uint4* at, u64 n, u32 pattern, u32 seed, u32 flip) {
#define WRITE(P) write_all<P>(at, n, seed, flip)
    BY_PATTERN(WRITE)
}

extern "C" __global__ void __launch_bounds__(THREADS)
    verify_pattern(const uint4* at, u64 n, u32 pattern, u32 seed, u32 flip, u64* found) {
#define VERIFY(P) verify_all<P>(at, n, seed, flip, found)
    BY_PATTERN(VERIFY)
}

extern "C" __global__ void __launch_bounds__(THREADS)
    exchange_pattern(uint4* at, u64 n, u32 pattern, u32 seed, u32 flip, u32 down, u64* found) {
#define EXCHANGE(P) exchange_part<P>(at, gb_thread(), gb_threads(), n, down ? n - 1 : 0, seed, flip, found)
    BY_PATTERN(EXCHANGE)
}

// Exchanges parts of random words for their inverse until `stop` is set, at most `most` parts a block, so that it runs
// on a few compute units for as long as other work runs on the rest. Each block has its own parts and goes on where
// its last launch ended; `done` counts its parts since the memory was written with flip 0.
extern "C" __global__ void __launch_bounds__(THREADS)
    march(uint4* at, u64 n, u64 part, u32 seed, u64* done, const u64* stop, u64 most, u64* found) {
    __shared__ u32 is_over;
    const u64 parts = n / part, own = (parts - blockIdx.x + gridDim.x - 1) / gridDim.x;
    u64 count = done[blockIdx.x];
    for (u64 turn = 0; turn < most; ++turn) {
        if (threadIdx.x == 0) is_over = (u32)gb_load_l2((u64)stop);
        __syncthreads();
        const bool ends = is_over;
        __syncthreads();
        if (ends) break;
        const u64 first = (blockIdx.x + count % own * gridDim.x) * part;
        const u32 flip = count / own % 2 ? ~0u : 0u;
        exchange_part<RANDOM>(at, first + threadIdx.x, blockDim.x, first + part, 0, seed, flip, found);
        ++count;
    }
    if (threadIdx.x == 0) done[blockIdx.x] = count;
}

// Compares every word of a result with the first one, and leaves the inverse, so that a word not written again is wrong.
extern "C" __global__ void __launch_bounds__(THREADS) compare(uint4* seen, const uint4* first, u64 n, u64* found) {
    in_batches(gb_thread(), gb_threads(), n, [&](u64 i) { return gb_word(seen + i); }, [&](u64 i, uint4 in) {
        const uint4 wanted = gb_word(first + i);
        if (differing(in, wanted)) record_vector(i, in, wanted, found);
        seen[i] = make_uint4(~wanted.x, ~wanted.y, ~wanted.z, ~wanted.w);
    });
}
