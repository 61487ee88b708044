// Copies between two memories, and the patterns that show whether every word arrived.

// Copies `vectors` of 16 bytes, then `words` of 8. Each thread has FLIGHT loads in flight before it stores.
#ifndef FLIGHT
#define FLIGHT 4
#endif
extern "C" __global__ void copy(const uint4* source, uint4* target, u64 vectors, u64 words) {
    const u64 step = gb_threads();
    u64 i = gb_thread();
    for (; i + (FLIGHT - 1) * step < vectors; i += FLIGHT * step) {
        uint4 held[FLIGHT];
#pragma unroll
        for (int k = 0; k < FLIGHT; k++) held[k] = gb_word(source + i + k * step);
#pragma unroll
        for (int k = 0; k < FLIGHT; k++) target[i + k * step] = held[k];
    }
    for (; i < vectors; i += step) target[i] = source[i];
    if (gb_thread() < words) ((u64*)(target + vectors))[gb_thread()] = ((const u64*)(source + vectors))[gb_thread()];
}

// Words that differ at each index and for each seed: multiples of 2^64 / golden ratio (Knuth, TAOCP 3, §6.4).
static __device__ __forceinline__ u64 word_of(u64 seed, u64 i) { return i * 0x9e3779b97f4a7c15ULL + seed; }

extern "C" __global__ void fill_pattern(u64* out, u64 words, u64 seed) {
    for (u64 i = gb_thread(); i < words; i += gb_threads()) out[i] = word_of(seed, i);
}

extern "C" __global__ void count_wrong(const u64* found, u64 words, u64 seed, u32* wrong) {
    u32 mine = 0;
    for (u64 i = gb_thread(); i < words; i += gb_threads()) mine += found[i] != word_of(seed, i);
    if (mine) atomicAdd(wrong, mine);
}
