// Many passes over a working set in one launch. The set consists of contiguous tiles. A block processes one tile after
// another, each `hop` tiles after the previous one; `hop` is odd and no larger than the grid, so that no tile is left
// out. A multiprocessor returns to a tile only after all others have processed a tile. So the first-level cache, which
// NVIDIA's loads bypass anyway, gives no hits. `vectors`, of 16 bytes each, is a power of two. So is `tile`, which is a
// multiple of a block's batch.
#define THREADS 256
#define BATCH 4  // loads in flight per thread

static __device__ __forceinline__ u64 bits_of(uint4 v) {
    return (u64)(v.x ^ v.z) | (u64)(v.y ^ v.w) << 32;
}

static __device__ __forceinline__ u64 turned(u64 bits) { return bits << 1 | bits >> 63; }

#define EACH_BATCH(i)                                                                           \
    for (u32 turn = 0, first = blockIdx.x * tile & (vectors - 1); turn < turns;                 \
         ++turn, first = (first + hop * tile) & (vectors - 1))                                  \
        for (u32 i = first + threadIdx.x; i < first + tile; i += BATCH * THREADS)

// Rotates the result by one bit per batch, so that data read twice do not cancel out.
extern "C" __global__ void __launch_bounds__(THREADS)
    cached_read(const uint4* set, u32 vectors, u32 tile, u32 turns, u32 hop, u64* parts) {
    u64 mine = 0;
    EACH_BATCH(i) {
        uint4 v[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; ++k) v[k] = gb_load_l2(set + i + k * THREADS);
        mine = turned(mine);
#pragma unroll
        for (int k = 0; k < BATCH; ++k) mine ^= bits_of(v[k]);
    }
    mine = gb_block_xor(mine);
    if (threadIdx.x == 0) parts[blockIdx.x] = mine;
}

// Computes the same result from the seed alone. Not unrolled, because compile time matters more here than speed.
extern "C" __global__ void __launch_bounds__(THREADS)
    cached_read_expected(u64 seed, u32 vectors, u32 tile, u32 turns, u32 hop, u64* parts) {
    u64 mine = 0;
#pragma unroll 1
    EACH_BATCH(i) {
        mine = turned(mine);
#pragma unroll 1
        for (u32 at = i; at < i + BATCH * THREADS; at += THREADS)
            mine ^= gb_random(seed, 2 * (u64)at) ^ gb_random(seed, 2 * (u64)at + 1);
    }
    mine = gb_block_xor(mine);
    if (threadIdx.x == 0) parts[blockIdx.x] = mine;
}

// Returns the value of vector i. Neighbours differ; all passes write the same value, so that their order does not
// matter.
static __device__ __forceinline__ uint4 written(u32 i, u32 key) {
    u32 x = (i * 0x9e3779b1u) ^ key;
    return make_uint4(x, ~x, x + i, x ^ i);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    cached_write(uint4* set, u32 vectors, u32 tile, u32 turns, u32 hop, u32 key) {
    EACH_BATCH(i) {
#pragma unroll
        for (int k = 0; k < BATCH; ++k) set[i + k * THREADS] = written(i + k * THREADS, key);
    }
}

// Adds to `wrong` the number of vectors that differ from what `cached_write` writes.
extern "C" __global__ void __launch_bounds__(THREADS)
    cached_mistakes(const uint4* set, u32 vectors, u32 key, u64* wrong) {
    for (u64 i = gb_thread(); i < vectors; i += gb_threads()) {
        uint4 found = set[i], expected = written((u32)i, key);
        bool same = found.x == expected.x && found.y == expected.y && found.z == expected.z && found.w == expected.w;
        if (!same) atomicAdd(wrong, (u64)1);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    cached_copy(uint4* __restrict__ target, const uint4* __restrict__ set, u32 vectors, u32 tile, u32 turns, u32 hop) {
    EACH_BATCH(i) {
        uint4 v[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; ++k) v[k] = gb_load_l2(set + i + k * THREADS);
#pragma unroll
        for (int k = 0; k < BATCH; ++k) target[i + k * THREADS] = v[k];
    }
}

// Shared memory, in words of 4, 8 or 16 bytes. In each pass a thread reads or writes TURNS words of its block's array.
// The lanes of a warp access neighbouring words, so that no two need the same bank at a time. Pass k starts k · `away`
// words further on. `away` is 0, but the compiler does not know it and so omits no pass. `parts` receives a word per
// thread, `cycles` the duration of the passes in cycles of the device clock, per block.
#define TURNS 4
#define SHARED_THREADS 1024

static __device__ __forceinline__ void mix(u32& mine, u32 word) { mine = mine * 5 + word; }
static __device__ __forceinline__ void mix(uint2& mine, uint2 word) { mix(mine.x, word.x), mix(mine.y, word.y); }
static __device__ __forceinline__ void mix(uint4& mine, uint4 word) {
    mix(mine.x, word.x), mix(mine.y, word.y), mix(mine.z, word.z), mix(mine.w, word.w);
}
static __device__ __forceinline__ u64 bits_of(u32 v) { return v; }
static __device__ __forceinline__ u64 bits_of(uint2 v) { return (u64)v.x | (u64)v.y << 32; }

template <class WORD>
static __device__ __forceinline__ u64 bits_of_all(const WORD (&words)[TURNS]) {
    u64 bits = 0;
    for (int k = 0; k < TURNS; ++k) bits = turned(bits) ^ bits_of(words[k]);
    return bits;
}

template <class WORD>
static __device__ __forceinline__ void shared_read(const WORD* data, u32 passes, u32 away, u64* parts, u64* cycles) {
    extern __shared__ uint4 nearby[];
    WORD* words = (WORD*)nearby + threadIdx.x;
    WORD mine[TURNS] = {};
    for (int k = 0; k < TURNS; ++k) words[k * SHARED_THREADS] = data[threadIdx.x + k * SHARED_THREADS];
    __syncthreads();
    u64 start = gb_clock();
#pragma unroll 2
    for (u32 pass = 0; pass < passes; ++pass, words += away) {
#pragma unroll
        for (int k = 0; k < TURNS; ++k) mix(mine[k], words[k * SHARED_THREADS]);
    }
    __syncthreads();
    u64 end = gb_clock();
    parts[gb_thread()] = bits_of_all(mine);
    if (threadIdx.x == 0) cycles[blockIdx.x] = end - start;
}

template <class WORD>
static __device__ __forceinline__ void shared_write(const WORD* data, u32 passes, u32 away, u64* parts, u64* cycles) {
    extern __shared__ uint4 nearby[];
    WORD *words = (WORD*)nearby + threadIdx.x, *others = (WORD*)nearby + (threadIdx.x ^ 1), mine[TURNS];
    for (int k = 0; k < TURNS; ++k) mine[k] = data[threadIdx.x + k * SHARED_THREADS];
    __syncthreads();
    u64 start = gb_clock();
#pragma unroll 2
    for (u32 pass = 0; pass < passes; ++pass, words += away) {
#pragma unroll
        for (int k = 0; k < TURNS; ++k) words[k * SHARED_THREADS] = mine[k];
    }
    __syncthreads();
    u64 end = gb_clock();
    for (int k = 0; k < TURNS; ++k) mine[k] = others[k * SHARED_THREADS];
    parts[gb_thread()] = bits_of_all(mine);
    if (threadIdx.x == 0) cycles[blockIdx.x] = end - start;
}

#define SHARED(ACCESS, BYTES, WORD)                                                                  \
    extern "C" __global__ void __launch_bounds__(SHARED_THREADS)                                     \
        shared_##ACCESS##_##BYTES(const WORD* data, u32 passes, u32 away, u64* parts, u64* cycles) { \
        shared_##ACCESS(data, passes, away, parts, cycles);                                          \
    }
SHARED(read, 4, u32)
SHARED(read, 8, uint2)
SHARED(read, 16, uint4)
SHARED(write, 4, u32)
SHARED(write, 8, uint2)
SHARED(write, 16, uint4)
