// Reads and writes of parts of a cache line: words at a stride, or chunks in random order. An order maps access t to
// the index of a word of the array. The data are the 64-bit random words of a seed (gb_random), whatever the width of
// an access.
#define THREADS 512
#define BATCH 4  // reads in flight per thread

struct Strided {
    u64 stride;  // in units of the accessed word
    __device__ __forceinline__ u64 operator()(u64 t) const { return t * stride; }
};

// Random chunks of 2^shift words, none of them twice: a bijection of [0, 2^bits) by odd factors and shifted copies.
struct Random {
    u32 bits, shift, key;
    __device__ __forceinline__ u64 operator()(u64 t) const {
        const u32 mask = 0xffffffffu >> (32 - bits), half = (bits + 1) / 2;
        u32 x = ((u32)(t >> shift) + key) & mask;
        x = (x * 0x9e3779b1u) & mask, x ^= x >> half;
        x = (x * 0x85ebca6bu) & mask, x ^= x >> half;
        x = (x * 0xc2b2ae35u) & mask, x ^= x >> half;
        return (u64)x << shift | (t & ((1u << shift) - 1));
    }
};

static __device__ __forceinline__ u64 bits_of(u32 v) { return v; }
static __device__ __forceinline__ u64 bits_of(uint2 v) { return (u64)v.x | (u64)v.y << 32; }
static __device__ __forceinline__ u64 bits_of(uint4 v) {
    return (u64)(v.x ^ v.z) | (u64)(v.y ^ v.w) << 32;
}

template <class WORD, class O>
static __device__ __forceinline__ void read_all(const WORD* words, O order, u64 count, u64* parts) {
    u64 mine = 0, t = gb_thread();
    const u64 step = gb_threads();
    for (; t + (BATCH - 1) * step < count; t += BATCH * step) {
        WORD v[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; ++k) v[k] = gb_word(words + order(t + k * step));
#pragma unroll
        for (int k = 0; k < BATCH; ++k) mine ^= bits_of(v[k]);
    }
    for (; t < count; t += step) mine ^= bits_of(gb_word(words + order(t)));
    mine = gb_block_xor(mine);
    if (threadIdx.x == 0) parts[blockIdx.x] = mine;
}

// The expected word i, folded as `bits_of` folds it.
template <class WORD>
static __device__ __forceinline__ u64 drawn(u64 seed, u64 i) {
    if (sizeof(WORD) == 4) return (u32)(gb_random(seed, i / 2) >> (32 * (i % 2)));
    if (sizeof(WORD) == 8) return gb_random(seed, i);
    return gb_random(seed, 2 * i) ^ gb_random(seed, 2 * i + 1);
}

// Writes the expected result of `read_all`. Not unrolled, because compile time matters more here than speed.
template <class WORD, class O>
static __device__ __forceinline__ void expect_all(u64 seed, O order, u64 count, u64* parts) {
    u64 mine = 0;
#pragma unroll 1
    for (u64 t = gb_thread(); t < count; t += gb_threads()) mine ^= drawn<WORD>(seed, order(t));
    mine = gb_block_xor(mine);
    if (threadIdx.x == 0) parts[blockIdx.x] = mine;
}

static __device__ __forceinline__ void make(u32& v, u64 i, u32 key) { v = ((u32)i * 0x9e3779b1u) ^ key; }
static __device__ __forceinline__ void make(uint2& v, u64 i, u32 key) { make(v.x, i, key), v.y = ~v.x; }
static __device__ __forceinline__ void make(uint4& v, u64 i, u32 key) {
    make(v.x, i, key), v.y = ~v.x, v.z = v.x + (u32)i, v.w = v.x ^ (u32)i;
}

template <class WORD, class O>
static __device__ __forceinline__ void write_all(WORD* words, O order, u64 count, u32 key) {
    for (u64 t = gb_thread(); t < count; t += gb_threads()) {
        u64 i = order(t);
        WORD v;
        make(v, i, key);
        words[i] = v;
    }
}

// Adds to `wrong` the number of words that differ from what `write_all` writes.
template <class WORD, class O>
static __device__ __forceinline__ void count_wrong(const WORD* words, O order, u64 count, u32 key, u64* wrong) {
    u64 mine = 0;
    for (u64 t = gb_thread(); t < count; t += gb_threads()) {
        u64 i = order(t);
        WORD v;
        make(v, i, key);
        mine += bits_of(gb_word(words + i)) != bits_of(v);
    }
    if (mine != 0) atomicAdd(wrong, mine);
}

#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS)

// The kernels of one width and one order that read, or those that write (WRITES is 0 or 1), so that the others need not
// be compiled. __VA_ARGS__ are the parameters of the order, and ORDER constructs it from them.
#if WRITES
#define KERNELS(NAME, WORD, ORDER, ...)                                                      \
    KERNEL NAME##_write(WORD* words, u64 count, u32 key, __VA_ARGS__) {                      \
        write_all(words, ORDER, count, key);                                                 \
    }                                                                                        \
    KERNEL NAME##_mistakes(const WORD* words, u64 count, u32 key, u64* wrong, __VA_ARGS__) { \
        count_wrong(words, ORDER, count, key, wrong);                                        \
    }
#else
#define KERNELS(NAME, WORD, ORDER, ...)                                         \
    KERNEL NAME##_read(const WORD* words, u64 count, u64* parts, __VA_ARGS__) { \
        read_all(words, ORDER, count, parts);                                   \
    }                                                                           \
    KERNEL NAME##_expected(u64 seed, u64 count, u64* parts, __VA_ARGS__) {      \
        expect_all<WORD>(seed, ORDER, count, parts);                            \
    }
#endif

KERNELS(strided_4, u32, Strided{stride}, u64 stride)
KERNELS(random_4, u32, (Random{bits, shift, turn}), u32 bits, u32 shift, u32 turn)
KERNELS(random_8, uint2, (Random{bits, shift, turn}), u32 bits, u32 shift, u32 turn)
KERNELS(random_16, uint4, (Random{bits, shift, turn}), u32 bits, u32 shift, u32 turn)
