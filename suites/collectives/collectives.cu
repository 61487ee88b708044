// Data of collectives: whole numbers below 2^20 as floats, so that a sum over 16 ranks is exact in any order. Data for
// more ranks use smaller numbers.
#ifndef SHIFT
#define SHIFT 44
#endif
static __device__ __forceinline__ float drawn(u64 seed, u64 i) { return (float)(gb_random(seed, i) >> SHIFT); }

// Writes the data that a rank sends: word i is drawn from the rank's seed.
extern "C" __global__ void fill(float* sent, u64 count, u64 seed) {
    for (u64 i = gb_thread(); i < count; i += gb_threads()) sent[i] = drawn(seed, i);
}

// Counts the elements that differ from the sum of the words `first` + i of ranks [low, high); a rank's seed is `seed` +
// rank.
extern "C" __global__ void mistakes(const float* found, u64 count, u64 seed, u64 low, u64 high, u64 first, u32* wrong) {
    for (u64 i = gb_thread(); i < count; i += gb_threads()) {
        float expected = 0;
        for (u64 rank = low; rank < high; rank++) expected += drawn(seed + rank, first + i);
        if (found[i] != expected) atomicAdd(wrong, 1u);
    }
}
