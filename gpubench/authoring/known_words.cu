// Known words: word i of a seed is the finaliser of splitmix64 (Steele, Lea & Flood, OOPSLA 2014), as in bench.py. Any
// suite may use them, so the file needs no prelude.
typedef unsigned long long u64;

static __device__ __forceinline__ u64 known_word(u64 seed, u64 i) {
    u64 x = seed + i * 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

extern "C" __global__ void fill_words(u64* words, u64 count, u64 seed) {
    const u64 threads = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += threads) words[i] = known_word(seed, i);
}

// Adds to `wrong` the number of words that differ from those of the seed.
extern "C" __global__ void count_wrong_words(const u64* words, u64 count, u64 seed, u64* wrong) {
    const u64 threads = (u64)gridDim.x * blockDim.x;
    u64 mine = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += threads)
        mine += words[i] != known_word(seed, i);
    if (mine != 0) atomicAdd(wrong, mine);
}
